"""The best setting of a sweep is chosen by validation loss, and its test loss is reported."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from muonlab.cli.app import main
from muonlab.lab import Spec, Study, best, run
from muonlab.report.page import sections
from muonlab.report.page.sweeps import sweep_section

SWEEP = Study(
    "sweep",
    Spec(dataset="digits", model="mlp-small", batch_size=64, steps=6, train=256, test=64, validation=64),
    {"optimizer": {"SGD-M": "sgdm", "AdamW": "AdamW"}, "lr": (0.001, 0.01, 0.1)},
    seeds=2,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run(SWEEP, out=tmp_path_factory.mktemp("sweep") / "run", threads=1)


def test_the_best_of_each_optimizer_has_the_least_validation_loss_and_reports_the_test_loss(results):
    rows = best(results)
    assert [row.group for row in rows] == ["SGD-M", "AdamW"]
    for row in rows:
        mean = {
            lr: {
                name: statistics.fmean(
                    cell.last[name]
                    for cell in results.cells
                    if (cell.points["optimizer"], cell.points["lr"]) == (row.group, lr)
                )
                for name in ("validation_loss", "test_loss")
            }
            for lr in ("lr=0.001", "lr=0.01", "lr=0.1")
        }
        chosen = min(mean, key=lambda lr: mean[lr]["validation_loss"])
        assert row.setting == {"lr": float(chosen.removeprefix("lr="))}
        assert row.label == f"{row.group}, {chosen}"
        assert (row.value, row.test_loss) == pytest.approx(tuple(mean[chosen].values()))
        for name, std in (("validation_loss", row.value_std), ("test_loss", row.test_loss_std)):
            assert std == pytest.approx(statistics.stdev(cell.last[name] for cell in results.places()[row.label]))
        assert row.at_edge == (() if chosen == "lr=0.01" else ("lr",))
        assert row.runs == 2
    by_rate = best(results, by="lr")
    assert [row.group for row in by_rate] == ["lr=0.001", "lr=0.01", "lr=0.1"]
    assert {row.value for row in rows} <= {row.value for row in by_rate}


def test_a_setting_with_a_cell_that_failed_is_not_chosen(results):
    (sgdm, _) = best(results)
    cells = [
        dataclasses.replace(cell, status="failed") if (cell.label, cell.seed) == (sgdm.label, 1) else cell
        for cell in results.cells
    ]
    (now, _) = best(dataclasses.replace(results, cells=tuple(cells)))
    assert now.setting != sgdm.setting
    assert now.value > sgdm.value
    assert now.missing == 1


def test_test_data_are_never_used_to_choose(results, tmp_path):
    with pytest.raises(ValueError, match="settings must not be chosen by test data"):
        best(results, on="test_loss")
    without = dataclasses.replace(SWEEP, base=SWEEP.base.changed({"validation": None, "steps": 1}))
    with pytest.raises(ValueError, match=r"the rows must have validation_loss, got none: set Spec\(validation=…\)"):
        best(run(without, out=tmp_path / "run", seeds=1, threads=1))
    with pytest.raises(ValueError, match="by must be an axis of the study, got 'width': its axes are optimizer, lr"):
        best(results, by="width")


def test_the_validation_examples_are_not_trained_with(tmp_path):
    """With all examples but one batch set aside, the number set aside decides the epochs, and other data are seen."""
    one = dataclasses.replace(SWEEP, axes=(), base=SWEEP.base.changed({"validation": 192, "steps": 4}))
    study = dataclasses.replace(one, axes={"validation": (192, 64)})
    few, many = run(study, out=tmp_path / "run", seeds=1, threads=1).cells
    assert (few.last["epoch"], many.last["epoch"]) == (4.0, 4 / 3)
    assert few.last["train_loss"] != many.last["train_loss"]


def test_the_page_shows_the_sweep(results):
    assert main(["report", str(results.folder)]) == 0
    table = (results.folder / "report/tables/best-settings.md").read_text(encoding="utf-8")
    for row in best(results):
        assert f"| {row.group} | {row.setting['lr']} |" in table
    assert (results.folder / "report/figures/sweep-lr.svg").exists()
    page = (results.folder / "report.html").read_text(encoding="utf-8")
    assert "Loss over lr" in page
    assert "The curves are of" not in page  # six curves can be told apart


def test_of_a_large_sweep_the_page_draws_the_curves_of_the_best_settings(results, monkeypatch):
    labels = [row.label for row in best(results)]
    places = results.places()
    for most, drawn in ((5, labels), (6, list(places))):
        monkeypatch.setattr(sections, "MOST_NAMED", most)
        training = sections.study_sections(results)[0]
        panels = training.figures[0].panels
        by_epoch = [panel for panel in panels if panel.x_name == "epoch"]
        assert [[series.label for series in panel.series] for panel in by_epoch] == [drawn, drawn]
        assert {series.label for panel in panels for series in panel.series} == set(drawn)  # by seconds, if timed
        sentence = "The curves are of the best settings of the sweep; the tables have all 6."
        assert (sentence in training.intro) == (most < 6)
        assert len(training.tables[0].rows) == len(places)
    unchosen = dataclasses.replace(results, cells=tuple(c for c in results.cells if c.points["optimizer"] == "AdamW"))
    monkeypatch.setattr(sections, "MOST_NAMED", 1)
    none = [dataclasses.replace(cell, metrics=tuple(without_validation(cell))) for cell in unchosen.cells]
    shown = sections.study_sections(dataclasses.replace(unchosen, cells=tuple(none)))[0].figures[0].panels[0].series
    assert len(shown) == 3  # nothing was chosen, so all are drawn


def without_validation(cell):
    for row in cell.metrics:
        yield {name: value for name, value in row.items() if not name.startswith("validation")}


def test_rows_become_a_frame_and_a_file(results, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = results.to_frame()
    results.to_csv(tmp_path / "rows.csv")
    read = pandas.read_csv(tmp_path / "rows.csv")
    assert list(read.columns) == list(frame.columns)
    assert len(read) == len(frame) == sum(len(cell.metrics) for cell in results.cells)
    last = frame[frame.step == 6].groupby(["optimizer", "lr"]).validation_loss.mean()
    for row in best(results):
        assert last[row.group].min() == pytest.approx(row.value)
        assert read.validation_loss.isin([results.cells[0].last["validation_loss"]]).any()


def test_the_page_of_an_unfinished_sweep_shows_the_best_of_the_seeds_that_have_ended(results):
    (last,) = [cell for cell in results.cells if cell.seed == 1][-1:]
    cells = tuple(dataclasses.replace(cell, status="open") if cell is last else cell for cell in results.cells)
    first_seed = tuple(cell for cell in results.cells if cell.seed == 0)
    (table,) = sweep_section(dataclasses.replace(results, cells=cells)).tables
    (expected,) = sweep_section(dataclasses.replace(results, cells=first_seed)).tables
    assert table.rows == expected.rows
    assert len(table.rows) == 2
