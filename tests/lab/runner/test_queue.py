"""The queue: a list of studies, resumed after kills and signals, from a clean checkout."""

from __future__ import annotations

import contextlib
import dataclasses
import io
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
from muonlab.lab.runner.queue import TimeEstimates, duration, queue_progress, read_queue
from muonlab.lab.runner.store import hold_lock
from muonlab.lab.studies import studies
from tests.lab.tiny import assert_same_cells

ROOT = Path(__file__).parents[3]
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


def start_queue(folder, *words):
    """Start the command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "muonlab", "queue", "list.toml", "--out", "runs", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def run_here(folder, *words):
    """Run the command in this process, one cell at a time; return its exit code."""
    return main(["queue", str(folder / "list.toml"), "--out", str(folder / "runs"), "--jobs", "1", *words])


def cells(folder):
    names = ("quickstart-smoke", "theory-at-work-smoke")
    return [cell for name in names for cell in load_results(folder / "runs" / name).cells]


@pytest.fixture(scope="module")
def whole_and_lines(tmp_path_factory):
    """A queue that was run to its end, and its lines of progress."""
    folder = tmp_path_factory.mktemp("queue")
    (folder / "list.toml").write_text(LIST)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert run_here(folder) == 0
    return folder, errors.getvalue().splitlines()


@pytest.fixture
def whole(whole_and_lines):
    return whole_and_lines[0]


@pytest.fixture
def copied(whole, tmp_path):
    """The queue with only its first run directory, which is complete."""
    (tmp_path / "list.toml").write_text(LIST)
    shutil.copytree(whole / "runs" / "quickstart-smoke", tmp_path / "runs" / "quickstart-smoke")
    return tmp_path


def test_cells_are_run_in_the_order_of_the_list_and_the_rest_is_estimated(whole_and_lines):
    folder, lines = whole_and_lines
    assert lines[0] == "Cells left: 22, about 23 min with 1 at a time"  # 5 × 1.5 + 12 × 0.01 + 5 × 3
    ends = [line for line in lines if ": done" in line]
    order = [(line.split(",")[0], "seed 1" in line) for line in ends]
    first, second, third = ("quickstart-smoke", False), ("theory-at-work-smoke", False), ("quickstart-smoke", True)
    assert order == [first] * 5 + [second] * 12 + [third] * 5
    assert ends[-1].endswith("Cells left: 0, about 0 min with 1 at a time")
    assert not list(folder.rglob("*.safetensors"))


def test_a_finished_queue_runs_nothing_and_changes_nothing(whole, capsys):
    before = {path: path.read_bytes() for path in (whole / "runs").rglob("*") if path.is_file()}
    assert run_here(whole) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["Cells left: 0, about 0 min with 1 at a time"]
    assert "All cells are done." in captured.out
    assert {path: path.read_bytes() for path in (whole / "runs").rglob("*") if path.is_file()} == before
    assert all(cell.status == "done" and cell.spec["threads"] == 1 for cell in cells(whole))


def test_a_signal_during_the_last_cell_leaves_nothing_to_resume(whole, copied, monkeypatch):
    monkeypatch.setattr("muonlab.lab.runner.queue.run_queue", lambda *_, **__: True)  # it was stopped
    assert run_here(whole) == 0
    assert run_here(copied) == 75


@pytest.mark.slow
def test_a_queue_stopped_by_sigterm_and_killed_with_9_ends_with_the_same_bits(whole, tmp_path):
    (tmp_path / "list.toml").write_text(LIST)
    process = start_queue(tmp_path, "--checkpoint-seconds", "1000")
    wait_for_checkpoint(tmp_path, process)
    process.send_signal(signal.SIGTERM)  # during the first of 22 cells
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "cells are done; the rest will take about" in out
    choose, killed = random.Random(10), 0
    for _ in range(10):
        process = start_queue(tmp_path, "--checkpoint-seconds", "0")
        wait_for_checkpoint(tmp_path, process)
        time.sleep(choose.uniform(0.0, 1.0))
        with contextlib.suppress(ProcessLookupError):  # on a fast machine the queue may have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 4
    assert run_here(tmp_path) == 0
    assert_same_cells(cells(whole), cells(tmp_path))


def wait_for_checkpoint(folder, process):
    """Wait until the queue has written something new, or has ended."""
    before = set(folder.glob("runs/*/cells/*/*"))
    while process.poll() is None and set(folder.glob("runs/*/cells/*/*")) == before:
        time.sleep(0.02)


def test_status_needs_no_data_and_writes_nothing(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.toml").write_text(LIST.replace("quickstart", "q-ablation"))
    assert main(["queue", "list.toml", "--out", "runs", "--status"]) == 0
    assert "0 of 24 cells are done; the rest will take about 14 min" in capsys.readouterr().out  # (6·1.5+.12+6·3)/2
    assert not (tmp_path / "runs").exists()
    progress = queue_progress(read_queue(whole / "list.toml"), whole / "runs")
    assert [(entry.cells, entry.done, entry.open, entry.minutes) for entry in progress] == [
        (5, 5, 0, 0), (12, 12, 0, 0), (5, 5, 0, 0),
    ]  # fmt: skip
    assert run_here(whole, "--status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["entries"][2]["entry"]["seeds"] == 2


def test_a_finished_cell_improves_the_estimate_of_its_label(whole):
    (entry, *_) = read_queue(whole / "list.toml")
    estimates, cell = TimeEstimates(), load_results(whole / "runs" / "quickstart-smoke").cells[0]
    assert estimates.minutes(entry, cell.label) == 1.5
    for seconds in (60.0, 180.0):
        estimates.add(entry.name, dataclasses.replace(cell, summary={"cpu_seconds": seconds}))
    assert estimates.minutes(entry, cell.label) == 2.0
    assert estimates.minutes(entry, "another") == 1.5
    assert [duration(minutes) for minutes in (0.4, 59.4, 90.0)] == ["0 min", "59 min", "1.5 h"]


def test_an_entry_that_cannot_be_run_does_not_stop_the_others(copied, capsys):
    head = copied / "runs" / "quickstart-smoke" / "study.json"
    with hold_lock(head.parent):
        assert run_here(copied) == 0
        assert "which another process is writing" in capsys.readouterr().err
    assert len(list(copied.glob("runs/theory-at-work-smoke/cells/*/done.json"))) == 12
    head.write_text("{}")
    assert run_here(copied) == 1
    assert "quickstart-smoke cannot be run: a JSON file of a run directory must match" in capsys.readouterr().err


def test_damaged_killed_and_locked_cells_do_not_stop_the_others(copied, capsys):
    results = load_results(copied / "runs" / "quickstart-smoke")
    damaged, killed, locked, unfinished, *_ = [cell.folder for cell in results.cells]
    rows = damaged / "metrics.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"1", b"2", 1))
    key = read_json(killed / "done.json")["key"]
    write_json(killed / "failed.json", {"key": key, "error": "its process ended with code -9", "traceback": ""})
    for path in (killed, locked, unfinished):
        (path / "done.json").unlink()
    with hold_lock(locked):
        assert run_here(copied) == 1
    lines = capsys.readouterr().err
    assert "quickstart-smoke has a cell that cannot be read" in lines
    assert "skipped, another process is running it" in lines
    assert [(path / "done.json").exists() for path in (killed, locked, unfinished)] == [True, False, True]
    assert not (killed / "failed.json").exists()


def test_a_wrong_list_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text, message in (
        ("x = [", "a list of studies must be a TOML file"),
        ("", "must have entries [[run]], got list.toml without: add one"),
        ("run = 3", "must have entries [[run]], got list.toml without: add one"),
        ("[[run]]\nstudy = 'quickstart'", "got entry 1 of list.toml without cell_minutes, profile, seeds: edit it"),
        (LIST + "speed = 3", "entries of a list have the fields study, profile, seeds, cell_minutes, name, settings"),
        (LIST + "settings = {lr = 1.0}", "must differ in their seeds alone, got list.toml with two kinds of quick"),
        (LIST.replace("quickstart", "quickstar"), "a study must be one of those listed"),
        (LIST.replace("smoke", "large"), "profile must be"),
        (LIST.replace("seeds = 2", "seeds = 0"), "seeds must be"),
        (LIST + "name = '../x'", "name must be that of a folder in --out, got '../x'"),
        (LIST + "name = '..'", "name must be that of a folder in --out, got '..'"),
    ):
        (tmp_path / "list.toml").write_text(text)
        assert main(["queue", "list.toml", "--status"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_the_committed_list_has_every_study():
    entries = read_queue(ROOT / "results" / "queue.toml")
    assert set(studies()) <= {entry.study for entry in entries}
    own = [entry for entry in entries if entry.name == "byte-gpt"]  # a study file, found from the list's folder
    assert [entry.seeds for entry in own] == [1, 3]
    for entry in own:
        assert Path(entry.study).samefile(ROOT / "examples" / "byte_gpt_study.py")
    assert max(entry.seeds for entry in entries if entry.name == "mlp-mnist-paper") == 5


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
@pytest.mark.slow
def test_runs_are_made_from_the_last_commit_and_one_queue_runs_at_a_time(repository):
    (repository / "results" / "queue.toml").write_text("nonsense")  # not committed
    script = str(repository / "results" / "runs.sh")
    first = subprocess.Popen([script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(repository.glob("results/runs/*/env.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = subprocess.run([script], capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert "the queue is running already" in second.stderr
    assert subprocess.run([script, "stop"], check=False).returncode == 0  # waits until the cells are saved
    first.communicate()
    assert first.returncode in (75, 0)
    assert subprocess.run([script, "stop"], check=False).returncode == 0  # no queue is running
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "All cells are done." in done.stdout
    results = load_results(repository / "results" / "runs" / "theory-at-work-smoke")
    assert results.status == "done"
    command = " ".join(results.environments[0]["command"])
    assert command == "muonlab queue .queue/checkout/results/queue.toml --out results/runs --jobs 2"
    assert str(repository) not in (results.folder / "env.json").read_text()
