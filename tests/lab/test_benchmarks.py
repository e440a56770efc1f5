"""The programs behind the lab's figures run, and both sides of a comparison do the same work."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.lab.tiny import SPEC

ROOT = Path(__file__).parents[2]


def program(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bare_loop_and_the_labs_give_the_same_weights(tmp_path, monkeypatch):
    loop = program("loop")
    spec = SPEC.changed({"train": None, "test": None, "steps": None, "epochs": 1000})
    models = []
    for module in (loop, importlib.import_module("muonlab.lab.training.loop")):
        real = module.model_of
        monkeypatch.setattr(module, "model_of", lambda *a, real=real: models.append(real(*a)) or models[-1])
    for updates in (loop.lab_updates(spec, tmp_path), loop.bare_updates(spec)):
        updates(5)
    lab, bare = models
    for p, q in zip(lab.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_the_comparison_reports_what_it_timed(tmp_path):
    found = program("loop").compare(SPEC.changed({"train": None, "test": None}), 2, 2, tmp_path)
    assert found["blocks"] == 2
    assert found["overhead"] == pytest.approx(found["milliseconds_lab"] / found["milliseconds_bare"] - 1)
