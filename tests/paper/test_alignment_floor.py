"""The alignment floor: a guarantee for every matrix of rank ≤ r, with no δ_0 (Theorem 1 of Kim & Oh 2026, closed)."""

import math
from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import alignment_floor, chi, descent_floor, schedule_error
from tests.paper.simulation import by_newton_schulz, nuclear, operator, with_spectrum

SCHEDULES = {
    "identity": Schedule(()),
    "cubic 4": preset("cubic").schedule(4),
    "quintic 1": preset("quintic").schedule(1),
    "quintic 3": preset("quintic").schedule(3),
    "quintic 5": preset("quintic").schedule(5),
    "jordan 5": preset("jordan").schedule(5),
    "polar express 5": preset("polar_express").schedule(5),
}
REFERENCE = [
    ("quintic", 3, 64, 0.454),
    ("quintic", 3, 256, 0.260),
    ("quintic", 3, 768, 0.159),
    ("quintic", 5, 768, 0.288),
    ("quintic", 10, 768, 0.775),
    ("polar_express", 5, 64, 0.864),
    ("polar_express", 5, 256, 0.831),
    ("jordan", 5, 768, 0.566),
]


def descent(F, s, weights=1.0):
    """``ρ = Σ s F(s)/Σ s`` of spectra with ``Σ s² = 1`` (last axis), with multiplicities."""
    return np.sum(weights * s * F(s), axis=-1) / np.sum(weights * s, axis=-1)


def guaranteed(F, r, spectra, factor=1.0, schatten=2):
    """Check ``ρ ≥ factor·floor`` on normalised spectra of at most r values."""
    floor = factor * descent_floor(F, r, schatten=schatten)
    return all(float(descent(F, s)) >= floor * (1 - 1e-12) for s in spectra)


def random_spectra(rng, r, power=2, count=200):
    for _ in range(count):
        size = int(rng.integers(1, r + 1))
        s = rng.uniform(0, 1, size) ** rng.choice([0.3, 1, 3, 10]) + 1e-12
        yield s / np.sum(s**power) ** (1 / power)


def worst_two_level(F, r, power=2):
    """Smallest ρ over spectra of two levels with multiplicities k and r-k and ``Σ s^power = 1``, by a dense search."""
    best = math.inf
    for k in sorted({*range(1, min(r, 40)), *np.unique(np.geomspace(1, r - 1, 80).astype(int)).tolist()} - {r}):
        low = np.geomspace(1e-6, r ** (-1 / power), 4000)
        high = (np.maximum(1 - (r - k) * low**power, 0) / k) ** (1 / power)
        s, weights = np.stack([high, low], axis=-1), np.array([k, r - k])
        best = min(best, float(descent(F, s, weights).min()))
    return best


def test_random_spectra_never_fall_below_the_floor():
    for name, r in product(SCHEDULES, [1, 2, 8, 64]):
        assert guaranteed(SCHEDULES[name], r, random_spectra(np.random.default_rng(r), r))


def test_constructed_spectra_come_close_so_a_larger_floor_is_rejected():
    for name, r in product(SCHEDULES, [4, 256]):
        worst = worst_two_level(SCHEDULES[name], r)
        floor = descent_floor(SCHEDULES[name], r)
        assert floor <= worst * (1 + 1e-9)
        assert not 1.05 * floor <= worst


def test_the_reference_values_come_out():
    for name, steps, r, value in REFERENCE:
        assert descent_floor(preset(name).schedule(steps), r) == pytest.approx(value, rel=0, abs=1.5e-3)


def test_without_steps_the_floor_is_one_over_the_root_of_the_rank():
    for r in [1, 4, 100]:
        floor = alignment_floor(Schedule(()), r)
        flat = np.full(r, 1 / math.sqrt(r))
        assert floor == pytest.approx(1 / math.sqrt(r), rel=2e-3, abs=0.0)
        assert floor <= descent(Schedule(()), flat) * (1 + 1e-12)
        if r > 1:
            assert not guaranteed(Schedule(()), r, [flat], factor=math.sqrt(r))
            assert not guaranteed(Schedule(()), r, [flat], factor=1.01)


