"""Curves of a study against oracles: numpy and statistics for means, a hand-written line for interpolation."""

from __future__ import annotations

import itertools
import math
import statistics
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.report import curves
from muonlab.report.curves import (
    at_fractions,
    at_seconds,
    by_epoch,
    by_time,
    mean_std,
    slowest,
    smoothed,
    time_to,
    trace,
)
from tests.report.made import run

LOSS = st.floats(0.01, 100.0)
RUN = st.lists(st.tuples(st.floats(0.01, 10.0), LOSS), min_size=1, max_size=8)
"""Seconds between evaluations, and the loss at each."""


def timed(pairs):
    moments = np.cumsum([gap for gap, _ in pairs]).tolist()
    return [
        {"seconds": s, "epoch": float(i), "loss": y} for i, (s, (_, y)) in enumerate(zip(moments, pairs, strict=True))
    ]


def line(rows, x):
    """Piecewise linear interpolation, written out."""
    points = [(row["seconds"], row["loss"]) for row in rows]
    if x >= points[-1][0]:
        return points[-1][1]
    for (a, u), (b, v) in pairwise(points):
        if a <= x <= b:
            return u + (v - u) * (x - a) / (b - a)
    raise AssertionError("before the first")


# ------------------------------------------------------------------------------------------------------------- spread


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_mean_and_deviation_of_runs_are_those_of_the_statistics_module(values):
    found = mean_std(values)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-12, abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-6)
    assert found.runs == len(values)


def test_a_single_run_has_no_deviation_and_none_has_no_mean():
    assert mean_std([2.5]) == curves.MeanStd(2.5, None, 1)
    with pytest.raises(ValueError, match="a mean must have a value, got none: "):
        mean_std([])


# -------------------------------------------------------------------------------------------------------------- trace


def test_rows_without_a_finite_number_are_left_out():
    for bad in (None, math.nan, math.inf, -math.inf, "1.0"):
        rows = [{"epoch": 1.0, "loss": 3.0}, {"epoch": 2.0, "loss": bad}, {"epoch": bad, "loss": 9.0}]
        x, y = trace([*rows, {"epoch": 3, "loss": 1}], "loss", "epoch")
        assert (x.tolist(), y.tolist()) == ([1.0, 3.0], [3.0, 1.0])


@given(RUN, st.randoms())
def test_the_order_of_rows_does_not_matter(pairs, random):
    rows = timed(pairs)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    for one, other in zip(trace(rows, "loss", "seconds"), trace(shuffled, "loss", "seconds"), strict=True):
        assert one.tolist() == other.tolist()
    assert slowest([[rows]]) == slowest([[shuffled]]) == rows[-1]["seconds"]


# ----------------------------------------------------------------------------------------------------------- by epoch


def test_a_curve_over_epochs_is_the_mean_and_deviation_of_random_runs():
    losses = np.random.default_rng(0).uniform(0.1, 3.0, size=(5, 30))
    found = by_epoch("a", [run(row) for row in losses.tolist()], "train_loss")
    assert found is not None
    assert found.x.tolist() == list(range(1, 31))
    np.testing.assert_allclose(found.mean, losses.mean(axis=0), rtol=1e-14, atol=0)
    np.testing.assert_allclose(found.std, [statistics.stdev(column) for column in losses.T], rtol=1e-12, atol=0)
    assert (found.label, found.runs) == ("a", 5)


def test_a_curve_over_epochs_is_where_every_run_has_a_value():
    longer, shorter = list(run([5.0, 4.0, 3.0, 2.0])), list(run([7.0, 6.0, 5.0]))
    del longer[2]  # epoch 2
    for runs in ([longer, shorter], [shorter, longer]):
        found = by_epoch("a", runs, "train_loss")
        assert found is not None
        assert (found.x.tolist(), found.mean.tolist()) == ([1.0, 3.0], [6.0, 4.0])


def test_epochs_that_differ_by_rounding_are_one():
    found = by_epoch("a", [[{"epoch": 0.1 + 0.2, "loss": 1.0}], [{"epoch": 0.3, "loss": 3.0}]], "loss")
    assert found is not None
    assert found.mean.tolist() == [2.0]
    assert by_epoch("a", [[{"epoch": 0.3001, "loss": 1.0}], [{"epoch": 0.3, "loss": 3.0}]], "loss") is None


def test_a_curve_of_one_run_has_no_deviation_and_is_the_run():
    for make in (by_epoch, by_time):
        found = make("a", [run([3.0, 2.0, 4.0])], "train_loss")
        assert found is not None
        assert (found.x.tolist(), found.mean.tolist(), found.std, found.runs) == ([1, 2, 3], [3, 2, 4], None, 1)


def test_without_a_place_that_all_runs_share_there_is_no_curve():
    for make, runs in itertools.product((by_epoch, by_time), ([], [()], [run([1.0]), ()], [run([1.0]), run([])])):
        assert make("a", runs, "train_loss") is None


# ------------------------------------------------------------------------------------------------------------ by time


