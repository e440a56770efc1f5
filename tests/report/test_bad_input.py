"""Run directories that are damaged, hostile or half written: a page of what is sound, a list of what is not."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muonlab.cli.app import main
from muonlab.lab.files.hashed_json import hashed_bytes, read_json
from muonlab.lab.runner.store import FORMAT
from muonlab.report import figures
from muonlab.report.gather import gather
from muonlab.report.page.sections import sections
from muonlab.report.publish import report
from tests.report.rundirs import clocks, edit, finite, losses, text_of, write_cell, write_rows, write_run


@pytest.fixture
def drawn():
    """Asked for by tests that need the figures, too."""


@pytest.fixture(autouse=True)
def _without_figures(request, monkeypatch):
    if "drawn" not in request.fixturenames:  # they take most of a page's time
        for name in ("training", "rank", "cost", "frontier", "bounds", "layers", "tau_phi", "response"):
            monkeypatch.setattr(figures, f"{name}_figure", lambda *_, **__: None)


def cell_of(folder: Path) -> Path:
    return folder / "cells" / read_json(folder / "cells.json")["cells"][0]


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def of_first_cell(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """Change a file of the first cell, hash included."""
    return lambda made: edit(cell_of(made) / name, change)


def copy_with_another_key(made: Path) -> None:
    about = read_json(cell_of(made) / "spec.json")
    write_cell(made, about["label"], about["spec"]["seed"], losses("x", 0), spec={"lr": 0.5})


DAMAGE = {
    "a line more": lambda made: append(cell_of(made) / "metrics.jsonl", "{"),
    "a row changed": lambda made: write_rows(cell_of(made) / "metrics.jsonl", losses("other", 0)),
    "a bit of done.json": lambda made: (cell_of(made) / "done.json").write_text(
        (cell_of(made) / "done.json").read_text().replace('"jobs": 1', '"jobs": 2')
    ),
    "spec that is no JSON": lambda made: (cell_of(made) / "spec.json").write_text("[1, 2"),
    "deep JSON": lambda made: (cell_of(made) / "spec.json").write_text("[" * 100_000),
    "cell that is gone": lambda made: shutil.rmtree(cell_of(made)),
    "cell that is half made": lambda made: (cell_of(made) / "spec.json").unlink(),
    "cell that is not listed": lambda made: write_cell(made, "stray", 0, losses("stray", 0), listed=False),
    "cell that is there twice": copy_with_another_key,
    "cell that is listed twice": lambda made: edit(
        made / "cells.json", lambda about: {"cells": [*about["cells"], about["cells"][0]]}
    ),
    "binary rows": lambda made: (cell_of(made) / "metrics.jsonl").write_bytes(b"\xff\x00\n"),
    "pipe in the place of rows": lambda made: (
        (cell_of(made) / "metrics.jsonl").unlink(),
        os.mkfifo(cell_of(made) / "metrics.jsonl"),
    ),
    "cells.json": lambda made: (made / "cells.json").write_text("{"),
    "env.json": lambda made: (made / "env.json").write_text('{"sessions": 3}'),
    # with hashes that are right
    "sealed: seed": of_first_cell("spec.json", lambda about: about | {"spec": {**about["spec"], "seed": "x"}}),
    "sealed: no seed": of_first_cell("spec.json", lambda about: about | {"spec": {}}),
    "sealed: another optimizer": of_first_cell(
        "spec.json", lambda about: about | {"spec": {**about["spec"], "optimizer": "sgdm"}}
    ),
    "sealed: points": of_first_cell("spec.json", lambda about: about | {"points": {"a": [1]}}),
    "sealed: label of megabytes": of_first_cell("spec.json", lambda about: about | {"label": "x" * 1_000_000}),
    "sealed: summary": of_first_cell("done.json", lambda about: about | {"summary": 3}),
    "sealed: summary of lists": of_first_cell("done.json", lambda about: about | {"summary": {"x": []}}),
    "sealed: times": of_first_cell("done.json", lambda about: about | {"summary": {"seconds": 1, "cpu_seconds": "x"}}),
    "sealed: jobs": of_first_cell("done.json", lambda about: about | {"jobs": "two"}),
    "sealed: sessions": of_first_cell("done.json", lambda about: about | {"sessions": ["first"]}),
    "sealed: rows": of_first_cell("done.json", lambda about: about | {"rows": {"metrics": {"lines": "x"}}}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_listed_on_a_page_of_what_is_sound_and_no_claim_is_decided(made, damage, capsys):
    DAMAGE[damage](made)
    assert main(["report", str(made)]) == 0
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    text = (made / "report.html").read_text()
    assert ("0 of 8 done, 8 could not be read" in text) is (damage == "cells.json")
    assert str(made) not in text  # a page is sent to others
    assert len(text) < 1_000_000
    assert "Could not be used (1):" in said.out
    assert "could not" in text.lower()
    judged = {one["verdict"] for one in json.loads((made / "report" / "claims.json").read_text())}
    if "env" not in damage:
        assert judged == {"not tested at this scale"}  # what is missing might have spoken against it


def test_an_unfinished_cell_is_shown_as_far_as_it_came_without_its_torn_line(made):
    name = write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0, epochs=3), done=False)
    append(made / "cells" / name / "metrics.jsonl", '{"event": "evaluation", "st')
    answer = report(made)
    assert answer["problems"] == []
    text = (made / "report.html").read_text()
    assert "1 of 9 cells are not finished" in text
    assert "incomplete" in text
    assert "Muon (q=2)" not in (made / "report" / "tables" / "final-losses.md").read_text()


@pytest.mark.parametrize(
    "row",
    [
        '{"event": "evaluation", "step": 5, "epoch": 1.0, "seconds": NaN, "train_loss": 1.0}',
        '{"event": "evaluation", "step": "five", "epoch": 1.0, "seconds": 1.0}',
        '{"event": "evaluation"}',
        '{"event": "evaluation", "step": 5, "epoch": 1e999, "seconds": 1.0, "train_loss": -1e999}',
        '{"event": "evaluation", "step": 5, "epoch": 1.0, "seconds": 1.0, "other_seconds": "x"}',
        '{"event": "evaluation", "step": 5, "epoch": 1.0, "seconds": 1.0, "cpu_seconds": true}',
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_a_cell_with_rows_that_no_study_writes_is_lost(made, row, done):
    write_cell(made, "Muon (q=2)", 0, [*losses("Muon (q=2)", 0), {**clocks(0.0), **json.loads(row)}], done=done)
    (problem,) = report(made)["problems"]
    assert problem["what"] == "1 rows of metrics.jsonl do not have what a study writes"
    assert "8 of 9 done, 1 could not be read" in (made / "report.html").read_text()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.usefixtures("drawn")
def test_a_number_of_any_kind_in_a_row_makes_a_page_all_the_same(made, done):
    names = ["train_loss", "test_loss", "test_accuracy", "gradient_nuclear_norm", "lr"]
    for name, value in itertools.product(names, ["x", None, True, [], {}, -1, 0, 10**400]):
        row = {"event": "evaluation", "step": 200, "epoch": 20.0, **clocks(99.0), name: value}
        label = f"{name} {str(value)[:9]}"
        write_cell(made, label, 0, [*losses(label, 0), row], done=done, spec={"first_width": 16})
    report(made)
    assert "train_loss" in (made / "report.html").read_text()
    assert all(finite(path.read_text()) for path in (made / "report").rglob("*.*"))


@pytest.mark.parametrize("name", ["../../other/cells/x", "/etc", "..", "."])
def test_a_name_that_leads_out_of_the_run_directory_is_not_followed(made, tmp_path, name):
    write_cell(tmp_path / "other", "stranger", 0, losses("stranger", 0))
    edit(made / "cells.json", lambda about: {"cells": [*about["cells"], name]})
    (problem,) = report(made)["problems"]
    assert problem == {"where": f"cells/{name}", "what": "leads out of the run directory"}
    verdicts = {one["verdict"] for one in json.loads((made / "report" / "claims.json").read_text())}
    assert verdicts == {"not tested at this scale"}
    assert "stranger" not in (made / "report.html").read_text()


def test_a_cell_that_is_a_link_is_not_followed(made, tmp_path):
    elsewhere = write_cell(tmp_path / "other", "a stranger", 0, losses("stranger", 0))
    (made / "cells" / elsewhere).symlink_to(tmp_path / "other" / "cells" / elsewhere)
    (problem,) = report(made)["problems"]
    assert problem["what"] == "is not listed in cells.json"
    edit(made / "cells.json", lambda about: {"cells": [*about["cells"], elsewhere]})
    (problem,) = report(made)["problems"]
    assert problem["what"] == "leads out of the run directory"
    assert "a stranger" not in (made / "report.html").read_text()


def test_a_pipe_in_the_place_of_a_file_does_not_hang(made):
    (made / "env.json").unlink()
    os.mkfifo(made / "env.json")
    (problem,) = report(made)["problems"]
    assert problem["where"] == "env.json"


@pytest.mark.parametrize("name", ["x" * 300, "a\ud800b", "nul\0"])
def test_a_name_that_no_file_can_have_is_a_problem_of_its_own(made, name):
    edit(made / "cells.json", lambda about: {"cells": [*about["cells"], name]})
    assert len(report(made)["problems"]) == 1
    assert "Muon (SVD)" in (made / "report.html").read_text()


def test_half_a_letter_in_a_profile_or_a_label_of_data_is_replaced(made):
    strange = {"profile": "a\ud800", "data": {"x": {"label": "b\ud800", "words": "c\ud800"}}}
    edit(made / "study.json", lambda head: head | strange)
    report(made)
    assert (made / "report.html").exists()


def test_a_link_that_leads_nowhere_is_passed_over(made):
    (made / "notes.json").symlink_to(made / "nowhere")
    assert report(made)["problems"] == []


def test_a_head_without_a_device_has_a_page(made):
    for device in ({}, {"device": None}, {"device": []}, {"device": 7}):
        edit(made / "study.json", lambda head, device=device: head | {"settings": {"threads": 1, **device}})
        report(made)


def test_two_reporters_at_once_do_not_trip_over_each_other(made):
    program = "import sys; from muonlab.report import report; report(sys.argv[1])"
    both = [subprocess.Popen([sys.executable, "-c", program, str(made)], stderr=subprocess.PIPE) for _ in range(2)]
    assert [(one.communicate()[1], one.returncode) for one in both] == [(b"", 0)] * 2
    assert not list(made.rglob("*.part"))


def test_fewer_runs_than_the_profile_asks_for_are_told(made):
    assert "The profile asks for 3 runs of each place; here: 2." in text_of(made)


@pytest.mark.parametrize("row", [{"shape": 5}, {"alignment": "x"}, {"step": "1"}, {"name": 3}, {"q": 10**9}])
@pytest.mark.usefixtures("drawn")
def test_certificates_of_any_kind_make_a_page_all_the_same(made, row):
    plain = {"event": "matrix", "step": 1, "name": "w", "shape": [2, 3], "alignment": 0.5, "delta_0": 0.5, "delta": 0.1}
    for label, rows in (("Recorded", [plain]), ("Strange", [plain, plain | row])):
        write_cell(made, label, 0, losses(label, 0), done=False, certificates=rows)
    assert "Certificates of Recorded" in text_of(made)


@pytest.mark.usefixtures("drawn")
def test_a_preset_of_several_polynomials_has_a_page_too(made):
    spec = {"polynomial": "polar_express", "q": 5}
    write_cell(made, "Polar Express", 0, losses("x", 0), spec=spec)
    assert report(made)["problems"] == []
    assert "polar_express, q=5" in (made / "report.html").read_text()


def test_a_finished_cell_that_ran_beside_others_puts_the_study_on_cpu_seconds_and_an_open_one_does_not(made):
    write_cell(made, "Muon (q=2)", 7, losses("Muon (q=2)", 7), done=False, jobs=2)
    assert "Times are wall seconds" in text_of(made)
    write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0), jobs=2)
    text = text_of(made)
    assert "Times are CPU seconds, of one thread for each cell: cells ran side by side." in text
    assert "by CPU seconds" in text


@pytest.mark.usefixtures("drawn")
def test_a_failed_seed_does_not_shorten_the_curve_of_the_others(made):
    write_cell(made, "SGD-M", 9, losses("SGD-M", 9, epochs=1), done=False)
    report(made)
    drawn = gather(made).results
    (figure,) = (figure for figure in sections(drawn)[0].figures if figure.name == "training")
    assert len(next(one for one in figure.panels[0].series if one.label == "SGD-M").x) == 10


def test_the_command_can_be_pasted_into_a_shell(made):
    settings = {"device": "cpu", "threads": 1, "lr": "1; touch pwned #"}
    edit(made / "study.json", lambda head: head | {"settings": settings})
    assert "--set &#39;lr=1; touch pwned #&#39;" in text_of(made)


@pytest.mark.usefixtures("drawn")
def test_figures_and_tables_carry_their_labels_wherever_they_go(made):
    text = text_of(made)
    for path in [*(made / "report" / "tables").iterdir(), *(made / "report" / "figures").iterdir()]:
        assert "profile small, subset" in path.read_text()
    assert text.count("Made with muonlab: profile small, subset.") >= 2  # in what is copied from the page


def test_versions_that_differ_between_sessions_or_in_their_numbers_are_a_warning(made):
    edit(made / "env.json", lambda about: {"sessions": [about["sessions"][0] | {"muonlab": "0.0.1"}]})
    assert "versions of muonlab" not in text_of(made)  # one version with the same numbers
    edit(made / "env.json", lambda about: {"sessions": [*about["sessions"], {**about["sessions"][0], "muonlab": "9"}]})
    edit(made / "study.json", lambda head: head | {"numerics": 0})
    text = text_of(made)
    assert "Cells were run by different versions of muonlab: 0.0.1, 9." in text
    assert "Made with numerics 0; this page by muonlab" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "without a run in it: muonlab run quickstart makes one"),
        (b"{", "must match the hash that it carries"),
        (hashed_bytes({"format": 99, "study": "x"}), f"must have the format {FORMAT}, got"),
        (b'{"format": 1, "version": "0.1.0"}', "must match the hash that it carries"),
    ],
)
def test_a_directory_that_is_no_run_is_an_error_in_one_line(tmp_path, content, words, capsys):
    folder = tmp_path / "other"
    folder.mkdir()
    if content is not None:
        (folder / "study.json").write_bytes(content)
    assert main(["report", str(folder)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_directory_is_an_error_in_one_line(tmp_path, name, capsys):
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / name)]) == 2
    assert "which is no directory" in capsys.readouterr().err


def test_an_empty_run_still_has_a_page(tmp_path):
    text = text_of(write_run(tmp_path / "empty", []))
    assert "0 of 0 done" in text
