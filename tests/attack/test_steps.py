"""A training of many steps needs no more memory and no more time at its end than at its start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["plain", "recorder"])
@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_memory_and_time_of_a_step_stay_flat(tmp_path, count, kind):
    words = [sys.executable, "-m", "tests.attack.steps", str(count), kind, str(tmp_path / "rows.jsonl")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    found = json.loads(done.stdout)
    assert found["finite"]
    assert found["growth"] <= 2.0
    half = len(found["seconds"]) // 2
    first, last = statistics.median(found["seconds"][:half]), statistics.median(found["seconds"][half:])
    assert last < 1.5 * first  # the medians of processor seconds: other work on the machine disturbs some parts
