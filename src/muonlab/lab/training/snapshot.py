"""Everything that training changes, as named tensors: weights, buffers, optimizer state, random states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer


def named_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a model and of its optimizer's state (not copies), and copies of the random states.

    The names serve for saving and loading: a checkpoint fills the tensors in place, and :func:`restore_random_state`
    then sets the generators.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict(keep_vars=True).items()}
    names = {p: name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p in optimizer.state:
                state = {key: value for key, value in optimizer.state[p].items() if isinstance(value, Tensor)}
                tensors |= {f"optimizer.{names[p]}.{key}": value for key, value in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    device = _cuda_device(model)
    if device is not None:
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def restore_random_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set the random generators to the states in the tensors of :func:`named_tensors`."""
    torch.set_rng_state(tensors["random.cpu"])
    device = _cuda_device(model)
    if device is not None:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)


def _cuda_device(model: nn.Module) -> torch.device | None:
    return next((p.device for p in model.parameters() if p.device.type == "cuda"), None)
