"""Two small training tasks on real data for the benchmarks: an MLP on MNIST and a GPT on web text.

MNIST is loaded as in the lab, from the folder that MUONLAB_DATA names or from the hub; web-text/ must be in that
folder. The GPT reads bytes, so that it needs no tokenizer.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from muonlab.lab.data.loading import load

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A network, an endless stream of training batches for each seed, and held-out data."""

    name: str
    what: str
    model: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
    held_out: Batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy of a batch."""
        x, y = batch
        return cross_entropy(model(x).flatten(0, -2), y.flatten())

    @torch.no_grad()
    def test_loss(self, model: nn.Module) -> float:
        """Cross-entropy on the held-out data, a piece at a time."""
        x, y = self.held_out
        pieces = zip(x.split(256), y.split(256), strict=True)
        return sum(float(self.loss(model, (a, b))) * len(a) for a, b in pieces) / len(x)


# ---------------------------------------------------------------------------------------------------------------- MNIST


def mnist(batch: int = 256) -> Task:
    """The paper's MLP, 784-512-256-10, on all of MNIST."""
    data = load("mnist")
    (x, y), held_out = (part.batch(torch.arange(len(part))) for part in (data.train, data.test))
    x, held_out = x.flatten(1), (held_out[0].flatten(1), held_out[1])

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(x), generator=generator)
            for first in range(0, len(x) - batch + 1, batch):
                some = order[first : first + batch]
                yield x[some], y[some]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))

    return Task(
        "mnist-mlp", f"MLP 784-512-256-10, MNIST (60,000 / 10,000), batches of {batch}", model, batches, held_out
    )


# ------------------------------------------------------------------------------------------------------------------ GPT


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        b, t, c = x.shape
        h = self.before_attention(x)
        q, k, v = (
            f(h).view(b, t, self.heads, c // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(attended)
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class GPT(nn.Module):
    """A small GPT on bytes, its output layer tied to the embedding."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map bytes (batch, length) to logits (batch, length, 256)."""
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.norm(self.blocks(h)) @ self.tokens.weight.T


def _documents() -> list[str]:
    """Return the texts of the folder web-text, which must be in MUONLAB_DATA."""
    import datasets

    folder = Path(os.environ.get("MUONLAB_DATA", "")) / "web-text"
    if not folder.is_dir():
        raise SystemExit("set MUONLAB_DATA to a folder that has web-text/ in the hub's layout")
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        loaded = datasets.load_dataset(str(folder), split="train", cache_dir=cache, keep_in_memory=True)
        return list(loaded["text"])


def gpt(layers: int = 4, width: int = 128, heads: int = 4, length: int = 64, batch: int = 16) -> Task:
    """A small GPT on the bytes of web documents; the last tenth of the documents is held out."""
    documents = _documents()
    cut = len(documents) * 9 // 10
    train, test = (
        torch.frombuffer(bytearray("\n".join(part).encode()), dtype=torch.uint8).long()
        for part in (documents[:cut], documents[cut:])
    )

    def windows(text: Tensor, starts: Tensor) -> Batch:
        index = starts[:, None] + torch.arange(length + 1)
        found = text[index]
        return found[:, :-1], found[:, 1:]

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield windows(train, torch.randint(len(train) - length - 1, (batch,), generator=generator))

    held_out = windows(test, torch.arange(0, 512 * length, length))
    what = f"GPT of {layers} layers, width {width}, on bytes of web text, batches of {batch} x {length}"
    return Task("small-gpt", what, lambda: GPT(layers, width, heads, length), batches, held_out)
