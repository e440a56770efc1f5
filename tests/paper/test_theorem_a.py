"""Theorem A: schedules, changing momentum and steps, both forms of momentum, Nesterov (docs/theory/theorem-a.md)."""

import math
from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import Schedule, preset
from muonlab.theory import descent_floor, run_bound, schedule_error, trajectory_bound
from muonlab.theory.momentum import momentum_trace
from tests.paper.simulation import (
    bowl,
    by_newton_schulz,
    gaussian,
    huber,
    orthogonal,
    quadratic,
    run,
    svd_polar,
    wells,
)

SCHEDULES = {
    "normalised": Schedule(()),
    "quintic 2": preset("quintic").schedule(2),
    "jordan": preset("jordan").schedule(5),
    "polar express": preset("polar_express").schedule(5),
}
DIRECTIONS = {name: by_newton_schulz(F, prescale="frobenius") for name, F in SCHEDULES.items()} | {"svd": svd_polar}
T = 24
RATES = {
    "constant": np.full(T, 0.2),
    "linear": 0.3 * (1 - np.arange(T) / T),
    "warm-up from zero": 0.3 * np.minimum(np.arange(T) / 8, 1),
    "with pauses": 0.3 * (np.arange(T) % 3 > 0),
}
MOMENTA = {"steady": np.full(T, 0.9), "rising": np.linspace(0.3, 0.95, T)}
FORMS = list(product(["ema", "heavy_ball"], [False, True]))


def problem(which, shape=(3, 4)):
    rng, r = np.random.default_rng([which, *shape]), min(shape)
    start = rng.standard_normal(shape)
    if which == 0:
        return quadratic(rng.standard_normal((4, r)) / 2, rng.standard_normal(shape)), start
    return (wells(r) if which == 1 else huber(r, 0.5)), start


def contrary(Z):
    """A direction of unit gain that knows nothing of Z, so that ρ_t takes both signs."""
    return svd_polar(np.random.default_rng(int(1e6 * abs(Z[0, 0])) % 2**32).standard_normal(Z.shape))


def trace_of(one, etas, betas, form, nesterov):
    betas = np.broadcast_to(np.asarray(betas, dtype=float), np.shape(etas))
    return momentum_trace(etas * one.gain, betas, momentum_form=form, nesterov=nesterov)


def pathwise(one, L, etas, trace, curvature=0.5, drift=1.0, noise=1.0):
    """Check ``Σηρ‖∇‖ ≤ f_0 - f_T + (L/2)Ση²s² + Ση(|ρ|+s)(A+B)``, its constants open to change."""
    load = etas * (np.abs(one.rho) + one.gain)
    left = float(np.sum(etas * one.rho * one.gradients))
    right = one.decrease() + curvature * L * float(np.sum((etas * one.gain) ** 2))
    right += float(np.sum(load * (drift * L * trace.drift + noise * one.noise)))
    return left <= right + 1e-9 * (1 + abs(right))


