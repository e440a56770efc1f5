"""Exact polynomials and schedules: both bases, both kinds of arithmetic, and what is refused."""

import math
import pickle
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.polynomials.base import derivative, horner, multiply_polynomials, reflect

RATIONAL = st.fractions(-5, 5, max_denominator=60)
COEFFICIENTS = st.lists(RATIONAL, min_size=1, max_size=6)
POLYNOMIALS = st.lists(RATIONAL, min_size=2, max_size=5).filter(lambda a: a[-1] != 0).map(Polynomial)
UNIT = st.fractions(0, 1, max_denominator=1000)


def naive(coefficients, x):
    """Sum of c_k x^k, power by power."""
    return sum((c * x**k for k, c in enumerate(coefficients)), Fraction(0))


@given(COEFFICIENTS, COEFFICIENTS, RATIONAL)
def test_products_derivatives_and_reflections_have_the_right_values(a, b, x):
    assert horner(a, x) == naive(a, x)
    assert naive(multiply_polynomials(a, b), x) == naive(a, x) * naive(b, x)
    left = naive(derivative(multiply_polynomials(a, b)), x)
    assert left == naive(derivative(a), x) * naive(b, x) + naive(a, x) * naive(derivative(b), x)
    assert naive(reflect(a), 1 - x) == naive(a, x)
    assert reflect(reflect(a)) == tuple(a)
    assert derivative((Fraction(7), Fraction(1), Fraction(-2), Fraction(5))) == (1, -4, 15)


@given(POLYNOMIALS, UNIT)
def test_tau_phi_step_and_derivative_follow_from_the_coefficients_exactly(p, x):
    assert p(x) == naive(p.exact, x) == naive(p.exact_u, 1 - x)
    assert p.tau(x) == x * naive(p.exact, x) ** 2
    assert p.phi(x) == 1 - p.tau(1 - x) == naive(p.exact_phi, x)
    assert p.step(x) == x * naive(p.exact, x * x) == naive(p.exact_step, x)
    assert p.step(-x) == -p.step(x)
    assert p.dtau(x) == naive(
        derivative(multiply_polynomials((Fraction(0), Fraction(1)), multiply_polynomials(p.exact, p.exact))), x
    )


def test_floats_agree_with_fractions_to_the_last_digits():
    for kappa in [1, 2, 3, 10, 30]:
        p = taylor(kappa)
        for x in np.linspace(0.0, 1.0, 33):
            exact = Fraction(float(x))
            for name in ("__call__", "tau", "phi", "step", "dtau"):
                f = getattr(p, name)
                assert f(float(x)) == pytest.approx(float(f(exact)), rel=1e-14 * kappa, abs=1e-300), name


def test_floats_keep_their_binary_value_and_strings_their_decimal_one():
    assert Polynomial((0.1, 1)).exact[0] == Fraction(0.1) != Fraction(1, 10)
    assert Polynomial(("0.1", 1)).exact[0] == Fraction(1, 10)
    assert Polynomial(("3.4445", "-4.7750", "2.0315")).exact == (
        Fraction(34445, 10**4),
        Fraction(-47750, 10**4),
        Fraction(20315, 10**4),
    )


def test_exact_arguments_get_exact_answers_and_floats_get_floats():
    p = taylor(2)
    assert type(p(0)) is Fraction
    assert type(p.step(Fraction(1, 3))) is Fraction
    assert type(p(0.5)) is float
    assert type(p.phi(0.5)) is float


def test_arrays_keep_their_shape_and_integers_do_not_wrap():
    p = Polynomial((1, 1))
    s = np.array([[0.0, 0.25, 0.5], [0.75, 1.0, 1.5]])
    np.testing.assert_allclose(p.step(s), s * (1 + s**2), rtol=1e-15, atol=1e-15)
    assert p.tau(s).shape == p.phi(s).shape == p.dtau(s).shape == s.shape
    small = np.array([100], dtype=np.int8)
    assert p.step(small)[0] == 100 + 100**3
    assert Schedule((p, p))(small)[0] == pytest.approx(float(p.step(p.step(100))), rel=1e-14)


def test_a_schedule_does_not_write_into_its_argument():
    s = np.array([0.25, 0.5])
    out = Schedule(())(s)
    out[0] = 9.0
    assert s.tolist() == [0.25, 0.5]


