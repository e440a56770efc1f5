"""Real processes that are killed or get a signal; the same command resumes them bit-for-bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muonlab.cli.app import main
from muonlab.lab import load_results
from tests.lab.tiny import assert_same_cells

LENGTH = ("--threads", "1", "--set", "epochs=none", "steps=40", "evaluate_every=7", "record_every=5")


def start(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "muonlab", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def wait_for(condition, process, seconds=120.0):
    """Wait until the condition holds while the process runs."""
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the process ended before it could be interrupted"
        assert time.monotonic() < until
        time.sleep(0.002)


def saved_steps(folder):
    return [int(path.stem) for path in Path(folder).glob("cells/*/checkpoints/*.json")]


def kill_at(step, finished_cells, out, words):
    """Start the command, and kill it when so many cells are done and another has saved a checkpoint at the step."""
    process = start(*words, "--out", str(out), "--checkpoint-seconds", "0")
    wait_for(
        lambda: len(list(out.glob("cells/*/done.json"))) >= finished_cells and max(saved_steps(out), default=0) >= step,
        process,
    )
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main(["run", "quickstart", *LENGTH, "--out", str(out)]) == 0
    return load_results(out)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[(3, 0)], [(3, 0), (30, 2)]])
def test_a_run_killed_with_9_resumes_bit_for_bit(tmp_path, uninterrupted, kills):
    out, words = tmp_path / "run", ("run", "quickstart", *LENGTH)
    for step, finished_cells in kills:
        kill_at(step, finished_cells, out, words)
        assert load_results(out).status == "open"
    assert main([*words, "--out", str(out)]) == 0
    assert_same_cells(uninterrupted.cells, load_results(out).cells)


@pytest.mark.slow
@pytest.mark.data("cifar10-subset")
def test_a_killed_network_with_batch_norm_and_augmentation_resumes_bit_for_bit(tmp_path):
    settings = ("augmentation=flip+translate", "record_every=4", "watch=groups.0.conv1.weight", "micro_batch=16")
    words = ("run", "adhoc", "--threads", "1", "--set", *settings)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*words, "--out", str(whole)]) == 0
    kill_at(9, 0, cut, words)
    assert main([*words, "--out", str(cut)]) == 0
    assert_same_cells(load_results(whole).cells, load_results(cut).cells)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_with_75_and_the_same_command_resumes(tmp_path, uninterrupted, number):
    out = tmp_path / "run"
    words = ("run", "quickstart", *LENGTH, "--out", str(out), "--checkpoint-seconds", "1000")
    process = start(*words)
    wait_for(lambda: list(out.glob("cells/*/metrics.jsonl")), process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 75
    assert len(saved_steps(out)) == 1
    assert main([*words]) == 0
    assert_same_cells(uninterrupted.cells, load_results(out).cells)


@pytest.mark.data("mnist")
def test_a_signal_while_data_are_read_exits_with_75_and_leaves_no_half_cache(tmp_path):
    cache, out = tmp_path / "cache", tmp_path / "run"
    process = start("run", "mlp-mnist", "--out", str(out), MUONLAB_CACHE=str(cache))
    wait_for(lambda: list(cache.glob("data/*.part*/*.npy")) or list(cache.glob("data/*/*.npy")), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    assert "rerun the same command" in errors
    assert not list(cache.glob("data/mnist-*/meta.json"))
    assert not out.exists()
