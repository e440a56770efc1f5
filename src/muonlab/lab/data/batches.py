"""Examples that are batched by index, the order of an epoch, and the augmentation of a batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muonlab import _checks
from muonlab.lab.data.registry import AUGMENTATIONS

PIXELS = 2
"""How far ``flip+translate`` may move an image in each direction."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images; a batch is ``(x/brightest − mean)/std`` in float32 and int64 labels.

    Args:
        pixels: uint8, (n, channels, height, width).
        labels: int64.
        scale: factor of each channel, (channels, 1, 1).
        shift: added to each channel after that.
    """

    pixels: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor

    @classmethod
    def from_arrays(
        cls,
        pixels: NDArray[Any],
        labels: NDArray[Any],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        brightest: int,
    ) -> Images:
        """Return images that are normalised by mean and std of each channel."""
        m, s = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
        scale, shift = (1 / (brightest * s)).float(), (-m / s).float()
        return cls(torch.from_numpy(pixels), torch.from_numpy(labels).to(torch.int64), scale, shift)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """The device of the pixels and of their batches."""
        return self.pixels.device

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised images with these int64 indices and their labels, on the device of the pixels."""
        index = index.to(self.device)
        x = torch.mul(self.pixels.index_select(0, index), self.scale).add_(self.shift)
        return x, self.labels.index_select(0, index)

    def to(self, device: torch.device | str) -> Images:
        """Return the same images on another device."""
        return Images(*(t.to(device) for t in (self.pixels, self.labels, self.scale, self.shift)))


@dataclass(frozen=True, eq=False)
class Tokens:
    """A stream of tokens in blocks; a batch is blocks of int64 and, for each token, the one that follows it.

    Args:
        stream: tokens; int16 holds the bits of uint16, since torch supports few operations on that.
        block: tokens in a block.
    """

    stream: Tensor
    block: int

    @classmethod
    def from_array(cls, stream: NDArray[np.uint16], block: int) -> Tokens:
        """Return a stream of uint16 tokens in blocks."""
        return cls(torch.from_numpy(stream.view(np.int16)), block)

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.block

    @property
    def device(self) -> torch.device:
        """The device of the stream and of its batches."""
        return self.stream.device

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the blocks with these int64 indices, and for each token the one that follows it."""
        index, used = index.to(self.device), len(self) * self.block
        blocks = (self.stream[first : first + used].view(-1, self.block) for first in (0, 1))
        x, y = (b.index_select(0, index).to(torch.int64) for b in blocks)
        if self.stream.dtype == torch.int16:
            x, y = x.bitwise_and_(0xFFFF), y.bitwise_and_(0xFFFF)
        return x, y

    def to(self, device: torch.device | str) -> Tokens:
        """Return the same tokens on another device."""
        return replace(self, stream=self.stream.to(device))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Inputs and targets of any shape; in a batch, floating-point numbers are float32 and whole numbers int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    @property
    def device(self) -> torch.device:
        """The device of the tensors and of their batches."""
        return self.x.device

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets with these int64 indices."""
        index = index.to(self.device)
        x, y = (
            part.index_select(0, index).to(torch.float32 if part.is_floating_point() else torch.int64)
            for part in (self.x, self.y)
        )
        return x, y

    def to(self, device: torch.device | str) -> Pairs:
        """Return the same examples on another device."""
        return Pairs(self.x.to(device), self.y.to(device))


Examples = Images | Tokens | Pairs
"""A split of a dataset, batched by index; ``len`` is the number of images, pairs, or blocks of tokens."""


def set_aside(examples: Examples, count: int) -> tuple[Examples, Examples]:
    """Return training data without ``count`` examples (tokens of text), and these for validation.

    Text is cut at its end; of images and pairs a fixed random choice is taken, the same for every seed.
    """
    size = len(examples.stream) if isinstance(examples, Tokens) else len(examples)
    least = examples.block + 1 if isinstance(examples, Tokens) else 1
    if not least <= count <= size - least:
        raise ValueError(
            f"validation must leave {least:,} or more for each part of the {size:,} training examples, got {count:,}: "
            f"choose another number"
        )
    if isinstance(examples, Tokens):
        kept, cut = examples.stream[: size - count], examples.stream[size - count :]
        return replace(examples, stream=kept), replace(examples, stream=cut)
    chosen = torch.randperm(size, generator=generator("validation", size))
    return _selected(examples, chosen[count:].sort().values), _selected(examples, chosen[:count].sort().values)


def _selected(examples: Images | Pairs, index: Tensor) -> Images | Pairs:
    if isinstance(examples, Pairs):
        return Pairs(examples.x[index], examples.y[index])
    return replace(examples, pixels=examples.pixels[index], labels=examples.labels[index])


def generator(*key: str | int) -> torch.Generator:
    """Return a CPU generator seeded by the sha256 of a key, so that different keys give unrelated numbers."""
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def order(seed: int, epoch: int, n: int) -> Tensor:
    """Return the order of ``n`` examples in an epoch, a permutation that depends only on these three numbers.

    Example:
        >>> torch.equal(order(0, 1, 100), order(0, 1, 100)), torch.equal(order(0, 1, 100), order(1, 0, 100))
        (True, False)
    """
    seed, epoch = (_checks.integer(name, value, at_least=0) for name, value in (("seed", seed), ("epoch", epoch)))
    return torch.randperm(_checks.integer("n", n, at_least=0), generator=generator("order", seed, epoch))


def augment(x: Tensor, kind: str, *, seed: int, epoch: int, step: int) -> Tensor:
    """Return an augmented batch of images; the random numbers depend only on seed, epoch and step.

    ``flip`` mirrors each image left to right with probability one half; ``flip+translate`` also moves it by up to two
    pixels in each direction, with reflection at the border. Random numbers are drawn on the CPU, so that all devices
    give the same images.

    Args:
        x: images, (batch, channels, height, width).
        kind: a name of :data:`AUGMENTATIONS`.
        seed: of the run's data.
        epoch: its number.
        step: number of the batch in the epoch.
    """
    _checks.one_of("kind", kind, AUGMENTATIONS)
    if kind == "none":
        return x
    if x.dim() != 4:
        raise ValueError(f"x must be images (batch, channels, height, width), got {tuple(x.shape)}: use kind='none'")
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
    """Return indices outside 0 … n−1 mirrored at the outermost pixel, which is not repeated."""
    index = index.abs()
    return torch.where(index >= n, 2 * (n - 1) - index, index)
