"""Which figures and tables a study's rows allow."""

from __future__ import annotations

import json

import pytest

from muonlab.lab.problems.cell import FIXED_BOUNDS
from muonlab.lab.runner.run_study import run
from muonlab.report.gather import gather_run
from muonlab.report.page.sections import study_sections
from muonlab.report.tables import BOUNDS
from muonlab.report.values import Section


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The sections of a study, run at its smoke profile."""
    kept = {}

    def show(name, **options):
        if name not in kept:
            folder = tmp_path_factory.mktemp(name)
            run(name, out=folder / name, threads=1, **options)  # times are then shown however busy the machine is
            kept[name] = {section.name: section for section in study_sections(gather_run(folder / name).results)}
        return kept[name]

    return show


def names(section: Section) -> tuple[list[str], list[str]]:
    return [figure.name for figure in section.figures], [table.name for table in section.tables]


def test_every_bound_that_is_known_before_a_run_has_its_words():
    assert tuple(BOUNDS) == FIXED_BOUNDS


def test_the_theory_at_work_shows_bounds_and_measured_averages(shown):
    found = shown("theory-at-work")
    assert list(found) == ["bounds"]
    assert names(found["bounds"]) == (["bounds"], ["bounds"])
    panels = found["bounds"].figures[0].panels
    assert len(panels) == len(found["bounds"].tables[0].rows)  # a line for each problem and method
    assert all(any("measured" in series.label for series in panel.series) for panel in panels)


def test_the_wall_clock_study_shows_costs_and_the_planner_s_frontier(shown):
    found = shown("wall-clock", settings={"repeats": 1})
    assert list(found) == ["cost"]
    assert names(found["cost"]) == (["cost", "frontier"], ["costs"])
    shapes = [row[0] for row in found["cost"].tables[0].rows]
    assert shapes == ["64×216", "64×576", "256×576"]


@pytest.mark.slow
def test_the_quickstart_shows_training_certificates_and_polynomials(shown):
    found = shown("quickstart", settings={"steps": 12, "epochs": None, "evaluate_every": 4})
    assert list(found) == ["training", "certificates", "polynomials"]
    assert names(found["training"]) == (["training"], ["final-losses", "losses-over-time", "speed"])
    drawn, made = names(found["certificates"])
    assert len(drawn) == 4  # one for each Muon; SGD-M has no certificates
    assert made == ["certificates"]
    assert names(found["polynomials"]) == (["tau-phi", "response"], [])


@pytest.mark.data("cifar10-subset")
def test_the_rank_study_shows_gradients_by_rank_and_slopes_beside_the_paper_s(shown):
    found = shown("rank", settings={"epochs": None, "steps": 4, "evaluate_every": 2, "train": 64, "test": 32})
    assert names(found["rank"]) == (["rank"], ["slopes"])
    rows = {row[0]: row for row in found["rank"].tables[0].rows}
    assert rows["SGD-M"][2] == 0.292


def test_numbers_of_the_training_figure_are_those_of_the_rows(tmp_path):
    run("quickstart", out=tmp_path / "q", settings={"steps": 4, "epochs": None, "evaluate_every": 2})
    results = gather_run(tmp_path / "q").results
    figure = study_sections(results)[0].figures[0]
    drawn = {series.label: series for series in figure.panels[1].series}
    for cell in results.cells:
        rows = [json.loads(line) for line in (cell.folder / "metrics.jsonl").read_text().splitlines()]
        losses = [row["test_loss"] for row in rows if "test_loss" in row]
        assert list(drawn[cell.label].y) == pytest.approx(losses, rel=1e-12)
