"""Bounds for whole trajectories against sums written out by hand, over explicit weights of every gradient."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from muonlab.theory import alignment_bound, run_bound, schedule_bound, schedule_factors, trajectory_bound
from muonlab.theory.lr_schedules import LR_SCHEDULES, schedule_sums
from muonlab.theory.momentum import momentum_trace


def weights_of_gradients(betas, momentum_form, nesterov):
    """The weights of G_1…G_t in what is orthogonalized at each step, divided by their sum, as fractions."""
    rows, momentum = [], []
    for beta in betas:
        new = 1 if momentum_form == "heavy_ball" else 1 - beta
        momentum = [beta * w for w in momentum] + [new]
        row = [beta * w for w in momentum] if nesterov else list(momentum)
        row[-1] += new if nesterov else 0
        rows.append([w / sum(row) for w in row])
    return rows


def naive_sums(rho, gain, L, D, etas, weights, pull, tail, unit, failure=None):
    """The terms of the right-hand side, before the division: sums over steps and over pairs of gradients."""
    T = len(etas)
    moves = [float(etas[t] * (gain[t] + pull[t])) for t in range(T)]
    A = [L * sum(moves[i] * float(sum(weights[t][: i + 1])) for i in range(t)) for t in range(T)]
    nu = [sum(float(w) ** tail for w in weights[t]) ** (1 / tail) for t in range(T)]
    omega = [sum(float(w) ** tail for w in weights[t][:-1]) ** (1 / tail) for t in range(T)]
    sums = {
        "descent": D,
        "curvature": L / 2 * sum(move**2 for move in moves),
        "drift": sum(etas[t] * (abs(rho[t]) + gain[t]) * A[t] for t in range(T)),
    }
    if failure is None:
        sums["noise"] = unit * sum(etas[t] * (rho[t] * omega[t] + gain[t] * nu[t]) for t in range(T))
    elif unit:
        dual = tail / (tail - 1)
        load = sum((etas[t] * (abs(rho[t]) + gain[t])) ** dual for t in range(T)) ** (1 / dual)
        sums["noise"] = unit * load * (sum(n**tail for n in nu) / failure) ** (1 / tail)
    return sums


def cases(T=40):
    """Learning rates with zeros, changing momentum, descent and gain, in both forms, with and without Nesterov."""
    for seed, (form, nesterov, changing) in enumerate(product(["ema", "heavy_ball"], [False, True], [False, True])):
        generator = np.random.default_rng(seed)
        gain = generator.uniform(0.5, 1.2, T)
        etas = generator.uniform(0.01, 0.1, T) * (generator.random(T) > 0.2)
        betas = [Fraction(int(b), 100) for b in (generator.integers(0, 99, T) if changing else [90] * T)]
        yield form, nesterov, etas, betas, gain * generator.uniform(0.3, 1.0, T), gain


def test_drift_and_noise_are_those_of_the_explicit_weights():
    for form, nesterov, etas, betas, _, gain in cases():
        weights = weights_of_gradients(betas, form, nesterov)
        for tail in (2.0, 1.5):
            found = momentum_trace(
                etas * gain, np.array(betas, dtype=float), momentum_form=form, nesterov=nesterov, tail=tail
            )
            for t, row in enumerate(weights):
                assert sum(row) == 1
                drift = sum(etas[i] * gain[i] * float(sum(row[: i + 1])) for i in range(t))
                powers = [float(w) ** tail for w in row]
                assert found.drift[t] == pytest.approx(drift, rel=1e-12, abs=1e-15)
                assert found.past_noise[t] == pytest.approx(sum(powers[:-1]) ** (1 / tail), rel=1e-12, abs=1e-15)
                assert found.noise[t] == pytest.approx(sum(powers) ** (1 / tail), rel=1e-12, abs=0)


def test_the_two_forms_of_momentum_differ_only_while_it_changes():
    moves, rising = np.ones(50), np.linspace(0.5, 0.95, 50)
    for nesterov in (False, True):
        steady = [
            momentum_trace(moves, np.full(50, 0.9), momentum_form=f, nesterov=nesterov) for f in ("ema", "heavy_ball")
        ]
        changing = [momentum_trace(moves, rising, momentum_form=f, nesterov=nesterov) for f in ("ema", "heavy_ball")]
        assert np.allclose(steady[0], steady[1], rtol=1e-12, atol=1e-14)
        assert not np.allclose(changing[0], changing[1], rtol=1e-2, atol=0)


def test_every_term_of_the_expectation_is_the_printed_sum():
    for form, nesterov, etas, betas, rho, gain in cases():
        weights, floats = weights_of_gradients(betas, form, nesterov), [float(b) for b in betas]
        for decay, tail in ((0.0, 2.0), (0.05, 2.0), (0.0, 1.5), (0.04, 1.2)):
            radius, radii = 0.4, []
            for eta, s in zip(etas, gain, strict=True):
                radii.append(radius)
                radius = (1 - eta * decay) * radius + eta * s
            pull, unit = [decay * R for R in radii], 0.7 * math.sqrt(20) * 2 ** ((2 - tail) / tail)
            sums = naive_sums(rho, gain, 1.3, 2.0, etas, weights, pull, tail, unit)
            bound = trajectory_bound(
                L=1.3, D=2.0, sigma=0.7, r=20, B=1, etas=etas, betas=floats, rho=rho, s=gain, momentum_form=form,
                nesterov=nesterov, weight_decay=decay, weight_norm=0.4, tail=tail,
            )  # fmt: skip
            total = sum(etas[t] * (rho[t] - pull[t]) for t in range(len(etas)))
            assert bound.status == "applies"
            assert bound.terms == pytest.approx({k: v / total for k, v in sums.items()}, rel=1e-11, abs=0)
            assert bound.total == pytest.approx(sum(bound.terms.values()), rel=1e-13, abs=0)
            assert sum(bound.weights) == pytest.approx(total, rel=1e-12, abs=0)
            if decay:
                assert bound.gap.bound == pytest.approx(sum(sums.values()) / sum(etas), rel=1e-11, abs=0)
                assert bound.gap.nonnegative
            else:
                assert bound.gap is None


def test_every_term_of_a_runs_certificate_is_the_printed_sum():
    for form, nesterov, etas, betas, rho, gain in cases():
        weights, floats = weights_of_gradients(betas, form, nesterov), [float(b) for b in betas]
        for sigma, decayed, tail in product((0.0, 0.7), (False, True), (2.0, 1.5)):
            pull = 0.2 * rho * np.linspace(0, 1, len(rho)) if decayed else np.zeros_like(rho)
            unit = sigma * math.sqrt(20) * 2 ** ((2 - tail) / tail)
            sums = naive_sums(rho, gain, 1.3, 2.0, etas, weights, pull, tail, unit, failure=0.1)
            bound = run_bound(
                rho, gain, L=1.3, D=2.0, sigma=sigma, r=20, B=1, eta=etas, beta=floats, failure=0.1,
                momentum_form=form, nesterov=nesterov, pull=pull if decayed else None, tail=tail,
            )  # fmt: skip
            total = sum(etas * (rho - pull))
            assert bound.terms == pytest.approx({k: v / total for k, v in sums.items()}, rel=1e-11, abs=0)
            assert bound.total == pytest.approx(sum(bound.terms.values()), rel=1e-13, abs=0)
            assert bound.confidence == pytest.approx(0.9 if sigma else 1.0, abs=1e-15)
            assert (bound.status, bound.gap is None) == ("applies", not decayed)
            noise = "noise by Markov at 0.1" if sigma else "no noise, as sigma = 0"
            assert bound.reason == f"every step of 40 counted; {noise}"
            if decayed:
                assert bound.gap.bound == pytest.approx(sum(sums.values()) / sum(etas), rel=1e-11, abs=0)


def test_a_batch_divides_the_noise_by_its_root():
    given = {"L": 1.0, "D": 1.0, "sigma": 2.0, "r": 9, "etas": [0.1] * 20, "betas": 0.9, "rho": 0.8}
    one, sixteen = (trajectory_bound(**given, B=B) for B in (1, 16))
    assert one.terms["noise"] == pytest.approx(4 * sixteen.terms["noise"], rel=1e-12, abs=0)
    assert one.terms["drift"] == sixteen.terms["drift"]


def test_with_a_constant_rate_the_bound_is_at_most_the_alignment_theorems():
    """Plain momentum: descent, curvature and drift coincide with the bias-corrected form, and noise is smaller."""
    for beta, rho, s, T in product([0.0, 0.5, 0.95], [0.3, 1.0], [1.0, 1.2], [1, 30, 400]):
        given = {"L": 1.4, "D": 0.9, "sigma": 0.8, "r": 5, "B": 3}
        old = alignment_bound(**given, T=T, alignment=rho / s, op_norm=s, eta=0.05, beta=beta, start="corrected")
        new = trajectory_bound(**given, etas=[0.05] * T, betas=beta, rho=rho, s=s, nesterov=False)
        for term in ("descent", "curvature", "drift"):
            assert new.terms[term] == pytest.approx(old.terms[term], rel=1e-9, abs=1e-12)
        assert new.terms["noise"] < old.terms["noise"] * (1 + 1e-12)
        if T == 400:  # in the long run ρβ + s replaces ρ + s
            ratio = new.terms["noise"] / old.terms["noise"]
            assert ratio == pytest.approx((rho * beta + s) / (rho + s), rel=0.06, abs=0)


def test_the_closed_form_for_schedules_agrees_with_the_sums_in_the_long_run():
    """Corollary A1 bounds the start of the momentum and pairs of rates; for a long constant rate it is nearly tight."""
    for nesterov, beta, name in product([False, True], [0.0, 0.5, 0.9], LR_SCHEDULES):
        T, given = 4000, {"L": 1.0, "D": 1.0, "sigma": 0.5, "r": 4, "B": 2}
        closed = schedule_bound(**given, T=T, alignment=0.8, op_norm=1.1, lr_schedule=name, nesterov=nesterov,
                                eta=0.01, beta=beta)  # fmt: skip
        etas = 0.01 * schedule_factors(name, T)
        sums = trajectory_bound(**given, etas=etas, betas=beta, rho=0.88, s=1.1, nesterov=nesterov)
        assert closed.terms["descent"] == pytest.approx(sums.terms["descent"], rel=1e-9, abs=0)
        assert closed.terms["curvature"] == pytest.approx(sums.terms["curvature"], rel=1e-9, abs=0)
        assert closed.terms["noise"] == pytest.approx(sums.terms["noise"], rel=0.01, abs=0)
        assert sums.terms["drift"] <= closed.terms["drift"] <= 1.02 * sums.terms["drift"] + 1e-12
        assert closed.terms["start"] <= 0.05 * closed.total


def test_the_closed_form_at_a_constant_rate_is_the_alignment_theorem_with_less_noise():
    given = {"L": 1.4, "D": 0.9, "sigma": 0.8, "r": 5, "B": 3, "T": 30, "alignment": 0.7, "op_norm": 1.2, "beta": 0.6}
    old, new = alignment_bound(**given), schedule_bound(**given, nesterov=False)
    assert new.eta == pytest.approx(old.eta, rel=1e-12, abs=0)
    assert {**new.terms, "noise": 0} == pytest.approx({**old.terms, "noise": 0}, rel=1e-12, abs=0)
    assert new.terms["noise"] == pytest.approx(old.terms["noise"] * (0.7 * 0.6 + 1) / 1.7, rel=1e-12, abs=0)


def test_at_the_best_momentum_the_smaller_noise_is_worth_a_third():
    given = {"L": 1.0, "D": 1.0, "sigma": 0.1, "r": 1, "B": 1, "T": 1000, "alignment": 1.0}
    betas = 1 - np.geomspace(1e-3, 1, 500)
    assert min(alignment_bound(**given, beta=b).total for b in betas) == pytest.approx(0.218, abs=5e-4)
    assert min(schedule_bound(**given, beta=b, nesterov=False).total for b in betas) == pytest.approx(0.145, abs=5e-4)


def test_the_cost_of_a_schedule_is_the_root_of_its_mean_square_over_its_squared_mean():
    expected = {"constant": 1.0, "linear": 1.155, "cosine": 1.225, "warmup_cosine": 1.221, "wsd": 1.034}
    for name in LR_SCHEDULES:
        for T in (10_000, 10**8):
            assert schedule_sums(name, T).cost(T) == pytest.approx(expected[name], abs=1e-3)
        given = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1, "T": 10_000, "alignment": 1.0, "beta": 0.0}
        best = schedule_bound(**given, lr_schedule=name)
        assert best.total == pytest.approx(
            math.sqrt(2 / 10_000) * schedule_sums(name, 10_000).cost(10_000), rel=1e-9, abs=0
        )
        for factor in (0.9, 1.1):
            assert schedule_bound(**given, lr_schedule=name, eta=factor * best.eta).total > best.total


def test_schedules_have_the_printed_shapes_and_long_ones_the_integrals_of_these():
    x = (np.arange(1000) + 0.5) / 1000
    shapes = {  # h, its integral, that of its square, and its total variation
        "constant": (np.ones_like(x), 1, 1, 0),
        "linear": (1 - x, 1 / 2, 1 / 3, 1),
        "cosine": (np.cos(np.pi * x / 2) ** 2, 1 / 2, 3 / 8, 1),
        "warmup_cosine": (
            np.where(x < 0.05, x / 0.05, np.cos(np.pi / 2 * (x - 0.05) / 0.95) ** 2), 1 / 2, 0.05 / 3 + 0.95 * 3 / 8, 2,
        ),
        "wsd": (np.where(x < 0.05, x / 0.05, np.where(x < 0.85, 1, (1 - x) / 0.15)), 0.9, 13 / 15, 2),
    }  # fmt: skip
    assert tuple(shapes) == LR_SCHEDULES
    for name, (factors, mean, mean_square, variation) in shapes.items():
        assert schedule_factors(name, 1000) == pytest.approx(factors, rel=1e-9, abs=1e-12)
        T = 2_000_000
        sums = mean * T - variation, mean_square * T + variation
        assert schedule_sums(name, T) == pytest.approx(sums, rel=1e-12, abs=0)


def test_sums_of_long_schedules_are_bounds_of_the_exact_ones():
    for name in LR_SCHEDULES:
        T = 1_000_000
        exact, bounds = schedule_sums(name, T), schedule_sums(name, T + 1)
        assert exact.total - 3 <= bounds.total <= exact.total + 1
        assert exact.squares <= bounds.squares <= exact.squares + 4


def test_the_warm_up_of_the_schedule_is_that_of_the_lab():
    from muonlab.lab.training.recipe import learning_rate_factor

    T = 2000
    lab = [learning_rate_factor(t, T, 0.05) for t in range(T)]
    assert np.abs(schedule_factors("warmup_cosine", T) - lab).max() < 0.01


def test_a_mathematical_no_has_a_reason():
    given = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1, "betas": 0.5}
    pulled = trajectory_bound(**given, etas=[0.1] * 5, rho=0.5, weight_decay=0.3, weight_norm=4.0)
    assert (pulled.status, pulled.total) == ("not_applicable", math.inf)
    assert "lambda times the norm of the weights is up to 1.2" in pulled.reason
    assert not pulled.gap.nonnegative
    assert 0 < pulled.gap.bound < math.inf
    turned = trajectory_bound(**given, etas=[0.1, 4.0], rho=0.5, weight_decay=0.3, weight_norm=0.0)
    assert turned.status == "not_applicable"
    assert "eta * weight_decay = 1.2 exceeds 1" in turned.reason
    for largest, status in ((0.97, "applies"), (1.0, "applies"), (1.03, "not_applicable")):
        edge = trajectory_bound(**given, etas=[0.01, largest], rho=1.0, weight_decay=1.0, weight_norm=0.2)
        assert edge.status == status
    resting = trajectory_bound(**given, etas=[0.0, 0.0], rho=0.5)
    assert resting.status == "not_applicable"
    assert "eta is zero at every step" in resting.reason
    none = schedule_bound(L=1.0, D=1.0, sigma=0.0, r=1, B=1, T=10, alignment=0.0)
    assert (none.status, none.total) == ("not_applicable", math.inf)


def test_weights_that_stay_inside_of_the_ball_have_a_gap_of_known_sign():
    """Exact polar factor, ``‖W_0‖_op ≤ 1/λ``: ρ = s = 1, and λR never exceeds 1; the average needs λR < 1."""
    given = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1, "etas": [0.1] * 50, "betas": 0.5, "rho": 1.0}
    inside = trajectory_bound(**given, weight_decay=0.25, weight_norm=4.0)
    assert inside.gap.nonnegative
    assert inside.status == "not_applicable"  # λR = 1 at every step: the weights of the average are zero
    outside = trajectory_bound(**given, weight_decay=0.25, weight_norm=4.1)
    assert not outside.gap.nonnegative
    assert trajectory_bound(**given, weight_decay=0.25, weight_norm=1.0).status == "applies"
    for pull, nonnegative in ((0.97, True), (1.0, True), (1.03, False)):
        measured = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1, "eta": 0.1, "beta": 0.5}
        assert run_bound([1.0] * 5, [1.0] * 5, pull=pull, **measured).gap.nonnegative is nonnegative


def test_a_step_of_learning_rate_zero_counts():
    """Ten gradients at W_0 stay in the momentum; leaving those steps out would hide how old it is later.

    On ``w²/2`` far from 0 the drift is exact: at the second step of length 1 after ten rests the momentum lags behind
    the gradient by ``(β - β^12)/(1 - β^12) = .861``; without the rests it would be ``(β - β²)/(1 - β²) = .474``.
    """
    etas = np.r_[np.zeros(10), np.ones(2)]
    w, M, mass = 1000.0, 0.0, 0.0
    for eta in etas:
        M, mass = 0.9 * M + w, 0.9 * mass + 1
        lag = M / mass - w
        w -= eta
    traces = [momentum_trace(moves, np.full(len(moves), 0.9), nesterov=False) for moves in (etas, etas[10:])]
    assert lag == pytest.approx(traces[0].drift[-1], rel=1e-9)
    assert [trace.drift[-1] for trace in traces] == pytest.approx([0.861, 0.474], abs=5e-4)
    given = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1, "beta": 0.9, "nesterov": False}
    whole, dropped = (run_bound(np.ones(len(e)), np.ones(len(e)), eta=e, **given) for e in (etas, etas[10:]))
    assert whole.status == dropped.status == "applies"
    assert whole.terms["drift"] == pytest.approx(dropped.terms["drift"] * 0.8606408637 / 0.4736842105, rel=1e-9)


def test_the_start_of_the_momentum_costs_what_its_missing_weight_adds_up_to():
    """Corollary A1: ``(ρ + s) √(2LD) Σ η_t β^t / Σ η_t``, with Nesterov ``β^{t+1}``; sums over 2,000 steps by hand."""
    T, given = 2000, {"L": 1.3, "D": 0.7, "sigma": 0.0, "r": 1, "B": 1, "alignment": 0.8, "op_norm": 1.1}
    for nesterov, beta, name in product([False, True], [0.3, 0.9, 0.97], LR_SCHEDULES):
        bound = schedule_bound(**given, T=T, lr_schedule=name, nesterov=nesterov, eta=0.02, beta=beta)
        etas = 0.02 * schedule_factors(name, T)
        missing = sum(eta * beta ** (t + nesterov) for t, eta in enumerate(etas, start=1)) / sum(etas)
        exact = (0.88 + 1.1) * math.sqrt(2 * 1.3 * 0.7) * missing / 0.88
        assert bound.terms["start"] >= exact * (1 - 1e-9)
        if name == "constant":
            assert bound.terms["start"] == pytest.approx(exact, rel=1e-9)


def test_a_negative_right_side_shows_that_an_assumption_fails():
    """It bounds an average of norms, and a gap inside of the ball: neither can be negative."""
    given = {"L": 1e-6, "sigma": 0.0, "r": 4, "B": 1, "eta": 0.01, "beta": 0.95}
    for more, negative in (({}, True), ({"pull": 0.5}, True), ({"pull": 1.0}, True), ({"pull": 2.0}, False)):
        bound = run_bound([1.0] * 50, [1.0] * 50, D=-0.5, **given, **more)
        assert (bound.status, bound.total, bound.terms) == ("not_applicable", math.inf, {})
        assert ("bound is negative" in bound.reason) == (bound.gap is None) == negative, more
    assert run_bound([1.0] * 50, [1.0] * 50, D=0.0, **given).status == "applies"


def test_bad_sequences_are_refused_by_rule_value_and_step():
    for changes, message in [
        ({"etas": 0.1}, r"etas must have one number for each step, got shape \(\): pass a sequence"),
        ({"etas": []}, r"etas must have one number for each step, got shape \(0,\)"),
        ({"etas": [0.1, math.inf]}, r"etas must be finite and in \[0, inf\) at every step, got .*inf.* at step 2"),
        ({"betas": [0.5]}, r"betas must be one number or one for each of 2 steps, got shape \(1,\)"),
        ({"rho": -0.1}, r"rho must be finite and in \[0, inf\) at every step, got .*-0\.1.* at step 1"),
        ({"rho": 1.5}, r"\|rho\| is at most the gain by Hölder's inequality"),
        ({"weight_decay": -1.0}, r"weight_decay must be a finite number in \[0, inf\), got -1\.0"),
        (
            {"weight_decay": 0.3},
            r"needs the norm of the first weights, got weight_decay = 0\.3 without weight_norm: pass the operator norm",
        ),
        ({"weight_decay": 0.3, "weight_norm": -1.0}, r"weight_norm must be a finite number in \[0, inf\), got -1\.0"),
        ({"tail": 2.5}, r"tail must be a finite number in \(1, 2\], got 2\.5"),
    ]:
        arguments = {"L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1, "etas": [0.1, 0.1], "betas": 0.5, "rho": 0.5}
        with pytest.raises(ValueError, match=message):
            trajectory_bound(**{**arguments, **changes})
    with pytest.raises(ValueError, match=r"lr_schedule must be one of .*'wsd', got 'step': pick one"):
        schedule_bound(L=1.0, D=1.0, sigma=0.0, r=1, B=1, T=5, alignment=1.0, lr_schedule="step")


# ----------------------------------------------------------------------------------------------- single runs


def test_a_descent_larger_than_its_gain_is_refused():
    with pytest.raises(
        ValueError, match=r"\|rho\| is at most the gain by Hölder's inequality.*check what was measured"
    ):
        run_bound([0.5, 1.1], [1.0, 1.0], L=1.0, D=1.0, sigma=0.0, r=1, B=1, eta=0.1, beta=0.0)


def test_a_larger_failure_probability_allows_a_smaller_bound():
    arguments = {"L": 1.0, "D": 1.0, "sigma": 1.0, "r": 4, "B": 1, "eta": 0.1, "beta": 0.9}
    strict, loose = (run_bound([0.9] * 30, [1.0] * 30, **arguments, failure=p) for p in (0.01, 0.25))
    assert strict.terms["noise"] == pytest.approx(5 * loose.terms["noise"], rel=1e-12, abs=0)
    assert strict.terms["drift"] == loose.terms["drift"]


def test_a_run_that_need_not_descend_has_no_certificate():
    for rho in [[-0.5, 0.2], [0.9, -0.1], [0.0, 0.0]]:
        bound = run_bound(rho, [1.0, 1.0], L=1.0, D=1.0, sigma=0.0, r=1, B=1, eta=0.1, beta=0.0)
        assert bound.total == math.inf
        assert bound.status == "not_applicable"
        assert "descend" in bound.reason


def looping_run(eta=5e-4):
    """A walk on f(x, y) = a(y) x that falls where ∇f is small and climbs back where it is large.

    Down along y = 0 from x = 0 to -4 (slope 1), along a level line to y = 1 (x = -1), up to x = 0 (slope 4), back along
    x = 0. It ends where it began, so D = f(W_0) - f(W_T) = 0, and ‖∇f‖ ≥ 1 everywhere on the way.
    """

    def a(y):
        return 1 + 3 * y * y * (3 - 2 * y)

    corners = [np.stack([np.linspace(0, -4, 4000), np.zeros(4000)], axis=1)]
    y = np.linspace(0, 1, 4000)
    corners.append(np.stack([-4 / a(y), y], axis=1))
    corners.append(np.stack([np.linspace(-1, 0, 4000), np.ones(4000)], axis=1))
    corners.append(np.stack([np.zeros(4000), np.linspace(1, 0, 4000)], axis=1))
    path = np.concatenate(corners)
    length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    steps = math.ceil(length[-1] / eta)
    at = np.linspace(0, length[-1], steps + 1)
    W = np.stack([np.interp(at, length, path[:, 0]), np.interp(at, length, path[:, 1])], axis=1)
    O = -np.diff(W, axis=0) / eta
    x, y = W[:-1, 0], W[:-1, 1]
    gradient = np.stack([a(y), 18 * y * (1 - y) * x], axis=1)
    norm = np.linalg.norm(gradient, axis=1)
    hessian = np.sqrt(2 * (18 * y * (1 - y)) ** 2 + (18 * (1 - 2 * y) * x) ** 2)
    return {
        "rho": np.sum(gradient * O, axis=1) / norm,
        "gain": np.linalg.norm(O, axis=1),
        "norm": norm,
        "L": 1.5 * float(hessian.max()),
        "D": max(0.0, float(a(W[0, 1]) * W[0, 0] - a(W[-1, 1]) * W[-1, 0])),
        "eta": eta,
    }


def test_a_certificate_is_never_below_the_smallest_gradient_even_when_some_steps_ascend():
    run = looping_run()
    assert run["rho"].min() < -0.9  # it does ascend for a while
    assert run["norm"].min() > 0.999
    bound = run_bound(run["rho"], run["gain"], L=run["L"], D=run["D"], sigma=0.0, r=1, B=1, eta=run["eta"], beta=0.0)
    assert bound.total >= run["norm"].min()


def test_a_step_that_was_not_measured_is_refused():
    for name, bad in product(["rho", "gain"], [math.nan, math.inf]):
        steps = {"rho": [0.5, 0.5], "gain": [1.0, 1.0]}
        steps[name] = [0.5, bad]
        with pytest.raises(ValueError, match=name):
            run_bound(**steps, L=1.0, D=1.0, sigma=0.0, r=1, B=1, eta=0.1, beta=0.5)


def test_a_run_with_bad_numbers_is_refused():
    for changes, error, message in [
        ({"rho": [0.5]}, ValueError, r"rho and gain of every step, got shapes \(1,\) and \(2,\): pass two sequences"),
        ({"rho": [], "gain": []}, ValueError, r"rho and gain of every step, got shapes \(0,\) and \(0,\)"),
        ({"eta": [0.1] * 3}, ValueError, r"eta must be one number or one for each of 2 steps, got shape \(3,\)"),
        (
            {"eta": [0.1, -0.1]},
            ValueError,
            r"eta must be finite and in \[0, inf\) at every step, got .*-0\.1.* at step 2",
        ),
        (
            {"beta": 1.0},
            ValueError,
            r"beta must be finite and in \[0, 1\) at every step, got .*1\.0.* at step 1: choose",
        ),
        (
            {"pull": [0.1, math.nan]},
            ValueError,
            r"pull must be finite and in \[0, inf\) at every step, got .*nan.* step 2",
        ),
        ({"tail": 1.0}, ValueError, r"tail must be a finite number in \(1, 2\], got 1\.0: choose"),
        ({"tail": 1.5, "sigma": 1.0, "B": 2}, ValueError, r"sigma must be that of the batch if tail < 2, got B = 2"),
        ({"momentum_form": "adam"}, ValueError, r"momentum_form must be one of 'heavy_ball', 'ema', got 'adam'"),
        ({"failure": 0.0}, ValueError, r"failure must be a finite number in \(0, 1\], got 0\.0: choose a value"),
        ({"L": -1.0}, ValueError, r"L must be a finite number in \(0, inf\), got -1\.0: choose a value inside"),
        ({"sigma": -1.0}, ValueError, r"sigma must be a finite number in \[0, inf\), got -1\.0: choose a value"),
    ]:
        arguments = {"rho": [0.5, 0.6], "gain": [1.0, 1.0], "L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1}
        with pytest.raises(error, match=message):
            run_bound(**{**arguments, "eta": 0.1, "beta": 0.5, **changes})


def test_a_tail_near_one_keeps_its_noise_term():
    """Hölder's conjugate exponent is 500 there: powers of small rates underflow unless they are scaled first."""
    given = {"L": 1.0, "D": 1.0, "sigma": 1.0, "r": 4, "B": 1, "beta": 0.9}
    for tail, eta in ((1.002, 0.02), (1.005, 1e-3), (1.01, 1e-4)):
        noise = [
            run_bound([0.9] * 1000, [1.0] * 1000, eta=rate, tail=tail, **given).terms["noise"] for rate in (eta, 1.0)
        ]
        assert noise[0] == pytest.approx(noise[1], rel=1e-9)  # a constant rate cancels
        assert noise[0] > 100
