"""Runs that are killed inside of their writes and at random times resume to the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("inside", "timed"), [(6, 2), pytest.param(120, 80, marks=pytest.mark.slow)])
def test_every_killed_run_resumes_to_the_same_bits(tmp_path, inside, timed):
    words = [sys.executable, "-m", "tests.attack.kills", str(inside), str(timed), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    here = Path(__file__).parents[2]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=here, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["events"] >= 100
    assert found["killed"] == {"write": inside, "time": timed}
    assert found["same"] == inside + timed
