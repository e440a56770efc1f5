"""The harness itself: ranks that hang are killed, and a test says which case each was in and what it last said."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.distributed import harness
from tests.distributed.harness import Run
from tests.distributed.registry import case, cases


def processes(*programs):
    return [subprocess.Popen([sys.executable, "-S", "-c", program]) for program in programs]


def test_ranks_that_hang_are_given_up_after_the_deadline():
    ranks = processes("import time; time.sleep(60)", "")
    try:
        start = time.monotonic()
        said = harness._wait(ranks, 0.5)
        assert time.monotonic() - start < 10
        assert "ranks [0] were killed" in said
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_ranks_that_outlive_a_dead_one_are_given_up_early(monkeypatch):
    monkeypatch.setattr(harness, "GRACE", 0.5)
    ranks = processes("import time; time.sleep(60)", "raise SystemExit(3)")
    try:
        said = harness._wait(ranks, 50)
        assert "ranks [0] were killed" in said
        assert "before: [1]" in said
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_case_that_one_rank_did_not_finish_fails_with_its_last_words(tmp_path):
    (tmp_path / "a_case.0.json").write_text(json.dumps({"value": 1}))
    (tmp_path / "rank1.now").write_text("the_case_before")
    (tmp_path / "rank1.stderr").write_text("first line\nlast line")
    with pytest.raises(AssertionError, match=r"(?s)rank 1: did not finish.*the_case_before.*last line"):
        Run(2, tmp_path).values("a_case")


def test_a_case_that_raised_on_one_rank_fails_with_its_error_alone(tmp_path):
    (tmp_path / "a_case.0.json").write_text(json.dumps({"value": 1}))
    (tmp_path / "a_case.1.json").write_text(json.dumps({"error": "it broke"}))
    (tmp_path / "another.0.json").write_text(json.dumps({"value": 2}))
    (tmp_path / "another.1.json").write_text(json.dumps({"value": 3}))
    with pytest.raises(AssertionError, match="rank 1: it broke"):
        Run(2, tmp_path).values("a_case")
    assert Run(2, tmp_path).values("another") == [2, 3]


def test_every_case_belongs_to_a_test():
    used = {"bitwise", "traffic", "counts", "implicit", "half", "small messages", "absent copy", "nan raise", "plan"}
    used |= {"nan propagate", "lost rank", "refused", "real", "real polar", "hooks", "references"}
    used |= {"watched", "refused options"}
    assert {one.family for one in cases()} == used


def test_a_name_is_given_to_one_case_only():
    with pytest.raises(ValueError, match="already"):
        case(family="bitwise", name=cases()[0].name)(lambda _: None)
