"""Pages from run directories: what is written and where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import webbrowser
from dataclasses import replace
from pathlib import Path

import pytest

from muonlab.cli.app import main
from muonlab.lab.files.hashed_json import read_json
from muonlab.lab.runner.run_study import run
from muonlab.report.claims import ledger as claims
from muonlab.report.gather import gather_run
from muonlab.report.page.compose import compose_page
from muonlab.report.publish import page_of, write_report
from tests.lab.tiny import study
from tests.report.rundirs import OPTIMIZERS, edit, losses, seal, text_of, write_cell, write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run(study(), out=folder)
    return folder


# ------------------------------------------------------------------------------------------------------ what is written


def test_a_trained_study_becomes_a_page_with_figures_tables_and_claims(trained):
    answer = write_report(trained)
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


@pytest.mark.usefixtures("without_figures")
def test_nothing_is_written_through_a_link_out_of_the_run_directory(made, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for part in ("report", "report/tables"):
        shutil.rmtree(made / "report", ignore_errors=True)
        (made / part).parent.mkdir(exist_ok=True)
        (made / part).symlink_to(elsewhere)
        with pytest.raises(ValueError, match=r"a report writes into its run directory only, got .*: remove it"):
            write_report(made)
        assert not list(elsewhere.iterdir())
        (made / part).unlink()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (made / "report.html").symlink_to(victim)
    write_report(made)
    assert victim.read_text() == "mine"
    assert not (made / "report.html").is_symlink()


@pytest.mark.usefixtures("without_figures")
def test_a_page_says_whether_the_rules_changed_since_the_run_began(made):
    (session,) = read_json(made / "env.json")["sessions"]
    for recorded, sentence in (
        (None, "unknown: not every session recorded the rules"),
        (claims.digest("q-ablation"), "unchanged since the run began"),
        (claims.digest("rank"), "changed since the run began (now"),
    ):
        seal(made / "env.json", sessions=[session | {"rules": recorded}])
        (fact,) = (f.value for f in compose_page(gather_run(made)).facts if f.name == "Rules of the claims")
        assert fact.startswith(sentence)


@pytest.mark.usefixtures("without_figures")
def test_warnings_name_missing_seeds_versions_and_numerics_and_the_command_is_safe_to_paste(made):
    edit(made / "env.json", lambda about: {"sessions": [*about["sessions"], {**about["sessions"][0], "muonlab": "9"}]})
    run = gather_run(made)
    settings = {"device": "cpu", "threads": 1, "lr": "1; touch pwned #"}
    head = {**run.results.head, "numerics": 0, "settings": settings}
    page = compose_page(replace(run, results=replace(run.results, head=head)))
    assert "The profile has 3 runs of each setting; this study has 2." in page.warnings
    assert any(warning.startswith("Cells were run by different versions of muonlab: ") for warning in page.warnings)
    assert any(warning.startswith("The results have numerics version 0.") for warning in page.warnings)
    assert "--set 'lr=1; touch pwned #'" in page.facts[0].value


def test_files_of_figures_and_tables_carry_the_labels_of_the_page(made):
    text = text_of(made)
    for path in [*(made / "report" / "tables").iterdir(), *(made / "report" / "figures").iterdir()]:
        assert "profile small, subset" in path.read_text()
    assert text.count("Made with muonlab: profile small, subset.") >= 2  # in the texts to copy


def test_figures_and_tables_that_are_no_longer_made_are_removed(made):
    write_report(made)
    old = made / "report" / "figures" / "old.svg"
    old.write_text("<svg/>")
    write_report(made)
    assert not old.exists()
    assert (made / "report" / "figures" / "training.svg").exists()


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes_in_any_process(made):
    program = "import sys; from muonlab.report import write_report; write_report(sys.argv[1])"
    texts = set()
    for seed in ("1", "2"):
        words = [sys.executable, "-c", program, str(made)]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        texts.add((made / "report.html").read_bytes())
    assert len(texts) == 1


@pytest.mark.usefixtures("without_figures")
def test_a_page_is_made_again_only_when_something_has_changed(made):
    stamp = page_of(made).stat().st_mtime_ns
    assert page_of(made).stat().st_mtime_ns == stamp
    write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0), done=False)
    assert page_of(made).stat().st_mtime_ns > stamp
    assert "Muon (q=2)" in (made / "report.html").read_text()


@pytest.mark.usefixtures("without_figures")
def test_curves_are_smoothed_only_when_asked_and_the_page_says_so(made, capsys):
    assert "smoothed" not in text_of(made)
    assert main(["report", str(made), "--smoothing", "3"]) == 0
    assert "the running mean of 3 evaluations" in (made / "report.html").read_text()
    assert "the running mean" not in page_of(made).read_text()  # a run makes the plain one again
    for smoothing, message in (("0", "must be at least 1, got 0"), (str(10**20), "must be at most 1,000, got 1")):
        assert main(["report", str(made), "--smoothing", smoothing]) == 2
        assert f"smoothing {message}" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- index


@pytest.mark.usefixtures("without_figures")
def test_an_index_lists_every_study_its_claims_and_what_is_damaged(tmp_path, capsys):
    write_run(tmp_path / "q-ablation-small", OPTIMIZERS)
    write_run(tmp_path / "mlp", OPTIMIZERS, study="mlp-mnist")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_text("{")
    (tmp_path / "worse" / "study.json").mkdir(parents=True)
    assert main(["report", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["page"] == str(tmp_path / "index.html")
    assert sum(answer["claims"].values()) == len(claims.all_claims())
    assert [problem["where"] for problem in answer["problems"]] == ["broken", "worse"]
    verdicts = [one["verdict"] for one in json.loads((tmp_path / "claims.json").read_text())["claims"]]
    assert verdicts == sorted(verdicts, key="not tested at this scale".__eq__)  # what was decided stands first
    text = (tmp_path / "index.html").read_text()
    assert 'href="q-ablation-small/report.html"' in text
    assert 'href="mlp/report.html"' in text
    assert all(Path(page).exists() for page in answer["pages"])


@pytest.mark.usefixtures("without_figures")
def test_a_run_with_changed_settings_does_not_hide_one_that_decides(tmp_path):
    changed = {"settings": {"device": "cpu", "threads": 1, "lr": 0.5}}
    write_run(tmp_path / "a", [*OPTIMIZERS, "Muon (q=2)"], seeds=3, **changed)
    write_run(tmp_path / "b", [*OPTIMIZERS, "Muon (q=2)"])
    write_report(tmp_path)
    found = {one["claim"]: one for one in json.loads((tmp_path / "claims.json").read_text())["claims"]}
    assert found["one-step-beats-sgdm"]["verdict"] in ("held", "not held")


@pytest.mark.usefixtures("without_figures")
def test_an_index_does_not_replace_a_file_that_muonlab_did_not_write(tmp_path):
    write_run(tmp_path / "a", OPTIMIZERS)
    for name in ("index.html", "claims.json"):
        (tmp_path / name).write_text("a page of my own")
        with pytest.raises(ValueError, match="only files that muonlab wrote are overwritten, got"):
            write_report(tmp_path)
        assert (tmp_path / name).read_text() == "a page of my own"
        (tmp_path / name).unlink()


@pytest.mark.usefixtures("without_figures")
def test_a_run_directory_that_is_a_link_is_left_alone(tmp_path):
    write_run(tmp_path / "else" / "b", OPTIMIZERS)
    write_run(tmp_path / "runs" / "a", OPTIMIZERS)
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "else" / "b")
    assert len(write_report(tmp_path / "runs")["pages"]) == 1
    assert not (tmp_path / "else" / "b" / "report.html").exists()


@pytest.mark.usefixtures("without_figures")
def test_runs_further_below_are_not_touched_and_out_leaves_the_runs_as_they_are(tmp_path, capsys):
    root = tmp_path / "root"
    write_run(root / "team" / "theirs", OPTIMIZERS)
    assert main(["report", str(root)]) == 2
    assert "a report needs a run directory, got" in capsys.readouterr().err
    write_run(root / "a", OPTIMIZERS)
    before = sorted(root.rglob("*"))
    assert main(["report", str(root), "--out", str(tmp_path / "pages")]) == 0
    assert f"writing 1 pages and index.html in {tmp_path / 'pages'}" in capsys.readouterr().err
    assert sorted(root.rglob("*")) == before
    assert (tmp_path / "pages" / "a" / "report.html").exists()
    assert main(["report", str(root / "a"), "--out", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one" / "report" / "claims.json").exists()
    assert sorted(root.rglob("*")) == before


@pytest.mark.usefixtures("without_figures")
def test_made_of_json_that_is_a_pipe_or_deeply_nested_only_makes_the_page_again(made):
    inputs = page_of(made).parent / "report" / "made-of.json"
    inputs.write_text("[" * 200_000)
    assert page_of(made).exists()
    assert json.loads(inputs.read_text())["smoothing"] == 1
    inputs.unlink()
    os.mkfifo(inputs)
    with pytest.raises(ValueError, match=r"only a regular file is replaced, got .*, which is a pipe"):
        page_of(made)


@pytest.mark.usefixtures("without_figures")
def test_the_index_judges_by_the_run_that_says_most(tmp_path):
    write_run(tmp_path / "a", OPTIMIZERS, profile="smoke")
    write_run(tmp_path / "b", [*OPTIMIZERS, "Muon (q=2)"])
    write_report(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert "q-ablation, small, subset" in text
    assert "q-ablation, smoke, subset" not in text


# -------------------------------------------------------------------------------------------------------- command line


@pytest.mark.usefixtures("without_figures")
def test_open_shows_the_page_in_a_browser(made, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["report", str(made), "--open"]) == 0
    assert opened == [(made / "report.html").resolve().as_uri()]


@pytest.mark.usefixtures("without_figures")
def test_a_run_ends_by_naming_its_page_and_is_not_lost_without_one(tmp_path, capsys):
    words = ["run", "quickstart", "--out", str(tmp_path / "quick"), "--set", "steps=2", "epochs=none"]
    assert main(words) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"Page: {tmp_path / 'quick' / 'report.html'}")
    session = json.loads((tmp_path / "quick" / "env.json").read_text())["sessions"][0]
    assert session["rules"] == claims.digest("quickstart")
    shutil.rmtree(tmp_path / "quick" / "report")
    (tmp_path / "quick" / "report").write_text("in the way")
    assert main(words) == 1  # the results are kept, and the exit code says that the page is missing
    out = capsys.readouterr().out
    assert "The page could not be written: " in out
    assert "Done:" in out


@pytest.mark.slow
@pytest.mark.parametrize(("places", "seeds"), [(5, 200), (200, 5)])
def test_a_thousand_cells_become_a_page_within_thirty_seconds(tmp_path, places, seeds):
    labels = [*OPTIMIZERS, "Muon (q=2)", *(f"lr={number}" for number in range(places - 5))]
    folder = write_run(tmp_path / "large", labels, seeds)
    begin = time.process_time()
    write_report(folder)
    assert time.process_time() - begin < 30
    assert "1000 of 1000 done" in (folder / "report.html").read_text()
