"""The alignment theorem: momentum factors, constants, networks and certificates of single runs."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.theory import alignment_bound, momentum_factors, network_alignment, run_bound

BASE = {"L": 2.0, "D": 3.0, "sigma": 0.7, "r": 48, "B": 16, "T": 300}
POSITIVE = st.floats(1e-2, 1e2)
ANY = st.fixed_dictionaries(
    {"L": POSITIVE, "D": POSITIVE, "sigma": POSITIVE}
    | {"r": st.integers(1, 4096), "B": st.integers(1, 4096), "T": st.integers(1, 3000)}
)


def averages(beta, T, digits=60):
    """a_T, b_T and the mean of ν² by the sums that define them, in many digits."""
    with mpmath.workdps(digits):
        b, drift, noise, square, power, inner = mpmath.mpf(beta), 0, 0, 0, mpmath.mpf(1), mpmath.mpf(0)
        for t in range(1, T + 1):
            # inner = Σ_{i<t} β^{t-i}, grown term by term
            inner = b * (inner + 1) if t > 1 else mpmath.mpf(0)
            power *= b
            drift += (inner - (t - 1) * power) / (1 - power)
            nu = (1 - b) * (1 + power) / ((1 + b) * (1 - power))
            noise += mpmath.sqrt(nu)
            square += nu
        return float(drift / T), float(noise / T), float(square / T)


def test_corrected_factors_agree_with_the_sums_that_define_them():
    for beta, T in product([1e-3, 0.5, 0.9, 0.999], [1, 2, 7, 600]):
        assert momentum_factors(beta, T, "corrected") == pytest.approx(averages(beta, T), rel=1e-10, abs=1e-13)


def test_corrected_factors_keep_their_digits_for_momentum_near_one():
    for beta, T in product([1 - 1e-6, 1 - 1e-9, 1 - 1e-12], [2, 10, 300]):
        assert momentum_factors(beta, T, "corrected") == pytest.approx(averages(beta, T), rel=1e-9, abs=0)
    assert momentum_factors(0.9, 10**12, "corrected") == pytest.approx(momentum_factors(0.9, 10**12), rel=1e-9, abs=0)
    with pytest.raises(ValueError, match=r"start='corrected' adds up .* use start='plain'"):
        momentum_factors(1 - 1e-14, 10**11, "corrected")


@given(st.floats(0, 0.9999), st.integers(1, 5000))
def test_plain_factors_are_limits_and_the_corrected_drift_is_never_larger(beta, T):
    plain, corrected = momentum_factors(beta, T), momentum_factors(beta, T, "corrected")
    assert plain.drift == pytest.approx(beta / (1 - beta), rel=1e-14, abs=0)
    assert plain.noise == pytest.approx(math.sqrt((1 - beta) / (1 + beta)), rel=1e-14, abs=0)
    assert plain.noise_square == pytest.approx((1 - beta) / (1 + beta), rel=1e-14, abs=0)
    assert corrected.drift <= plain.drift * (1 + 1e-12)
    assert corrected.noise >= plain.noise * (1 - 1e-12)


def naive_bound(L, D, sigma, r, B, T, rho, s, eta, beta, start):
    a, b = beta / (1 - beta), math.sqrt((1 - beta) / (1 + beta))
    if start == "corrected":
        a, b, _ = averages(beta, T, digits=30)
    inner = D / (T * eta) + L * eta * s * s / 2 + (rho + s) * (L * eta * s * a + sigma * math.sqrt(r / B) * b)
    if start == "plain":
        inner += (rho + s) * beta * math.sqrt(2 * L * D) / (T * (1 - beta))
    return inner / rho


def test_the_bound_agrees_with_the_naive_formula():
    for start, beta, (alignment, op_norm) in product(
        ["plain", "corrected"], [0.0, 0.6, 0.97], [(1.0, 1.0), (0.4, 1.0), (0.7, 1.2), (0.05, 3.0)]
    ):
        for eta in (1e-3, 0.1):
            bound = alignment_bound(**BASE, alignment=alignment, op_norm=op_norm, eta=eta, beta=beta, start=start)
            expected = naive_bound(**BASE, rho=alignment * op_norm, s=op_norm, eta=eta, beta=beta, start=start)
            assert bound.total == pytest.approx(expected, rel=1e-11, abs=0)
            names = {"descent", "curvature", "drift", "noise"} | ({"start"} if start == "plain" else set())
            assert set(bound.terms) == names
            assert bound.terms[bound.dominant] == max(bound.terms.values())


@given(ANY, st.floats(0.01, 1.0), st.floats(0, 0.999))
def test_at_the_best_step_only_the_alignment_counts(problem, alignment, beta):
    factor = 1 / alignment
    L, D, sigma, r, B, T = (problem[k] for k in ("L", "D", "sigma", "r", "B", "T"))
    a, b, _ = momentum_factors(beta, T, "corrected")
    expected = 2 * factor * math.sqrt(L * D / T * (0.5 + (1 + 1 / factor) * a))
    expected += (1 + factor) * sigma * math.sqrt(r / B) * b
    for s in (1.0, 0.2, 7.0):
        bound = alignment_bound(**problem, alignment=alignment, op_norm=s, beta=beta, start="corrected")
        assert bound.total == pytest.approx(expected, rel=1e-11, abs=0)


@given(ANY, st.floats(0.01, 0.98))
def test_a_better_alignment_never_gives_a_larger_bound(problem, alignment):
    worse, better = (alignment_bound(**problem, alignment=a).total for a in (alignment, alignment + 0.02))
    assert better < worse


def test_a_direction_that_need_not_descend_has_no_bound_and_says_why():
    for alignment in [0.0, -0.5]:
        bound = alignment_bound(**BASE, alignment=alignment)
        assert bound.total == math.inf
        assert bound.status == "not_applicable"
        assert f"alignment = {alignment:g}" in bound.reason
        assert "need not descend" in bound.reason


# ------------------------------------------------------------------------------------------------ networks


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(1e-3, 1e3), st.floats(0.1, 2)), min_size=1, max_size=6))
def test_layers_combine_under_the_sum_of_nuclear_and_the_largest_operator_norm(layers):
    inner = [rho * nuclear for rho, nuclear, _ in layers]
    nuclear, gain = [n for _, n, _ in layers], [g for _, _, g in layers]
    combined = network_alignment(inner, nuclear, gain)
    assert combined.descent == pytest.approx(sum(inner) / sum(nuclear), rel=1e-12, abs=1e-15)
    assert combined.gain == max(gain)
    assert combined.alignment == pytest.approx(combined.descent / combined.gain, rel=1e-14, abs=0)


def test_a_network_without_momentum_has_alignment_zero():
    assert network_alignment([0.0, 0.0], [0.0, 0.0], [1.0, 1.0]) == (0.0, 0.0, 0.0)
    assert network_alignment([0.0], [1.0], [0.0]) == (0.0, 0.0, 0.0)


def test_layers_of_unequal_number_are_refused():
    for lists in [([], [], []), ([1.0], [1.0, 2.0], [1.0]), ([1.0, 1.0], [1.0, 2.0], [1.0])]:
        with pytest.raises(
            ValueError, match=r"one inner product, nuclear norm and gain per layer, got .*of one length"
        ):
            network_alignment(*lists)


# ----------------------------------------------------------------------------------------------- single runs


def naive_staleness(gains, etas, L, beta):
    T = len(gains)
    return np.array(
        [
            L * sum(etas[i - 1] * gains[i - 1] * (beta ** (t - i) - beta**t) / (1 - beta**t) for i in range(1, t))
            for t in range(1, T + 1)
        ]
    )


def naive_run_bound(rho, gain, L, D, sigma, r, B, etas, beta, failure):
    T = len(rho)
    A = naive_staleness(gain, etas, L, beta)
    right = D + L / 2 * sum(etas[t] ** 2 * gain[t] ** 2 for t in range(T))
    right += sum(etas[t] * (abs(rho[t]) + gain[t]) * A[t] for t in range(T))
    if sigma:
        nu = [(1 - beta) * (1 + beta**t) / ((1 + beta) * (1 - beta**t)) for t in range(1, T + 1)]
        load = sum((etas[t] * (abs(rho[t]) + gain[t])) ** 2 for t in range(T))
        right += math.sqrt(load) * sigma * math.sqrt(r / B) * math.sqrt(sum(nu) / failure)
    return right / sum(etas[t] * rho[t] for t in range(T))


def test_a_runs_certificate_agrees_with_the_printed_inequality():
    for sigma, beta, constant in product([0.0, 0.7], [0.0, 0.5, 0.95], [True, False]):
        generator = np.random.default_rng(3)
        gain = generator.uniform(0.5, 1.2, 80)
        rho = gain * generator.uniform(0.1, 1.0, 80)
        eta = 0.05 if constant else generator.uniform(0.01, 0.1, 80)
        arguments = {"L": 1.3, "D": 2.0, "sigma": sigma, "r": 20, "B": 4}
        bound = run_bound(rho, gain, **arguments, eta=eta, beta=beta, failure=0.1)
        expected = naive_run_bound(rho, gain, **arguments, etas=np.broadcast_to(eta, (80,)), beta=beta, failure=0.1)
        assert bound.total == pytest.approx(expected, rel=1e-11, abs=0)
        assert bound.total == pytest.approx(sum(bound.terms.values()), rel=1e-13, abs=0)
        assert set(bound.terms) == {"descent", "curvature", "drift"} | ({"noise"} if sigma else set())
        assert bound.confidence == pytest.approx(0.9 if sigma else 1.0, abs=1e-15)
        assert bound.status == "applies"
        assert "every step of 80" in bound.reason


def test_a_descent_larger_than_its_gain_is_refused():
    with pytest.raises(ValueError, match=r"\|rho\| is at most gain by Hölder's inequality.*check what was measured"):
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
        ({"eta": [0.1] * 3}, ValueError, r"eta must be one number or one per step, got shape \(3,\) for 2 steps"),
        ({"eta": [0.1, 0.0]}, ValueError, r"eta must be positive at every step, got a smallest value of 0\.0: drop"),
        ({"beta": 1.0}, ValueError, r"beta must be a finite number in \[0, 1\), got 1\.0: choose a value inside"),
        ({"failure": 0.0}, ValueError, r"failure must be a finite number in \(0, 1\], got 0\.0: choose a value"),
        ({"L": -1.0}, ValueError, r"L must be a finite number in \(0, inf\), got -1\.0: choose a value inside"),
        ({"sigma": -1.0}, ValueError, r"sigma must be a finite number in \[0, inf\), got -1\.0: choose a value"),
    ]:
        arguments = {"rho": [0.5, 0.6], "gain": [1.0, 1.0], "L": 1.0, "D": 1.0, "sigma": 0.0, "r": 1, "B": 1}
        with pytest.raises(error, match=message):
            run_bound(**{**arguments, "eta": 0.1, "beta": 0.5, **changes})


def test_bad_constants_are_refused_by_rule_and_value():
    for changes, error, message in [
        ({"alignment": 1.1}, ValueError, r"alignment must be a finite number in \[-1, 1\], got 1\.1: choose a value"),
        ({"alignment": math.nan}, ValueError, r"alignment must be a finite number in \[-1, 1\], got nan: choose"),
        ({"alignment": True}, TypeError, r"alignment must be a real number, got True of type bool"),
        ({"op_norm": 0.0}, ValueError, r"op_norm must be a finite number in \(0, inf\), got 0\.0: choose a value"),
        ({"start": "cold"}, ValueError, r"start must be one of 'plain', 'corrected', got 'cold': pick one of these"),
        ({"beta": 1.0}, ValueError, r"beta must be a finite number in \[0, 1\), got 1\.0: choose a value inside"),
        ({"eta": -0.1}, ValueError, r"eta must be a finite number in \(0, inf\), got -0\.1: choose a value inside"),
        ({"T": 0}, ValueError, r"T must be at least 1, got 0: pass 1 or more"),
        ({"D": -1.0}, ValueError, r"D must be a finite number in \[0, inf\), got -1\.0: choose a value inside"),
    ]:
        with pytest.raises(error, match=message):
            alignment_bound(**{**BASE, "alignment": 0.5, **changes})


def test_lengths_make_the_pair_of_norms_and_a_layer_that_does_not_move_is_left_out():
    inner, nuclear, gain, c = [3.0, 1.0, 9.0], [3.0, 2.0, 10.0], [1.0, 1.5, 7.0], [2.0, 0.5, 0.0]
    found = network_alignment(inner, nuclear, gain, c)
    assert found == pytest.approx(((6 + 0.5) / (6 + 1), 1.5, (6.5 / 7) / 1.5), rel=1e-15)
    assert network_alignment(inner, nuclear, gain, [1.0] * 3) == network_alignment(inner, nuclear, gain)
    assert network_alignment(inner, nuclear, gain, [5 * x for x in c]).alignment == pytest.approx(found.alignment)
    assert network_alignment(inner, nuclear, gain, [0.0] * 3) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="got 3, 3 and 3 for 2 lengths"):
        network_alignment(inner, nuclear, gain, [1.0, 1.0])
