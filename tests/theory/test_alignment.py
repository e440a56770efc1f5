"""The alignment theorem: momentum factors, constants, networks and certificates of single runs."""

import math
from itertools import product

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.theory import alignment_bound, momentum_factors, network_alignment

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
