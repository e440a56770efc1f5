"""Lemma 5: Young's inequality with weights 1/β and 1/(1-β) (Kim & Oh 2026, Lemma 5)."""

from fractions import Fraction

import numpy as np
import torch

from muonlab import SGDM
from tests.paper.simulation import bowl, frobenius


def square(A):
    return sum(a * a for a in A)


def young(A, B, beta, first=lambda b: 1 / b, second=lambda b: 1 / (1 - b)):
    """Check ``‖A+B‖² ≤ first(β)‖A‖² + second(β)‖B‖²`` in rationals."""
    return square([a + b for a, b in zip(A, B, strict=True)]) <= first(beta) * square(A) + second(beta) * square(B)


def test_parallel_matrices_attain_it_so_smaller_or_equal_weights_are_rejected():
    beta = Fraction(3, 4)
    A, B = [beta] * 6, [1 - beta] * 6
    assert young(A, B, beta)
    assert not young(A, B, beta, first=lambda b: Fraction(99, 100) / b)
    assert not young(A, B, beta, second=lambda b: Fraction(99, 100) / (1 - b))
    assert not young(A, B, beta, first=lambda _: 1, second=lambda _: 1)
    assert not young(A, B, beta, first=lambda b: 1 / b, second=lambda b: 1 / b)


def test_it_bounds_the_momentum_error_of_the_optimizer_step_by_step():
    """The use made of it in Theorem 3: ``E_t = β(E_{t-1} + ∇f(W_{t-2}) - ∇f(W_{t-1})) + (1-β)ξ_t`` without noise."""
    objective = bowl(3)
    for beta in [0.3, 0.6, 0.9]:
        weight = torch.nn.Parameter(torch.from_numpy(np.random.default_rng(1).standard_normal((3, 3))))
        optimizer = SGDM([weight], lr=(1 - beta) ** 2, momentum=beta)
        errors, gradients, shortfall = [], [], 0
        for _ in range(30):
            gradients.append(objective.gradient(weight.detach().numpy().copy()))
            before = weight.detach().clone()
            weight.grad = torch.from_numpy(gradients[-1])
            optimizer.step()
            momentum = ((before - weight.detach()) / (1 - beta) ** 2).numpy()
            errors.append((1 - beta) * momentum - gradients[-1])
        for t in range(1, 30):
            moved = gradients[t - 1] - gradients[t]
            assert np.allclose(errors[t], beta * (errors[t - 1] + moved), rtol=1e-6, atol=1e-9)
            parts = beta * frobenius(errors[t - 1]) ** 2, beta**2 / (1 - beta) * frobenius(moved) ** 2
            assert frobenius(errors[t]) ** 2 <= sum(parts) * (1 + 1e-6) + 1e-15
            shortfall += frobenius(errors[t]) ** 2 > beta * parts[0] + parts[1]  # β² in place of β
        assert shortfall > 0
