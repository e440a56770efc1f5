"""Times on pages: which clock they are of, and of which machine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from muonlab.cli import console
from muonlab.lab.runner.summary import summarize
from muonlab.report.gather import gather_run
from muonlab.report.page.sections import study_sections
from tests.report.rundirs import CPU, MACHINE, OPTIMIZERS, edit, losses, text_of, write_cell, write_run

OTHER = {"cpu": "B 2", "cpu_model": "6-1-1", "cores": 64, "gpus": []}
A, B = "A 1 (6-85-7), 2 cores, no GPU, torch 2", "B 2 (6-1-1), 64 cores, no GPU, torch 2"


def with_jobs(folder, jobs):
    for path in folder.glob("cells/*/done.json"):
        edit(path, lambda about: about | {"jobs": jobs})


def table(folder, name):
    (found,) = (t for part in study_sections(gather_run(folder).results) for t in part.tables if t.name == name)
    return found


def tables_of(folder):
    return {path.stem for path in (folder / "report" / "tables").iterdir()}


@pytest.mark.slow
def test_a_page_names_its_clock_on_axes_in_tables_and_in_a_sentence(made):
    for jobs, unit, sentence in [
        (1, "seconds", "Times are wall seconds: each cell ran alone, on a quiet machine."),
        (2, "CPU seconds", "Times are CPU seconds, of one thread for each cell: cells ran side by side."),
    ]:
        with_jobs(made, jobs)
        text = text_of(made)
        assert text.count(sentence) == jobs  # a fact, and a warning where it is not the wall clock
        (training,) = (one for one in study_sections(gather_run(made).results)[0].figures if one.name == "training")
        assert [panel.x_name for panel in training.panels] == ["epoch"] * 2 + [f"{unit} of training"] * 2
        assert f"Loss by epoch and by {unit} of training" in text
        factor = 1.0 if jobs == 1 else CPU
        rows = losses("SGD-M", 0)
        (curve,) = (one for one in training.panels[3].series if one.label == "SGD-M")
        assert curve.x[-1] == pytest.approx(factor * rows[-1]["seconds"])
        assert {"losses-over-time", "speed"} <= tables_of(made)
        assert f"Training loss over {unit} of training" in table(made, "losses-over-time").title


@pytest.mark.usefixtures("without_figures")
def test_the_speed_table_of_a_page_has_both_clocks(made):
    for jobs, used in ((1, "wall seconds"), (2, "CPU seconds")):
        with_jobs(made, jobs)
        speed = table(made, "speed")
        for row in speed.rows:
            by_wall, by_cpu = (row[speed.header.index(f"{clock} seconds per update")] for clock in ("wall", "CPU"))
            assert by_cpu.mean == pytest.approx(CPU * by_wall.mean)
        assert f"Claims about time use {used}." in speed.caption


@pytest.mark.usefixtures("without_figures")
def test_without_a_clock_nothing_is_shown_over_time(tmp_path):
    folder = write_run(tmp_path / "made", [], settings={"device": "cpu", "threads": 2})
    for label in OPTIMIZERS:
        write_cell(folder, label, 0, losses(label, 0), jobs=2)
    text = text_of(folder)
    words = "Times are not comparable: cells ran side by side, and they ran with more than one thread."
    assert f"{words} No results over time are shown." in text
    assert tables_of(folder) == {"final-losses"}
    assert "by seconds" not in text
    claims = {one["claim"]: one for one in json.loads((folder / "report" / "claims.json").read_text())}
    assert claims["steps-sooner-than-svd"]["why"] == words


@pytest.fixture
def on_two_machines(tmp_path):
    """Four optimizers on one machine, and on another one more seed of two of them, ten times as slow."""
    folder = write_run(tmp_path / "made", OPTIMIZERS, seeds=1)
    edit(folder / "env.json", lambda about: {"sessions": [*about["sessions"], {**about["sessions"][0], **OTHER}]})
    for label in OPTIMIZERS[:2]:
        rows = [row | {name: 10 * row[name] for name in ("seconds", "cpu_seconds")} for row in losses(label, 1)]
        write_cell(folder, label, 1, rows, sessions=[1], machine=MACHINE | OTHER)
    return folder


@pytest.mark.usefixtures("without_figures")
def test_a_page_of_two_machines_says_which_cells_ran_where(on_two_machines):
    text = text_of(on_two_machines)
    assert f"Cells ran on different hardware: 4 of 6 on {A}; SGD-M, seed 1, on {B}; Muon (q=1), seed 1, on {B}." in text
    assert f"The cells ran on 2 kinds of hardware: {A}; {B}." in table(on_two_machines, "final-losses").caption
    assert MACHINE["cpu"] in text


@pytest.mark.usefixtures("without_figures")
def test_times_of_two_machines_are_never_in_one_table(on_two_machines):
    text_of(on_two_machines)
    speed, over_time = (table(on_two_machines, name) for name in ("speed", "losses-over-time"))
    for label, _, by_wall, *_ in speed.rows:
        assert (by_wall.mean, by_wall.runs) == (pytest.approx(losses(label, 0)[-1]["seconds"] / 100), 1)
    slowest = max(losses(label, 0)[-1]["seconds"] for label in OPTIMIZERS if label != "Muon (SVD)")
    assert over_time.header[-1] == f"100% ({slowest:.3g} s)"
    for one in (speed, over_time):
        assert f"Times are from cells on {A}; 2 cells on other hardware are left out." in one.caption
    final = table(on_two_machines, "final-losses")
    assert [row[1] for row in final.rows] == [2, 2, 1, 1]  # losses are of both


def test_the_console_has_the_clock_and_its_sentence(made):
    for jobs, clock in ((1, "wall"), (2, "cpu")):
        with_jobs(made, jobs)
        results = gather_run(made).results
        answer = summarize(results)
        assert answer["clock"] == clock
        assert "seconds_comparable" not in answer
        by_wall = {cell.label: cell.last["seconds"] for cell in results.cells if cell.seed == 0}
        for place in answer["places"]:
            assert place["seconds"]["mean"] == pytest.approx(by_wall[place["label"]], rel=0.02)
            assert place["cpu_seconds"]["mean"] == pytest.approx(CPU * place["seconds"]["mean"])
        note = console.run(answer | {"page": "report.html"}).count(answer["timing"])
        assert note == (clock != "wall")
    assert answer["timing"] == "Times are CPU seconds, of one thread for each cell: cells ran side by side."
    none = replace(results, cells=tuple(replace(cell, spec={**cell.spec, "threads": 2}) for cell in results.cells))
    assert summarize(none)["clock"] is None
