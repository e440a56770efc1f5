"""Momentum in its two forms, on lists of tensors (Kim & Oh 2026, Algorithm 1, line 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

MomentumForm = Literal["heavy_ball", "ema"]
MOMENTUM_FORMS: tuple[MomentumForm, ...] = ("heavy_ball", "ema")


def advance(
    momenta: Sequence[Tensor], grads: Sequence[Tensor], *, form: MomentumForm, momentum: float, nesterov: bool
) -> list[Tensor]:
    """Move the momenta on in place and return the directions to follow.

    ``heavy_ball``: ``M ← μM + g``, with Nesterov ``g + μM``. ``ema``: ``M ← μM + (1-μ)g``, with Nesterov
    ``(1-μ)g + μM``. For a constant μ the second is ``1-μ`` times the first, so that a map which ignores scale cannot
    tell them apart.

    Returns:
        The momenta themselves, or new tensors with Nesterov; ``grads`` are never changed.
    """
    momenta, grads = list(momenta), list(grads)
    if form == "heavy_ball":
        torch._foreach_mul_(momenta, momentum)
        torch._foreach_add_(momenta, grads)
        return list(torch._foreach_add(grads, momenta, alpha=momentum)) if nesterov else momenta
    torch._foreach_lerp_(momenta, grads, 1 - momentum)
    return list(torch._foreach_lerp(grads, momenta, momentum)) if nesterov else momenta
