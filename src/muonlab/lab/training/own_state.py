"""The state of a user's optimizer in a checkpoint, described: torch optimizers create it in their first step."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from muonlab.lab.training.optimizer_pair import OptimizerPair
from muonlab.optim import MuonWithAux

PLAIN_TYPES = (bool, int, float, str, type(None))


def describe_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return as JSON values what :func:`create_state` needs: kinds of tensors, plain state, numbers of the groups."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    states = {names[p]: _describe(state, names[p]) for each in _parts(optimizer) for p, state in each.state.items()}
    groups = [
        {name: value for name, value in group.items() if name != "params" and isinstance(value, (bool, int, float))}
        for group in optimizer.param_groups
    ]
    return {"states": states, "groups": groups}


def create_state(model: nn.Module, optimizer: Optimizer, described: Mapping[str, Any]) -> None:
    """Create the described state in an optimizer; its tensors are zeros until a checkpoint fills them."""
    parameters = dict(model.named_parameters())
    for name, entries in described["states"].items():
        p = parameters[name]
        state = _state_of(optimizer, p)
        for key, about in entries.items():
            state[key] = about["value"] if "value" in about else _zeros(p, about)
    for group, saved in zip(optimizer.param_groups, described["groups"], strict=True):
        group.update(saved)


def _describe(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    about: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            kind = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
            about[key] = {**kind, "on_cpu": value.device.type == "cpu"}
        elif isinstance(value, PLAIN_TYPES):
            about[key] = {"value": value}
        else:
            raise TypeError(
                f"the state of an optimizer must be tensors, numbers or text, got {type(value).__name__} as {key!r} of "
                f"{name}: keep tensors in optimizer.state[p]"
            )
    return about


def _zeros(p: nn.Parameter, about: Mapping[str, Any]) -> Tensor:
    dtype, shape = getattr(torch, about["dtype"]), about["shape"]
    if shape == list(p.shape):
        return torch.zeros_like(p, dtype=dtype, requires_grad=False)
    return torch.zeros(shape, dtype=dtype, device="cpu" if about["on_cpu"] else p.device)


def _parts(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    if isinstance(optimizer, MuonWithAux):
        return optimizer.muon, optimizer.aux
    return (optimizer.main, optimizer.rest) if isinstance(optimizer, OptimizerPair) else (optimizer,)


def _state_of(optimizer: Optimizer, p: nn.Parameter) -> MutableMapping[str, Any]:
    """Return the state of a parameter in the optimizer that trains it."""
    for each in _parts(optimizer):
        if any(p is other for group in each.param_groups for other in group["params"]):
            state: MutableMapping[str, Any] = each.state[p]
            return state
    raise ValueError(f"a checkpoint must be of this optimizer, got state of a parameter of shape {list(p.shape)}")
