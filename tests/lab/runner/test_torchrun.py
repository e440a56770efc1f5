"""The command line under torchrun, and with ranks that are started by hand: trained together, stopped, killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from muonlab.cli.app import main
from muonlab.lab import Study, load_results, run
from muonlab.lab import studies as registry
from muonlab.lab.studies import find
from muonlab.lab.study import Axis, Point
from tests.lab.distributed.test_ranks import ROOT, environment
from tests.lab.tiny import study

WORDS = ("--threads", "1", "--set", "steps=100", "evaluate_every=50")
SCRIPT = "import tests.lab.runner.test_torchrun as here; raise SystemExit(here.command())"


def gpt() -> Study:
    """Return a study of one GPT."""
    cell = next(cell for cell in find("gpt-124m-fineweb").cells("smoke") if cell.label == "Muon (q=3)")
    return dataclasses.replace(study(cell.spec, name="gpt"), axes=(Axis("optimizer", (Point("Muon", {}),)),))


def command() -> int:
    """Be the command line, with two studies more: of two cells on digits, and of one GPT."""
    registry.find = lambda name: {"tiny": study, "gpt": gpt}[name]() if name in ("tiny", "gpt") else find(name)
    return main()


@contextmanager
def torchrun(*words):
    """Start two ranks by torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*launcher, *words], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()  # it takes its ranks with it
        process.communicate()


@contextmanager
def by_hand(*words):
    """Start two ranks with torchrun's variables, so that no agent ends one when the other has ended."""
    told = {**os.environ, **environment(2)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *words],
            cwd=ROOT, env={**told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def wait_for(found, process, seconds=90.0):
    until = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < until
        time.sleep(0.005)


def assert_same_losses(together, alone):
    for ours, one in zip(together.cells, alone.cells, strict=True):
        assert ours.status == one.status == "done", ours.error
        assert [row["step"] for row in ours.metrics] == [row["step"] for row in one.metrics]
        close = 1e-4 if ours.spec["optimizer"] == "svd" else 1e-5  # an exact polar factor magnifies rounding
        for row, expected in zip(ours.metrics, one.metrics, strict=True):
            for name in {"train_loss", "test_loss", "test_cross_entropy"} & set(expected):
                assert row[name] == pytest.approx(expected[name], rel=close), (ours.label, name)


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_with_75_and_one_process_resumes_to_the_same_losses(tmp_path):
    out = tmp_path / "together"
    words = ("run", "tiny", "--out", str(out), "--json", "--checkpoint-seconds", "1000", *WORDS)
    with by_hand(*words) as (leader, other):
        wait_for(lambda: list(out.glob("cells/*/metrics.jsonl")), leader)
        other.send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=60) for process in (leader, other)]
        assert [process.returncode for process in (leader, other)] == [75, 75], said
    assert json.loads(said[0][0])["status"] == "open"
    assert said[1][0] == ""  # only rank 0 prints
    assert len(list(out.glob("cells/*/checkpoints/*.json"))) == 1
    settings = {"steps": 100, "evaluate_every": 50}
    together, alone = (run(study(), out=folder, settings=settings, threads=1) for folder in (out, tmp_path / "alone"))
    assert_same_losses(together, alone)
    assert [(entry["ranks"], entry["parallel"]) for entry in together.environments] == [(2, "ddp"), (1, None)]


@pytest.mark.slow
def test_torchrun_runs_a_study_of_the_paper_and_rank_0_prints(tmp_path):
    settings = ("epochs=none", "steps=8", "evaluate_every=4", "record_every=0")
    words = ("run", "quickstart", "--out", str(tmp_path / "together"), "--json", "--set", *settings)
    with torchrun("-m", "muonlab", *words) as process:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr[-3000:]
    assert json.loads(stdout)["status"] == "done"
    read = {"epochs": None, "steps": 8, "evaluate_every": 4, "record_every": 0}
    assert_same_losses(load_results(tmp_path / "together"), run("quickstart", out=tmp_path / "alone", settings=read))


@pytest.mark.slow
@pytest.mark.data("web-text")
def test_one_process_resumes_shards_that_torchrun_stopped(tmp_path):
    out = tmp_path / "together"
    settings = {"steps": 40, "evaluate_every": 20}
    options = ("--parallel", "fsdp", "--checkpoint-seconds", "0", "--set", "steps=40", "evaluate_every=20")
    ranks = ("--no-python", sys.executable, "-c", SCRIPT)
    with torchrun(*ranks, "run", "gpt", "--out", str(out), *options) as process:
        wait_for(lambda: list(out.glob("cells/*/checkpoints/*[1-9].json")), process)
        process.terminate()
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode != 0  # torchrun's own code, whatever that of its ranks
    assert "rerun the same command to resume" in stdout, stderr[-3000:]
    assert load_results(out).status == "open"
    assert 0 < max(int(path.stem) for path in out.glob("cells/*/checkpoints/*.json")) < 40
    resumed, alone = (run(gpt(), out=folder, settings=settings) for folder in (out, tmp_path / "alone"))
    assert_same_losses(resumed, alone)
    assert [entry["ranks"] for entry in resumed.environments] == [2, 1]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_is_killed_ends_the_other_in_seconds_with_a_line_and_nothing_saved_is_lost(tmp_path, victim):
    out = tmp_path / "run"
    with by_hand("run", "tiny", "--out", str(out), "--checkpoint-seconds", "0", *WORDS) as ranks:
        wait_for(lambda: list(out.glob("cells/*/checkpoints/*.json")), ranks[0])
        ranks[victim].kill()
        began = time.monotonic()
        stdout, stderr = ranks[1 - victim].communicate(timeout=60)
        assert time.monotonic() - began < 60
        assert ranks[1 - victim].returncode == 75
    assert stdout == ""
    assert stderr.startswith("muonlab: a rank was lost, got ")
    assert "checkpoints are kept; rerun the same command to resume" in stderr
    assert stderr.count("\n") == 1
    results = load_results(out)
    assert results.status == "open"
    assert not any(cell.error for cell in results.cells)


@pytest.mark.slow
def test_a_wrong_option_gives_one_line_of_one_rank_and_ends_both_in_2(tmp_path):
    out = tmp_path / "run"
    with by_hand("run", "tiny", "--out", str(out), "--parallel", "hsdp") as ranks:
        said = [process.communicate(timeout=60) for process in ranks]
        assert [process.returncode for process in ranks] == [2, 2], said
    assert said[0][1].startswith("muonlab: --parallel hsdp needs an even number of ranks, at least 4")
    assert said[0][1].count("\n") == 1
    assert said[1] == ("", "")
    assert not out.exists()


@pytest.mark.slow
def test_a_failed_cell_fails_on_all_ranks_and_the_next_is_run(tmp_path):
    out = tmp_path / "run"
    words = ("lr=1e30", "clip=none", "steps=4", "evaluate_every=2")
    with by_hand("run", "tiny", "--out", str(out), "--set", *words) as ranks:
        said = [process.communicate(timeout=60) for process in ranks]
        assert [process.returncode for process in ranks] == [1, 1], said
    results = load_results(out)
    assert "the loss must stay finite" in results.cells[0].error
    assert results.cells[1].status != "open"
