"""A tensor whole, wherever its pieces lie."""

from __future__ import annotations

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor itself, or all of one that is cut into pieces; then every rank that holds one must ask for it."""
    full_tensor = getattr(tensor, "full_tensor", None)
    found: Tensor = tensor if full_tensor is None else full_tensor()
    return found
