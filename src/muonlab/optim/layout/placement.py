"""Which layout a parameter has."""

from __future__ import annotations

from torch import Tensor

from muonlab.optim.layout.base import Layout
from muonlab.optim.layout.local import Local

_LOCAL = Local()


def layout_of(param: Tensor) -> Layout:
    """Read the layout off a parameter's type."""
    if hasattr(param, "device_mesh"):
        raise TypeError(
            f"parameters must lie whole on one device, got a {type(param).__name__} over {param.device_mesh}: "
            f"train with a replicated model"
        )
    return _LOCAL
