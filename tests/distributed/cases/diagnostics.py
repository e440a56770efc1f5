"""Recorders, AutoSteps and certificates: every rank knows what one process would have found."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab import NewtonSchulz
from muonlab.diagnostics import AutoSteps, Recorder, certify
from muonlab.optim import Muon
from muonlab.polynomials import taylor
from tests.distributed.cases.faults import attempt
from tests.distributed.problems import Matrix, Training, World, agree, alone, distributed, everywhere
from tests.distributed.registry import case

WATCHED = (
    Matrix((7, 6), name="a"),
    Matrix((9, 2, 2), name="filters"),
    Matrix((1, 5), name="row"),
    Matrix((15, 4), name="tall"),
    Matrix((12, 8), (4, 5, 3), name="blocks"),
    Matrix((6, 3, 5), "batch", name="stack"),
)
COVERED = partial(
    Muon,
    lr=0.02,
    momentum=0.9,
    orthogonalizer=NewtonSchulz(taylor(2), steps=3),
    weight_decay=0.05,
)
STEPS = 5


def watched(training: Training) -> dict[str, Any]:
    """Return all that recorder, AutoSteps and certificates say of a short cosine schedule with a missing gradient."""

    def drop(step: int, grads: list[Tensor | None]) -> None:
        grads[1] = None if step == 3 else grads[1]

    recorder, auto = Recorder(training.optimizer, every=1), AutoSteps(training.optimizer, 0.98, every=2)
    for t in range(STEPS):
        set_cosine_rate(training, t)
        training.step(change=drop)
        auto.step()
        if t == 2:
            covered = recorder.certificate(L=1.0, D=1.0)
            assert covered.status == "applies", covered
    rows = recorder.rows
    return {
        "matrices": sorted(json.dumps(row, sort_keys=True) for row in rows if row["event"] == "matrix"),
        "missing": [row for row in rows if row["event"] == "missing"],
        "whole": [row["matrices"] for row in rows if row["event"] == "whole"],
        "changes": [tuple(change) for change in auto.changes],
        "bound": str(covered),
        "bound after a missing gradient": str(recorder.certificate(L=1.0, D=1.0)),
        "certificate": str(certify(training.optimizer)),
    }


def set_cosine_rate(training: Training, t: int) -> None:
    """Set the learning rate of step t, counted from 0."""
    for group in training.optimizer.param_groups:
        group["lr"] = 0.02 * (1 + math.cos(math.pi * t / STEPS)) / 2


def _watched(world: World, where: Any, shape: tuple[int, ...] = ()) -> None:
    matrices = everywhere(WATCHED, where)
    these, those = distributed(world, matrices, COVERED, shape), alone(matrices, COVERED)
    found, expected = watched(these), watched(those)
    assert expected["changes"], "AutoSteps that change nothing prove nothing"
    assert expected["missing"]
    for what, value in expected.items():
        assert found[what] == value, f"{what}: {found[what]} where one process has {value}"
    agree(these, those)


for place in ("plain", 0, 1):
    case(2, family="watched", name=f"watched_{place}", where=place)(_watched)
case(4, family="watched", name="watched_hsdp", where=0, shape=(2, 2))(_watched)


@case(2, family="watched")
def a_run_that_is_recorded_goes_on_in_another_recorder(world: World) -> None:
    """Saved by every rank without asking the others, loaded by all; other momenta than the saved ones are noticed."""
    matrices = everywhere(WATCHED, 0)
    training = distributed(world, matrices, COVERED)
    set_cosine_rate(training, 0)
    with Recorder(training.optimizer, every=1) as recorder:
        training.step(2)
        saved = recorder.state_dict() if world.rank == 0 else None  # one rank alone may save
        dist.barrier()
        saved = recorder.state_dict() if saved is None else saved
    with Recorder(training.optimizer, every=1) as recorder:
        recorder.load_state_dict(saved)
        set_cosine_rate(training, 2)
        training.step(2)
        assert recorder.certificate(L=1.0, D=1.0).status == "applies", recorder.certificate(L=1.0, D=1.0)
    for p in training.params:
        training.optimizer.state[p]["momentum_buffer"].to_local().mul_(2.0)
    with Recorder(training.optimizer, every=1) as recorder:
        recorder.load_state_dict(saved)
        training.step()
        assert "not those that were saved" in recorder.certificate(L=1.0, D=1.0).reason
    with Recorder(training.optimizer, every=1) as recorder:
        training.step()
        if world.rank == 1:
            training.params[0].detach().to_local().add_(1e-3)
        training.step()
        found = recorder.certificate(L=1.0, D=1.0).reason
        assert found == "something else changed the weights before step 2", found


@case(2, family="plan")
def plan_with_a_recorder_on_one_rank(world: World) -> dict[str, Any]:
    """Rank 1 alone has a recorder, which would wait for the others after the step."""
    training = distributed(world, everywhere(WATCHED, 0), COVERED)
    before = training.tensors()
    recorder = Recorder(training.optimizer, every=1) if world.rank == 1 else None
    raised = attempt(training.step)
    if recorder is not None:
        recorder.close()
    unchanged = all(torch.equal(t, before[name]) for name, t in training.tensors().items())
    return {"raised": raised, "unchanged": unchanged}


@case(2, family="watched")
def messages_with_fewer_digits_are_not_covered(world: World) -> None:
    """A certificate says so rather than speak of directions that were rounded on their way."""
    training = distributed(world, everywhere(WATCHED, 0), COVERED, comm_dtype=torch.bfloat16)
    with Recorder(training.optimizer, every=1) as recorder:
        training.step(2)
        assert "lower precision" in recorder.certificate(L=1.0, D=1.0).reason
