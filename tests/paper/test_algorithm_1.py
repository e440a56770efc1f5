"""Algorithm 1: Muon with Newton-Schulz, line by line (Kim & Oh 2026, Algorithm 1)."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest

from muonlab import Muon
from muonlab.theory import muon_bound
from tests.paper.simulation import frobenius, gaussian, observed_error, quadratic, run, trained, wells

T = 25


def lines_5_to_9(q, kappa, scale=lambda M: max(1.0, frobenius(M))):
    """The orthogonalization as printed, in plain numpy."""
    c = [math.comb(2 * s, s) / 4**s for s in range(kappa + 1)]

    def direction(M):
        X = M / scale(M)
        for _ in range(q):
            U = np.eye(len(X)) - X @ X.T
            X = sum(c_s * np.linalg.matrix_power(U, s) for s, c_s in enumerate(c)) @ X
        return X

    return direction


def problem(shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return quadratic(rng.standard_normal((4, shape[0])) / 2, rng.standard_normal(shape)), rng.standard_normal(shape)


def test_the_optimizer_walks_the_path_of_the_printed_algorithm():
    for q, kappa, shape, sigma in product([0, 3], [1, 2, 3], [(3, 3), (2, 6), (5, 2)], [0.0, 2.0]):
        objective, start = problem(shape)
        noise = gaussian(sigma, 3) if sigma else None
        values, _ = trained(
            partial(Muon.paper, lr=0.05, momentum=0.9, q=q, kappa=kappa),
            objective,
            start,
            T=T,
            noise=noise,
        )
        printed = run(objective, start, lines_5_to_9(q, kappa), eta=0.05, beta=0.9, T=T, noise=noise)
        np.testing.assert_allclose(values, printed.values, rtol=1e-11, atol=1e-13)


def test_any_other_setting_leaves_the_path():
    for other in [
        {"q": 2},
        {"kappa": 1},
        {"variant": "experiments"},
        {"polar": "svd"},
        {"nesterov": True},
        {"momentum_form": "ema"},
        {"scale": "spectral"},
        {"weight_decay": 0.01},
    ]:
        objective, start = wells(2), 0.5 * problem((2, 6))[1]  # momenta on both sides of the kink of line 5
        settings = {"lr": 0.05, "momentum": 0.5, **other}
        values, _ = trained(partial(Muon.paper, **settings), objective, start, T=T)
        printed = run(objective, start, lines_5_to_9(3, 2), eta=0.05, beta=0.5, T=T)
        sizes = [frobenius(M) for M in printed.momenta]
        assert min(sizes) < 1 < max(sizes)
        assert np.max(np.abs(values - printed.values)) > 1e-6


def test_near_a_stationary_point_line_5_makes_it_sgd_with_momentum():
    objective, tiny = wells(3), 1e-9 * problem((3, 3))[1]
    steps = {}
    for q in (0, 3):
        values, _ = trained(lambda p, q=q: Muon.paper(p, lr=0.1, momentum=0.0, q=q), objective, tiny, T=1)
        steps[q] = 1 - math.sqrt(values[1] / values[0])  # W shrinks by this share: lr·2·p(0)^q for a linear map
    assert steps[0] == pytest.approx(0.2, rel=1e-6)
    assert steps[3] == pytest.approx(1 - abs(1 - 0.2 * 1.875**3), rel=1e-6)


def test_its_average_gradient_norm_obeys_theorem_1():
    for q in [1, 2, 3]:
        objective, start = problem((3, 3), seed=4)
        eta, beta = 0.05, 0.5
        _, gradients = trained(partial(Muon.paper, lr=eta, momentum=beta, q=q), objective, start, T=T)
        printed = run(objective, start, lines_5_to_9(q, 2), eta=eta, beta=beta, T=T)
        epsilon = max(observed_error(M, lines_5_to_9(q, 2)(M)) for M in printed.momenta)
        given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": 3, "B": 1, "T": T}
        assert np.mean(gradients) <= muon_bound(epsilon=epsilon, eta=eta, beta=beta, **given).total
