"""Gradients that are not finite, or would carry a momentum out of range: found, refused, or passed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from muonlab.optim.part import Part, name_of


def with_finite(parts: Iterable[Part]) -> list[Part]:
    """Return the parts, those that somebody watches with the word whether they stay in range on all processes."""
    found = list(parts)
    watched: dict[tuple[Any, ...], list[int]] = {}
    for i, part in enumerate(found):
        if part.group["nonfinite"] != "propagate":
            watched.setdefault((part.layout, part.grad.device, _wide(part.grad)), []).append(i)
    for (layout, *_), numbers in watched.items():
        largest = layout.largest(torch.stack([_largest_entries(found[i]) for i in numbers]))
        for i, of_both in zip(numbers, largest.unbind(), strict=True):
            found[i] = found[i]._replace(finite=_stays_finite(found[i], *of_both.unbind()))
    return found


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _largest_entries(part: Part) -> Tensor:
    """Return the largest entry, in size, of the gradient and of the momentum, as far as this process holds them."""
    both = (part.grad, part.momentum)
    if not part.grad.numel():
        return part.grad.new_zeros(2, dtype=_wide(part.grad))
    return torch.stack([torch.linalg.vector_norm(t, torch.inf, dtype=_wide(part.grad)) for t in both])


def _stays_finite(part: Part, grad: Tensor, momentum: Tensor) -> Tensor:
    """Return, on its device, whether a gradient is finite and leaves the momentum in the range of its dtype."""
    largest = grad
    if part.group.get("momentum_form", "heavy_ball") == "heavy_ball":
        # an average cannot leave the range of what it averages; this sum can
        mu = part.group["momentum"]
        moved = mu * momentum + largest
        largest = largest + mu * moved if part.group["nesterov"] else moved
    in_range: Tensor = largest <= torch.finfo(part.grad.dtype).max
    return in_range


def raise_nonfinite(parts: Sequence[Part]) -> None:
    """Refuse NaN and infinity where a group asks for it, before anything has changed; reads one number per device."""
    watched = [part for part in parts if part.group["nonfinite"] == "raise"]
    by_device: dict[torch.device, list[Tensor]] = {}
    for part in watched:
        by_device.setdefault(part.grad.device, []).append(cast(Tensor, part.finite))
    if all(bool(torch.stack(flags).all()) for flags in by_device.values()):
        return
    bad = [name_of(part.group, part.param) for part in watched if not part.finite]
    raise ValueError(
        f"gradients must be finite (nonfinite='raise') and keep momenta so, got NaN or infinity for {', '.join(bad)}: "
        f"nothing was updated; lower the learning rate or the loss scale, or pass nonfinite='skip'"
    )


@contextmanager
def unless_skipped(parts: Sequence[Part], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Undo, bit by bit and without reading a device, what happens to the tensors of parameters to skip."""
    skipping = [(part.finite, t) for part, t in zip(parts, tensors, strict=True) if part.group["nonfinite"] == "skip"]
    kept = [tensor.clone() for _, tensor in skipping]
    yield
    for (finite, tensor), before in zip(skipping, kept, strict=True):
        tensor.copy_(torch.where(cast(Tensor, finite), tensor, before))
