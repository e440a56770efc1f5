"""Distributed and plain tensors alike: a tensor gathered whole, its local part, a tensor placed like another."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a plain tensor itself, or a DTensor gathered whole; then every rank that holds a piece must call this."""
    full_tensor = getattr(tensor, "full_tensor", None)
    result: Tensor = tensor if full_tensor is None else full_tensor()
    return result


def local_part(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor, detached, as a plain tensor that shares its memory."""
    to_local = getattr(tensor, "to_local", None)
    result: Tensor = tensor if to_local is None else to_local()
    return result.detach()


def placed_like(tensor: Tensor, other: Any) -> Tensor:
    """Return a tensor with the mesh and placements of another.

    Where its own placements differ, it is gathered first, and every rank that holds a piece must call this.
    """
    mesh, placements = getattr(other, "device_mesh", None), getattr(other, "placements", None)
    if mesh == getattr(tensor, "device_mesh", None) and placements == getattr(tensor, "placements", None):
        return tensor
    full = whole(tensor)
    if mesh is None:
        return full.clone()  # a replicated tensor may return its own memory
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, mesh, placements, src_data_rank=None)  # every rank has it: nothing is sent
