"""The registered presets: published digits, repetition of the last row, safety factors, refusals."""

import math
from fractions import Fraction

import pytest

from muonlab.polynomials import PRESETS, Preset, preset, register, taylor

POLAR_EXPRESS = (
    (8.28721, -23.59589, 17.30039),
    (4.10706, -2.94785, 0.54484),
    (3.94869, -2.90890, 0.55182),
    (3.31842, -2.48849, 0.51005),
    (2.30065, -1.66890, 0.41881),
    (1.89130, -1.26800, 0.37680),
    (1.875, -1.25, 0.375),
)


def test_the_polynomials_of_the_papers_have_their_printed_coefficients_exactly():
    assert preset("cubic").polynomial == taylor(1)
    assert preset("quintic").polynomial == taylor(2)
    assert preset("jordan").polynomial.exact == (Fraction("3.4445"), Fraction("-4.775"), Fraction("2.0315"))
    assert preset("jordan").steps == 5


def test_polar_express_has_the_published_table_unscaled():
    entry = preset("polar_express")
    assert tuple(p.coefficients for p in entry.table) == POLAR_EXPRESS
    assert entry.safety == "1.01"
    assert entry.schedule(5).polynomials == entry.table[:5]


def test_further_steps_repeat_the_last_polynomial():
    entry = preset("polar_express")
    F = entry.schedule(10)
    assert F.polynomials == entry.table + entry.table[-1:] * 3
    assert preset("jordan").schedule(3).polynomials == (preset("jordan").polynomial,) * 3


def test_without_a_number_the_authors_own_is_used_and_zero_gives_the_identity():
    assert preset("polar_express").schedule().steps == preset("polar_express").steps == 5
    assert preset("polar_express").schedule(0).polynomials == ()
    assert preset("polar_express").schedule(0)(Fraction(1, 3)) == Fraction(1, 3)


def test_a_safety_factor_is_applied_only_on_request():
    entry = preset("polar_express")
    s, c = Fraction(1, 5), Fraction("1.01")
    p0, p1 = entry.table[:2]
    assert entry.schedule(2)(s) == p1.step(p0.step(s))
    assert entry.schedule(2, safety=entry.safety)(s) == p1.step(p0.step(s / c))
    assert entry.schedule(2, safety=entry.safety)(s) != entry.schedule(2)(s)


def test_the_registry_is_read_only():
    with pytest.raises(TypeError):
        PRESETS["cubic"] = preset("jordan")


def test_bad_requests_are_refused_with_the_way_out():
    polar_express = preset("polar_express")
    for request, error, message in [
        (
            lambda: preset("jordam"),
            ValueError,
            r"unknown preset 'jordam': registered are 'cubic', 'jordan', 'polar_exp",
        ),
        (lambda: polar_express.polynomial, ValueError, r"has 7 different polynomials, not one: use \.schedule"),
        (lambda: register(Preset("x", (taylor(3),), source="")), ValueError, r"'x' needs a source: say where its"),
        (lambda: register(preset("cubic")), ValueError, r"'cubic' is registered already: choose another name"),
        (lambda: polar_express.schedule(-1), ValueError, r"steps must be at least 0, got -1: pass 0 or more"),
        (lambda: polar_express.schedule(2.5), TypeError, r"steps must be an integer, got 2\.5 of type float"),
        (lambda: polar_express.schedule(3, safety=0), ValueError, r"safety factor must be greater than 0, got"),
        (lambda: polar_express.schedule(3, safety=math.nan), ValueError, r"must be a finite int.*got nan"),
    ]:
        with pytest.raises(error, match=message):
            request()
    assert "x" not in PRESETS
