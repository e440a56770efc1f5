"""What is shipped: the wheel and the source distribution, and types that a user's own checker accepts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import muonlab

ROOT = Path(__file__).resolve().parents[1]

USER_SCRIPT = """
import torch
from torch import nn

from muonlab import SGDM, ExactPolar, Muon, MuonWithAux, NewtonSchulz, newton_schulz, polar, split_params
from muonlab.diagnostics import AutoSteps, Recorder, certify, plan
from muonlab.lab import Results, load_results, run
from muonlab.optim import continue_adamw
from muonlab.polynomials import Schedule, taylor
from muonlab.theory import alignment_bound, muon_bound


def train(model: nn.Module, batches: list[torch.Tensor]) -> float:
    split = split_params(model, rules={"*.qkv.weight": (64, 64, 64)}, by="shape")
    muon = Muon(split.matrices, lr=0.02, orthogonalizer=NewtonSchulz(taylor(2), steps=3), scale="spectral")
    optimizer = MuonWithAux(muon, torch.optim.AdamW(split.rest, lr=3e-3))
    auto = AutoSteps(optimizer, target_alignment=0.9)
    with Recorder(optimizer, every=10) as recorder:
        for batch in batches:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            auto.step()
    rows: int = len(recorder.rows)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    certificate = certify(optimizer)
    found = plan((64, 64), target_alignment=0.95)
    schedule: Schedule = found.schedule
    M = newton_schulz(torch.eye(3), schedule) + polar(torch.eye(3))
    Muon([M], orthogonalizer=ExactPolar())
    SGDM(model.parameters(), lr=0.1, momentum=0.9)
    continue_adamw(torch.optim.AdamW(model.parameters()), split)
    bound = muon_bound(L=1.0, D=1.0, sigma=1.0, r=4, B=1, T=100)
    other = alignment_bound(L=1.0, D=1.0, sigma=1.0, r=4, B=1, T=100, alignment=certificate.alignment or 0.5)
    results: Results = run("quickstart", "smoke")
    return rows + bound.total + other.total + len(load_results(results.folder).cells)
"""
WRONG = {
    "unexpected": "Muon([], ns_steps=5)\n",
    "positional": "Muon([], 0.02, 0.95)\n",
    "scale": "Muon([], scale='spectrum')\n",
}


def checked(script, folder):
    """Return what mypy --strict says about a script of a user."""
    (folder / "script.py").write_text(script)
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_a_users_script_passes_mypy_strict_and_wrong_arguments_do_not(tmp_path):
    assert "Success: no issues found" in checked(USER_SCRIPT, tmp_path)
    for name, line in WRONG.items():
        found = checked(f"from muonlab import Muon\n{line}", tmp_path)
        assert "error" in found, name


@pytest.mark.slow
def test_wheel_and_source_have_templates_and_types_and_the_wheel_no_tests(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", tmp_path], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    inside = zipfile.ZipFile(wheel).namelist()
    shipped = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/muonlab").rglob("*") if path.is_file()}
    shipped = {name for name in shipped if "__pycache__" not in name}
    assert shipped <= set(inside)
    assert {"muonlab/py.typed", "muonlab/report/templates/study.html"} <= shipped
    assert all(name.startswith(("muonlab/", "muonlab-")) for name in inside)
    (metadata,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
    described = Metadata.from_email(zipfile.ZipFile(wheel).read(metadata), validate=True)  # as an index checks it
    assert (str(described.version), described.description_content_type) == (muonlab.__version__, "text/markdown")
    assert "MuonWithAux" in described.description
    assert re.findall(r"\]\((?!https?:|#).*?\)", described.description) == [], "links that lead nowhere on an index"
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "pyproject.toml", "src/muonlab/py.typed", "docs/guides/muon.md", "tests/conftest.py"} <= names
    assert not any(name.startswith(("build/", ".venv/", "docs/start/tutorial/")) for name in names)
