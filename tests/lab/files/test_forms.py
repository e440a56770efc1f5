"""A file with a right hash and a wrong form is refused with the place that is wrong."""

from __future__ import annotations

import pytest

from muonlab.lab import load_results
from muonlab.lab.files.forms import FORMS, mismatch
from muonlab.lab.files.hashed_json import read_json, write_json
from muonlab.lab.runner.results import read_cell
from muonlab.lab.runner.run_study import run
from muonlab.lab.runner.store import hold_lock
from muonlab.report import write_report
from tests.lab.tiny import study


def test_values_are_compared_with_types_patterns_lists_and_optional_keys():
    for value, form, problem in (
        ({"cells": ["a"]}, FORMS["cells.json"], None),
        ({"cells": ["a"], "earlier": [".."]}, FORMS["cells.json"], "earlier[0] is '..'"),
        ({"cells": "a"}, FORMS["cells.json"], "cells is 'a'"),
        ({}, FORMS["cells.json"], "cells is missing"),
        (True, int, "the file is True"),
        ([1, None], [(int, None)], None),
        ({"a/b": 1}, {FORMS["cells.json"]["cells"][0]: int}, "a key of  is 'a/b'"),
        ({"x": {"y": 1.5}}, {str: {str: int}}, "x.y is 1.5"),
    ):
        assert mismatch(value, form) == problem


@pytest.fixture
def made(tmp_path):
    run(study(), out=tmp_path / "run")
    return tmp_path / "run"


def test_a_sealed_file_of_another_form_is_named_with_its_place(made):
    def rewritten(path, change):
        value = read_json(path)
        change(value)
        write_json(path, value)

    cell = next((made / "cells").iterdir())
    for path, change, problem in (
        (made / "study.json", lambda v: v["settings"].update(threads="x"), "settings.threads is 'x'"),
        (made / "study.json", lambda v: v.update(data=[]), r"data is \[\]"),
        (made / "cells.json", lambda v: v["cells"].append("../elsewhere"), r"cells\[2\] is '../elsewhere'"),
        (made / "env.json", lambda v: v.update(sessions=["x"]), r"sessions\[0\] is 'x'"),
        (cell / "spec.json", lambda v: v["spec"].pop("seed"), "spec.seed is missing"),
        (
            cell / "done.json",
            lambda v: v["rows"].update({"../x": {"lines": 0, "sha256": ""}}),
            "a key of rows is '../x'",
        ),
    ):
        content = path.read_bytes()
        rewritten(path, change)
        for read in (load_results, lambda folder: run(study(), out=folder, seeds=2)):
            with pytest.raises(ValueError, match=rf"must have the form that the lab writes, got .* where {problem}: "):
                read(made)
        path.write_bytes(content)
    load_results(made)


def test_links_out_of_a_run_directory_are_neither_followed_nor_written_through(made, tmp_path):
    elsewhere, cell = tmp_path / "elsewhere", next((made / "cells").iterdir())
    (made / "lock").unlink()
    (made / "lock").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="which is a link: give a regular file"), hold_lock(made):
        pass
    with pytest.raises(ValueError, match="which is a link"):
        run(study(), out=made, seeds=2)
    assert not elsewhere.exists()
    (made / "lock").unlink()
    for folder in (cell, made / "cells"):
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
        for use in (load_results, lambda path: run(study(), out=path, seeds=2)):
            with pytest.raises(ValueError, match="the cells of a run directory must be in it, got the link"):
                use(made)
        assert any("got the link" in problem["what"] for problem in write_report(made)["problems"])
        folder.unlink()
        elsewhere.rename(folder)
    rows = cell / "metrics.jsonl"
    rows.rename(elsewhere)
    rows.symlink_to(elsewhere)
    with pytest.raises(ValueError, match="which is a link"):
        read_cell(cell)
