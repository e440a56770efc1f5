"""``muonlab run`` and ``muonlab data``: wrong options, locked directories, failures, and what is written where."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from muonlab.cli import console
from muonlab.cli.app import main
from muonlab.lab import load_results
from muonlab.lab.runner.store import hold_lock
from muonlab.lab.runner.summary import command

SHORT = ("--set", "steps=2", "epochs=none")


def error_line(capsys, *words):
    """Return the one line that a wrong command prints."""
    assert main(list(words)) == 2
    line = capsys.readouterr().err
    assert line.startswith("muonlab: ")
    assert line.count("\n") == 1
    return line


def test_a_wrong_option_gives_one_line_and_writes_nothing(capsys, tmp_path):
    out = tmp_path / "run"
    for study, words, message in (
        ("q-abblation", (), "a study must be one of those listed, got 'q-abblation': q-ablation"),
        ("quickstart", ("--set", "leraning_rate=1"), "a setting must be a field of Spec, got 'leraning_rate'"),
        ("quickstart", ("--set", "leraning_rate=1", "--set", "steps=1"), "a field of Spec, got 'leraning_rate'"),
        ("quickstart", ("--set", "lr=quick"), "lr must be a number, got 'quick'"),
        ("quickstart", ("--set", "epochs=True"), "epochs must be a whole number or none, got 'True'"),
        ("quickstart", ("--set", "q=5"), "a setting must not contradict the study, got 'q', which is varied by"),
        ("quickstart", ("--set", "seed=5"), "got 'seed', which is an option: use --seeds"),
        ("quickstart", ("--set", "model=vgg"), "model must be one of"),
        ("quickstart", ("--set", "batch_size=5000"), "batch_size must be at most the 1,437 training examples"),
        ("quickstart", ("--set", "first_width=7"), "first_width"),
        ("quickstart", ("--set", "watch=nothing"), "watch must name a parameter of the model, got 'nothing'"),
        ("quickstart", ("--set", "train=5000"), "1,437"),
        ("quickstart", ("--seeds", "0"), "seeds must be at least 1"),
        ("quickstart", ("--seeds", "1000000"), "seeds must be at most 1,000, got 1,000,000"),
        ("quickstart", ("--jobs", "0"), "jobs must be at least 1"),
        ("quickstart", ("--threads", "0"), "threads must be at least 1"),
        ("quickstart", ("--device", "tpu"), "device must be cpu, cuda, cuda:N or mps"),
        ("quickstart", ("--device", "cuda:9"), "device must be on this machine"),
        ("quickstart", ("--parallel", "fsdp"), "use torchrun --nproc-per-node N -m muonlab run quickstart --parallel"),
        ("mlp-mnist", ("--data", "no/such/folder"), "no/such/folder"),
        ("mlp-mnist", ("--data", str(tmp_path)), "mnist"),
    ):
        assert message in error_line(capsys, "run", study, *words, "--out", str(out))
        assert not out.exists()


def test_unknown_and_missing_datasets_are_named(capsys, tmp_path):
    for what in ("status", "prepare"):
        assert "svhn" in error_line(capsys, "data", what, "svhn")
    assert main(["data", "prepare", "mnist", "--data", str(tmp_path)]) == 1
    assert "mnist" in capsys.readouterr().out


def test_a_directory_that_cannot_be_used_gives_one_line(capsys, tmp_path, monkeypatch):
    out = tmp_path / "run"
    out.mkdir()
    with hold_lock(out):
        assert "another process is writing" in error_line(capsys, "run", "quickstart", "--out", str(out))
    assert {p.name for p in out.iterdir()} == {"lock"}
    (tmp_path / "file").touch()
    error_line(capsys, "run", "quickstart", "--out", str(tmp_path / "file" / "run"))
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path / "file" / "cache"))
    assert "MUONLAB_CACHE" in error_line(capsys, "run", "quickstart", "--out", str(out))


def test_debug_raises_the_error():
    with pytest.raises(ValueError, match="a study must be one of those listed"):
        main(["run", "no-such-study", "--debug"])


@pytest.mark.slow
def test_a_failed_cell_exits_with_1_and_its_error(capsys, tmp_path):
    words = ["run", "quickstart", "--out", str(tmp_path / "run"), "--set", "lr=1e30", "aux_lr=1e30", "clip=none"]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "the loss must stay finite" in captured.out
    assert "Traceback" not in captured.out + captured.err


def test_a_finished_study_prints_json_again_without_changing_anything(capsys, tmp_path):
    out = tmp_path / "run"
    times = []
    for _ in range(2):
        assert main(["run", "quickstart", "--out", str(out), *SHORT, "--json"]) == 0
        captured = capsys.readouterr()
        report = json.loads(captured.out)
        times.append({path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != "lock"})
    assert times[0] == times[1]
    assert captured.err == ""  # no cell was run
    assert report["status"] == "done"
    assert [place["label"] for place in report["places"]] == [
        "SGD-M", "Muon (q=1)", "Muon (q=2)", "Muon (q=3)", "Muon (SVD)",
    ]  # fmt: skip
    assert report["smaller_than_the_paper"]
    assert "5 of 5 cells were done already; nothing was run." in console.run(report)


@pytest.mark.slow
def test_the_number_of_runs_is_that_of_the_results_and_the_command_names_the_data(capsys, tmp_path):
    for seeds, runs in ((1, "1 run"), (2, "2 runs")):
        out = tmp_path / str(seeds)
        assert main(["run", "quickstart", "--profile", "small", "--seeds", str(seeds), "--out", str(out), *SHORT]) == 0
        assert f"layers of 128 and 64, 20 epochs, {runs}\n" in capsys.readouterr().out
        assert f"layers of 128 and 64, 20 epochs, {runs}." in (out / "report.html").read_text(encoding="utf-8")
    results = load_results(tmp_path / "1")
    assert "--data" not in command(results)
    head = {**results.head, "data": {"digits": {**results.head["data"]["digits"], "source": "folder"}}}
    assert "--data DIR" in command(dataclasses.replace(results, head=head))


def test_nothing_is_written_outside_the_run_directory_and_the_cache(tmp_path):
    home, out = tmp_path / "home", tmp_path / "run"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "muonlab", "run", "quickstart", "--out", str(out), *SHORT],
        capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(home), "MUONLAB_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []
    assert load_results(out).status == "done"
