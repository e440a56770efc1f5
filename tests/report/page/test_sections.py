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
from tests.report import made


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
    assert list(found) == ["averages", "bounds"]
    assert names(found["averages"]) == ([], ["averages"])
    assert names(found["bounds"]) == (["bounds"], ["bounds"])
    (averages,), (bounds,) = found["averages"].tables, found["bounds"].tables
    panels = found["bounds"].figures[0].panels
    assert len(panels) == len(bounds.rows)  # a line for each problem and method
    assert all(any("measured" in series.label for series in panel.series) for panel in panels)
    assert len(averages.rows) == 4
    for problem, least, *means in averages.rows:
        assert averages.header[2 + means.index(min(means))] == least
        assert means == [row[2] for row in bounds.rows if row[0] == problem]


def test_runs_that_need_theorems_a_to_c_have_a_figure_and_gaps_of_their_own():
    def one(problem, method, measured, *bounds, weight_decay=0.0):
        rows = [
            {"event": "inequality", "name": name, "kind": "expected", "measured": left, "bound": right, "held": True}
            for name, left, right in bounds
        ]
        points = {"problem": problem, "method": method}
        return made.cell(f"{problem}, {method}", rows, spec={"weight_decay": weight_decay}, points=points,
                         summary={"measured": measured})  # fmt: skip

    cells = (
        one("bowl", "sgdm", 0.1, ("sgdm_L_F", 0.1, 0.5)),
        one("bowl", "muon_q2", 0.2, ("floor", 0.2, 0.3)),
        one("decayed", "sgdm", 0.4, ("run", 0.4, 0.9)),
        one("decayed", "muon_q2", 0.3, ("trajectory", 0.35, 0.7)),
        one("pulled", "muon_q2", 0.3, ("trajectory_gap", -0.1, 0.6), weight_decay=0.5),
        one("diverging", "sgdm", None),
        one("diverging", "muon_q2", 0.6, ("trajectory", 0.6, 0.7)),
    )
    found = {section.name: section for section in study_sections(made.results(cells, "theory-at-work"))}
    assert names(found["averages"]) == ([], ["averages", "gaps"])
    assert names(found["bounds"]) == (["bounds", "trajectory-bounds"], ["bounds"])
    plain, extended = ([panel.x_name for panel in figure.panels] for figure in found["bounds"].figures)
    assert [name.partition(":")[0] for name in plain] == ["sgdm on bowl", "muon_q2 on bowl"]
    assert [name.partition(":")[0] for name in extended] == ["muon_q2 on decayed", "muon_q2 on diverging"]
    averages, gaps = found["averages"].tables
    assert averages.rows == (
        ("bowl", "sgdm", 0.1, 0.2),
        ("decayed", "muon_q2", 0.4, 0.3),
        ("diverging", "muon_q2", None, 0.6),
    )
    assert averages.caption.endswith("SGD-M has the least mean in 1 of 3 rows, Muon in 2.")
    assert gaps.rows == (("pulled", "muon_q2", 0.3, -0.1, 0.6),)


@pytest.mark.slow
def test_the_wall_clock_study_shows_costs_and_the_planner_s_frontier(shown):
    found = shown("wall-clock", settings={"repeats": 1})
    assert list(found) == ["cost"]
    assert names(found["cost"]) == (["cost", "frontier"], ["costs"])
    shapes = [row[0] for row in found["cost"].tables[0].rows]
    assert shapes == ["64×216", "64×576", "256×576"]


def test_a_study_of_learning_rates_shows_the_best_settings(shown):
    found = shown("lr-by-steps", settings={"steps": 4, "evaluate_every": 2, "record_every": 2})
    assert list(found) == ["optima", "polynomials"]
    assert names(found["optima"]) == (["optima"], ["best-settings", "optimum-shifts"])


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
