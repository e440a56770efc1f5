from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from muonlab.lab import paper
from muonlab.lab.paper import TABLES
from muonlab.lab.slopes import log_log_slope, rank_slopes, slope_standard_error
from muonlab.polynomials import preset
from tests.lab import printed
from tests.lab.printed import common_difference, is_bfloat16, smoothing_floor

# ------------------------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.item)
def test_every_row_of_a_table_has_a_loss_for_each_moment(table):
    assert tuple(table.losses) == paper.OPTIMIZERS
    assert all(len(row) == len(table.seconds) for row in table.losses.values())
    assert common_difference(table.seconds) == table.seconds[0]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.item)
def test_every_printed_loss_falls_with_time(table):
    # every table of the paper does; a digit that was copied wrongly would most likely break it
    for row in table.losses.values():
        assert all(later <= sooner for sooner, later in pairwise(row))


# ------------------------------------------------------------------------------------------------------------ doubts


def test_only_the_svd_row_of_the_largest_model_is_an_arithmetic_progression():
    found = {
        (table.item, name): step
        for table in TABLES
        for name, row in table.losses.items()
        if (step := common_difference(row)) is not None
    }
    assert found == {("Table 7", "Muon (SVD)"): -0.147}


def test_all_losses_of_language_models_are_bfloat16_numbers_but_that_row():
    for table in TABLES[-2:]:
        digits = 3 if table.item == "Table 6" else 4
        for name, row in table.losses.items():
            interpolated = (table.item, name) == ("Table 7", "Muon (SVD)")
            assert all(is_bfloat16(loss, digits) for loss in row) != interpolated
    # the test has teeth: other tables of the same size do not pass it
    assert not all(is_bfloat16(loss, 3) for table in TABLES[:4] for row in table.losses.values() for loss in row)


@pytest.mark.parametrize(
    ("classes", "smoothing", "floor"), [(10, 0.1, 0.5003), (10, 0.2, 0.8669), (100, 0.2, 1.407), (200, 0.2, 1.552)]
)
def test_the_floor_of_smoothed_labels_is_their_entropy(classes, smoothing, floor):
    label = np.full(classes, smoothing / classes)
    label[0] += 1 - smoothing
    assert smoothing_floor(classes, smoothing) == pytest.approx(-(label * np.log(label)).sum(), rel=1e-12)
    assert smoothing_floor(classes, smoothing) == pytest.approx(floor, abs=5e-4 if classes > 10 else 5e-5)


def test_only_mnist_ends_below_the_floor_of_the_printed_smoothing():
    classes = {"Table 2": 10, "Table 3": 10, "Table 4": 100, "Table 5": 200}
    lowest = {table.item: min(map(min, table.losses.values())) for table in TABLES[:4]}
    assert [item for item in classes if lowest[item] < smoothing_floor(classes[item], 0.2)] == ["Table 2"]
    assert lowest["Table 2"] >= smoothing_floor(10, 0.1)


def test_each_doubt_names_numbers_that_are_there():
    passes = 6000 * 8 * 1024 / 10_000_000
    words = {doubt.item: doubt.words for doubt in paper.DOUBTS}
    assert f"{passes:.1f} passes" in words["Table 6"]
    assert f"{8 * passes:.0f} passes" in words["Table 6"]
    assert f"{smoothing_floor(10, 0.2):.3f}" in words["Table 2"]
    assert "0.147" in words["Table 7"]
    assert f"{printed.PARAMETERS[4].counted:,}" in words["NanoGPT"]


def test_printed_counts_of_parameters_are_ours_rounded_but_for_nanogpt():
    def rounds_to(entry: printed.Parameters) -> bool:
        digits = len(entry.printed.rstrip("M").partition(".")[2])
        return f"{entry.counted / 1e6:.{digits}f}M" == entry.printed

    assert [entry.model for entry in printed.PARAMETERS if not rounds_to(entry)] == ["gpt-124m"]


def test_the_ad_hoc_polynomial_is_the_preset_that_the_study_runs():
    assert preset("jordan").schedule(1).polynomials[0].coefficients == tuple(map(float, paper.AD_HOC))


# ------------------------------------------------------------------------------------------------------------ slopes


def test_normalised_slopes_are_the_raw_ones_less_one_half_in_the_paper():
    for row in paper.SLOPES:
        assert row.normalised == pytest.approx(row.raw - 0.5, abs=1e-12)


def test_slopes_are_those_of_polyfit_and_differ_by_one_half():
    norms = [1.3, 1.9, 2.2, 3.1, 2.9]
    slopes = rank_slopes(paper.RANKS, norms)
    x = np.log(paper.RANKS)
    assert slopes.raw == pytest.approx(np.polyfit(x, np.log(norms), 1)[0], rel=1e-12)
    assert slopes.normalised == pytest.approx(np.polyfit(x, np.log(norms / np.sqrt(paper.RANKS)), 1)[0], rel=1e-12)
    assert slopes.normalised == pytest.approx(slopes.raw - 0.5, abs=1e-12)


def standard_error(x, y) -> float:
    """The standard error of the slope of logarithms, from numpy's covariance matrix of the coefficients."""
    _, covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    return float(np.sqrt(covariance[0, 0]))


def test_the_standard_error_of_a_slope_is_that_of_polyfit_with_n_minus_2_degrees_of_freedom():
    ranks, norms = [*paper.RANKS, *paper.RANKS], [1.3, 1.9, 2.2, 3.1, 2.9, 1.2, 2.0, 2.4, 2.7, 3.3]
    right = standard_error(ranks, norms)
    assert slope_standard_error(ranks, norms) == pytest.approx(right, rel=1e-10)
    slopes = rank_slopes(ranks, norms)
    assert slopes.standard_error == pytest.approx(right, rel=1e-10)
    assert slopes.standard_error == pytest.approx(standard_error(ranks, norms / np.sqrt(ranks)), rel=1e-10)
    # other degrees of freedom are outside the tolerance
    for wrong in (len(ranks), len(ranks) - 1, len(ranks) - 3, len(paper.RANKS) - 2):
        other = right * math.sqrt((len(ranks) - 2) / wrong)
        assert slopes.standard_error != pytest.approx(other, rel=1e-3)


def test_a_line_through_two_points_has_no_standard_error():
    assert slope_standard_error([16, 32], [1.0, 2.0]) is None
    assert rank_slopes([16, 32], [1.0, 2.0]).standard_error is None
    three = [16, 16, 32], [1.0, 4.0, 2.0]
    assert slope_standard_error(*three) == pytest.approx(standard_error(*three))


@pytest.mark.parametrize(
    ("x", "y"),
    [([16], [1.0]), ([16, 16], [1.0, 2.0]), ([16, 32], [1.0, 0.0]), ([16, 32], [1.0, math.nan]), ([1, 2], [1.0])],
)
def test_a_slope_without_two_places_or_with_points_not_positive_is_refused(x, y):
    with pytest.raises(
        ValueError, match=r"a slope must have finite positive points at two or more places, got x = .*:"
    ):
        log_log_slope(x, y)
