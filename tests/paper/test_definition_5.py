"""Definition 5: smoothness from the operator to the nuclear norm (Kim & Oh 2026, Definition 5, Assumption 1)."""

import numpy as np
import pytest

from muonlab.theory import sgdm_bound
from tests.paper.simulation import bowl, frobenius, nuclear, operator, orthogonal, quadratic, wells


def smooth(objective, X, Y, factor=1.0):
    """Check ``‖∇f(X) - ∇f(Y)‖_* ≤ factor·L‖X - Y‖_op``."""
    change = nuclear(objective.gradient(X) - objective.gradient(Y))
    return change <= factor * objective.L * operator(X - Y) * (1 + 1e-9)


def frobenius_smooth(objective, X, Y, factor=1.0):
    """Check ``‖∇f(X) - ∇f(Y)‖_F ≤ factor·L_F‖X - Y‖_F``."""
    change = frobenius(objective.gradient(X) - objective.gradient(Y))
    return change <= factor * objective.L_F * frobenius(X - Y) * (1 + 1e-9)


def problems(r, rng):
    return [bowl(r, 1.7), quadratic(rng.standard_normal((r + 1, r)), rng.standard_normal((r, r))), wells(r)]


def test_the_constants_of_the_simulated_problems_hold_and_smaller_ones_fail_along_an_orthogonal_direction():
    """The oracles of all tests of this folder: a wrong L would make every bound loose or false."""
    hadamard = np.kron([[1.0, 1.0], [1.0, -1.0]], [[1.0, 1.0], [1.0, -1.0]]) / 2
    for which in range(3):
        for seed in range(10):
            rng = np.random.default_rng(seed)
            objective = problems(4, rng)[which]
            X = rng.standard_normal((4, 4)) * rng.choice([0.05, 1.0, 3.0])
            Y = X + rng.standard_normal((4, 4)) * rng.choice([1e-3, 0.3, 2.0])
            assert smooth(objective, X, Y)
            assert frobenius_smooth(objective, X, Y)
        direction = 1e-3 * (hadamard if which == 2 else orthogonal(rng, 4))
        centre = np.zeros((4, 4)) if which == 2 else X
        assert smooth(objective, centre + direction, centre)
        assert not smooth(objective, centre + direction, centre, factor=0.99)


def test_sgdm_uses_the_frobenius_constant_and_refuses_one_above_l():
    given = {"L": 4.0, "D": 1.0, "sigma": 0.0, "r": 4, "B": 1, "T": 100}
    assert sgdm_bound(**given).total == pytest.approx(2 * sgdm_bound(L_F=1.0, **given).total, rel=1e-12, abs=0.0)
    with pytest.raises(ValueError, match="L_F is at most L"):
        sgdm_bound(L_F=4.1, **given)
