"""What the cells need is checked before the first one, and nothing is written if it is missing."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from muonlab.cli import answers
from muonlab.cli.app import main
from muonlab.lab import run
from muonlab.lab.runner import needs
from tests.lab.tiny import SPEC, study


def test_a_missing_package_disk_or_memory_is_reported_before_the_first_cell(tmp_path, monkeypatch):
    out = tmp_path / "run"
    for name, replacement, message in (
        (
            "importlib.util.find_spec",
            lambda name: None if name == "safetensors" else find_spec(name),
            r"'muonlab\[lab\]'",
        ),
        (
            "muonlab.lab.runner.needs._free_disk",
            lambda _: 1_000,
            "GB of disk for checkpoints and weights, got 1e-06 GB",
        ),
        ("muonlab.lab.runner.needs._free_memory", lambda: 100_000, "GB of memory for weights, gradients and momenta"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, replacement)
            with pytest.raises(ValueError, match=message):
                run(study(), out=out)
        assert not out.exists()
    assert run(study(), out=out, settings={"steps": 1}).status == "done"


def test_the_estimates_count_the_parameters():
    assert needs.count_parameters(SPEC) == 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert needs._free_memory() is None or needs._free_memory() > 1_000_000


def test_a_run_and_a_report_without_matplotlib_say_so_in_one_line_before_they_start(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("muonlab.report", "matplotlib"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(answers, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    made = tmp_path / "made"
    shutil.copytree(
        Path(__file__).parents[3] / "results/runs/quickstart-small", made, ignore=shutil.ignore_patterns("*.html")
    )
    for words in (["run", "quickstart", "--out", str(tmp_path / "run")], ["report", str(made)]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "this command needs the extra 'lab', got no module matplotlib: pip install 'muonlab[lab]'" in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists()
    assert not list(made.rglob("*.html"))
