"""Accelerate with Muon: ``prepare`` as it is; one process bit for bit, and FSDP2 on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from muonlab.diagnostics import Recorder
from muonlab.integrations.common import muon_with_aux, unwrapped
from tests.integrations.fsdp2_rank import STEPS, losses, network, optimizer_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trainers("accelerate"),
    pytest.mark.filterwarnings("ignore"),  # of this package; warnings of muonlab are tested elsewhere
]

ROOT = Path(__file__).resolve().parents[2]


def trained(folder, steps, *, resume=False, record=False):
    """Train with dropout, clipping, accumulation and a schedule; save at the end, or load first."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = muon_with_aux(model, lr=0.05, aux_lr=0.01, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    generator = torch.Generator().manual_seed(1)
    X, Y = torch.randn(64, 8, generator=generator), torch.randn(64, 4, generator=generator)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    recorder = Recorder(unwrapped(optimizer), every=1) if record else None
    if resume:
        accelerator.load_state(str(folder))
    for step in steps:
        batch = slice(4 * step, 4 * step + 4)
        with accelerator.accumulate(model):
            accelerator.backward((model(X[batch]) - Y[batch]).square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.save_state(str(folder))
    if recorder is not None:
        recorder.close()
        assert [row["step"] for row in recorder.rows if row["event"] == "whole"] == list(range(1, len(steps) // 2 + 1))
    return model, unwrapped(optimizer)


def assert_same_bits(ours, theirs) -> None:
    for (name, p), q in zip(ours[0].named_parameters(), theirs[0].parameters(), strict=True):
        assert torch.equal(p, q), name
        for key, value in ours[1].state[p].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[1].state[q][key])), (name, key)
    assert [group["lr"] for group in ours[1].param_groups] == [group["lr"] for group in theirs[1].param_groups]


def test_accelerate_clips_accumulates_schedules_and_resumes_bit_for_bit(tmp_path):
    whole = trained(tmp_path / "whole", range(12))
    assert whole[1].muon.orthogonalized == 2
    cut = trained(tmp_path / "cut", range(8), record=True)
    with pytest.raises(AssertionError):
        assert_same_bits(cut, whole)
    assert_same_bits(trained(tmp_path / "cut", range(8, 12), resume=True), whole)


def run_ranks(folder: Path, mode: str, ranks: int = 2) -> list[dict]:
    """Return what the ranks wrote."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"ACCELERATE_USE_CPU": "true", "WORLD_SIZE": str(ranks)}
    command = [sys.executable, str(ROOT / "tests" / "integrations" / "fsdp2_rank.py")]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder), mode],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    for process in running:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    return [json.loads((folder / f"{mode}.{rank}.json").read_text()) for rank in range(ranks)]


def test_fsdp2_of_accelerate_on_two_ranks_is_one_process_bit_for_bit_and_resumes_on_two_and_on_one(tmp_path):
    started = run_ranks(tmp_path, "start")
    resumed = run_ranks(tmp_path, "resume") + run_ranks(tmp_path, "resume", ranks=1)
    assert len(resumed) == 3
    model = network()
    optimizer = optimizer_of(model)
    before, after = (losses(model, optimizer, steps) for steps in (range(STEPS), range(STEPS, 2 * STEPS)))
    weights = {name: p.tolist() for name, p in model.named_parameters()}
    clipped = losses(
        model, optimizer, range(2), clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
    )
    for rank in started + resumed:
        assert rank["placements"] == ["(Shard(dim=0),)"]  # the parameters of fully_shard are in the groups
        assert (rank["alive"], rank["states"]) == (0, len(weights))  # the replaced ones are gone, with their momenta
        assert rank["after"] == after
        assert rank["weights"] == weights
        assert rank["clipped"] == pytest.approx(clipped, rel=1e-6)  # the norm is summed in another order
    assert [rank["before"] for rank in started] == [before, before]
    assert sum(rank["orthogonalized"] for rank in started) == 4  # each half of each parameter once
