"""Pages from run directories: what is written and where, what is sound of damaged ones, and how long it takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import pytest

from muonlab.cli.app import main
from muonlab.lab.files.hashed_json import read_json
from muonlab.lab.runner.run_study import run
from muonlab.report.claims import ledger as claims
from muonlab.report.publish import page_of, report
from tests.lab.tiny import study
from tests.report.rundirs import OPTIMIZERS, losses, seal, text_of, write_cell, write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run(study(), out=folder)
    return folder


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
    (session,) = read_json(made / "env.json")["sessions"]
    for noted, words in (
        (claims.digest("q-ablation"), "as they were worded when the run began"),
        (claims.digest("rank"), "worded otherwise when the run began"),
        ({"no": "hash"}, "not every session noted which rules stood when it began"),
    ):
        seal(made / "env.json", sessions=[session | {"rules": noted}])
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
    assert session["rules"] == claims.digest("quickstart")
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
