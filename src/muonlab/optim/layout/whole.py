"""A tensor whole, wherever its pieces lie; this process's piece of it; a tensor placed like another."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor itself, or all of one that is cut into pieces; then every rank that holds one must ask for it."""
    full_tensor = getattr(tensor, "full_tensor", None)
    found: Tensor = tensor if full_tensor is None else full_tensor()
    return found


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor, as a plain tensor that shares its memory."""
    to_local = getattr(tensor, "to_local", None)
    found: Tensor = tensor if to_local is None else to_local()
    return found.detach()


def placed_like(tensor: Tensor, other: Any) -> Tensor:
    """Return a tensor cut and placed like another; where its own pieces lie elsewhere, every rank must ask for it."""
    mesh, placements = getattr(other, "device_mesh", None), getattr(other, "placements", None)
    if mesh == getattr(tensor, "device_mesh", None) and placements == getattr(tensor, "placements", None):
        return tensor
    all_of_it = whole(tensor)
    if mesh is None:
        return all_of_it.clone()  # a copy on every rank may be the tensor itself
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(all_of_it, mesh, placements, src_data_rank=None)  # every rank has it: nothing is sent