def test_names_are_no_part_of_equality_but_coefficients_are():
    a, b = Polynomial((2, -1), name="a"), Polynomial((2, -1), name="b")
    assert a == b
    assert hash(a) == hash(b)
    assert a != Polynomial((2, 1))
    assert Schedule((a,), name="x") == Schedule((b,), name="y")
    assert len({Schedule((a,)), Schedule((b,)), Schedule((a, a))}) == 2


def test_polynomials_are_immutable_and_survive_pickling():
    p = taylor(3)
    with pytest.raises(AttributeError):
        p.exact = ()
    assert pickle.loads(pickle.dumps(p)) == p
    assert pickle.loads(pickle.dumps(Schedule.repeat(p, 2)))(0.5) == Schedule.repeat(p, 2)(0.5)


@given(POLYNOMIALS, UNIT, st.fractions(Fraction(1, 2), 2, max_denominator=50))
def test_a_shrunk_polynomial_steps_from_the_divided_value(p, s, safety):
    assert p.shrunk(safety).step(s) == p.step(s / safety)
    assert p.shrunk(1) == p


@given(st.lists(POLYNOMIALS, max_size=3), UNIT)
def test_a_schedule_is_the_composition_of_its_steps(ps, s):
    expected = s
    for p in ps:
        expected = expected * naive(p.exact, expected**2)
    F = Schedule(tuple(ps))
    assert F(s) == expected
    assert F.steps == len(F) == len(ps)
    assert list(F) == ps
    h = Fraction(1, 10**12)
    assert abs(F(h) / h - F.slope) < Fraction(1, 10**15)


def test_adding_schedules_composes_them_in_reading_order():
    first, second = Schedule.repeat(taylor(1), 1), Schedule.repeat(preset("jordan").polynomial, 2)
    both = first + second
    s = Fraction(1, 3)
    assert both(s) == second(first(s)) != first(second(s))
    assert both.steps == 3
    with pytest.raises(TypeError):
        first + taylor(1)


def test_a_safety_factor_divides_the_input_of_every_step_but_the_last():
    F, c = preset("polar_express").schedule(3), Fraction(101, 100)
    s = Fraction(2, 7)
    p0, p1, p2 = F.polynomials
    assert F.with_safety("1.01")(s) == p2.step(p1.step(p0.step(s / c) / c))
    assert Schedule(()).with_safety(2) == Schedule(())


def test_zero_steps_are_the_identity_and_texts_name_what_they_are():
    identity = Schedule.repeat(taylor(2), 0)
    assert identity(Fraction(3, 7)) == Fraction(3, 7)
    assert identity.slope == 1
    assert str(identity) == "identity"
    assert str(Schedule.repeat(taylor(2), 3)) == "taylor2 x3"
    assert str(Polynomial((1.5, -0.5))) == "Polynomial(1.5, -0.5)"


def test_what_is_no_polynomial_or_schedule_is_refused_with_the_way_out():
    degree = r"kappa >= 1 .*non-zero leading.*got .*drop the trailing zeros"
    finite = r"coefficient must be a finite int, float, Fraction or decimal string, got"
    kind = r"coefficient must be an int, float, Fraction or decimal string, got"
    sequence = r"coefficients must be a sequence of numbers, got"
    safety = r"safety factor must be greater than 0, got .*1 leaves the polynomial alone"
    repeat = r"takes a sequence of Polynomials, got .*Schedule\.repeat\(polynomial, steps"
    for build, values, error, message in [
        (Polynomial, [(), (1,), (1, 0), ("1", "2", "0.0")], ValueError, degree),
        (Polynomial, [(1, bad) for bad in (math.nan, math.inf, -math.inf, "abc", None, [1])], ValueError, finite),
        (Polynomial, [(1, True), (1, 1j)], TypeError, kind),
        (Polynomial, ["1.5", b"12", 3, None], TypeError, sequence),
        (taylor(1).shrunk, [0, -1, "-0.5"], ValueError, safety),
        (Schedule, [taylor(2), 3, None], TypeError, repeat),
        (Schedule, [(taylor(1), 1.5)], TypeError, r"step 1 of a Schedule must be a Polynomial, got 1\.5 of type float"),
        (partial(Schedule.repeat, taylor(1)), [-1], ValueError, r"steps must be at least 0, got -1: pass 0 or more"),
        (partial(Schedule.repeat, taylor(1)), [True, 2.0, "2"], TypeError, r"steps must be an integer, got"),
    ]:
        for value in values:
            with pytest.raises(error, match=message):
                build(value)