def test_the_inequality_holds_on_every_run():
    for i, (name, rates, (form, nesterov)) in enumerate(product([*DIRECTIONS, "contrary"], RATES, FORMS)):
        direction = contrary if name == "contrary" else DIRECTIONS[name]
        objective, start = problem(i % 3)
        betas, sigma = list(MOMENTA.values())[i % 2], (0.0, 2.0)[(i // 2) % 2]
        one = run(
            objective, start, direction, eta=RATES[rates], beta=betas, T=T, noise=gaussian(sigma), seed=i,
            momentum_form=form, nesterov=nesterov,
        )  # fmt: skip
        trace = trace_of(one, RATES[rates], betas, form, nesterov)
        assert pathwise(one, objective.L, RATES[rates], trace)
        assert np.all(one.tracking <= objective.L * trace.drift + one.noise + 1e-9)


def test_far_from_the_minimum_of_a_parabola_the_drift_is_exact_so_five_per_cent_less_is_rejected():
    """``f = w²/2`` at w = 1000 along ``O_t = s_t``: every step moves the gradient by exactly ``L η_t s_t``."""
    for (form, nesterov), (name, betas) in product(FORMS, MOMENTA.items()):
        gains = np.random.default_rng(1).uniform(0.5, 1.5, T)
        directions = [lambda Z, s=s: np.full_like(Z, s) for s in gains]
        etas = RATES["with pauses"]
        one = run(
            bowl(1), np.array([[1000.0]]), directions, eta=etas, beta=betas, T=T, momentum_form=form, nesterov=nesterov
        )
        trace = trace_of(one, etas, betas, form, nesterov)
        assert one.tracking == pytest.approx(trace.drift, rel=1e-9, abs=1e-9), name
        for wrong in (0.95, 1.05):
            assert np.any(np.abs(one.tracking - wrong * trace.drift) > 1e-3)
        other = momentum_trace(etas * one.gain, np.asarray(betas), momentum_form=form, nesterov=not nesterov)
        assert np.any(np.abs(one.tracking - other.drift) > 1e-2)


def test_two_steps_attain_the_inequality_and_reject_every_constant_that_is_five_per_cent_smaller():
    """The first step overshoots so far that stale momentum takes the second one the wrong way."""
    r, beta = 3, 0.5
    for form, nesterov in FORMS:
        objective, start = bowl(r), orthogonal(np.random.default_rng(1), r)
        # what is orthogonalized is a mean of ∇_1 = W_0 and ∇_2 = (1-η)W_0; η is the largest that leaves its sign
        past = float(momentum_trace(np.ones(2), np.full(2, beta), momentum_form=form, nesterov=nesterov).drift[1])
        etas = np.full(2, 1 / (1 - past) * (1 - 1e-9))
        one = run(objective, start, svd_polar, eta=etas, beta=beta, T=2, momentum_form=form, nesterov=nesterov)
        trace = trace_of(one, etas, beta, form, nesterov)
        assert pathwise(one, objective.L, etas, trace)
        assert not pathwise(one, objective.L, etas, trace, drift=0.95)
        assert not pathwise(one, objective.L, etas, trace, curvature=0.475)


def flat_noise(sigma):
    """Noise of two points and flat spectrum: ``‖ξ‖_F = σ`` and ``‖ξ‖_* = σ√r`` always."""
    return lambda rng, G: rng.choice([-1.0, 1.0]) * np.eye(*G.shape) * sigma / math.sqrt(min(G.shape))


def test_noise_that_turns_every_second_step_round_attains_the_noise_term_in_expectation():
    """β = 0, ``∇ = g·I`` and noise ``±g·I``: both outcomes are enumerated, so the expectation is exact."""
    r, eta = 3, 0.5
    objective, start = bowl(r), np.eye(r)
    sigma = math.sqrt(r) * (1 + 1e-9)  # ‖ξ‖_F for ξ = ±(1 + 1e-9)·I
    signs = [lambda _, __, sign=sign: sign * sigma / math.sqrt(r) * np.eye(r) for sign in (-1.0, 1.0)]
    runs = [run(objective, start, svd_polar, eta=eta, beta=0.0, T=1, noise=noise) for noise in signs]
    decrease = float(np.mean([one.decrease() for one in runs]))
    bound = trajectory_bound(
        L=objective.L, D=0.0, sigma=sigma, r=r, B=1, etas=[eta], betas=0.0, rho=1.0, s=1.0, nesterov=False
    )
    left = eta * runs[0].gradients[0]
    assert left == pytest.approx(eta * bound.total + decrease, rel=1e-8, abs=0)
    for term in ("noise", "curvature"):
        assert left > eta * (bound.total - 0.05 * bound.terms[term]) + decrease


def test_kept_noise_is_exact_for_noise_of_flat_spectrum():
    """At the second step the past noise has one outcome up to its sign, so its norm is ``σ√r·ω_2``, not its mean."""
    sigma, r = 2.0, 3
    for (form, nesterov), betas in product(FORMS, ([0.6] * 3, [0.2, 0.7, 0.4])):
        runs = [
            run(bowl(r), np.zeros((r, r)), lambda Z: 0 * Z, eta=1.0, beta=np.array(betas), T=3, seed=seed,
                noise=flat_noise(sigma), momentum_form=form, nesterov=nesterov)
            for seed in range(300)
        ]  # fmt: skip
        trace = momentum_trace(np.zeros(3), np.array(betas), momentum_form=form, nesterov=nesterov)
        for one in runs[:20]:
            assert one.past_noise[1] == pytest.approx(sigma * math.sqrt(r) * trace.past_noise[1], rel=1e-12, abs=0)
        second = np.mean([one.noise**2 for one in runs], axis=0)
        assert second == pytest.approx(r * (sigma * trace.noise) ** 2, rel=0.15, abs=0)
        second = np.mean([one.past_noise**2 for one in runs], axis=0)
        assert second == pytest.approx(r * (sigma * trace.past_noise) ** 2, rel=0.15, abs=1e-12)


def test_with_floors_as_constants_the_expectation_needs_no_assumption_on_the_momentum():
    """Also while the number of steps changes: the least floor and the largest gain over the schedules used."""
    for i, (rates, (form, nesterov)) in enumerate(product(RATES, FORMS)):
        names = ("quintic 2", "polar express") if i % 2 else ("jordan",)
        used = [names[t % len(names)] for t in range(T)]
        floors = [descent_floor(SCHEDULES[name], 3) for name in used]
        gains = [schedule_error(SCHEDULES[name], 0.0).s_max for name in used]
        objective, start = problem(i % 3)
        etas, betas, sigma = RATES[rates], list(MOMENTA.values())[i % 2], 1.0
        runs = [
            run(objective, start, [DIRECTIONS[name] for name in used], eta=etas, beta=betas, T=T, seed=seed,
                noise=gaussian(sigma, 2), momentum_form=form, nesterov=nesterov)
            for seed in range(3)
        ]  # fmt: skip
        assert all(np.all(one.rho >= np.array(floors) * (1 - 1e-9)) for one in runs)
        assert all(np.all(one.gain <= np.array(gains) * (1 + 1e-9)) for one in runs)
        bound = trajectory_bound(
            L=objective.L, D=objective.value(start), sigma=sigma, r=3, B=2, etas=etas, betas=betas, rho=floors, s=gains,
            momentum_form=form, nesterov=nesterov,
        )  # fmt: skip
        weights = np.array(bound.weights)
        measured = np.mean([np.sum(weights * one.gradients) / np.sum(weights) for one in runs])
        assert bound.status == "applies"
        assert measured <= bound.total


def test_a_certificate_of_a_noiseless_run_bounds_its_gradients():
    for i, (rates, (form, nesterov)) in enumerate(product(RATES, FORMS)):
        objective, start = problem(i % 3)
        betas, etas = list(MOMENTA.values())[i % 2], RATES[rates]
        one = run(
            objective, start, DIRECTIONS["polar express"], eta=etas, beta=betas, T=T, momentum_form=form,
            nesterov=nesterov,
        )  # fmt: skip
        bound = run_bound(
            one.rho, one.gain, L=objective.L, D=one.decrease(), sigma=0.0, r=3, B=1, eta=etas, beta=betas,
            momentum_form=form, nesterov=nesterov,
        )  # fmt: skip
        weights = etas * one.rho
        assert np.sum(weights * one.gradients) / np.sum(weights) <= bound.total * (1 + 1e-9)
        assert one.gradients[etas > 0].min() <= bound.total


def test_a_noisy_run_exceeds_its_certificate_no_more_often_than_announced():
    objective, start = problem(1)
    etas, betas, failure, failures = RATES["linear"], MOMENTA["rising"], 0.25, 0
    for seed in range(40):
        one = run(
            objective, start, DIRECTIONS["jordan"], eta=etas, beta=betas, T=T, noise=gaussian(2.0), seed=seed,
            momentum_form="ema", nesterov=True,
        )  # fmt: skip
        bound = run_bound(
            one.rho, one.gain, L=objective.L, D=one.decrease(), sigma=2.0, r=3, B=1, eta=etas, beta=betas,
            failure=failure, nesterov=True,
        )  # fmt: skip
        weights = etas * one.rho
        failures += float(np.sum(weights * one.gradients) / np.sum(weights)) > bound.total
        part = float(np.sum(etas * (one.rho + one.gain) * one.noise)) / float(np.sum(weights))
        assert part > 0.1 * bound.terms["noise"] * math.sqrt(failure)
    assert failures <= failure * 40
