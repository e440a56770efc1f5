"""The step knows its parameters' whereabouts through the layout alone: other layouts give the same bits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import ExactPolar, Muon
from muonlab.optim import base, batches
from muonlab.optim.layout import Batch, Layout, Local

SHAPES = ((7, 6), (7, 6), (4, 9), (9, 2, 2))
BUILDS = {
    "default": Muon,
    "renormalized": partial(Muon.airbench, weight_decay=0.1),
    "scaled": partial(Muon, scale="spectral", weight_decay=0.1),
    "exact": partial(Muon, orthogonalizer=ExactPolar(), scale="match_rms_adamw"),
    "after": partial(Muon, renormalize="after", scale="none"),
}


LOCAL = Local()
LAYOUTS: dict[Tensor, Layout] = {}


def drawn(seed: int) -> list[Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def trained(build, cut=lambda t: t, layout=None, bad: int | None = None) -> list[Tensor]:
    """Train what ``cut`` leaves of each tensor for three steps; gradient 0 of step ``bad`` is NaN somewhere."""
    params = [Parameter(cut(w).clone()) for w in drawn(100)]
    LAYOUTS.update(dict.fromkeys(params, layout or LOCAL))
    optimizer = build(params)
    for t in range(3):
        for i, (p, g) in enumerate(zip(params, drawn(t), strict=True)):
            if bad == t and i == 0:
                g[-1, -1] = torch.nan  # in the last row: one process sees it
            p.grad = cut(g).clone()
        optimizer.step()
    return [p.detach() for p in params]


@pytest.fixture(autouse=True)
def _layouts_by_parameter(monkeypatch):
    monkeypatch.setattr(base, "layout_of", LAYOUTS.__getitem__)
    yield
    LAYOUTS.clear()


class AsksAhead(Local):
    """Takes every batch before it works on the first, as one that overlaps communication may."""

    def orthogonalize(self, work: Iterable[Batch]) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        return super().orthogonalize(list(work))


@pytest.mark.parametrize("name", BUILDS)
def test_a_layout_that_asks_ahead_gives_the_same_bits(name):
    ahead, plain = trained(BUILDS[name], layout=AsksAhead()), trained(BUILDS[name])
    assert all(map(torch.equal, ahead, plain))


class Exchange:
    """Lets threads swap tensors, in the order of their ranks."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.slots = threading.Barrier(ranks), [None] * ranks

    def __call__(self, rank: int, value):
        self.slots[rank] = value
        self.barrier.wait(60)
        everything = list(self.slots)
        self.barrier.wait(60)
        return everything


class RowShards:
    """Each thread holds some rows; all of them orthogonalize the whole and keep theirs."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self.rank, self.exchange = rank, partial(exchange, rank)

    def held(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def agree(self, flags: Sequence[bool]) -> Sequence[bool]:
        return [any(several) for several in zip(*self.exchange(list(flags)), strict=True)]

    def everywhere(self, flag: Tensor) -> Tensor:
        return torch.stack(self.exchange(flag)).all()

    def whole_norm(self, norm: Tensor) -> Tensor:
        return torch.linalg.vector_norm(torch.stack(self.exchange(norm)), dim=0)

    def orthogonalize(self, work: Iterable[Batch]) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        for batch in work:
            results = []
            for M in batch.matrices:
                shards = self.exchange(M)
                sizes = [len(shard) for shard in shards]
                results.append(batch.orthogonalize(torch.cat(shards)).split(sizes)[self.rank].clone())
            yield batch, results


@pytest.mark.parametrize("bad", [None, 1])
@pytest.mark.parametrize("name", BUILDS)
def test_uneven_row_shards_in_threads_step_like_the_whole(name, bad, monkeypatch):
    build = partial(BUILDS[name], nonfinite="skip")
    expected = trained(build, bad=bad)
    bounds = ((0, 2), (2, 3), (3, 99))
    exchange, found = Exchange(len(bounds)), [None] * len(bounds)
    # a sharded parameter knows the shape of the whole, as a DTensor does; these plain ones are told here
    rows = {tuple(shape[1:]): shape[0] for shape in SHAPES}
    monkeypatch.setattr(batches, "block_shapes", lambda shape, _: [(rows[tuple(shape[1:])], *shape[1:])])

    def work(rank: int) -> None:
        first, last = bounds[rank]
        found[rank] = trained(build, lambda t: t[first:last], RowShards(rank, exchange), bad)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(bounds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for i, whole in enumerate(expected):
        torch.testing.assert_close(torch.cat([shard[i] for shard in found]), whole, rtol=1e-6, atol=1e-6)
