"""67 hostile files: nothing in them is executed, nothing is written elsewhere, memory is bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST_MEGABYTES = 400
"""What reading may add to the memory of a process that has read a harmless file of each kind."""


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_hostile_files_run_nothing_write_nothing_elsewhere_and_take_bounded_memory(tmp_path, every):
    environment = {**os.environ, "MUONLAB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack.hostile", str(tmp_path), str(every)],
        capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2], timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["first"]["code"] in (0, 1), outcome["first"]
    found = outcome["found"]
    assert len(found) >= 60 // every
    assert [each for each in found if each["code"] not in (0, 1, 2)] == []
    assert [each for each in found if "Traceback" in each["error"] or "\x1b" in each["error"] + each["printed"]] == []
    assert [each for each in found if each["code"] == 2 and each["error"].count("\n") != 1] == []
    assert not outcome["canary"]
    assert outcome["outside"] == []
    assert found[-1]["peak"] - max(outcome["start"], outcome["made"]) < MOST_MEGABYTES
