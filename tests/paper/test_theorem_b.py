"""Theorem B: decoupled weight decay (docs/theory/theorem-b.md)."""

from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import preset
from muonlab.theory import run_bound, trajectory_bound
from muonlab.theory.momentum import momentum_trace
from tests.paper.simulation import (
    bowl,
    by_newton_schulz,
    gaussian,
    nuclear,
    orthogonal,
    quadratic,
    run,
    svd_polar,
    wells,
)

T = 24
RATES = {
    "constant": np.full(T, 0.2),
    "linear": 0.3 * (1 - np.arange(T) / T),
    "with pauses": 0.3 * (np.arange(T) % 3 > 0),
}
FORMS = list(product(["ema", "heavy_ball"], [False, True]))
JORDAN = by_newton_schulz(preset("jordan").schedule(5), prescale="frobenius")


def sides(one, L, decay, etas, trace, curvature=0.5, pull=1.0):
    """Return both sides of the inequality for one run, the constants of its right side open to change."""
    moved = one.gain + pull * decay * one.weights
    left = float(np.sum(etas * (one.rho * one.gradients + decay * one.inward)))
    right = one.decrease() + curvature * L * float(np.sum((etas * moved) ** 2))
    right += float(np.sum(etas * (np.abs(one.rho) + one.gain) * (L * trace.drift + one.noise)))
    return left, right


def trace_of(one, etas, decay, beta, form, nesterov):
    moved = etas * (one.gain + decay * one.weights)
    return momentum_trace(moved, np.full(len(etas), beta), momentum_form=form, nesterov=nesterov)