@given(st.lists(RUN, min_size=2, max_size=4), st.integers(2, 30))
def test_a_curve_over_time_is_the_mean_of_lines_and_never_goes_beyond_a_run(all_pairs, points):
    runs = [timed(pairs) for pairs in all_pairs]
    first, last = max(rows[0]["seconds"] for rows in runs), min(rows[-1]["seconds"] for rows in runs)
    found = by_time("a", runs, "loss", points=points)
    if first > last:
        assert found is None
        return
    assert found is not None
    assert (found.x[0], found.x[-1]) == (first, last)
    assert len(found.x) == (points if first < last else 1)
    oracle = [[line(rows, x) for rows in runs] for x in found.x]
    np.testing.assert_allclose(found.mean, [statistics.fmean(at) for at in oracle], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.std, [statistics.stdev(at) for at in oracle], rtol=1e-6, atol=1e-6)


def test_the_grid_of_seconds_is_even_and_has_at_least_two_places():
    found = by_time("a", [run([2.0, 1.0]), run([2.0, 1.0], seconds=1.5)], "train_loss", points=5)
    assert found is not None
    assert found.x.tolist() == [1.5, 1.625, 1.75, 1.875, 2.0]
    with pytest.raises(ValueError, match="points must be at least 2, got 1"):
        by_time("a", [run([2.0, 1.0]), run([2.0, 1.0])], "train_loss", points=1)


# ---------------------------------------------------------------------------------------------------------- smoothing


@given(st.lists(LOSS, max_size=20), st.integers(1, 25))
def test_smoothing_is_the_mean_of_the_last_values(values, width):
    oracle = [statistics.fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(smoothed(np.array(values), width), oracle, rtol=1e-9, atol=1e-9)


def test_curves_are_not_smoothed_unless_asked_and_then_run_by_run():
    runs = [run([4.0, 2.0, 0.5]), run([8.0, 4.0, 1.5])]
    plain, smooth = by_epoch("a", runs, "train_loss"), by_epoch("a", runs, "train_loss", smoothing=2)
    assert plain is not None
    assert smooth is not None
    assert plain.mean.tolist() == [6.0, 3.0, 1.0]
    assert smooth.mean.tolist() == [6.0, 4.5, 2.0]
    timed_smooth = by_time("a", runs, "train_loss", points=3, smoothing=2)
    assert timed_smooth is not None
    assert timed_smooth.mean.tolist() == [6.0, 4.5, 2.0]


def test_smoothing_and_fractions_out_of_range_are_refused():
    with pytest.raises(ValueError, match="smoothing must be at least 1, got 0"):
        smoothed(np.array([1.0]), 0)
    for fraction in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="fraction must be a finite number in"):
            at_fractions({"a": [run([1.0])]}, "train_loss", [fraction])


# ------------------------------------------------------------------------------------------------- moments, fractions


@given(st.lists(RUN, min_size=1, max_size=4), st.lists(st.floats(0.0, 100.0), max_size=6))
def test_a_moment_has_the_mean_of_lines_the_last_value_after_an_end_and_none_before_a_first(all_pairs, moments):
    runs = [timed(pairs) for pairs in all_pairs]
    first = max(rows[0]["seconds"] for rows in runs)
    for moment, found in zip(moments, at_seconds(runs, "loss", moments), strict=True):
        if moment < first:
            assert found is None
        else:
            assert found is not None
            assert found.mean == pytest.approx(
                statistics.fmean(line(rows, moment) for rows in runs), rel=1e-9, abs=1e-9
            )
            assert (found.std is None) == (len(runs) == 1)


def test_fractions_are_of_the_slowest_run_among_those_named():
    groups = {"fast": [run([4.0, 2.0])], "slow": [run([4.0, 2.0], seconds=3.0), run([4.0, 2.0], seconds=5.0)]}
    moments, found = at_fractions(groups, "train_loss", [0.5, 1.0])
    assert moments == [5.0, 10.0]
    assert [one and one.mean for one in found["slow"]] == [pytest.approx((4 - 2 * 2 / 3 + 4) / 2), 2.0]
    assert [one and one.mean for one in found["fast"]] == [2.0, 2.0]
    moments, found = at_fractions(groups, "train_loss", [0.5, 1.0], slowest_of=["fast", "absent"])
    assert moments == [1.0, 2.0]
    assert found["slow"] == [None, None]
    assert [one and one.mean for one in found["fast"]] == [4.0, 2.0]


# ------------------------------------------------------------------------------------------------------------ time to


@given(RUN, LOSS)
def test_the_time_to_a_loss_is_the_first_moment_at_which_the_line_is_there(pairs, target):
    rows = timed(pairs)
    found = time_to(rows, "loss", target)
    if min(row["loss"] for row in rows) > target:
        assert found is None
        return
    assert found is not None
    assert line(rows, found) <= target + 1e-6
    before = [row["loss"] for row in rows if row["seconds"] < found - 1e-9]
    assert all(loss > target for loss in before)
    if rows[0]["loss"] > target:
        assert line(rows, found) == pytest.approx(target, rel=1e-6)
    else:
        assert found == rows[0]["seconds"]
