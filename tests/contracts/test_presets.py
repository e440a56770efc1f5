"""What every registered preset must satisfy."""

import math
from fractions import Fraction

import numpy as np
import pytest

from muonlab.polynomials import PRESETS, Preset, preset, presets, register, taylor
from muonlab.theory import alignment_floor, schedule_error

every_preset = pytest.mark.parametrize("name", sorted(PRESETS))


@pytest.fixture
def registry():
    """Hand out the registry and put it back as it was."""
    before = dict(presets._REGISTRY)
    yield presets._REGISTRY
    presets._REGISTRY.clear()
    presets._REGISTRY.update(before)


def test_it_is_registered_under_its_own_name():
    for name in PRESETS:
        assert PRESETS[name].name == name
        assert preset(name) is PRESETS[name]


def test_it_says_where_its_numbers_come_from():
    for name in PRESETS:
        assert len(PRESETS[name].source.strip()) > 10


def test_its_coefficients_are_finite_and_agree_with_the_exact_ones():
    for name in PRESETS:
        for p in PRESETS[name].table:
            assert all(math.isfinite(c) for c in p.coefficients)
            assert p.coefficients == tuple(float(c) for c in p.exact)
            assert all(isinstance(c, Fraction) for c in p.exact)


@every_preset
def test_floats_and_fractions_agree_on_the_unit_interval(name):
    F = PRESETS[name].schedule(4)
    for s in np.linspace(0.0, 1.0, 21):
        assert F(float(s)) == pytest.approx(float(F(Fraction(float(s)))), rel=1e-11, abs=1e-12)


def test_it_stays_bounded_on_the_unit_interval():
    for name in PRESETS:
        for steps in range(1, 11):
            s_max = schedule_error(PRESETS[name].schedule(steps), 0.0).s_max
            assert s_max < 2.5
            dense = PRESETS[name].schedule(steps)(np.linspace(0.0, 1.0, 20_001))
            assert np.abs(dense).max() <= s_max * (1 + 1e-12)


def test_it_keeps_signs_and_lifts_small_values():
    for name in PRESETS:
        F = PRESETS[name].schedule()
        assert F.slope > 1
        s = np.geomspace(1e-6, 1.0, 2001)
        assert F(s).min() > 0
        np.testing.assert_allclose(F(-s), -F(s), rtol=0, atol=0)


def test_it_guarantees_some_alignment_for_every_matrix():
    for name in PRESETS:
        floor = alignment_floor(PRESETS[name].schedule(), 64)
        assert 1 / math.sqrt(64) < floor <= 1


def test_its_safety_factor_is_a_number_of_at_least_one_that_can_be_applied():
    for name in PRESETS:
        entry = PRESETS[name]
        assert Fraction(entry.safety) >= 1
        safe = entry.schedule(safety=entry.safety)
        assert safe.steps == entry.steps
        assert schedule_error(safe, 0.0).s_max <= 2.5


def test_its_name_cannot_be_taken_twice(registry):
    for name in PRESETS:
        kept = registry[name]
        with pytest.raises(ValueError, match=rf"a preset named '{name}' is registered already: choose another name"):
            register(Preset(name, (taylor(3),), source="a test that tries to take the name"))
        assert registry[name] is kept


def test_a_new_preset_is_found_by_name_and_the_view_follows(registry):
    entry = register(Preset("septic", (taylor(3),), source="p_3 of Kim & Oh 2026, Definition 2"))
    assert preset("septic") is entry is PRESETS["septic"]
    assert registry["septic"] is entry
