"""The figures of docs/guides/promises.md are the counts of the tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

from muonlab import _checks, _files
from muonlab.lab.data import folder_checks, tokens
from tests.attack import ranks, test_damage, test_hostile, test_properties

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/promises.md").read_text()


def slow_counts(name):
    """Return the numbers in ``pytest.param(…, marks=pytest.mark.slow)`` of a test of tests/attack."""
    source = (ROOT / "tests/attack" / name).read_text().replace("_", "")
    return [tuple(map(int, found.split(", "))) for found in re.findall(r"pytest\.param\(([\d, ]+), marks", source)]


def test_every_figure_is_that_of_its_test():
    ((inside, timed),) = slow_counts("test_kills.py")
    assert f"{inside + timed} kills, {inside} of them inside of writes" in PAGE
    (flips, cuts), (changed,) = slow_counts("test_damage.py")
    assert f"{flips:,} bit flips and {cuts} truncations" in PAGE
    assert f"{changed:,} changed values" in PAGE
    assert test_damage.COUNTS[1].values == (flips, cuts)
    (lines,), (calls,) = slow_counts("test_inputs.py")
    assert f"{lines:,} generated command lines" in PAGE
    assert f"{calls:,} generated calls" in PAGE
    assert f"less than {test_hostile.MOST_MEGABYTES} MB" in PAGE
    assert f"{3 * test_properties.COUNTS[1].values[0]:,} generated matrices" in PAGE
    ((steps,),) = slow_counts("test_steps.py")
    assert f"{steps:,} steps" in PAGE
    assert len(ranks.PHASES) == 10  # "ten phases"
    limits = (_checks.LARGEST_DEGREE, _checks.LARGEST_STEPS, _checks.LARGEST_MATRIX, _checks.LARGEST_RATE)
    assert limits == (300, 1_000, 2**32, 1e30)
    assert (_files.LARGEST_JSON, _files.DEEPEST_JSON) == (256 * 2**20, 64)
    assert (folder_checks.LARGEST_CARD, folder_checks.LONGEST_LINE) == (2**20, 64 * 2**20)
    assert tokens.LONGEST_DOCUMENT == 2**22


def test_every_test_that_the_page_names_exists_and_every_attack_is_named():
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named == {path.name for path in (ROOT / "tests/attack").glob("test_*.py")}
    assert "guides/promises.md" in (ROOT / "docs/index.md").read_text()
