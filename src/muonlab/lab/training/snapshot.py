"""Everything that training changes, as named tensors: weights, buffers, momenta, random states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer


def snapshot(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a model and of its optimizer's state themselves, and copies of the random states.

    The same names serve for saving and for loading: a checkpoint fills them in place, and :func:`set_random` sets
    the generators, which have no tensor to fill.
    """
    tensors = dict(_tensors(model, optimizer))
    tensors["random.cpu"] = torch.get_rng_state()
    for device in _cuda(model):
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def set_random(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set the random generators to the states in a snapshot of the model that a checkpoint has filled."""
    torch.set_rng_state(tensors["random.cpu"])
    for device in _cuda(model):
        torch.cuda.set_rng_state(tensors["random.cuda"], device)


def _cuda(model: nn.Module) -> list[torch.device]:
    """Return the device that a model is on if it has a random generator of its own to save."""
    return [p.device for p in model.parameters() if p.device.type == "cuda"][:1]


def _tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in model.state_dict(keep_vars=True).items():
        yield f"model.{name}", tensor
    names = {p: name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, value in optimizer.state[p].items():
                yield f"optimizer.{names[p]}.{key}", value
