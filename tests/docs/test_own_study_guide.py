"""The study files of the guide run as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from muonlab.cli.app import main
from muonlab.lab import load_results

GUIDE = Path(__file__).parents[2] / "docs/guides/own-study.md"


@pytest.fixture
def files(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield [name for name, _ in blocks]
    for name, _ in blocks:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_they_are_listed_run_and_reported(files, capsys):
    assert files == ["my_study.py", "coins.py"]
    for name, study, cells, words in (
        ("my_study.py", "waves", 6, ("--set", "steps=20")),
        ("coins.py", "coins", 2, ()),
    ):
        assert main(["list", "studies", name]) == 0
        assert re.search(rf"{study} +{study} +{3 * cells}\n", capsys.readouterr().out)
        assert main(["run", name, "--seeds", "1", "--threads", "1", *words]) == 0
        results = load_results(f"runs/{study}")
        assert (results.status, len(results.cells)) == ("done", cells)
        assert main(["report", f"runs/{study}"]) == 0
    assert all(0.3 < cell.summary["share"] < 0.7 for cell in results.cells)
