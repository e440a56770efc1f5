"""The step knows its parameters' whereabouts through the layout alone; tests/distributed has the layouts of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import ExactPolar, Muon
from muonlab.optim.layout import Batch, Local
from muonlab.optim.layout.blocks import chunks, cut
from muonlab.optim.layout.exchange import Item, elements_sent, from_owners, to_owners
from muonlab.optim.layout.grid import Grid
from muonlab.optim.layout.plan import assign, balance

SHAPES = ((7, 6), (7, 6), (4, 9), (9, 2, 2))
BUILDS = {
    "default": Muon,
    "renormalized": partial(Muon.airbench, weight_decay=0.1),
    "scaled": partial(Muon, scale="spectral", weight_decay=0.1),
    "exact": partial(Muon, orthogonalizer=ExactPolar(), scale="match_rms_adamw"),
    "after": partial(Muon, renormalize="after", scale="none"),
}


def drawn(seed: int) -> list[Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def trained(build, layout=None) -> list[Tensor]:
    """Train for three steps."""
    params = [Parameter(w) for w in drawn(100)]
    optimizer = build(params)
    if layout is not None:
        optimizer._layouts.plain = layout
    for t in range(3):
        for p, g in zip(params, drawn(t), strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach() for p in params]


class AsksAhead(Local):
    """Takes every batch before it works on the first, as one that overlaps communication may."""

    def orthogonalize(self, batches: Iterable[Batch], done) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        return super().orthogonalize(list(batches), done)


@pytest.mark.parametrize("name", BUILDS)
def test_a_layout_that_asks_ahead_gives_the_same_bits(name):
    ahead, plain = trained(BUILDS[name], layout=AsksAhead()), trained(BUILDS[name])
    assert all(map(torch.equal, ahead, plain))


GRIDS = [Grid.of(r, s) for r in (1, 2, 3) for s in (1, 2, 3, 5)]


@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
def test_chunks_are_those_of_torch(size, shards):
    assert [c for c in chunks(size, shards) if c] == [len(c) for c in torch.arange(size).chunk(shards) if len(c)]
    assert sum(chunks(size, shards)) == size


def test_blocks_that_straddle_shards_are_cut_where_the_shards_are():
    rows = torch.arange(11)
    shards = [set(shard.tolist()) for shard in rows.chunk(4)]
    for block, members in zip(cut((11, 3), (2, 5, 4), shards=4), rows.split((2, 5, 4)), strict=True):
        assert list(block.sizes) == [len(shard & set(members.tolist())) for shard in shards]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.replicas}x{grid.shards}")
@pytest.mark.parametrize("dim", [0, 1])
def test_simulated_messages_meet_and_add_up_to_the_formula(grid, dim):
    blocks = [block for shape in ((1, 5), (3, 4), (8, 2), (15, 7)) for block in cut(shape, "flatten", dim, grid.shards)]
    items = [Item(block, i % grid.ranks) for i, block in enumerate(blocks)]
    for route in (to_owners, from_owners):
        legs = [route(items, Grid(grid.replica, grid.shard, me)) for me in range(grid.ranks)]
        for a in range(grid.ranks):
            for b in range(grid.ranks):
                sent = [leg[1:] for leg in legs[a].out if leg.rank == b]
                assert sent == [leg[1:] for leg in legs[b].back if leg.rank == a]
    total = sum(
        leg.elements
        for me in range(grid.ranks)
        for route in (to_owners, from_owners)
        for leg in route(items, Grid(grid.replica, grid.shard, me)).out
    )
    assert total == sum(elements_sent(item, grid) for item in items)
    wrong = Grid.of(grid.replicas + 1, grid.shards)
    assert total != sum(elements_sent(item, wrong) for item in items)


def test_owners_are_within_a_third_of_the_best_and_equal_costs_go_round():
    assert assign([1.0] * 7, 3) == (0, 1, 2, 0, 1, 2, 0)
    generator = torch.Generator().manual_seed(0)
    for ranks in (2, 3, 8):
        costs = torch.rand(40, generator=generator).tolist()
        best = max(1.0, max(costs) * ranks / sum(costs))  # no plan is better than this
        assert best <= balance(costs, assign(costs, ranks), ranks) <= 4 / 3 * best
        assert balance(costs, [0] * 40, ranks) == pytest.approx(ranks)
