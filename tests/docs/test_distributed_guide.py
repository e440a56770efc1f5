"""The program of the guide to several processes runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_share_the_matrices_and_one_saves(tmp_path):
    page = (ROOT / "docs/guides/distributed.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n# train\.py: run it with torchrun (.*?)\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(program[1], encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", *program[0].split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"rank (\d): orthogonalized (\d) of 2 matrices, loss 0\.\d+", done.stdout)
    assert sorted(found) == [("0", "1"), ("1", "1")]
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True).keys() == {"model", "opt"}
