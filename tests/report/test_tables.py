"""Tables of a study against oracles, and the paper's rows beside ours."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest

from muonlab.lab import paper
from muonlab.lab.grid_optima import optima_of
from muonlab.lab.slopes import slopes_of
from muonlab.report import tables
from muonlab.report.claims import rules
from muonlab.report.claims.rules import NS, SGD_M, SVD
from muonlab.report.values import MeanStd
from tests.report.made import PER_EPOCH, cell, certified, evidence, of_table, ranked, results, run, seeds, swept


def places(*cells):
    found = {}
    for one in cells:
        found.setdefault(one.label, []).append(one)
    return found


def means(row):
    return [one.mean if isinstance(one, MeanStd) else one for one in row]


def column(table, name):
    return [row[table.header.index(name)] for row in table.rows]


# -------------------------------------------------------------------------------------------------------- final losses


def test_final_losses_are_means_and_deviations_of_the_last_evaluations():
    ends = np.random.default_rng(1).uniform(0.1, 2.0, size=(4, 2))
    runs = [run([3.0, a], [4.0, b], test_accuracy=0.5 + i / 10) for i, (a, b) in enumerate(ends.tolist())]
    table = tables.final_losses(places(*seeds("a", *runs)))
    assert table.header == ("optimizer", "runs", "training loss", "test loss", "test accuracy", "epochs", "updates")
    (row,) = table.rows
    assert row[:2] == ("a", 4)
    for cell_of, values in zip(row[2:5], [*ends.T.tolist(), [0.5, 0.6, 0.7, 0.8]], strict=True):
        assert cell_of.mean == pytest.approx(statistics.fmean(values))
        assert cell_of.std == pytest.approx(statistics.stdev(values))
    assert row[5:] == (2.0, 2 * PER_EPOCH)


def test_a_single_run_is_told_without_a_deviation():
    table = tables.final_losses(places(cell("a", run([3.0, 1.0])), *seeds("b", run([2.0]), run([4.0]))))
    shown = [[table.text(one) for one in row] for row in table.rows]
    assert shown == [["a", "1", "1", "1", "2", "20"], ["b", "2", "3.0 ± 1.4", "3.0 ± 1.4", "1", "10"]]
    assert "where there are several" in table.caption


def test_a_last_evaluation_without_a_number_is_not_made_up_from_an_earlier_one():
    rows = [*run([3.0, 2.0, 1.0])]
    rows[-1] = {name: value for name, value in rows[-1].items() if name != "test_loss"}
    table = tables.final_losses(places(cell("a", rows), cell("b", run([1.0]))))
    assert means(column(table, "training loss")) == [1.0, 1.0]
    assert means(column(table, "test loss")) == [None, 1.0]


def test_runs_that_differ_in_length_have_a_mean_number_of_updates():
    table = tables.final_losses(places(*seeds("a", run([1.0]), run([2.0, 1.0]))))
    assert (column(table, "epochs"), column(table, "updates")) == ([1.5], [15])


# ------------------------------------------------------------------------------------------------- over the wall clock


def test_the_papers_rows_are_those_printed_below_ours_with_what_is_doubtful():
    for table in paper.TABLES:
        made = tables.losses_over_time(places(*of_table(table)), table.study)
        sources = [(label, source) for label in table.losses for source in ("muonlab", "paper")]
        assert [row[:2] for row in made.rows] == sources
        for row in made.rows:  # runs with the paper's losses at its moments have its rows
            assert means(row[2:]) == pytest.approx(table.losses[row[0]])
        assert made.rows[1][2:] == table.losses[SGD_M]
        for name, second in zip(made.header[2:], table.seconds, strict=True):
            assert name.startswith(f"{second / table.seconds[-1]:.0%} (")
        assert f"{', '.join(f'{second:,}' for second in table.seconds)} wall seconds" in made.caption
        assert table.item in made.title
        assert all(doubt.words in made.caption for doubt in paper.DOUBTS if doubt.item == table.item)


def test_our_rows_are_the_losses_that_the_rule_on_order_judges():
    # in the study of steps one more run, of q = 0, is not in the paper's table
    table = paper.TABLES[1]
    speeds = {SGD_M: 1.0, NS[0]: 1.1, NS[1]: 1.2, NS[2]: 1.3, SVD: 2.0, "Muon (q=0)": 1.7}
    cells = [cell(label, run([4.0, 2.0, 1.0, 0.5], seconds=seconds)) for label, seconds in speeds.items()]
    made = tables.losses_over_time(places(*cells), table.study)
    ours = rules.losses_at_columns(evidence(*cells), table)
    for row in made.rows:
        if row[1] == "muonlab" and row[0] in ours:
            assert means(loss for loss in row[2:] if loss)[-len(ours[row[0]]) :] == pytest.approx(ours[row[0]])
    assert made.header[-1] == "100% (6.8 s)"  # of q = 0, the slowest but the SVD


def test_a_study_without_a_table_has_fifths_of_its_slowest_run_and_a_dash_before_a_first_evaluation():
    cells = [cell("a", run([4.0, 2.0, 1.0], seconds=1.0)), cell("b", run([4.0, 2.0], seconds=5.0))]
    made = tables.losses_over_time(places(*cells), "degree")
    assert made.header[1:] == tuple(f"{10 * i}% ({i} s)" for i in (2, 4, 6, 8, 10))
    assert means(made.rows[0]) == ["a", 2.0, 1.0, 1.0, 1.0, 1.0]
    assert means(made.rows[1]) == ["b", None, None, pytest.approx(3.6), pytest.approx(2.8), 2.0]
    assert "of the slowest run: 10 s here" in made.caption
    of_cpu = tables.losses_over_time(places(*cells), "degree", "cpu")
    assert of_cpu.title == "Training loss over CPU seconds of training"
    assert of_cpu.header[1] == "20% (2 CPU s)"


def test_runs_without_seconds_have_no_such_table():
    assert tables.losses_over_time({}, "degree") is None
    assert tables.losses_over_time(places(cell("a")), "degree") is None


# --------------------------------------------------------------------------------------------------------------- speed


def test_speed_is_of_training_alone_and_an_orthogonalization_is_a_difference():
    cells = [cell(SGD_M, run([1.0] * 3, seconds=2.0)), *seeds("a", run([1.0], seconds=4.0), run([1.0], seconds=6.0))]
    table = tables.speed(places(*cells))
    assert means(table.rows[0]) == [SGD_M, *map(pytest.approx, (5.0, 0.2, 0.2)), None]
    assert means(table.rows[1]) == ["a", *map(pytest.approx, (2.0, 0.5, 0.5, 0.3))]
    assert table.rows[1][2].std == pytest.approx(statistics.stdev([0.4, 0.6]))
    assert table.rows[1][4].std is None  # of one run of SGD-M nothing is known
    assert "difference from an update of SGD-M" in table.caption


def test_speed_has_both_clocks_and_computes_with_the_one_that_claims_use():
    # by the wall clock "a" is the slower one, by the processor's it is the faster one
    found = places(cell(SGD_M, run([1.0], seconds=2.0, cpu=1.0)), cell("a", run([1.0], seconds=4.0, cpu=0.25)))
    by_wall, by_cpu = tables.speed(found, "wall"), tables.speed(found, "cpu")
    for table in (by_wall, by_cpu):
        assert means(column(table, "wall seconds per update")) == pytest.approx([0.2, 0.4])
        assert means(column(table, "CPU seconds per update")) == pytest.approx([0.2, 0.1])
    assert column(by_wall, "updates per second") == pytest.approx([5.0, 2.5])
    assert column(by_cpu, "updates per CPU second") == pytest.approx([5.0, 10.0])
    assert means(column(by_wall, "orthogonalization, seconds per update")) == [None, pytest.approx(0.2)]
    assert means(column(by_cpu, "orthogonalization, CPU seconds per update")) == [None, None]
    assert "Claims about time use wall seconds." in by_wall.caption
    assert "Claims about time use CPU seconds." in by_cpu.caption


def test_runs_without_processor_time_have_a_dash_there():
    rows = [{name: value for name, value in row.items() if name != "cpu_seconds"} for row in run([1.0])]
    table = tables.speed(places(cell("a", rows)))
    assert means(column(table, "CPU seconds per update")) == [None]
    assert means(column(table, "wall seconds per update")) == [pytest.approx(0.1)]


def test_the_spread_of_a_difference_is_that_of_both_and_less_than_nothing_is_a_dash():
    plain = seeds(SGD_M, run([1.0], seconds=2.0), run([1.0], seconds=4.0))
    slow = seeds("slow", run([1.0], seconds=6.0), run([1.0], seconds=10.0))
    table = tables.speed(places(*plain, *slow, cell("fast", run([1.0], seconds=1.0))))
    beyond = table.rows[1][4]
    assert beyond.mean == pytest.approx(0.5)
    assert beyond.std == pytest.approx((statistics.variance([0.2, 0.4]) + statistics.variance([0.6, 1.0])) ** 0.5)
    assert table.rows[2][4] is None


# ----------------------------------------------------------------------------------------------- slopes, costs, bounds


def test_slopes_are_ours_beside_the_papers():
    table = tables.slopes(slopes_of(ranked({SGD_M: 0.25, SVD: 0.1, "other": 1.0})))
    exact = pytest.approx(0.0, abs=1e-9)
    assert table.header[-1] == "standard error of ω"
    assert table.rows[0] == (SGD_M, pytest.approx(0.25), 0.292, pytest.approx(-0.25), -0.208, exact)
    assert table.rows[1] == (SVD, pytest.approx(0.1), 0.102, pytest.approx(-0.4), -0.398, exact)
    assert table.rows[2] == ("other", pytest.approx(1.0), None, pytest.approx(0.5), None, exact)


def test_slopes_count_finished_runs_only_and_need_two_ranks():
    whole = ranked({SGD_M: 0.25, SVD: 0.1})
    first = next(one for one in whole.cells if one.points["optimizer"] == SGD_M)
    wrong = [{**row, "gradient_nuclear_norm": 1e6} for row in first.metrics]  # rows of a run that is not finished
    cells = tuple(replace(one, status="open", metrics=wrong) if one is first else one for one in whole.cells)
    assert slopes_of(replace(whole, cells=cells))[0]["raw"] == pytest.approx(0.25)
    open_ones = tuple(
        replace(one, status="open") if one.points["optimizer"] == SGD_M and one is not first else one
        for one in whole.cells
    )
    assert [row["optimizer"] for row in slopes_of(replace(whole, cells=open_ones))] == [SVD]


def test_costs_have_a_row_for_each_shape_and_a_dash_for_what_was_not_timed():
    table = tables.costs({"64×216": {"svd_seconds": 2.0, "horner_seconds": 0.5, "measured_ratio": 4.0}, "2×2": {}})
    assert table.rows[0][:5] == ("64×216", 2.0, 0.5, None, 4.0)
    assert table.rows[1] == ("2×2", *[None] * 7)
    assert (table.title, table.header[1]) == ("Seconds per orthogonalization (Lemma 11)", "SVD, s")
    of_cpu = tables.costs({}, "cpu")
    assert (of_cpu.title, of_cpu.header[1]) == ("CPU seconds per orthogonalization (Lemma 11)", "SVD, CPU s")
    assert "in CPU seconds" in of_cpu.caption


def test_bounds_have_the_summary_of_each_problem_and_method():
    summary = {
        "measured": 1.5,
        "bound": "sharp",
        "bound_over_measured": 2.0,
        "inequalities": 9,
        "violated": 0,
        "least_slack": 0.1,
    }
    table = tables.bounds(
        [cell("x", summary=summary, points={"problem": "bowl", "method": "sgdm"}), cell("y", points={})]
    )
    assert table.rows[0] == ("bowl", "sgdm", 1.5, "sharp", 2.0, 9, 0, 0.1)
    assert table.rows[1] == ("y", "", *[None] * 6)


# -------------------------------------------------------------------------------------------------------- certificates


def test_certificates_are_those_of_the_last_step_mean_over_runs(tmp_path):
    def matrix(step, alignment, **other):
        numbers = {"delta_0": 0.9, "chi": 2.0, "alignment_floor": 0.3, "gradient_nuclear": 1.0}
        return {"step": step, "shape": [4, 6], "alignment": alignment, **numbers, **other}

    one = certified(tmp_path / "0", "a", [matrix(21, 0.4, chi=4.0), matrix(1, 0.1), {"event": "whole", "step": 31}])
    other = certified(tmp_path / "1", "a", [matrix(11, 0.6), matrix(11, None, name="v")])
    table = tables.certificates(places(one, other, cell("SGD-M")))
    assert table.header == (
        "optimizer",
        "layer",
        "shape",
        "1 − δ_0",
        "χ_q",
        "alignment a",
        "1/a",
        "floor",
        "‖gradient‖_*",
    )
    mean_factor = (1 / 0.4 + 1 / 0.6) / 2
    assert table.rows[0] == (
        "a",
        "w",
        "4×6",
        pytest.approx(0.1),
        3.0,
        0.5,
        pytest.approx(mean_factor),
        pytest.approx(0.3),
        1.0,
    )
    assert table.rows[1] == ("a", "v", "4×6", pytest.approx(0.1), 2.0, None, None, 0.3, 1.0)
    assert tables.certificates(places(cell("SGD-M"))) is None


# -------------------------------------------------------------------------------------------------------------- optima


def test_best_settings_and_their_shifts_are_those_of_the_analysis_and_ends_of_the_grid_are_named():
    cells = [*swept("a", [(-1.0, 0.1), (-0.9, 2.0)], descent=0.5), *swept("b", [(-3.0, 2.1), (-3.2, 2.2)])]
    rows = optima_of(results(cells, "lr-by-steps"))
    best, shifts = tables.best_settings(rows), tables.optimum_shifts(rows)
    for table in (best, shifts):
        assert column(table, "optimizer") == ["a", "b"]
        assert column(table, "at an end of the grid") == ["η, μ", None]  # the momentum of one seed
    assert column(best, "learning rate η") == [row["lr"] for row in rows]
    assert column(best, "ηρ") == [0.5 * rows[0]["lr"], rows[1]["lr"]]
    loss = column(best, "training loss")[1]
    assert (loss.mean, loss.std, loss.runs) == (rows[1]["train_loss"], rows[1]["train_loss_std"], 2)
    moved = column(shifts, "log2 of 1/(1 − μ)")[0]
    assert (moved.mean, moved.std) == (rows[0]["shift_log_memory"], rows[0]["shift_log_memory_error"])
    assert "least mean training loss at the end" in best.caption
    assert "Test data take no part" in best.caption
    assert "one standard error" in shifts.caption


def test_the_optimum_of_one_run_has_no_spread():
    rows = optima_of(results(swept("a", [(-3.0, 2.0)], descent=None), "lr-by-steps"))
    (row,) = tables.best_settings(rows).rows
    assert not any(isinstance(one, MeanStd) for one in row)
    assert row[-2:] == (None, None)
    (row,) = tables.optimum_shifts(rows).rows
    assert row[2:5] == (0.0, None, 0.0)
