"""Everything that training changes, as named tensors: weights, buffers, momenta, random states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer


def snapshot(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a model, of its optimizer's state, and of the random generators."""
    tensors = dict(_tensors(model, optimizer))
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"random.cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return tensors


@torch.no_grad()
def restore(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Write a snapshot back into a model and an optimizer that were built alike."""
    for name, tensor in _tensors(model, optimizer):
        tensor.copy_(tensors[name])
    torch.set_rng_state(tensors["random.cpu"])
    for i in range(torch.cuda.device_count()):
        if f"random.cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random.cuda.{i}"], i)


def _tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in model.state_dict(keep_vars=True).items():
        yield f"model.{name}", tensor
    names = {p: name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, value in optimizer.state[p].items():
                yield f"optimizer.{names[p]}.{key}", value
