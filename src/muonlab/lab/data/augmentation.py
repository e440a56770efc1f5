"""Random flips and translations of a batch of images, drawn from the seed, epoch and step alone."""

from __future__ import annotations

import torch
from torch import Tensor

from muonlab import _checks
from muonlab.lab.data.batches import generator
from muonlab.lab.data.registry import AUGMENTATIONS

PIXELS = 2
"""How far ``flip+translate`` may move an image in each direction."""


def augment(x: Tensor, kind: str, *, seed: int, epoch: int, step: int) -> Tensor:
    """Return a batch of images, augmented; what is drawn depends on seed, epoch and step, not on a loader's state.

    ``flip`` mirrors every image left to right with probability one half; ``flip+translate`` also moves it by up to two
    pixels in each direction, what comes in at the border reflected. Random numbers are drawn on the CPU, so that every
    device sees the same images.

    Args:
        x: images, (batch, channels, height, width).
        kind: a name of :data:`AUGMENTATIONS`.
        seed: of the run's data.
        epoch: its number.
        step: within the epoch, or of the run; what matters is that each batch of an epoch has its own.
    """
    _checks.one_of("kind", kind, AUGMENTATIONS)
    if x.dim() != 4:
        if kind == "none":
            return x
        raise ValueError(f"x must be images (batch, channels, height, width), got {tuple(x.shape)}: use kind='none'")
    if kind == "none":
        return x
    numbers = {"seed": seed, "epoch": epoch, "step": step}
    source = generator("augment", *(_checks.integer(name, value, at_least=0) for name, value in numbers.items()))
    b, c, h, w = x.shape
    flips = torch.rand(b, 1, generator=source) < 0.5
    rows, columns = torch.arange(h).expand(b, h), torch.arange(w).expand(b, w)
    columns = torch.where(flips, w - 1 - columns, columns)
    if kind == "flip+translate":
        if min(h, w) <= PIXELS:
            raise ValueError(f"images must be larger than {PIXELS} pixels to be moved, got {h}×{w}: use kind='flip'")
        moves = torch.randint(-PIXELS, PIXELS + 1, (2, b, 1), generator=source)
        rows, columns = _reflected(rows + moves[0], h), _reflected(columns + moves[1], w)
    index = (rows[:, :, None] * w + columns[:, None, :]).view(b, 1, h * w).to(x.device)
    return x.reshape(b, c, h * w).gather(2, index.expand(b, c, h * w)).view(b, c, h, w)


def _reflected(index: Tensor, n: int) -> Tensor:
    """Return indices beyond 0 … n−1 mirrored at the outermost pixel, which is not repeated."""
    index = index.abs()
    return torch.where(index >= n, 2 * (n - 1) - index, index)
