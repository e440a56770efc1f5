"""Parameters that a library replaces inside of param_groups, as Accelerate does for FSDP2: states follow them."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch.nn import Parameter

from muonlab import SGDM, Muon, MuonWithAux

SHAPES = ((6, 10), (10, 6), (4, 3, 3))
BUILDS = {
    "muon": lambda params: Muon(params, lr=0.1),
    "sgdm": lambda params: SGDM(params, lr=0.1, momentum=0.9),
    "with adamw": lambda params: MuonWithAux(
        Muon(params[:2], lr=0.1), torch.optim.AdamW([{"params": params[2:]}], lr=0.1)
    ),
    "with sgdm": lambda params: MuonWithAux(Muon(params[:2], lr=0.1), SGDM(params[2:], lr=0.1, momentum=0.9)),
}


def drawn(seed: int) -> list[torch.Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def take_steps(optimizer, params, *seeds: int) -> None:
    for seed in seeds:
        for p, g in zip(params, drawn(seed), strict=True):
            p.grad = g
        optimizer.step()


def replaced(build, steps_before: int):
    """Return an optimizer whose parameters were replaced as Accelerate does it, the new ones, and weak references."""
    old = [Parameter(w) for w in drawn(100)]
    optimizer = build(old)
    take_steps(optimizer, old, *range(50, 50 + steps_before))
    new = [Parameter(w) for w in drawn(200)]
    by_id = {id(p): q for p, q in zip(old, new, strict=True)}
    dead = [weakref.ref(p) for p in old]
    dead += [weakref.ref(s["momentum_buffer"]) for s in optimizer.state.values() if "momentum_buffer" in s]
    del old
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            group["params"][i] = torch.empty(1)
            group["params"][i].data_ptr = id(p)
        del p
    for group in optimizer.param_groups:
        group["params"] = [by_id[p.data_ptr] for p in group["params"]]
    return optimizer, new, dead


def all_dead(references) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


every_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


@every_build
@pytest.mark.parametrize("steps_before", [0, 2])
def test_states_follow_the_parameters_in_the_groups_and_the_old_ones_are_freed(build, steps_before):
    for first in ("state_dict", "step", "pickle", "load"):
        optimizer, new, dead = replaced(build, steps_before)
        fresh_params = [Parameter(w) for w in drawn(200)]
        fresh = build(fresh_params)
        if first == "state_dict":
            saved, expected = optimizer.state_dict(), fresh.state_dict()
            assert saved["param_groups"] == expected["param_groups"]
            assert saved["state"].keys() == expected["state"].keys()
        elif first == "pickle":
            pickle.dumps(optimizer)
        elif first == "load":
            state = copy.deepcopy(fresh.state_dict())
            optimizer.load_state_dict(state)
        else:
            take_steps(optimizer, new, 0)
            take_steps(fresh, fresh_params, 0)
        assert all_dead(dead), first
        take_steps(optimizer, new, 1, 2)
        take_steps(fresh, fresh_params, 1, 2)
        for p, q in zip(new, fresh_params, strict=True):
            assert torch.equal(p, q), first
            assert optimizer.state[p].keys() == fresh.state[q].keys()
            for key, value in fresh.state[q].items():
                assert torch.equal(torch.as_tensor(optimizer.state[p][key]), torch.as_tensor(value)), (first, key)


@every_build
def test_a_state_of_replaced_parameters_resumes_bit_for_bit(build):
    optimizer, new, _ = replaced(build, 0)
    take_steps(optimizer, new, 0, 1)
    resumed_params = [Parameter(p.detach().clone()) for p in new]
    resumed = build(resumed_params)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(optimizer, new, 2, 3)
    take_steps(resumed, resumed_params, 2, 3)
    assert all(torch.equal(p, q) for p, q in zip(new, resumed_params, strict=True))


def test_a_state_that_belongs_to_no_tensor_is_kept():
    optimizer = Muon([Parameter(torch.eye(3))], lr=0.1)
    optimizer.state["note"] = {"of": "the user"}
    optimizer.step()
    assert optimizer.state_dict()["state"]["note"] == {"of": "the user"}


def test_a_momentum_keeps_its_dtype_when_the_state_is_only_read():
    p = Parameter(torch.eye(3))
    optimizer = Muon([p], lr=0.1)
    p.data = p.data.double()
    assert optimizer.state_dict()["state"][0]["momentum_buffer"].dtype == torch.float32