def test_the_inequality_holds_on_every_run_with_weight_decay():
    rng = np.random.default_rng(0)
    problems = [
        (quadratic(rng.standard_normal((4, 3)) / 2, rng.standard_normal((3, 4))), rng.standard_normal((3, 4))),
        (wells(3), 2 * rng.standard_normal((3, 4))),
    ]
    for i, (rates, (form, nesterov), decay) in enumerate(product(RATES, FORMS, (0.01, 0.3, 2.0))):
        objective, start = problems[i % 2]
        etas, noise = RATES[rates], gaussian((0.0, 2.0)[(i // 2) % 2])
        one = run(
            objective, start, (svd_polar, JORDAN)[(i // 3) % 2], eta=etas, beta=0.9, T=T, noise=noise, seed=i,
            momentum_form=form, nesterov=nesterov, decay=decay,
        )  # fmt: skip
        left, right = sides(one, objective.L, decay, etas, trace_of(one, etas, decay, 0.9, form, nesterov))
        assert left <= right + 1e-9 * (1 + abs(right))
        bound = run_bound(
            one.rho, one.gain, L=objective.L, D=one.decrease(), sigma=0.0, r=3, B=1, eta=etas, beta=0.9,
            momentum_form=form, nesterov=nesterov, pull=decay * one.weights,
        )  # fmt: skip
        if not one.noise.any() and np.all(one.rho >= 0):
            assert left / np.sum(etas) <= bound.gap.bound * (1 + 1e-9)


def test_one_step_on_a_bowl_attains_the_curvature_with_the_decay_in_it():
    """``f = ‖W‖²/2`` from R·Q along Q moves by ``η(1 + λR)Q``; s alone in its place, or 5 % less, is refuted."""
    r, R, eta, decay = 3, 2.0, 0.4, 0.5
    etas = np.array([eta])
    one = run(bowl(r), R * orthogonal(np.random.default_rng(1), r), svd_polar, eta=eta, beta=0.0, T=1, decay=decay)
    trace = trace_of(one, etas, decay, 0.0, "ema", False)
    left, right = sides(one, float(r), decay, etas, trace)
    assert left == pytest.approx(right, rel=1e-12)
    for wrong in ({"curvature": 0.475}, {"pull": 0.95}, {"pull": 0.0}):
        left, right = sides(one, float(r), decay, etas, trace, **wrong)
        assert left > right * (1 + 1e-3)


def test_far_from_the_minimum_of_a_parabola_the_drift_with_decay_is_exact():
    etas, decay = RATES["with pauses"], 0.05
    for form, nesterov in FORMS:
        one = run(
            bowl(1), np.array([[1000.0]]), np.ones_like, eta=etas, beta=0.9, T=T, momentum_form=form, nesterov=nesterov,
            decay=decay,
        )  # fmt: skip
        trace = trace_of(one, etas, decay, 0.9, form, nesterov)
        assert one.tracking == pytest.approx(trace.drift, rel=1e-9, abs=1e-9)
        for wrong in (0.95, 1.05):
            off = momentum_trace(
                etas * (one.gain + wrong * decay * one.weights), np.full(T, 0.9), momentum_form=form, nesterov=nesterov
            )
            assert np.max(np.abs(one.tracking - off.drift)) > 1e-2


def test_the_radii_bound_the_weights_and_with_them_the_bound_holds_in_advance():
    """With the radii ``R_t`` in place of measured norms; a ball half as large would be left."""
    objective, start = wells(3), 2 * np.random.default_rng(2).standard_normal((3, 3))
    for (form, nesterov), decay in product(FORMS, (0.01, 0.1)):
        etas = RATES["linear"]
        one = run(
            objective, start, svd_polar, eta=etas, beta=0.9, T=T, momentum_form=form, nesterov=nesterov, decay=decay
        )
        bound = trajectory_bound(
            L=objective.L, D=objective.value(start), sigma=0.0, r=3, B=1, etas=etas, betas=0.9, rho=1.0,
            momentum_form=form, nesterov=nesterov, weight_decay=decay, weight_norm=one.weights[0],
        )  # fmt: skip
        radii = (1 - np.array(bound.weights)[etas > 0] / etas[etas > 0]) / decay
        assert np.all(one.weights[etas > 0] <= radii * (1 + 1e-9))
        assert np.any(one.weights[etas > 0] > radii / 2)
        weights = np.array(bound.weights)
        assert np.sum(weights * one.gradients) / np.sum(weights) <= bound.total
        assert np.sum(etas * (one.gradients + decay * one.inward)) / np.sum(etas) <= bound.gap.bound


def test_the_gap_is_zero_exactly_at_the_constrained_minimum():
    """Of ``‖W - C‖²/2`` over ``‖W‖_op ≤ 1/λ``: C with its singular values clipped."""
    rng, decay = np.random.default_rng(3), 0.5
    C = 5 * rng.standard_normal((3, 4))
    U, s, V = np.linalg.svd(C, full_matrices=False)
    best = (U * np.minimum(s, 1 / decay)) @ V
    gap = lambda W: nuclear(W - C) + decay * float(np.sum((W - C) * W))  # noqa: E731
    assert s[0] > 1 / decay
    assert gap(best) == pytest.approx(0.0, abs=1e-12)
    for _ in range(20):
        W = rng.standard_normal((3, 4))
        W *= rng.uniform(0, 1) / decay / np.linalg.norm(W, 2)
        assert gap(W) > 1e-3


def test_where_the_minimum_lies_outside_of_the_ball_the_gap_falls_and_the_gradient_does_not():
    C, decay, steps = np.diag([3.0, 0.5]), 1.0, 400
    objective = quadratic(np.eye(2), C)
    etas = 0.2 * (1 - np.arange(steps) / steps)
    one = run(
        objective, np.zeros((2, 2)), svd_polar, eta=etas, beta=0.9, T=steps, momentum_form="ema", nesterov=True,
        decay=decay,
    )  # fmt: skip
    gaps = one.gradients + decay * one.inward
    assert gaps[-20:].max() < 0.05
    assert gaps[0] > 1.0
    assert one.gradients[-20:].min() > 1.9  # |3 - 1/λ|
    bound = trajectory_bound(
        L=objective.L, D=objective.value(np.zeros((2, 2))), sigma=0.0, r=2, B=1, etas=etas, betas=0.9, rho=1.0,
        weight_decay=decay, weight_norm=0.0,
    )  # fmt: skip
    assert bound.gap.nonnegative
    assert np.sum(etas * gaps) / np.sum(etas) <= bound.gap.bound


def test_weights_that_start_far_from_zero_need_their_norm():
    """``½(w - 11)²`` from 10: decay takes w away from the minimum, which a bound for ``W_0 = 0`` does not see."""
    objective, etas, decay = quadratic(np.eye(1), np.array([[11.0]])), np.full(1000, 0.05), 0.3
    one = run(objective, np.array([[10.0]]), svd_polar, eta=etas, beta=0.0, T=1000, momentum_form="ema", decay=decay)
    given = {
        "L": 1.0,
        "D": 0.5,
        "sigma": 0.0,
        "r": 1,
        "B": 1,
        "etas": etas,
        "betas": 0.0,
        "rho": 1.0,
        "nesterov": False,
    }
    zero, true = (trajectory_bound(**given, weight_decay=decay, weight_norm=norm) for norm in (0.0, 10.0))
    measured = float(np.sum(np.array(zero.weights) * one.gradients) / np.sum(zero.weights))
    assert (zero.status, true.status) == ("applies", "not_applicable")
    assert measured > 2 * zero.total
    assert np.mean(one.gradients + decay * one.inward) <= true.gap.bound
    assert not true.gap.nonnegative
