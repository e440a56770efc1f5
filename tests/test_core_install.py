"""What an installation without extras can do: import, train, certify, and name the extra that a command needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ("torch", "numpy", "tyro")

TRAINING = """
import torch
from muonlab import Muon, MuonWithAux, split_params
from muonlab.diagnostics import certify
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 2))
split = split_params(model)
opt = MuonWithAux(Muon(split.matrices, lr=0.02), torch.optim.AdamW(split.rest, lr=3e-3))
X = torch.randn(64, 8)
losses = []
for _ in range(30):
    loss = (model(X) - X[:, :2]).square().mean()
    opt.zero_grad(); loss.backward(); opt.step(); losses.append(float(loss))
print(losses[-1] < losses[0] / 2, certify(opt).status)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A folder with links to what ``pip install muonlab`` brings, and to nothing else."""
    folder = tmp_path_factory.mktemp("core")
    left, seen = list(CORE), set()
    while left:
        name = left.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        installed = distribution(name)
        for file in installed.files or ():
            top = file.parts[0]
            if not top.startswith(("..", "__pycache__")) and not (folder / top).exists():
                (folder / top).symlink_to(Path(installed.locate_file(top)).resolve())
        # a requirement with a marker is for an extra or for another platform
        left += [re.split(r"[^\w.-]", need)[0] for need in installed.requires or () if ";" not in need]
    (folder / "muonlab").symlink_to(ROOT / "src" / "muonlab")
    return folder


def run(core, *arguments):
    """Run Python without its own site-packages."""
    # no cache: data that are decoded already need no extra
    environment = {**os.environ, "PYTHONPATH": str(core), "OMP_NUM_THREADS": "1", "MUONLAB_CACHE": str(core / "cache")}
    options = {"env": environment, "cwd": core, "timeout": 120}
    return subprocess.run([sys.executable, "-S", *arguments], capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
def test_a_core_install_trains_and_certifies(core):
    done = run(core, "-c", TRAINING)
    assert (done.stdout.strip(), done.returncode) == ("True holds", 0), done.stderr


@pytest.mark.slow
def test_commands_without_their_extra_name_it_and_the_others_answer(core):
    for command, extra in (
        ("list studies", None), ("list optimizers", None), ("rates", None),
        ("run quickstart --profile smoke", "lab"), (f"queue {ROOT / 'results/queue.toml'} --out x", "lab"),
        (f"report {ROOT / 'results/runs/quickstart-small'}", "lab"),
        ("data prepare mnist", "data"), ("data prepare digits", "lab"),
    ):  # fmt: skip
        done = run(core, "-m", "muonlab", *command.split())
        if extra is None:
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode in (1, 2), command
            assert f"muonlab[{extra}]" in done.stdout + done.stderr, (command, done.stderr)
            assert "Traceback" not in done.stderr, command


IMPORT_TIMES = """
import time
before = time.process_time()
import torch
between = time.process_time()
from muonlab import Muon
print((time.process_time() - between) / (between - before))
"""


@pytest.mark.slow
def test_importing_muon_adds_at_most_15_percent_to_the_import_of_torch():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IMPORT_TIMES]
    done = [subprocess.run(command, capture_output=True, text=True, check=True, env=environment) for _ in range(4)]
    assert min(float(one.stdout) for one in done[1:]) <= 0.15  # the first one may write bytecode
