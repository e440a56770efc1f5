"""A rank that is killed in any phase of a step or of a save: everybody exits, and the same command resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.ranks import PHASES


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_killed_in_each_phase_ends_all_and_the_same_command_resumes(tmp_path, size):
    phases = tuple(PHASES)
    words = [sys.executable, "-m", "tests.attack.ranks", str(size), str(tmp_path), *phases]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    here = Path(__file__).parents[2]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=here, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(phases)
    for phase, outcome in found.items():
        assert outcome["victim"] == -9, (phase, outcome)
        assert outcome["others"] == [75], (phase, outcome)  # stopped, by a lost rank: rerun the same command
        assert outcome["resumed"] == [0] * size, (phase, outcome)
        assert outcome["same"], (phase, outcome)
