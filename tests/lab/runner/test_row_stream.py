"""The rows that a running study yields to trackers."""

import os
import signal
import subprocess
import sys

import pytest

from muonlab.lab import load_results, watch

COMMAND = ("-m", "muonlab", "run", "quickstart", "--checkpoint-seconds", "0", "--threads", "1", "--set", "steps=300")


def start(folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, *COMMAND, "epochs=none", "--out", folder], env=env, **quiet)


@pytest.mark.slow
def test_each_row_is_yielded_once_while_the_study_runs_is_killed_and_resumes(tmp_path):
    folder = tmp_path / "run"
    running = start(folder)
    while not (folder / "cells.json").exists():
        assert running.poll() is None
    rows, statuses = [], []
    for row in watch(folder, every=0.05):
        rows.append(row)
        statuses.append(load_results(folder).status)
        if len(rows) == 3:
            running.send_signal(signal.SIGKILL)
            running.wait()
            running = start(folder)
    assert running.wait() == 0
    assert statuses[2] == "open"
    results = load_results(folder)
    assert all(row.pop("status") in ("open", "done") for row in rows)
    final = [{name: value for name, value in row.items() if name != "status"} for row in results.rows()]
    assert sorted(map(str, rows)) == sorted(map(str, final))


def test_a_directory_without_a_study_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a run directory, got .* without a study\.json: run a study first"):
        next(watch(tmp_path))
    with pytest.raises(ValueError, match="every"):
        next(watch(tmp_path, every=0))
