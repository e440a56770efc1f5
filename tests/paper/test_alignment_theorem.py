"""The alignment theorem: descent and gain are all that convergence needs (generalises Kim & Oh 2026, Theorem 1)."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import (
    alignment_bound,
    descent_floor,
    momentum_factors,
    network_alignment,
    run_bound,
    schedule_error,
)
from muonlab.theory.momentum import momentum_trace
from tests.paper.simulation import (
    bowl,
    by_newton_schulz,
    gaussian,
    mean_stationarity,
    nuclear,
    operator,
    orthogonal,
    quadratic,
    rescaled,
    run,
    svd_polar,
    wells,
    with_spectrum,
)

IDENTITY = Schedule(())
SCHEDULES = {
    "normalised": IDENTITY,
    "quintic 1": preset("quintic").schedule(1),
    "quintic 5": preset("quintic").schedule(5),
    "jordan": preset("jordan").schedule(5),
    "polar express": preset("polar_express").schedule(5),
}
DIRECTIONS = {name: by_newton_schulz(F, prescale="frobenius") for name, F in SCHEDULES.items()} | {"svd": svd_polar}


def contrary(M):
    """A direction of unit gain that knows nothing of M, so that ρ_t takes both signs."""
    return svd_polar(np.random.default_rng(int(1e6 * abs(M[0, 0])) % 2**32).standard_normal(M.shape))


def pathwise(one, L, eta, beta, curvature=0.5, load=1.0, drift=1.0, noise=1.0, absolute=True):
    """Check ``Σηρ‖∇f‖_* ≤ f_0 - f_T + (L/2)Ση²s² + Ση(|ρ|+s)(A+B)``, its constants open to change."""
    etas = np.broadcast_to(np.asarray(eta, dtype=np.float64), one.rho.shape)
    stale = L * momentum_trace(etas * one.gain, np.full(len(etas), beta), nesterov=False).drift
    loads = etas * ((np.abs(one.rho) if absolute else one.rho) + load * one.gain)
    left = float(np.sum(etas * one.rho * one.gradients))
    right = one.decrease() + curvature * L * float(np.sum((etas * one.gain) ** 2))
    right += float(np.sum(loads * (drift * stale + noise * one.noise)))
    return left <= right + 1e-9 * (1 + abs(right))


def holds(measured, bound, **factors):
    """Check ``measured ≤ Σ terms``, some of them multiplied by a (wrong) factor."""
    return measured <= rescaled(bound.terms, **factors) * (1 + 1e-9)


def problem(which, shape=(3, 4)):
    rng, r = np.random.default_rng([which, *shape]), min(shape)
    objective = wells(r) if which else quadratic(rng.standard_normal((4, r)) / 2, rng.standard_normal(shape))
    return objective, rng.standard_normal(shape)


# ------------------------------------------------------------------------------------------------ on every run


def test_the_pathwise_inequality_holds_on_every_run():
    for name, beta, sigma in product([*DIRECTIONS, "contrary"], [0.0, 0.95], [0.0, 2.0]):
        direction = contrary if name == "contrary" else DIRECTIONS[name]
        for which in (0, 1):
            objective, start = problem(which)
            for eta in (0.3, np.linspace(0.4, 0.01, 20)):
                one = run(objective, start, direction, eta=eta, beta=beta, T=20, noise=gaussian(sigma), seed=which)
                assert pathwise(one, objective.L, eta, beta)


def test_two_steps_attain_it_and_reject_every_smaller_constant():
    """The first step overshoots so far that stale momentum takes the second one the wrong way."""
    for beta in [0.2, 0.5, 0.9]:
        r = 3
        objective, start = bowl(r), orthogonal(np.random.default_rng(1), r)
        eta = (1 + beta) * (1 - 1e-9)
        one = run(objective, start, svd_polar, eta=eta, beta=beta, T=2)
        assert pathwise(one, objective.L, eta, beta)
        assert not pathwise(one, objective.L, eta, beta, drift=0.0)
        assert not pathwise(one, objective.L, eta, beta, drift=0.99)
        assert not pathwise(one, objective.L, eta, beta, load=0.0)
        assert not pathwise(one, objective.L, eta, beta, load=-1.0)
        assert not pathwise(one, objective.L, eta, beta, curvature=0.25)
        assert not pathwise(one, objective.L, eta, beta, curvature=0.495)


def test_one_step_along_reversed_noise_attains_it_and_rejects_half_the_noise():
    """Noise that turns the gradient round: the step climbs, and ``(ρ+s)B = 2‖∇f‖_*`` has to pay for it."""
    r, eta = 3, 0.5
    objective, start = bowl(r), orthogonal(np.random.default_rng(2), r)
    one = run(objective, start, svd_polar, eta=eta, beta=0.0, T=1, noise=lambda _, G: -(1 + 1e-9) * G)
    assert one.decrease() < 0
    assert pathwise(one, objective.L, eta, 0.0)
    assert not pathwise(one, objective.L, eta, 0.0, noise=0.5)
    assert not pathwise(one, objective.L, eta, 0.0, noise=0.99)
    assert not pathwise(one, objective.L, eta, 0.0, load=0.0)


def test_a_negative_descent_needs_its_absolute_value():
    """A direction that climbs along the momentum but falls along its noise attains the inequality with |ρ|, not ρ."""
    objective, start, eta = bowl(2), np.diag([1.0, 3.0]), 0.4
    one = run(
        objective, start, lambda M: np.diag([1.0, -1.0]) + 0 * M, eta=eta, beta=0.0, T=1,
        noise=lambda _, G: np.diag([0.5, 0.0]) + 0 * G,
    )  # fmt: skip
    assert one.rho[0] == pytest.approx(-1.5 / 4.5, rel=1e-12, abs=0.0)
    assert pathwise(one, objective.L, eta, 0.0)
    assert not pathwise(one, objective.L, eta, 0.0, absolute=False)
    assert not pathwise(one, objective.L, eta, 0.0, noise=0.99)


def test_momentum_factors_are_the_exact_averages_of_weights():
    for beta, T in product([Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)], [1, 2, 7, 40]):
        drift, noise, square = Fraction(0), 0.0, Fraction(0)
        for t in range(1, T + 1):
            weights = [beta ** (t - i) * (1 - beta) / (1 - beta**t) for i in range(1, t + 1)]
            assert sum(weights) == 1
            drift += sum(w * (t - i) for i, w in enumerate(weights, start=1))
            nu_square = sum(w * w for w in weights)
            assert nu_square == (1 - beta) * (1 + beta**t) / ((1 + beta) * (1 - beta**t))
            noise, square = noise + math.sqrt(nu_square), square + nu_square
        found = momentum_factors(float(beta), T, "corrected")
        assert found == pytest.approx((float(drift / T), noise / T, float(square / T)), rel=1e-9, abs=1e-15)
        plain = momentum_factors(float(beta), T, "plain")
        limits = float(beta / (1 - beta)), math.sqrt((1 - beta) / (1 + beta)), float((1 - beta) / (1 + beta))
        assert plain == pytest.approx(limits, rel=1e-12, abs=0.0)
        assert found.drift < plain.drift
        assert found.noise > plain.noise


# ------------------------------------------------------------------------------------------ certificates of a run


def test_without_noise_the_run_bound_holds_on_every_run():
    for name, beta in product(DIRECTIONS, [0.0, 0.95]):
        for which in (0, 1):
            objective, start = problem(which)
            for eta in (0.2, np.linspace(0.3, 0.01, 20)):
                one = run(objective, start, DIRECTIONS[name], eta=eta, beta=beta, T=20)
                given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": 3, "B": 1}
                bound = run_bound(one.rho, one.gain, eta=eta, beta=beta, nesterov=False, **given)
                weights = np.broadcast_to(eta, one.rho.shape) * one.rho
                average = float(np.sum(weights * one.gradients) / np.sum(weights))
                assert bound.confidence == 1.0
                assert average <= bound.total * (1 + 1e-9)
                assert one.gradients.min() <= bound.total


def test_the_run_bound_is_attained_and_rejects_smaller_constants():
    r, a = 4, 0.8
    objective, start = bowl(r), a * orthogonal(np.random.default_rng(5), r)
    one = run(objective, start, svd_polar, eta=a, beta=0.0, T=1)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1}
    bound = run_bound(one.rho, one.gain, eta=a, beta=0.0, **given)
    assert one.stationarity == pytest.approx(bound.total, rel=1e-9, abs=0.0)
    assert not holds(one.stationarity, bound, curvature=0.99)
    assert not holds(one.stationarity, bound, descent=0.99)
    swing = run(bowl(1), np.array([[1.45]]), svd_polar, eta=1.0, beta=0.5, T=400)
    steps = {"eta": 1.0, "beta": 0.5, "nesterov": False}
    stale = run_bound(swing.rho, swing.gain, L=1.0, D=1.45**2 / 2, sigma=0.0, r=1, B=1, **steps)
    assert holds(swing.stationarity, stale)
    assert not holds(swing.stationarity, stale, drift=0.1)


def test_with_noise_the_run_bound_fails_no_more_often_than_announced():
    objective, start = problem(1)
    sigma, beta, eta, steps, failure = 2.0, 0.7, 0.1, 30, 0.25
    failures = 0
    for seed in range(40):
        one = run(objective, start, DIRECTIONS["jordan"], eta=eta, beta=beta, T=steps, noise=gaussian(sigma), seed=seed)
        given = {"L": objective.L, "D": objective.value(start), "sigma": sigma, "r": 3, "B": 1}
        bound = run_bound(one.rho, one.gain, eta=eta, beta=beta, failure=failure, nesterov=False, **given)
        failures += float(np.sum(one.rho * one.gradients) / np.sum(one.rho)) > bound.total
        part = float(np.sum((np.abs(one.rho) + one.gain) * one.noise)) / float(np.sum(one.rho))
        assert part > 0.1 * bound.terms["noise"] * math.sqrt(failure)
    assert failures <= failure * 40
    nu = momentum_factors(beta, steps, "corrected").noise_square
    load = np.abs(one.rho) + one.gain
    expected = math.sqrt(float(np.mean(load**2)) * nu * 3 / failure) * sigma / float(np.mean(one.rho))
    assert bound.terms["noise"] == pytest.approx(expected, rel=1e-12, abs=0.0)
    assert bound.confidence == pytest.approx(0.75, rel=1e-12, abs=0.0)


def test_noise_of_the_weighted_average_has_the_variance_of_its_weights():
    """``E‖Σ w_{t,i} ξ_i‖_F² = σ²ν_t²``, hence ``E B_t² ≤ rσ²ν_t²``; ν_t⁴ in its place is rejected."""
    sigma, beta, t, r = 2.0, 0.6, 6, 3
    nu_square = (1 - beta) * (1 + beta**t) / ((1 + beta) * (1 - beta**t))
    flat = [
        run(bowl(r), np.zeros((r, r)), lambda M: 0 * M, eta=1.0, beta=beta, T=t, seed=seed,
            noise=lambda rng, G: rng.choice([-1.0, 1.0]) * np.eye(len(G)) * sigma / math.sqrt(len(G))).noise[-1]
        for seed in range(400)
    ]  # fmt: skip
    second = float(np.mean(np.square(flat)))
    assert second == pytest.approx(r * sigma**2 * nu_square, rel=0.12, abs=0.0)
    assert second > 1.5 * r * sigma**2 * nu_square**2


# ---------------------------------------------------------------------------------------------- in expectation


def test_with_the_floor_as_constant_the_expectation_bound_needs_no_assumption_on_the_momentum():
    for start_up, name, which in product(["plain", "corrected"], ["normalised", "quintic 5", "jordan"], [0, 1]):
        objective, start = problem(which)
        s = schedule_error(SCHEDULES[name], 0.0).s_max
        alignment = descent_floor(SCHEDULES[name], 3) / s
        for sigma, choice in ((0.0, (None, None)), (2.0, (None, None)), (2.0, (0.3, 0.2))):
            given = {"L": objective.L, "D": objective.value(start), "sigma": sigma, "r": 3, "B": 2, "T": 25}
            bound = alignment_bound(
                alignment=alignment, op_norm=s, eta=choice[0], beta=choice[1], start=start_up, **given
            )
            runs = [
                run(objective, start, DIRECTIONS[name], eta=bound.eta, beta=bound.beta, T=25, noise=gaussian(sigma, 2),
                    seed=seed)
                for seed in range(3 if sigma else 1)
            ]  # fmt: skip
            assert min(one.rho.min() for one in runs) >= alignment * s * (1 - 1e-9)
            assert max(one.gain.max() for one in runs) <= s * (1 + 1e-9)
            assert holds(mean_stationarity(runs), bound)


def test_one_step_of_any_gain_attains_the_bound_and_rejects_smaller_constants():
    for gain in [0.5, 1.0, 1.2]:
        r = 4
        objective, start = bowl(r), orthogonal(np.random.default_rng(6), r)
        one = run(objective, start, lambda M, gain=gain: gain * svd_polar(M), eta=1 / gain, beta=0.0, T=1)
        given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": 1}
        bound = alignment_bound(alignment=1.0, op_norm=gain, eta=1 / gain, beta=0.0, **given)
        assert one.stationarity == pytest.approx(bound.total, rel=1e-9, abs=0.0)
        assert not holds(one.stationarity, bound, curvature=0.5)
        assert not holds(one.stationarity, bound, descent=0.99)


def test_the_descent_divides_the_bound_so_its_inverse_is_rejected():
    """A steady descent at ρ = 1/2: the average is ``D/(Tηρ)`` up to 1/T, not ``ρD/(Tη)`` nor ``D/(Tη)``."""
    steps, rho, r = 400, 0.5, 4
    objective, start = bowl(r), orthogonal(np.random.default_rng(7), r)
    eta = 1 / (steps * rho)
    one = run(objective, start, lambda M: rho * svd_polar(M), eta=eta, beta=0.0, T=steps)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": steps}
    bound = alignment_bound(alignment=1.0, op_norm=rho, eta=eta, beta=0.0, **given)
    assert holds(one.stationarity, bound)
    assert not holds(one.stationarity, bound, descent=rho)
    assert not holds(one.stationarity, bound, descent=rho**2)
    assert not holds(one.stationarity, bound, descent=0.99)


def test_at_the_best_step_only_the_alignment_counts():
    for alignment, gain in product([0.3, 1.0], [0.5, 1.0, 3.0]):
        L, D, sigma, r, B, T, beta = 1.4, 0.9, 0.8, 5, 3, 30, 0.6
        given = {"L": L, "D": D, "sigma": sigma, "r": r, "B": B, "T": T, "beta": beta, "start": "corrected"}
        bound = alignment_bound(alignment=alignment, op_norm=gain, **given)
        chi, (drift, noise, _) = 1 / alignment, momentum_factors(beta, T, "corrected")
        closed = 2 * chi * math.sqrt(L * D / T * (0.5 + (1 + 1 / chi) * drift))
        closed += (1 + chi) * sigma * math.sqrt(r / B) * noise
        assert bound.total == pytest.approx(closed, rel=1e-12, abs=0.0)
        wrong = closed - 2 * chi * math.sqrt(L * D / T * (0.5 + (1 + 1 / chi) * drift)) * (1 - math.sqrt(0.5))
        assert bound.total != pytest.approx(wrong, rel=1e-2, abs=0.0)
        for factor in (0.8, 1.25):
            other = alignment_bound(alignment=alignment, op_norm=gain, eta=factor * bound.eta, **given)
            assert other.total > bound.total


def test_steps_of_alignment_one_and_changing_length_need_the_constants_of_all_steps():
    """``O_t = c_t Polar(M_t)``, c_t alternating between 1 and 0.01: ``a_t = 1``, but the bound is that of χ = 100."""
    r, steps = 3, 60
    objective, start = bowl(r), orthogonal(np.random.default_rng(1), r)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": steps, "beta": 0.0}
    per_step = alignment_bound(alignment=1.0, op_norm=1.0, **given)
    lengths = np.resize([1.0, 0.01], steps)
    one = run(objective, start, [lambda M, c=c: c * svd_polar(M) for c in lengths], eta=per_step.eta, beta=0.0, T=steps)
    assert one.rho / one.gain == pytest.approx(1.0, rel=1e-12)
    assert one.stationarity > 1.2 * per_step.total
    assert holds(one.stationarity, alignment_bound(alignment=0.01, op_norm=1.0, eta=per_step.eta, **given))


# ------------------------------------------------------------------------------------------- alignment of matrices


def normalised_alignment(s):
    """``‖M‖_F²/(‖M‖_*‖M‖_op)``: the alignment of the momentum itself (q = 0)."""
    return float(np.sum(s**2) / (np.sum(s) * np.max(s)))


def test_normalised_momentum_has_alignment_at_least_two_over_one_plus_root_r():
    for r in [1, 4, 64]:
        floor = 2 / (1 + math.sqrt(r))
        rng = np.random.default_rng(r)
        assert all(normalised_alignment(rng.uniform(0, 1, r) ** k) >= floor for k in (1, 3, 10) for _ in range(50))
        worst = np.full(r, 1 / (1 + math.sqrt(r)))
        worst[0] = 1.0
        assert normalised_alignment(worst) >= floor * (1 - 1e-12)
        assert normalised_alignment(worst) < 1.001 * floor


def test_newton_schulz_has_alignment_at_least_one_minus_its_polar_error():
    for kappa, q in product([1, 2], [0, 1, 3]):
        rng = np.random.default_rng([kappa, q])
        M = with_spectrum(rng, rng.uniform(0.05, 1.0, 4), 4, 6)
        X = by_newton_schulz(taylor(kappa), q, "frobenius")(M)
        found = network_alignment([float(np.sum(M * X))], [nuclear(M)], [operator(X)])
        epsilon = operator(X - svd_polar(M))
        assert 1 - epsilon <= found.descent <= found.alignment <= 1
        assert found.descent > 1 - epsilon + 1e-6


def test_a_network_obeys_the_run_bound_under_the_sum_and_the_maximum_of_its_layers():
    """Two layers with ``Σ‖·‖_*`` and ``max‖·‖_op``: L is the sum of the layers' constants."""
    for beta in [0.0, 0.8]:
        rng, eta, steps = np.random.default_rng(8), 0.05, 40
        layers = [bowl(3, 2.0), bowl(2, 1.0)]
        W = [orthogonal(rng, 3), orthogonal(rng, 2)]
        M = [np.zeros((3, 3)), np.zeros((2, 2))]
        D = sum(f.value(w) for f, w in zip(layers, W, strict=True))
        rho, gain, gradients = [], [], []
        for _ in range(steps):
            G = [f.gradient(w) for f, w in zip(layers, W, strict=True)]
            M = [beta * m + g for m, g in zip(M, G, strict=True)]
            step = [DIRECTIONS["jordan"](m) for m in M]
            inner = [float(np.sum(m * x)) for m, x in zip(M, step, strict=True)]
            found = network_alignment(inner, list(map(nuclear, M)), list(map(operator, step)))
            rho.append(found.descent)
            gain.append(found.gain)
            gradients.append(sum(map(nuclear, G)))
            W = [w - eta * x for w, x in zip(W, step, strict=True)]
        constants = {"L": sum(f.L for f in layers), "D": D, "sigma": 0.0, "r": 5, "B": 1}
        bound = run_bound(rho, gain, eta=eta, beta=beta, nesterov=False, **constants)
        assert float(np.dot(rho, gradients) / np.sum(rho)) <= bound.total * (1 + 1e-9)
        assert min(gradients) <= bound.total


def test_the_largest_layer_constant_alone_is_rejected_for_a_network():
    """One step of both layers to the bottom attains the bound with the sum of the constants."""
    layers = [bowl(3, 1.0), bowl(2, 1.0)]
    D, size = sum(f.L / 2 for f in layers), sum(f.L for f in layers)
    bound = run_bound([1.0], [1.0], L=size, D=D, sigma=0.0, r=5, B=1, eta=1.0, beta=0.0)
    wrong = run_bound([1.0], [1.0], L=max(f.L for f in layers), D=D, sigma=0.0, r=5, B=1, eta=1.0, beta=0.0)
    assert size == pytest.approx(bound.total, rel=1e-12, abs=0.0)
    assert size > wrong.total
