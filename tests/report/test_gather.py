"""Damaged and half-written run directories: what is intact is read, and what is not is listed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muonlab.cli.app import main
from muonlab.lab.files.hashed_json import hashed_bytes, read_json
from muonlab.lab.runner.store import FORMAT
from muonlab.report.gather import gather_run
from muonlab.report.page.compose import judge_runs
from tests.report.rundirs import OPTIMIZERS, edit, losses, text_of, write_cell, write_rows, write_run


def first_cell(folder: Path) -> Path:
    return folder / "cells" / read_json(folder / "cells.json")["cells"][0]


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def with_right_hash(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    return lambda made: edit(first_cell(made) / name, change)


def copy_with_another_key(made: Path) -> None:
    about = read_json(first_cell(made) / "spec.json")
    write_cell(made, about["label"], about["spec"]["seed"], losses("x", 0), spec={"lr": 0.5})


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "a line more": lambda made: append(first_cell(made) / "metrics.jsonl", "{"),
    "a row changed": lambda made: write_rows(first_cell(made) / "metrics.jsonl", losses("other", 0)),
    "a bit of done.json": lambda made: (first_cell(made) / "done.json").write_text(
        (first_cell(made) / "done.json").read_text().replace('"jobs": 1', '"jobs": 2')
    ),
    "a spec that is not JSON": lambda made: (first_cell(made) / "spec.json").write_text("[1, 2"),
    "deep JSON": lambda made: (first_cell(made) / "spec.json").write_text("[" * 100_000),
    "a cell that is gone": lambda made: shutil.rmtree(first_cell(made)),
    "a cell without a spec": lambda made: (first_cell(made) / "spec.json").unlink(),
    "a cell that is not listed": lambda made: write_cell(made, "stray", 0, losses("stray", 0), listed=False),
    "a cell that exists twice": copy_with_another_key,
    "a cell that is listed twice": lambda made: edit(
        made / "cells.json", lambda about: {"cells": [*about["cells"], about["cells"][0]]}
    ),
    "a name that leads elsewhere": lambda made: edit(
        made / "cells.json", lambda about: {"cells": [*about["cells"], "../.."]}
    ),
    "binary rows": lambda made: (first_cell(made) / "metrics.jsonl").write_bytes(b"\xff\x00\n"),
    "a pipe instead of rows": lambda made: pipe(first_cell(made) / "metrics.jsonl"),
    "cells.json": lambda made: (made / "cells.json").write_text("{"),
    "env.json": lambda made: (made / "env.json").write_text('{"sessions": 3}'),
    "a pipe instead of env.json": lambda made: pipe(made / "env.json"),
    "another optimizer": with_right_hash(
        "spec.json", lambda about: about | {"spec": {**about["spec"], "optimizer": "sgdm"}}
    ),
}


def test_damage_is_listed_what_is_intact_is_read_and_no_claim_is_decided(tmp_path):
    whole = write_run(tmp_path / "whole", [*OPTIMIZERS, "Muon (q=2)"], seeds=1)
    assert {finding.verdict for finding in judge_runs([gather_run(whole)])} & {"held", "not held"}
    for name, damage in DAMAGE.items():
        made = shutil.copytree(whole, tmp_path / "damaged")
        damage(made)
        run = gather_run(made)
        assert len(run.problems) == 1, name
        assert str(made) not in run.problems[0].what, name  # pages are shared
        if "env" not in name:
            assert run.lost > 0, name
            assert len(run.results.cells) in (
                {0} if name in ("cells.json", "a name that leads elsewhere") else {4, 5}
            ), name
            assert {finding.verdict for finding in judge_runs([run])} == {"not tested at this scale"}, name
        shutil.rmtree(made)


def test_a_page_lists_the_damage_and_the_command_succeeds(made, capsys):
    DAMAGE["a row changed"](made)
    assert main(["report", str(made)]) == 0
    assert "Could not be used (1):" in capsys.readouterr().out
    text = (made / "report.html").read_text()
    assert "7 of 8 done, 1 could not be read" in text
    assert str(made) not in text


def test_an_unfinished_cell_is_shown_up_to_its_checkpoint_without_its_torn_line(made):
    name = write_cell(made, "Muon (q=2)", 0, losses("Muon (q=2)", 0, epochs=3), done=False)
    append(made / "cells" / name / "metrics.jsonl", '{"event": "evaluation", "st')
    assert gather_run(made).problems == ()
    text = text_of(made)
    assert "1 of 9 cells are not finished" in text
    assert "incomplete" in text
    assert "Muon (q=2)" not in (made / "report" / "tables" / "final-losses.md").read_text()


def test_a_directory_without_a_readable_run_is_an_error_in_one_line(tmp_path, capsys):
    for content, message in (
        (None, "without a run directly in it: create one with muonlab run quickstart"),
        (b"{", "must match the hash that it carries"),
        (hashed_bytes({"format": 99, "study": "x"}), f"must have the format {FORMAT}, got"),
    ):
        folder = tmp_path / "other"
        folder.mkdir(exist_ok=True)
        if content is not None:
            (folder / "study.json").write_bytes(content)
        assert main(["report", str(folder)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (folder / "report.html").exists()
    assert main(["report", str(tmp_path / "missing")]) == 2
    assert "which is not a directory" in capsys.readouterr().err


def test_rows_of_another_version_are_an_error_in_one_line(made, capsys):
    write_cell(made, "Muon (q=2)", 0, [{"event": "inequality", "step": 1}])
    assert main(["report", str(made)]) == 2
    assert "a page needs the rows that a study writes" in capsys.readouterr().err