def test_sharper_prescales_have_their_own_larger_and_nearly_attained_floor():
    for schatten, name in product([4, 8], ["quintic 3", "quintic 5", "jordan 5"]):
        F, r = SCHEDULES[name], 64
        floor = descent_floor(F, r, schatten=schatten)
        assert floor > descent_floor(F, r)
        assert guaranteed(F, r, random_spectra(np.random.default_rng(1), r, power=schatten), schatten=schatten)
        worst = worst_two_level(F, r, power=schatten)
        assert floor <= worst * (1 + 1e-9)
        assert not 1.05 * floor <= worst


def test_the_alignment_is_the_descent_over_the_largest_gain():
    for F in SCHEDULES.values():
        s_max = schedule_error(F, 0.0).s_max
        assert alignment_floor(F, 16) * s_max == pytest.approx(descent_floor(F, 16), rel=1e-12, abs=0.0)
        grid = np.abs(F(np.linspace(0, 1, 100_001)))
        assert grid.max() == pytest.approx(s_max, rel=1e-6, abs=0.0)


def test_a_rank_that_is_exceeded_voids_the_guarantee():
    F = SCHEDULES["quintic 3"]
    flat = np.full(256, 1 / 16)
    assert guaranteed(F, 256, [flat])
    assert not guaranteed(F, 16, [flat])


def test_matrices_reach_the_floor_however_small_their_least_singular_value():
    for name, shape in product(["quintic 3", "jordan 5", "polar express 5"], [(6, 6), (4, 9)]):
        rng = np.random.default_rng(list(shape))
        F, r = SCHEDULES[name], min(shape)
        for decay in (0.0, 1.0, 4.0, 12.0):
            M = with_spectrum(rng, np.exp(-decay * np.arange(r)), *shape)
            X = by_newton_schulz(F, prescale="frobenius")(M)
            found = float(np.sum(M * X)) / (nuclear(M) * operator(X))
            assert found >= alignment_floor(F, r) * (1 - 1e-9)


def test_the_floor_stays_finite_where_the_factor_of_theorem_2_explodes():
    F = Schedule.repeat(taylor(2), 5)
    assert chi(sigma_min=1e-8, kappa=2, q=5) > 1e6
    assert 1 / alignment_floor(F, 768) < 4


def test_increasing_concave_steps_keep_the_alignment_of_the_momentum_under_any_scale_into_the_unit_ball():
    """Taylor steps: ``a ≥ ‖M‖_F²/(‖M‖_*‖M‖_op) ≥ 2/(1+√r)``, attained as M → 0; Jordan's steps fall below it."""
    rng, least, jordan = np.random.default_rng(6), math.inf, math.inf
    for kappa, q, r in product([1, 2, 4], [1, 3], [2, 8, 64]):
        F = Schedule.repeat(taylor(kappa), q)
        for scale in (1e-6, 0.3, 1.0):
            for spectrum in (*random_spectra(rng, r, count=20), np.r_[1.0, np.full(r - 1, 1 / (1 + math.sqrt(r)))]):
                s = spectrum * scale / spectrum.max()
                normalised = float(np.sum(s**2) / (np.sum(s) * s.max()))
                alignment = float(descent(F, s)) / float(np.max(F(s)))
                assert alignment >= normalised * (1 - 1e-12)
                assert normalised >= 2 / (1 + math.sqrt(r)) * (1 - 1e-12)
                least = min(least, alignment / normalised)
                wrong = SCHEDULES["jordan 5"]
                jordan = min(jordan, float(descent(wrong, s)) / float(np.max(wrong(s))) / normalised)
    assert least < 1 + 1e-9
    assert jordan < 0.99
