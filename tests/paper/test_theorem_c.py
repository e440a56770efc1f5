"""Theorem C: noise of which only a p-th moment is finite (docs/theory/theorem-c.md)."""

import math
from itertools import product

import numpy as np
import pytest

from muonlab.theory import run_bound, schedule_bound, trajectory_bound
from muonlab.theory.momentum import momentum_trace
from tests.paper.simulation import bowl, huber, run, svd_polar, wells

P, INDEX = 1.5, 1.7
FORMS = list(product(["ema", "heavy_ball"], [False, True]))
T = 20


def pareto(scale, r):
    """Symmetric Pareto noise of flat spectrum, ``‖ξ‖_F = scale·X`` with ``P(X > x) = x^-INDEX``: infinite variance."""
    return lambda rng, G: scale * rng.choice([-1, 1]) * (1 + rng.pareto(INDEX)) * np.eye(*G.shape) / math.sqrt(r)


def moment(scale):
    """Return ``(E‖ξ‖_F^p)^{1/p}`` of :func:`pareto` in closed form."""
    return scale * (INDEX / (INDEX - P)) ** (1 / P)


def test_the_bound_holds_in_expectation_under_infinite_variance():
    r, scale = 3, 0.3
    starts = np.random.default_rng(1).standard_normal((2, r, r))
    for i, ((form, nesterov), decay) in enumerate(product(FORMS, (0.0, 0.02))):
        objective, start = (wells(r) if i % 2 else huber(r, 0.5)), starts[i % 2]
        etas = 0.1 * (1 - np.arange(T) / T)
        runs = [
            run(objective, start, svd_polar, eta=etas, beta=0.8, T=T, noise=pareto(scale, r), seed=seed,
                momentum_form=form, nesterov=nesterov, decay=decay)
            for seed in range(12)
        ]  # fmt: skip
        bound = trajectory_bound(
            L=objective.L, D=objective.value(start), sigma=moment(scale), r=r, B=1, etas=etas, betas=0.8, rho=1.0,
            momentum_form=form, nesterov=nesterov, tail=P, weight_decay=decay, weight_norm=runs[0].weights[0],
        )  # fmt: skip
        weights = np.array(bound.weights)
        measured = np.mean([np.sum(weights * one.gradients) / np.sum(weights) for one in runs])
        assert measured <= bound.total
        kept = np.mean([one.noise for one in runs], axis=0)
        trace = momentum_trace(etas, np.full(T, 0.8), momentum_form=form, nesterov=nesterov, tail=P)
        assert kept.mean() <= 2 ** ((2 - P) / P) * moment(scale) * math.sqrt(r) * trace.noise.mean()


def test_the_noise_term_is_that_of_p_th_powers_with_the_constant_of_von_bahr_and_esseen():
    betas = np.array([0.5, 0.7, 0.2, 0.9])
    for (form, nesterov), p in product(FORMS, (1.2, 1.5, 1.9, 2.0)):
        weights = np.zeros((4, 4))  # of gradient i in what is orthogonalized at step t, written out
        for t in range(4):
            fresh = [1.0 if form == "heavy_ball" else 1 - beta for beta in betas]
            in_momentum = [fresh[i] * math.prod(betas[i + 1 : t + 1]) for i in range(t + 1)]
            weights[t, : t + 1] = [betas[t] * w for w in in_momentum] if nesterov else in_momentum
            weights[t, t] += fresh[t] if nesterov else 0.0
            weights[t] /= weights[t].sum()
        all_noise = np.sum(weights**p, axis=1) ** (1 / p)
        past = np.sum(np.tril(weights, -1) ** p, axis=1) ** (1 / p)
        etas, rho, s, sigma, r = np.array([0.1, 0.3, 0.0, 0.2]), 0.7, 1.1, 2.0, 5
        bound = trajectory_bound(
            L=1.0, D=1.0, sigma=sigma, r=r, B=1, etas=etas, betas=betas, rho=rho, s=s, momentum_form=form,
            nesterov=nesterov, tail=p,
        )  # fmt: skip
        expected = 2 ** ((2 - p) / p) * sigma * math.sqrt(r) * np.sum(etas * (rho * past + s * all_noise))
        assert bound.terms["noise"] == pytest.approx(expected / np.sum(etas * rho), rel=1e-12, abs=0)


def test_sums_of_two_point_noise_obey_the_inequality_by_enumeration_and_need_a_constant_above_one():
    """``E|Σ w_i ξ_i|^p ≤ 2^{2-p} Σ w_i^p E|ξ_i|^p`` for ξ of mean zero and any skewness, all outcomes enumerated."""
    largest = 0.0
    for p, chance, n in product((1.1, 1.3, 1.5, 1.9), (0.01, 0.1, 0.2, 0.4), (2, 5)):
        odds = {1 - chance: chance, -chance: 1 - chance}
        one = sum(odds[x] * abs(x) ** p for x in odds)
        for weights in (np.ones(n), np.linspace(1, 0.2, n), 0.5 ** np.arange(n)):
            outcomes = list(product(odds, repeat=n))
            mean = sum(math.prod(odds[x] for x in xs) * abs(np.dot(weights, xs)) ** p for xs in outcomes)
            ratio = mean / (np.sum(weights**p) * one)
            assert ratio <= 2 ** (2 - p)
            largest = max(largest, ratio)
    assert largest > 1.05


def test_a_single_noisy_run_exceeds_its_certificate_no_more_often_than_announced():
    objective, start, failure, failures = bowl(3), np.eye(3), 0.25, 0
    etas = 0.1 * (1 - np.arange(T) / T)
    for seed in range(40):
        one = run(
            objective, start, svd_polar, eta=etas, beta=0.8, T=T, noise=pareto(0.5, 3), seed=seed, momentum_form="ema",
            nesterov=True,
        )  # fmt: skip
        options = {"L": objective.L, "D": one.decrease(), "r": 3, "B": 1, "eta": etas, "beta": 0.8, "nesterov": True}
        bound = run_bound(one.rho, one.gain, sigma=moment(0.5), failure=failure, tail=P, **options)
        weights = etas * one.rho
        failures += float(np.sum(weights * one.gradients) / np.sum(weights)) > bound.total
        assert 0 < bound.terms["noise"] < math.inf
    assert failures <= failure * 40


def test_the_rate_of_short_runs_needs_the_term_of_the_start():
    """The least bound over η and β at p = 2 is at most a constant times the three terms, and not times two of them."""
    of_three, of_two, of_faster = [], [], []
    for LD, sigma, T in product(10.0 ** np.arange(-12, 3, 2), (0.1, 1.0, 10.0), (1, 10, 100, 10_000)):
        given = {"L": math.sqrt(LD), "D": math.sqrt(LD), "sigma": sigma, "r": 1, "B": 1, "T": T, "alignment": 1.0}
        keep = np.geomspace(1e-9, 1, 300)
        least = min(schedule_bound(**given, nesterov=False, beta=1 - k).total for k in keep)
        two = math.sqrt(LD / T) + math.sqrt(sigma) * (LD / T) ** 0.25
        of_three.append(least / (two + sigma / math.sqrt(T)))
        of_two.append(least / two)
        of_faster.append(least / (two + sigma / T))
    assert max(of_three) < 4
    assert min(max(of_two), max(of_faster)) > 8
