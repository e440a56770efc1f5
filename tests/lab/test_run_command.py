"""The command line of the lab, in processes of its own: killed, stopped, finished, misused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file

from muonlab.cli.app import main
from muonlab.lab import load_results
from muonlab.lab.runner.store import locked
from tests.lab.tiny import without_clock


def command(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "muonlab", *words],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def begin(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "muonlab", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for(found, process, seconds=120.0):
    """Wait until ``found()`` while the process runs."""
    until = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, "the process ended before it could be interrupted"
        assert time.monotonic() < until
        time.sleep(0.002)


def steps_saved(folder):
    return [int(path.stem) for path in Path(folder).glob("cells/*/checkpoints/*.json")]


def has_come_to(folder, done, step):
    """Whether so many cells are done and one has come to a step."""
    return len(list(folder.glob("cells/*/done.json"))) >= done and max(steps_saved(folder), default=0) >= step


def same(a, b):
    """Two runs are the same in weights, rows and certificates, clocks apart."""
    for x, y in zip(a.cells, b.cells, strict=True):
        assert x.status == y.status == "done"
        assert x.summary["weights_sha256"] == y.summary["weights_sha256"]
        left, right = (load_file(cell.folder / "weights.safetensors") for cell in (x, y))
        assert all((left[name] == right[name]).all() for name in left)
        assert without_clock(x.metrics) == without_clock(y.metrics)
        assert x.certificates() == y.certificates()


# ------------------------------------------------------------------------------------------------------- interrupted

LENGTH = ("--threads", "1", "--set", "epochs=none", "steps=60", "evaluate_every=7", "record_every=5")
LONG = (*LENGTH, "--checkpoint-seconds", "0")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert command("run", "quickstart", "--out", str(out), *LONG).returncode == 0
    return out


@pytest.mark.parametrize("at", [3, 40])
def test_a_run_killed_with_9_goes_on_to_the_same_bits(tmp_path, uninterrupted, at):
    out = tmp_path / "run"
    words = ("run", "quickstart", "--out", str(out), *LONG)
    for done in (0, 2):  # in the first cell, and again in a later one
        process = begin(*words)
        wait_for(partial(has_come_to, out, done, at), process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert load_results(out).status == "open"
    resumed = command(*words)
    assert resumed.returncode == 0, resumed.stderr
    same(load_results(uninterrupted), load_results(out))


@pytest.mark.data("cifar10-subset")
def test_a_killed_network_with_batch_norm_and_augmentation_goes_on_to_the_same_bits(tmp_path):
    settings = (
        "--set",
        "augmentation=flip+translate",
        "record_every=4",
        "watch=groups.0.conv1.weight",
        "micro_batch=16",
    )
    words = ("run", "adhoc", "--threads", "1", "--checkpoint-seconds", "0", *settings, "--out")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert command(*words, str(whole)).returncode == 0
    process = begin(*words, str(cut))
    wait_for(lambda: max(steps_saved(cut), default=0) >= 9, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert command(*words, str(cut)).returncode == 0
    same(load_results(whole), load_results(cut))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_in_75_and_the_same_command_goes_on(tmp_path, uninterrupted, number):
    out = tmp_path / "run"
    words = (
        "run",
        "quickstart",
        "--out",
        str(out),
        *LENGTH,
        "--checkpoint-seconds",
        "1000",
    )
    process = begin(*words)
    wait_for(lambda: list(out.glob("cells/*/metrics.jsonl")), process)
    process.send_signal(number)
    assert process.wait() == 75
    assert len(steps_saved(out)) == 1
    finished = command(*words)
    assert finished.returncode == 0
    same(load_results(uninterrupted), load_results(out))


@pytest.mark.data("mnist")
def test_a_signal_while_data_are_read_ends_in_75_and_leaves_no_half_cache(tmp_path):
    cache, out = tmp_path / "cache", tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "muonlab", "run", "mlp-mnist", "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "MUONLAB_CACHE": str(cache)},
    )  # fmt: skip
    wait_for(lambda: list(cache.glob("data/*.part*/*.npy")) or list(cache.glob("data/*/*.npy")), process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 75, said
    assert "the same command" in said
    assert not list(cache.glob("data/mnist-*/meta.json"))
    assert not out.exists()


def test_a_damaged_checkpoint_is_passed_over(tmp_path, uninterrupted):
    out = tmp_path / "run"
    words = ("run", "quickstart", "--out", str(out), *LONG)
    process = begin(*words)
    wait_for(lambda: len(steps_saved(out)) == 2 and max(steps_saved(out)) >= 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    newest = max(out.glob("cells/*/checkpoints/*.json")).with_suffix(".safetensors")
    content = bytearray(newest.read_bytes())
    content[-5] ^= 4
    newest.write_bytes(bytes(content))
    resumed = command(*words)
    assert resumed.returncode == 0
    assert f"checkpoint {newest.stem} of" in resumed.stderr
    same(load_results(uninterrupted), load_results(out))


def test_a_finished_study_does_nothing_in_less_than_three_seconds(uninterrupted):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.name != "lock"}
    times = []
    for _ in range(3):  # the machine may be busy with other things: the best of three
        began = time.monotonic()
        done = command("run", "quickstart", "--out", str(uninterrupted), *LONG)
        times.append(time.monotonic() - began)
        assert done.returncode == 0
        assert " of " not in done.stderr  # no cell was run
    assert min(times) < 3.0
    assert before == {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.name != "lock"}


# --------------------------------------------------------------------------------------------------------- bad input


def said(capsys, *words):
    """Return the one line that a wrong command gives."""
    try:
        code = main(list(words))
    except SystemExit as error:  # the parser's own
        code = error.code
    captured = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "q-abblation"), "a study must be one of those listed, got 'q-abblation': q-ablation"),
        (("run", "quickstart", "--set", "leraning_rate=1"), "a setting must be a field of Spec, got 'leraning_rate'"),
        (("run", "quickstart", "--set", "lr=quick"), "lr must be a number, got 'quick'"),
        (("run", "quickstart", "--set", "epochs=True"), "epochs must be a whole number or none, got 'True'"),
        (("run", "quickstart", "--set", "q=5"), "a setting must not contradict the study, got 'q'"),
        (("run", "quickstart", "--set", "seed=5"), "an option of its own"),
        (("run", "quickstart", "--set", "model=vgg"), "model must be one of"),
        (("run", "quickstart", "--set", "batch_size=5000"), "batch_size must be at most the 1,437 training examples"),
        (("run", "quickstart", "--set", "first_width=7"), "first_width"),
        (("run", "quickstart", "--set", "watch=nothing"), "watch must name a parameter of the model, got 'nothing'"),
        (("data", "status", "svhn"), "svhn"),
        (("run", "quickstart", "--seeds", "0"), "seeds must be at least 1"),
        (("run", "quickstart", "--seeds", "1000000"), "seeds must be at most 1,000, got 1,000,000"),
        (("run", "quickstart", "--jobs", "0"), "jobs must be at least 1"),
        (("run", "quickstart", "--threads", "0"), "threads must be at least 1"),
        (("run", "quickstart", "--device", "tpu"), "device must be cpu, cuda, cuda:N or mps"),
        (("run", "quickstart", "--device", "cuda:9"), "device must be on this machine"),
        (("run", "quickstart", "--set", "train=5000"), "1,437"),
        (("run", "mlp-mnist", "--data", "no/such/folder"), "no/such/folder"),
        (("data", "prepare", "svhn"), "svhn"),
    ],
)
def test_a_wrong_word_gives_one_line(capsys, tmp_path, words, message):
    out = tmp_path / "run"
    extra = ("--out", str(out)) if words[0] == "run" else ()
    line = said(capsys, *words, *extra)
    assert message in line
    assert line.startswith("muonlab: ")
    assert line.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("words", [("--profile", "tiny"), ("--seeds", "three"), ("--retry=False",), ("--sedes", "3")])
def test_what_the_parser_refuses_ends_in_2_without_a_traceback(capsys, words):
    said(capsys, "run", "quickstart", *words)


def test_a_folder_without_the_dataset_names_what_it_looked_for(capsys, tmp_path):
    line = said(capsys, "run", "mlp-mnist", "--data", str(tmp_path), "--out", str(tmp_path / "run"))
    assert "mnist" in line
    assert line.count("\n") == 1


def test_a_cache_that_cannot_be_used_gives_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path / "file" / "cache"))
    line = said(capsys, "run", "quickstart", "--out", str(tmp_path / "run"))
    assert line.count("\n") == 1
    assert "MUONLAB_CACHE" in line


def test_preparing_what_is_not_there_ends_in_1(capsys, tmp_path):
    assert main(["data", "prepare", "mnist", "--data", str(tmp_path)]) == 1
    assert "mnist" in capsys.readouterr().out


def test_debug_shows_the_traceback():
    shown = command("run", "no-such-study", "--debug")
    assert shown.returncode != 0
    assert "Traceback" in shown.stderr


def test_two_processes_on_one_run_directory_are_refused(capsys, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with locked(out):
        line = said(capsys, "run", "quickstart", "--out", str(out))
    assert "another process is writing" in line
    assert {p.name for p in out.iterdir()} == {"lock"}


def test_a_directory_that_cannot_be_written_gives_one_line(capsys, tmp_path):
    (tmp_path / "file").touch()
    line = said(capsys, "run", "quickstart", "--out", str(tmp_path / "file" / "run"))
    assert line.count("\n") == 1


def test_a_failed_cell_ends_in_1_and_says_why(capsys, tmp_path):
    words = ["run", "quickstart", "--out", str(tmp_path / "run"), "--set", "lr=1e30", "aux_lr=1e30", "clip=none"]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "the loss must stay finite" in captured.out
    assert "Traceback" not in captured.out + captured.err


# ------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize("what", ["studies", "models", "datasets"])
def test_lists_have_names(capsys, what):
    assert main(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[what]
    assert all(row["name"] for row in rows)
    if what == "models":
        assert {row["name"]: row["parameters"] for row in rows}["cifarnet"] == 1_972_792
    assert main(["list", what]) == 0
    text = capsys.readouterr().out
    assert all(row["name"] in text for row in rows)


def test_the_report_of_a_run_is_json_on_demand(capsys, tmp_path):
    assert main(["run", "quickstart", "--out", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "done"
    assert [place["label"] for place in report["places"]] == [
        "SGD-M", "Muon (q=1)", "Muon (q=2)", "Muon (q=3)", "Muon (SVD)",
    ]  # fmt: skip
    assert report["smaller_than_the_paper"]


def test_nothing_is_written_outside_the_run_directory_and_the_cache(tmp_path):
    home, out = tmp_path / "home", tmp_path / "run"
    home.mkdir()
    found = command("run", "quickstart", "--out", str(out), HOME=str(home), MUONLAB_CACHE=str(tmp_path / "cache"))
    assert found.returncode == 0, found.stderr
    assert list(home.iterdir()) == []


def test_listing_and_helping_load_no_torch():
    script = (
        "import sys; from muonlab.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    for words in (["list", "studies"], ["list", "datasets"], ["run", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
