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


def test_the_registry_holds_the_four_published_iterations():
    assert {"cubic", "quintic", "jordan", "polar_express"} <= set(PRESETS)


def test_cubic_and_quintic_are_the_papers_polynomials():
    assert preset("cubic").polynomial == taylor(1)
    assert preset("quintic").polynomial == taylor(2)


def test_the_ad_hoc_polynomial_has_the_printed_decimals_exactly():
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


def test_one_polynomial_cannot_be_asked_of_a_table_of_many():
    with pytest.raises(ValueError, match=r"'polar_express' has 7 different polynomials, not one: use \.schedule"):
        _ = preset("polar_express").polynomial


def test_the_registry_is_read_only():
    with pytest.raises(TypeError):
        PRESETS["cubic"] = preset("jordan")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown preset 'jordam': registered are 'cubic', 'jordan', 'polar_express'"):
        preset("jordam")


def test_a_preset_without_a_source_is_refused_and_not_kept():
    with pytest.raises(ValueError, match=r"'nameless' needs a source: say where its numbers come from"):
        register(Preset("nameless", (taylor(3),), source=""))
    assert "nameless" not in PRESETS


def test_a_bad_number_of_steps_is_refused():
    for steps, error, message in [
        (-1, ValueError, r"steps must be at least 0, got -1: pass 0 or more"),
        (True, TypeError, r"steps must be an integer, got True: pass 1"),
        (2.5, TypeError, r"steps must be an integer, got 2\.5 of type float: pass a whole number"),
        ("5", TypeError, r"steps must be an integer, got '5' of type str: pass a whole number"),
    ]:
        with pytest.raises(error, match=message):
            preset("jordan").schedule(steps)


def test_a_safety_factor_that_is_not_positive_is_refused():
    for safety in [0, -1.01]:
        with pytest.raises(ValueError, match=r"safety factor must be greater than 0, got"):
            preset("polar_express").schedule(3, safety=safety)


def test_a_safety_factor_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"must be a finite int, float, Fraction or decimal string, got nan"):
        preset("polar_express").schedule(3, safety=math.nan)
