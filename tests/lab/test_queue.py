"""The queue: a list of studies, resumed after kills and signals, from a clean checkout."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muonlab.cli.app import main
from muonlab.lab import load_results
from muonlab.lab.files.hashed_json import read_json, write_json
from muonlab.lab.runner.queue import Entry, Estimates, duration, progress_of, read_list
from muonlab.lab.runner.store import locked
from tests.lab.tiny import without_clock

ROOT = Path(__file__).parents[2]
LIST = """
[[run]]
study = "quickstart"
profile = "smoke"
seeds = 1
cell_minutes = 1.5

[[run]]
study = "theory-at-work"
profile = "smoke"
seeds = 1
cell_minutes = 0.01

[[run]]
study = "quickstart"
profile = "smoke"
seeds = 2
cell_minutes = 3
"""


def queue(folder, *words, **options):
    """The command, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "muonlab", "queue", "list.toml", "--out", "runs", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, **options,
    )  # fmt: skip


def finished(process):
    """Return the exit code and what was printed."""
    out, lines = process.communicate()
    return process.returncode, out, lines


def cells(folder):
    return [cell for name in ("quickstart-smoke", "theory-at-work-smoke") for cell in load_results(folder / name).cells]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A queue that was run to its end, and what it printed."""
    folder = tmp_path_factory.mktemp("queue")
    (folder / "list.toml").write_text(LIST)
    code, out, lines = finished(queue(folder))
    assert code == 0, lines
    return folder, out, lines.splitlines()


def test_cells_are_run_in_the_order_of_the_list_and_the_rest_is_estimated(whole):
    folder, out, lines = whole
    assert lines[0] == "Cells left: 22, about 11 min with 2 at a time"  # (5 × 1.5 + 12 × 0.01 + 5 × 3) / 2
    ends = [line for line in lines if ": done" in line]
    assert len(ends) == 22
    first, later = (next(i for i, line in enumerate(ends) if text in line) for text in ("theory-at-work", "seed 1"))
    assert 3 <= first <= 5  # two run at a time
    assert later >= 14
    assert ends[-1].endswith("Cells left: 0, about 0 min with 2 at a time")
    assert "All cells are done." in out
    assert all(cell.status == "done" and cell.spec["threads"] == 1 for cell in cells(folder / "runs"))
    assert not list(folder.rglob("*.safetensors"))


def test_a_finished_queue_runs_nothing_and_changes_nothing(whole):
    folder, *_ = whole
    before = {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()}
    code, _, lines = finished(queue(folder))
    assert code == 0
    assert lines.splitlines() == ["Cells left: 0, about 0 min with 2 at a time"]
    assert {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()} == before


def same(one, other):
    for a, b in zip(cells(one), cells(other), strict=True):
        assert (a.label, a.seed, a.status, b.status) == (b.label, b.seed, "done", "done")
        assert a.summary.get("weights_sha256") == b.summary.get("weights_sha256")
        assert without_clock(a.metrics) == without_clock(b.metrics)
        assert a.certificates() == b.certificates()


def killed(folder, times, seed):
    """Kill a queue with its workers at random moments; return the largest step of each cell that a kill undid."""
    (folder / "list.toml").write_text(LIST)
    choose = random.Random(seed)
    for _ in range(times):
        process = queue(folder, "--checkpoint-seconds", "0")
        time.sleep(choose.uniform(3.0, 9.0))
        saved = {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoints/*.json")}
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kept = set(folder.rglob("checkpoints/*.json")) | {path.parent for path in folder.rglob("done.json")}
        for path in saved:  # a checkpoint that was there is there, or a later one, or the cell is done
            cell = path.parent.parent
            assert cell in kept or any(one.parent.parent == cell and one.name >= path.name for one in kept)
    code, _, lines = finished(queue(folder))
    assert code == 0, lines


def test_a_queue_killed_with_9_twice_ends_with_the_same_bits(whole, tmp_path):
    killed(tmp_path, 2, seed=0)
    same(whole[0] / "runs", tmp_path / "runs")


@pytest.mark.slow
def test_a_queue_killed_with_9_ten_times_ends_with_the_same_bits(whole, tmp_path):
    killed(tmp_path, 10, seed=1)
    same(whole[0] / "runs", tmp_path / "runs")


def test_sigterm_saves_and_ends_in_75_and_the_same_command_resumes(whole, tmp_path):
    (tmp_path / "list.toml").write_text(LIST)
    process = queue(tmp_path, "--checkpoint-seconds", "1000")
    while not list(tmp_path.glob("runs/quickstart-smoke/cells/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, lines = process.communicate(timeout=60)
    assert process.returncode == 75, lines
    assert "stopped, saved" in lines or list(tmp_path.glob("runs/*/cells/*/done.json"))
    assert "cells are done; the rest will take about" in out
    assert finished(queue(tmp_path))[0] == 0
    same(whole[0] / "runs", tmp_path / "runs")


def test_progress_can_be_asked_at_any_time_and_needs_no_data(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.toml").write_text(LIST.replace("quickstart", "q-ablation"))
    assert main(["queue", "list.toml", "--out", "runs", "--status"]) == 0
    assert "0 of 24 cells are done; the rest will take about 14 min" in capsys.readouterr().out  # (6·1.5+.12+6·3)/2
    assert not (tmp_path / "runs").exists()
    entries = read_list(whole[0] / "list.toml")
    found = progress_of(entries, whole[0] / "runs")
    assert [(one.cells, one.done, one.open, one.minutes) for one in found] == [
        (5, 5, 0, 0),
        (12, 12, 0, 0),
        (5, 5, 0, 0),
    ]
    assert main(["queue", str(whole[0] / "list.toml"), "--out", str(whole[0] / "runs"), "--status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"][2]["entry"]["seeds"] == 2


def test_a_finished_cell_is_the_estimate_of_its_like(whole):
    (entry, *_) = read_list(whole[0] / "list.toml")
    estimates, cell = Estimates(), load_results(whole[0] / "runs" / "quickstart-smoke").cells[0]
    assert estimates.minutes(entry, cell.label) == 1.5
    for seconds in (60.0, 180.0):
        estimates.add(entry.name, dataclasses.replace(cell, summary={"cpu_seconds": seconds}))
    assert estimates.minutes(entry, cell.label) == 2.0
    assert estimates.minutes(entry, "another") == 1.5
    assert [duration(minutes) for minutes in (0.4, 59.4, 90.0)] == ["0 min", "59 min", "1.5 h"]


def test_what_cannot_be_run_is_shown_and_the_rest_is_run(whole, tmp_path):
    shutil.copytree(whole[0] / "runs" / "quickstart-smoke", tmp_path / "runs" / "quickstart-smoke")
    (tmp_path / "list.toml").write_text(LIST)
    (tmp_path / "runs" / "quickstart-smoke" / "study.json").write_text("{}")
    code, _, lines = finished(queue(tmp_path))
    assert "quickstart-smoke cannot be run: a run directory must have the format 2" in lines
    assert code == 1
    assert len(list(tmp_path.glob("runs/theory-at-work-smoke/cells/*/done.json"))) == 12
    shutil.rmtree(tmp_path / "runs" / "quickstart-smoke")
    shutil.copytree(whole[0] / "runs" / "quickstart-smoke", tmp_path / "runs" / "quickstart-smoke")
    with locked(tmp_path / "runs" / "quickstart-smoke"):
        assert "which another process is writing" in finished(queue(tmp_path))[2]


def test_damaged_killed_and_held_cells_do_not_stop_the_others(whole, tmp_path):
    (tmp_path / "list.toml").write_text(LIST)
    folder = Path(shutil.copytree(whole[0] / "runs" / "quickstart-smoke", tmp_path / "runs" / "quickstart-smoke"))
    damaged, killed_, held, again, *_ = [cell.folder for cell in load_results(folder).cells]
    rows = damaged / "metrics.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"1", b"2", 1))
    key = read_json(killed_ / "done.json")["key"]
    write_json(killed_ / "failed.json", {"key": key, "error": "its process ended with code -9", "traceback": ""})
    for path in (killed_, held, again):
        (path / "done.json").unlink()
    with locked(held):
        code, _, lines = finished(queue(tmp_path))
    assert code == 1
    assert "quickstart-smoke has a cell that cannot be read" in lines
    assert "skipped, another process is running it" in lines
    assert [(path / "done.json").exists() for path in (killed_, held, again)] == [True, False, True]
    assert not (killed_ / "failed.json").exists()
    assert len(list(tmp_path.glob("runs/theory-at-work-smoke/cells/*/done.json"))) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "a list of studies must be a TOML file"),
        ("", "must have entries [[run]], got list.toml with none"),
        ("[[run]]\nstudy = 'quickstart'", "got entry 1 of list.toml without cell_minutes, profile, seeds: edit it"),
        (LIST + "speed = 3", "entries of a list have the fields study, profile, seeds, cell_minutes, name, settings"),
        (
            LIST + "settings = {lr = 1.0}",
            "must differ in their seeds alone, got list.toml with two kinds of quickstart",
        ),
        (LIST.replace("quickstart", "quickstar"), "a study must be one of those listed"),
        (LIST.replace("smoke", "large"), "profile must be"),
        (LIST.replace("seeds = 2", "seeds = 0"), "seeds must be"),
        (LIST + "name = '../x'", "name must be that of a folder in --out, got '../x'"),
        (LIST + "name = '..'", "name must be that of a folder in --out, got '..'"),
        ("run = 3", "must have entries [[run]], got list.toml with another kind of run"),
    ],
)
def test_a_wrong_list_is_refused_in_one_line(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.toml").write_text(text)
    assert main(["queue", "list.toml", "--status"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_committed_list_asks_for_studies_that_there_are():
    entries = read_list(ROOT / "results" / "queue.toml")
    names = {entry.study for entry in entries}
    seeds = {entry.name: max(one.seeds for one in entries if one.name == entry.name) for entry in entries}
    assert len(names) == 13
    assert seeds["mlp-mnist-paper"] == 5
    assert isinstance(entries[0], Entry)


# ------------------------------------------------------------------------------------------------------- make runs


needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="results/runs.sh needs flock (util-linux)")


@pytest.fixture
def repository(tmp_path):
    """A repository with the script, a committed list, and a Makefile whose environment is that of the tests."""
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / "runs.sh", tmp_path / "results" / "runs.sh")
    (tmp_path / "results" / "queue.toml").write_text(
        '[[run]]\nstudy = "theory-at-work"\nprofile = "smoke"\nseeds = 1\ncell_minutes = 1\n'
    )
    wrapper = f"printf '#!/bin/sh\\nexec {sys.executable} \"$$@\"\\n' > .venv/bin/python"
    recipe = ("mkdir -p .venv/bin", wrapper, "chmod +x .venv/bin/python", "touch .venv/.ready")
    (tmp_path / "Makefile").write_text("\n\t".join([".venv/.ready:", *recipe]) + "\n")
    (tmp_path / ".gitignore").write_text(".queue/\n.venv/\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "list"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


@needs_flock
def test_runs_are_made_from_the_last_commit_and_not_from_the_working_tree(repository):
    (repository / "results" / "queue.toml").write_text("nonsense")  # not committed
    script = [str(repository / "results" / "runs.sh")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "All cells are done." in done.stdout
    results = load_results(repository / "results" / "runs" / "theory-at-work-smoke")
    assert results.status == "done"
    command = " ".join(results.environments[0]["command"])
    assert command == "muonlab queue .queue/checkout/results/queue.toml --out results/runs --jobs 2"
    assert str(repository) not in (results.folder / "env.json").read_text()


@needs_flock
def test_one_queue_runs_at_a_time_and_stop_waits_until_it_is_saved(repository):
    script = str(repository / "results" / "runs.sh")
    first = subprocess.Popen([script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(repository.glob("results/runs/*/env.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = subprocess.run([script], capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert "the queue is running already" in second.stderr
    assert subprocess.run([script, "stop"], check=False).returncode == 0
    assert finished(first)[0] in (75, 0)
    assert subprocess.run([script, "stop"], check=False).returncode == 0  # nothing is running
