"""Examples that are batched by index: pixels normalised, or blocks of tokens with their successors."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from muonlab import _checks


class Examples(ABC):
    """A split of a dataset, batched by index; ``len`` is the number of images or of blocks of tokens."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the examples of these numbers, on the device of the examples.

        Args:
            index: int64, of any device.
        """

    @abstractmethod
    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples with their bytes on another device, moved once."""

    @abstractmethod
    def sliced(self, n: int) -> Examples:
        """Return the first ``n`` examples."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the examples lie, and their batches."""

    def _checked_length(self, n: int) -> int:
        n = _checks.integer("n", n, at_least=1)
        if n > len(self):
            raise ValueError(f"n must be at most the number of examples, {len(self):,}, got {n:,}: pass fewer")
        return n


@dataclass(frozen=True, eq=False)
class Images(Examples):
    """Labelled images; a batch is ``(x/brightest − mean)/std`` in float32, and int64 labels.

    Args:
        pixels: uint8, (n, channels, height, width).
        labels: int64.
        scale: what a channel is multiplied by, (channels, 1, 1).
        shift: what is added then.
    """

    pixels: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(
        cls, pixels: Tensor, labels: Tensor, mean: tuple[float, ...], std: tuple[float, ...], brightest: int
    ) -> Images:
        """Return images whose pixels are normalised by mean and std of each channel."""
        m, s = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
        return cls(pixels, labels, (1 / (brightest * s)).float(), (-m / s).float())

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where the pixels lie, and their batches."""
        return self.pixels.device

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised images and their labels."""
        index = index.to(self.device)
        x = torch.mul(self.pixels.index_select(0, index), self.scale).add_(self.shift)
        return x, self.labels.index_select(0, index)

    def to(self, device: torch.device | str) -> Images:
        """Return the same images with their bytes on another device."""
        return Images(*(t.to(device) for t in (self.pixels, self.labels, self.scale, self.shift)))

    def sliced(self, n: int) -> Images:
        """Return the first ``n`` images, as nearly as can be equally many of each class."""
        n = self._checked_length(n)
        return replace(self, pixels=self.pixels[:n], labels=self.labels[:n])


@dataclass(frozen=True, eq=False)
class Tokens(Examples):
    """A stream of tokens in blocks; a batch is blocks of int64 and, for each token, the one that follows it.

    Args:
        stream: int16 that holds the bits of uint16, since torch indexes few unsigned types.
        block: tokens in a block.
    """

    stream: Tensor
    block: int

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.block

    @property
    def tokens(self) -> int:
        """Tokens in the stream, a last part shorter than a block included."""
        return len(self.stream)

    @property
    def device(self) -> torch.device:
        """Where the stream lies, and its batches."""
        return self.stream.device

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return blocks and their successors."""
        index, used = index.to(self.device), len(self) * self.block
        blocks = (self.stream[first : first + used].view(-1, self.block) for first in (0, 1))
        x, y = (b.index_select(0, index).to(torch.int64).bitwise_and_(0xFFFF) for b in blocks)
        return x, y

    def to(self, device: torch.device | str) -> Tokens:
        """Return the same tokens with their bytes on another device."""
        return replace(self, stream=self.stream.to(device))

    def sliced(self, n: int) -> Tokens:
        """Return the first ``n`` blocks."""
        return replace(self, stream=self.stream[: self._checked_length(n) * self.block + 1])


def generator(*key: str | int) -> torch.Generator:
    """Return a generator on the CPU that is seeded by sha256 of a key: no two keys share one, nor their sums."""
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def order(seed: int, epoch: int, n: int) -> Tensor:
    """Return the order of ``n`` examples in an epoch: a permutation that depends on these three numbers alone.

    Example:
        >>> torch.equal(order(0, 1, 100), order(0, 1, 100)), torch.equal(order(0, 1, 100), order(1, 0, 100))
        (True, False)
    """
    seed, epoch = (_checks.integer(name, value, at_least=0) for name, value in (("seed", seed), ("epoch", epoch)))
    return torch.randperm(_checks.integer("n", n, at_least=0), generator=generator("order", seed, epoch))
