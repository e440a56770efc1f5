"""What the integrations share, and what they say without the packages; needs none of these."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from muonlab.diagnostics import Recorder
from muonlab.integrations.common import ScalarLog, muon_with_aux, recorded_scalars


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def test_options_go_to_muon_to_adamw_and_to_the_split():
    rules = {"2.weight": "row_heads(4)"}
    optimizer = muon_with_aux(
        network(), 0.02, 3e-4, weight_decay=0.1, momentum=0.8, aux={"betas": (0.8, 0.9)}, split={"rules": rules}
    )
    assert {g["matrix_view"] for g in optimizer.muon.param_groups} == {"flatten", "row_heads(4)"}
    assert {(g["lr"], g["momentum"], g["weight_decay"]) for g in optimizer.muon.param_groups} == {(0.02, 0.8, 0.1)}
    assert {(g["lr"], g["betas"], g["weight_decay"]) for g in optimizer.aux.param_groups} == {(3e-4, (0.8, 0.9), 0.1)}
    assert muon_with_aux(network(), 0.02, 3e-4, weight_decay=0.1, aux={"weight_decay": 0.0}).aux.defaults[
        "weight_decay"
    ] == 0.0  # fmt: skip
    with pytest.raises(TypeError, match="momentun"):
        muon_with_aux(network(), 0.02, 3e-4, momentun=0.9)


def test_scalars_are_means_over_matrices_of_a_recorded_step_each_step_once():
    model = network()
    optimizer = muon_with_aux(model, 0.02, 3e-4)
    recorder = Recorder(optimizer, every=2)
    log = ScalarLog(recorder)
    assert log.new_scalars() == {}
    logged = []
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
        logged.append(log.new_scalars())
    assert [bool(scalars) for scalars in logged] == [True, False, True, False]
    assert log.new_scalars() == {}
    rows = [row for row in recorder.rows if row["event"] == "matrix" and row["step"] == 3]
    assert len(rows) == 2
    assert logged[2] == {
        "muonlab/alignment": pytest.approx((rows[0]["alignment"] + rows[1]["alignment"]) / 2),
        "muonlab/least_alignment": min(row["alignment"] for row in rows),
        "muonlab/polar_error": pytest.approx((rows[0]["epsilon"] + rows[1]["epsilon"]) / 2),
    }


def test_values_that_were_not_measured_or_are_not_finite_are_left_out():
    row = {"event": "matrix", "step": 1, "alignment": 0.5}
    nothing = {"event": "matrix", "step": 1, "alignment": None, "epsilon": None}
    assert recorded_scalars([row, nothing]) == {"muonlab/alignment": 0.5, "muonlab/least_alignment": 0.5}
    assert recorded_scalars([nothing, {"event": "whole", "step": 1, "alignment": 1.0}]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["transformers", "lightning"])
def test_without_the_package_the_optimizer_is_built_and_the_callback_says_what_to_install(package):
    code = f"""
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from muonlab.integrations import {package} as integration
try:
    integration.RecorderCallback()
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.startswith(f"RecorderCallback needs {package}, got none: pip install {package}")
