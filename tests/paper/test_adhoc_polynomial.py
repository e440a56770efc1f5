"""The ad-hoc polynomial: what the paper computes for it, with its digits corrected (Kim & Oh 2026, last appendix)."""

import math
from fractions import Fraction

import numpy as np
import pytest

from muonlab.polynomials import Schedule, analyse, preset, taylor
from muonlab.theory import alignment_bound, alignment_floor, muon_bound, polar_error, schedule_error
from tests.paper.simulation import by_newton_schulz, observed_error, singular, with_spectrum

JORDAN = preset("jordan").polynomial
A, B, C = Fraction("3.4445"), Fraction("-4.7750"), Fraction("2.0315")


def dtau(lam, quadratic=None):
    """``τ' = a² + 4abλ + 3(b²+2ac)λ² + 8bcλ³ + 5c²λ⁴`` in rationals, the λ² coefficient open to change."""
    middle = 3 * (B * B + 2 * A * C) if quadratic is None else quadratic
    return A * A + 4 * A * B * lam + middle * lam**2 + 8 * B * C * lam**3 + 5 * C * C * lam**4


def is_dtau(claim, at):
    """Check that a claimed τ' is the library's at some points, to 1e-9."""
    return all(math.isclose(float(claim(lam)), float(JORDAN.dtau(lam)), rel_tol=1e-9, abs_tol=1e-12) for lam in at)


POINTS = [Fraction(k, 10) for k in range(11)]


def test_the_derivative_of_tau_has_the_exact_coefficients():
    assert is_dtau(dtau, POINTS)
    found = analyse(JORDAN)
    exact = (A * A, 4 * A * B, 3 * (B * B + 2 * A * C), 8 * B * C, 5 * C * C)
    assert found.dtau == pytest.approx([float(c) for c in exact], rel=1e-14, abs=0.0)
    assert found.dtau[2] == pytest.approx(110.3869, rel=0, abs=5e-5)


def test_the_printed_coefficients_are_rejected():
    assert not is_dtau(lambda lam: dtau(lam, quadratic=Fraction("110.3556")), POINTS)
    printed = [Fraction(c) for c in ("11.8641", "-65.781", "110.3556", "-77.5824", "20.635")]
    assert not is_dtau(lambda lam: sum(c * lam**k for k, c in enumerate(printed)), POINTS)


def test_range_derivatives_and_local_maximum_are_the_corrected_ones():
    found = analyse(JORDAN)
    assert found.p_range == pytest.approx((0.701, 3.4445), rel=1e-12, abs=0.0)
    assert found.dtau_at_zero == pytest.approx(11.86458, rel=0, abs=5e-6)
    assert found.dtau_at_one == pytest.approx(-0.506823, rel=0, abs=5e-7)
    assert found.tau_extrema[0] == pytest.approx(0.30750, rel=0, abs=5e-6)
    assert found.tau_at_one == pytest.approx(0.701**2, rel=1e-12, abs=0.0)
    assert abs(found.dtau_at_zero - 11.8641) > 4e-4
    assert abs(found.dtau_at_one + 0.5087) > 1e-3


def test_the_extrema_are_where_a_dense_grid_has_them():
    lam = np.linspace(0.0, 1.0, 200_001)
    tau = JORDAN.tau(lam)
    turning = lam[1:-1][np.sign(np.diff(tau[:-1])) != np.sign(np.diff(tau[1:]))]
    assert np.allclose(analyse(JORDAN).tau_extrema, turning, rtol=0, atol=1e-5)
    assert tau.max() == pytest.approx(JORDAN.tau(analyse(JORDAN).tau_extrema[0]), rel=1e-9, abs=0.0)
    assert tau.max() > 1.0


def test_p_in_the_unit_interval_is_no_premise_since_taylor_fails_it_too():
    for p in (JORDAN, taylor(1), taylor(2)):
        assert analyse(p).p_range[1] > 1.0
    assert not analyse(JORDAN).covered
    assert analyse(taylor(2)).covered
    assert "not increasing" in analyse(JORDAN).reason


def test_its_polar_error_does_not_vanish_with_more_steps():
    for steps in [1, 3, 5]:
        assert schedule_error(Schedule.repeat(JORDAN, steps), 0.3).epsilon > 0.25
        assert polar_error(sigma_min=0.3, kappa=2, q=8) < 1e-15


def test_its_error_on_a_matrix_is_that_of_its_singular_values_and_not_of_the_least_one():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        M = with_spectrum(rng, [1.0, 0.55, 0.2], 3, 4)
        schedule = Schedule.repeat(JORDAN, 3)
        errors = np.abs(schedule(singular(M)) - 1)
        X = by_newton_schulz(schedule, prescale="none")(M)
        assert observed_error(M, X) == pytest.approx(float(errors.max()), rel=1e-9, abs=0.0)
        assert errors.max() > errors[-1]


def test_the_alignment_theorem_covers_what_theorem_1_does_not():
    schedule = Schedule.repeat(JORDAN, 5)
    given = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 64, "B": 1, "T": 100}
    assert muon_bound(epsilon=schedule_error(schedule, 0.0).epsilon, **given).status == "not_applicable"
    floor = alignment_floor(schedule, 64)
    assert alignment_bound(alignment=floor, op_norm=schedule_error(schedule, 0.0).s_max, **given).status == "applies"
    assert floor > 0.5
