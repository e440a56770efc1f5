"""Pages from run directories: what is written and where, what is sound of damaged ones, and how long it takes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import pytest

from muonlab.cli import main
from muonlab.lab.runner import run
from muonlab.report import claims
from muonlab.report.gather import gather
from muonlab.report.publish import page_of, report
from muonlab.report.sections import sections
from tests.lab.tiny import study
from tests.report.rundirs import finite, losses, write_cell, write_run

OPTIMIZERS = ["SGD-M", "Muon (q=1)", "Muon (q=3)", "Muon (SVD)"]


@pytest.fixture
def made(tmp_path):
    return write_run(tmp_path / "made", OPTIMIZERS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run(study(), out=folder)
    return folder


def text_of(folder: Path) -> str:
    report(folder)
    return (folder / "report.html").read_text()


# ------------------------------------------------------------------------------------------------------ what is written


def test_a_trained_study_becomes_a_page_with_figures_tables_and_claims(trained):
    answer = report(trained)
    assert answer["problems"] == []
    page = Path(answer["page"])
    assert page == trained / "report.html"
    text = page.read_text()
    for words in ("SGD-M", "Muon (q=3)", "<svg", "muonlab run tiny", "metrics.jsonl", "profile smoke"):
        assert words in text
    parts = trained / "report"
    assert "viewBox" in (parts / "figures" / "training.svg").read_text()
    assert (parts / "tables" / "final-losses.md").read_text().startswith("**Final losses**")
    assert r"\toprule" in (parts / "tables" / "final-losses.tex").read_text()
    assert json.loads((parts / "claims.json").read_text()) == []  # a study of one's own makes no claim of the paper


def test_the_final_losses_on_the_page_are_those_of_the_rows(made):
    report(made)
    rows = (made / "report" / "tables" / "final-losses.md").read_text().splitlines()
    cells = next(row for row in rows if "SGD" in row)
    ends = [losses("SGD-M", seed)[-1]["train_loss"] for seed in (0, 1)]
    assert f"{sum(ends) / 2:.5f} ± " in cells


def test_the_claims_of_the_study_are_on_its_page_with_rule_and_verdict(made):
    text = text_of(made)
    found = json.loads((made / "report" / "claims.json").read_text())
    assert [one["claim"] for one in found] == [c.name for c in claims.ledger().values() if c.study == "q-ablation"]
    assert all(one["rule"] and one["why"] for one in found)
    assert claims.ledger()["steps-match-svd"].rule in text


def test_a_page_says_whether_the_rules_stood_before_the_run(made):
    assert "not every session noted which rules stood when it began" in text_of(made)
    about = json.loads((made / "env.json").read_text())
    now = claims.digest()
    for noted, words in (
        (now, "as they stood when the run began"),
        (now | {"code": "0" * 64}, "worded as when the run began; the code that applies them has changed since"),
        (now | {"words": "0" * 64}, "worded otherwise when the run began"),
    ):
        about["sessions"][0]["rules"] = noted
        (made / "env.json").write_text(json.dumps(about))
        assert words in text_of(made)


def test_nothing_is_written_outside_the_report_and_its_folder(made):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    report(made)
    after = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before
    new = {path.relative_to(made).parts[0] for path in after if path not in before}
    assert new == {"report.html", "report"}


@pytest.mark.parametrize("part", ["report", "report/figures", "report/tables"])
def test_a_link_that_leads_out_of_the_run_directory_is_refused(made, tmp_path, part):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (made / part).parent.mkdir(exist_ok=True)
    (made / part).symlink_to(elsewhere)
    with pytest.raises(ValueError, match="writes into its run directory only, got"):
        report(made)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["report.html", "report.html.part", "report/figures/training.svg", "report/claims.json"]
)
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(made, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (made / name).parent.mkdir(parents=True, exist_ok=True)
    (made / name).symlink_to(victim)
    report(made)
    assert victim.read_text() == "mine"
    assert "<svg" in (made / "report.html").read_text()


def test_figures_and_tables_that_are_no_longer_made_are_removed(made):
    report(made)
    old = made / "report" / "figures" / "old.svg"
    old.write_text("<svg/>")
    report(made)
    assert not old.exists()
    assert (made / "report" / "figures" / "training.svg").exists()


def test_the_same_results_give_the_same_bytes_in_any_process(made):
    program = "import sys; from muonlab.report import report; report(sys.argv[1])"
    texts = set()
    for seed in ("1", "2"):
        words = [sys.executable, "-c", program, str(made)]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        texts.add((made / "report.html").read_bytes())
    assert len(texts) == 1


def test_a_page_is_made_again_only_when_something_has_changed(made):
    stamp = page_of(made).stat().st_mtime_ns
    assert page_of(made).stat().st_mtime_ns == stamp
    write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0), done=False)
    assert page_of(made).stat().st_mtime_ns > stamp
    assert "Muon (q=2)" in (made / "report.html").read_text()


def test_curves_are_smoothed_only_when_asked_and_the_page_says_so(made):
    plain = text_of(made)
    assert "smoothed" not in plain
    assert main(["report", str(made), "--smoothing", "3"]) == 0
    smooth = (made / "report.html").read_text()
    assert "the running mean of 3 evaluations" in smooth
    assert "the running mean" not in page_of(made).read_text()  # a run makes the plain one again


def test_smoothing_below_one_is_refused(made, capsys):
    assert main(["report", str(made), "--smoothing", "0"]) == 2
    assert "smoothing must be at least 1, got 0" in capsys.readouterr().err
    assert main(["report", str(made), "--smoothing", str(10**20)]) == 2
    assert "smoothing must be at most 1,000, got 1" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ bad input


def cell_of(folder: Path) -> Path:
    return folder / "cells" / json.loads((folder / "cells.json").read_text())["cells"][0]


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


DAMAGE = {
    "metrics of a finished cell": lambda made: append(cell_of(made) / "metrics.jsonl", "{"),
    "spec": lambda made: (cell_of(made) / "spec.json").write_text("[1, 2"),
    "spec without a seed": lambda made: (cell_of(made) / "spec.json").write_text('{"points": {}, "spec": {}}'),
    "seed that is no number": lambda made: (cell_of(made) / "spec.json").write_text(
        '{"points": {}, "spec": {"seed": "x"}}'
    ),
    "points that are no words": lambda made: (cell_of(made) / "spec.json").write_text(
        '{"points": {"a": [1]}, "spec": {"seed": 0}}'
    ),
    "done": lambda made: (cell_of(made) / "done.json").write_text("null"),
    "cell that is gone": lambda made: shutil.rmtree(cell_of(made)),
    "cell half made": lambda made: (made / "cells" / "half").mkdir(),
    "cells.json": lambda made: (made / "cells.json").write_text("{"),
    "env.json": lambda made: (made / "env.json").write_text('{"sessions": 3}'),
    "binary rows": lambda made: (cell_of(made) / "metrics.jsonl").write_bytes(b"\xff\x00\n"),
    "pipe in the place of rows": lambda made: (
        (cell_of(made) / "metrics.jsonl").unlink(),
        os.mkfifo(cell_of(made) / "metrics.jsonl"),
    ),
    "label of megabytes": lambda made: (cell_of(made) / "spec.json").write_text(
        json.dumps({"label": "x" * 1_000_000, "points": {}, "spec": {"seed": 0}})
    ),
    "deep JSON": lambda made: (cell_of(made) / "spec.json").write_text("[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_listed_on_a_page_of_what_is_sound(made, damage, capsys):
    DAMAGE[damage](made)
    assert main(["report", str(made)]) == 0
    said = capsys.readouterr()
    assert "Could not be used (1):" in said.out
    assert "Traceback" not in said.err
    text = (made / "report.html").read_text()
    assert "Muon (SVD)" in text
    assert "could not" in text.lower()
    assert str(made) not in text  # a page is sent to others
    judged = {one["verdict"] for one in json.loads((made / "report" / "claims.json").read_text())}
    if "env" not in damage and "cells.json" not in damage:
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
    ],
)
def test_rows_that_are_no_rows_are_left_out_and_counted(made, row):
    name = write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0), done=False)
    append(made / "cells" / name / "metrics.jsonl", row + "\n")
    (problem,) = report(made)["problems"]
    assert problem["what"] == "1 of 12 rows lack what rows have"


@pytest.mark.parametrize("done", [False, True])
def test_a_number_of_any_kind_in_a_row_makes_a_page_all_the_same(made, done):
    names = ["train_loss", "test_loss", "test_accuracy", "gradient_nuclear_norm", "lr"]
    for name, value in itertools.product(names, ["x", None, True, [], {}, -1, 0, 10**400]):
        row = {"event": "evaluation", "step": 200, "epoch": 20.0, "seconds": 99.0, name: value}
        label = f"{name} {str(value)[:9]}"
        write_cell(made, label, 0, [*losses(label, 0), row], done=done, spec={"first_width": 16})
    report(made)
    assert "train_loss" in (made / "report.html").read_text()
    assert all(finite(path.read_text()) for path in (made / "report").rglob("*.*"))


@pytest.mark.parametrize("name", ["../../other/cells/x", "/etc", "..", "."])
def test_a_name_that_leads_out_of_the_run_directory_is_not_followed(made, tmp_path, name):
    write_cell(tmp_path / "other", "stranger", 0, losses("stranger", 0))
    about = json.loads((made / "cells.json").read_text())
    (made / "cells.json").write_text(json.dumps({"cells": [*about["cells"], name]}))
    (problem,) = report(made)["problems"]
    assert problem == {"where": f"cells/{name}", "what": "leads out of the run directory"}
    assert "stranger" not in (made / "report.html").read_text()


def test_a_cell_that_is_a_link_is_not_followed(made, tmp_path):
    elsewhere = write_cell(tmp_path / "other", "stranger", 0, losses("stranger", 0))
    (made / "cells" / "linked").symlink_to(tmp_path / "other" / "cells" / elsewhere)
    (problem,) = report(made)["problems"]
    assert problem["what"] == "leads out of the run directory"
    assert "stranger" not in (made / "report.html").read_text()


def test_a_pipe_in_the_place_of_a_file_does_not_hang(made):
    (made / "env.json").unlink()
    os.mkfifo(made / "env.json")
    (problem,) = report(made)["problems"]
    assert problem["where"] == "env.json"


@pytest.mark.parametrize("name", ["x" * 300, "a\ud800b", "nul\0"])
def test_a_name_that_no_file_can_have_is_a_problem_of_its_own(made, name):
    about = json.loads((made / "cells.json").read_text())
    (made / "cells.json").write_text(json.dumps({"cells": [*about["cells"], name]}))
    assert len(report(made)["problems"]) == 1
    assert "Muon (SVD)" in (made / "report.html").read_text()


def test_half_a_letter_in_a_profile_or_a_label_of_data_is_replaced(made):
    head = json.loads((made / "study.json").read_text())
    head |= {"profile": "a\ud800", "data": {"x": {"label": "b\ud800", "words": "c\ud800"}}}
    (made / "study.json").write_text(json.dumps(head))
    report(made)
    assert (made / "report.html").exists()


def test_a_link_that_leads_nowhere_is_passed_over(made):
    (made / "notes.json").symlink_to(made / "nowhere")
    assert report(made)["problems"] == []


def test_a_head_without_a_device_has_a_page(made):
    head = json.loads((made / "study.json").read_text())
    for device in ({}, {"device": None}, {"device": []}, {"device": 7}):
        (made / "study.json").write_text(json.dumps(head | {"settings": {"threads": 1, **device}}))
        report(made)


def test_two_reporters_at_once_do_not_trip_over_each_other(made):
    program = "import sys; from muonlab.report import report; report(sys.argv[1])"
    both = [subprocess.Popen([sys.executable, "-c", program, str(made)], stderr=subprocess.PIPE) for _ in range(2)]
    assert [(one.communicate()[1], one.returncode) for one in both] == [(b"", 0)] * 2
    assert not list(made.rglob("*.part"))


def test_fewer_runs_than_the_profile_asks_for_are_told(made):
    assert "The profile asks for 3 runs of each place; here: 2." in text_of(made)


def test_a_cell_that_is_listed_twice_counts_once(made):
    about = json.loads((made / "cells.json").read_text())
    (made / "cells.json").write_text(json.dumps({"cells": about["cells"] * 2}))
    assert "8 of 8 done" in text_of(made)


@pytest.mark.parametrize("row", [{"shape": 5}, {"alignment": "x"}, {"step": "1"}, {"name": 3}, {"q": 10**9}])
def test_certificates_of_any_kind_make_a_page_all_the_same(made, row):
    name = write_cell(made, "Recorded", 0, losses("Recorded", 0), done=False)
    plain = {"event": "matrix", "step": 1, "name": "w", "shape": [2, 3], "alignment": 0.5, "delta_0": 0.5, "delta": 0.1}
    rows = "".join(json.dumps(one) + "\n" for one in (plain, plain | row))
    (made / "cells" / name / "certificates.jsonl").write_text(rows)
    assert "Certificates of Recorded" in text_of(made)


def test_a_preset_of_several_polynomials_has_a_page_too(made):
    spec = {"polynomial": "polar_express", "q": 5}
    write_cell(made, "Polar Express", 0, losses("x", 0), spec=spec)
    assert report(made)["problems"] == []
    assert "polar_express, q=5" in (made / "report.html").read_text()


def test_an_interrupted_run_of_cells_side_by_side_shows_nothing_over_time(made):
    name = write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0), done=False)
    (made / "cells" / name / "history.json").write_text('{"jobs": 2, "sessions": [0], "load": 0.5}')
    text = text_of(made)
    assert "Cells ran side by side" in text
    assert "by seconds" not in text


def test_a_failed_seed_does_not_shorten_the_curve_of_the_others(made):
    write_cell(made, "SGD-M", 9, losses("SGD-M", 9, epochs=1), done=False)
    report(made)
    drawn = gather(made).results
    (figure,) = (figure for figure in sections(drawn)[0].figures if figure.name == "training")
    assert len(next(one for one in figure.panels[0].series if one.label == "SGD-M").x) == 10


def test_the_command_can_be_pasted_into_a_shell(made):
    head = json.loads((made / "study.json").read_text())
    head["settings"]["lr"] = "1; touch pwned #"
    (made / "study.json").write_text(json.dumps(head))
    assert "--set &#39;lr=1; touch pwned #&#39;" in text_of(made)


def test_figures_and_tables_carry_their_labels_wherever_they_go(made):
    text = text_of(made)
    for path in [*(made / "report" / "tables").iterdir(), *(made / "report" / "figures").iterdir()]:
        assert "profile small, subset" in path.read_text()
    assert text.count("Made with muonlab: profile small, subset.") >= 2  # in what is copied from the page


def test_mixed_versions_are_told(made):
    about = json.loads((made / "env.json").read_text())
    about["sessions"].append({**about["sessions"][0], "muonlab": "0.0.1"})
    (made / "env.json").write_text(json.dumps(about))
    head = json.loads((made / "study.json").read_text())
    (made / "study.json").write_text(json.dumps({**head, "version": "0.0.1", "numerics": 0}))
    text = text_of(made)
    assert "Cells were run by different versions of muonlab: 0.0.1" in text
    assert "Made by muonlab 0.0.1 with numerics 0" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "without a run in it: muonlab run quickstart makes one"),
        ("{", "study.json must say what a run directory is"),
        ('{"study": "x"}', "study.json must say what a run directory is"),
        ("FORMAT", "must have the format 1, got"),
    ],
)
def test_a_directory_that_is_no_run_is_an_error_in_one_line(made, tmp_path, content, words, capsys):
    folder = tmp_path / "other"
    folder.mkdir()
    if content == "FORMAT":
        content = json.dumps({**json.loads((made / "study.json").read_text()), "format": 99})
    if content is not None:
        (folder / "study.json").write_text(content)
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


def test_a_busy_machine_is_told_before_the_numbers(made):
    for number, path in enumerate(sorted(made.glob("cells/*/done.json"))):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"load": 0.5 + number / 2}))
    text = text_of(made)
    assert "Seconds of 6 cells are not comparable: the machine was busy (4.0 processes for each core)." in text
    assert "by seconds of training" in text


def test_of_cells_that_ran_side_by_side_nothing_is_shown_over_time(made):
    for path in made.glob("cells/*/done.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"jobs": 2}))
    text = text_of(made)
    assert "Cells ran side by side" in text
    assert "by seconds" not in text
    assert [path.name for path in sorted((made / "report" / "tables").iterdir())] == [
        "final-losses.md",
        "final-losses.tex",
    ]


# ---------------------------------------------------------------------------------------------------------------- index


def test_an_index_lists_every_study_its_claims_and_what_is_damaged(tmp_path, capsys):
    write_run(tmp_path / "q-ablation-small", OPTIMIZERS)
    write_run(tmp_path / "deep" / "mlp", OPTIMIZERS, study="mlp-mnist")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_text("{")
    (tmp_path / "worse" / "study.json").mkdir(parents=True)
    assert main(["report", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["page"] == str(tmp_path / "index.html")
    assert sum(answer["claims"].values()) == len(claims.ledger())
    assert [problem["where"] for problem in answer["problems"]] == ["broken", "worse"]
    verdicts = [one["verdict"] for one in json.loads((tmp_path / "claims.json").read_text())["claims"]]
    assert verdicts == sorted(verdicts, key="not tested at this scale".__eq__)  # what was decided stands first
    text = (tmp_path / "index.html").read_text()
    assert 'href="q-ablation-small/report.html"' in text
    assert 'href="deep/mlp/report.html"' in text
    assert all(Path(page).exists() for page in answer["pages"])


def test_a_run_with_changed_settings_does_not_hide_one_that_decides(tmp_path):
    changed = {"settings": {"device": "cpu", "threads": 1, "lr": 0.5}}
    write_run(tmp_path / "a", [*OPTIMIZERS, "Muon (q=2)"], seeds=3, **changed)
    write_run(tmp_path / "b", [*OPTIMIZERS, "Muon (q=2)"])
    report(tmp_path)
    found = {one["claim"]: one for one in json.loads((tmp_path / "claims.json").read_text())["claims"]}
    assert found["one-step-beats-sgdm"]["verdict"] in ("held", "not held")


@pytest.mark.parametrize("name", ["index.html", "claims.json"])
def test_an_index_does_not_replace_a_file_of_someone_else(tmp_path, name):
    write_run(tmp_path / "a", OPTIMIZERS)
    (tmp_path / name).write_text("a page of my own")
    with pytest.raises(ValueError, match="an index replaces only an index, got"):
        report(tmp_path)
    assert (tmp_path / name).read_text() == "a page of my own"


def test_a_run_directory_that_is_a_link_is_left_alone(tmp_path):
    write_run(tmp_path / "else" / "b", OPTIMIZERS)
    write_run(tmp_path / "runs" / "a", OPTIMIZERS)
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "else" / "b")
    assert len(report(tmp_path / "runs")["pages"]) == 1
    assert not (tmp_path / "else" / "b" / "report.html").exists()


def test_the_index_judges_by_the_run_that_says_most(tmp_path):
    write_run(tmp_path / "a", OPTIMIZERS, profile="smoke")
    write_run(tmp_path / "b", [*OPTIMIZERS, "Muon (q=2)"])
    report(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert "q-ablation, small, subset" in text
    assert "q-ablation, smoke, subset" not in text


def test_a_directory_of_damaged_runs_only_is_an_error_in_one_line(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 2
    assert "no run in" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------- command line


def test_open_shows_the_page_in_a_browser(made, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["report", str(made), "--open"]) == 0
    assert opened == [(made / "report.html").resolve().as_uri()]


def test_a_run_ends_by_naming_its_page(tmp_path, capsys):
    words = ["run", "quickstart", "--out", str(tmp_path / "quick"), "--set", "steps=2", "epochs=none"]
    assert main(words) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"Page: {tmp_path / 'quick' / 'report.html'}")
    session = json.loads((tmp_path / "quick" / "env.json").read_text())["sessions"][0]
    assert session["rules"] == claims.digest()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(tmp_path / "quick" / "report.html")


def test_a_page_that_cannot_be_made_does_not_lose_the_run(tmp_path, capsys):
    out = tmp_path / "quick"
    words = ["run", "quickstart", "--out", str(out), "--set", "steps=2", "epochs=none"]
    assert main(words) == 0
    shutil.rmtree(out / "report")
    (out / "report").write_text("in the way")
    capsys.readouterr()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "No page could be made: a report writes into its run directory only" in said
    assert "Done:" in said


# --------------------------------------------------------------------------------------------------------------- speed


@pytest.mark.parametrize(("places", "seeds"), [(5, 200), (200, 5)])
def test_a_thousand_cells_become_a_page_within_thirty_seconds(tmp_path, places, seeds):
    labels = [*OPTIMIZERS, "Muon (q=2)", *(f"lr={number}" for number in range(places - 5))]
    folder = write_run(tmp_path / "large", labels, seeds)
    begin = time.process_time()
    report(folder)
    assert time.process_time() - begin < 30
    assert "1000 of 1000 done" in (folder / "report.html").read_text()
    shutil.rmtree(folder)
