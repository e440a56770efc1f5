"""The step reaches other processes through the layout alone; tests/distributed has layouts of real ranks."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import ExactPolar, Muon, NewtonSchulz
from muonlab.optim.distributed.exchange import OwnedBlock, elements_sent, from_owners, to_owners
from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.distributed.layout import DistributedLayout
from muonlab.optim.distributed.plan import _comparable, assign_owners
from muonlab.optim.layout import LocalLayout, LocalPipeline
from muonlab.optim.views import chunk_sizes, matrix_blocks

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
        optimizer._layouts.for_plain_tensors = layout
    for t in range(3):
        for p, g in zip(params, drawn(t), strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach() for p in params]


class LateLayout(LocalLayout):
    """Finishes every batch at the end of the step, as a layout that overlaps communication may."""

    def pipeline(self, observe):
        class Late(LocalPipeline):
            batches = ()

            def orthogonalize(pipeline, batch):  # noqa: N805
                pipeline.batches = [*pipeline.batches, batch]
                return []

            def finish(pipeline):  # noqa: N805
                return [done for batch in pipeline.batches for done in LocalPipeline.orthogonalize(pipeline, batch)]

        return Late(observe)


def test_a_layout_that_finishes_late_gives_the_same_bits():
    for build in BUILDS.values():
        assert all(map(torch.equal, trained(build, layout=LateLayout()), trained(build)))


def test_chunks_are_those_of_torch():
    for size in range(12):
        for shards in (1, 2, 3, 4, 7):
            sizes = chunk_sizes(size, shards)
            assert [c for c in sizes if c] == [len(c) for c in torch.arange(size).chunk(shards) if len(c)]
            assert sum(sizes) == size


def test_blocks_that_straddle_shards_are_cut_where_the_shards_are():
    rows = torch.arange(11)
    shards = [set(shard.tolist()) for shard in rows.chunk(4)]
    for block, members in zip(matrix_blocks((11, 3), (2, 5, 4), shards=4), rows.split((2, 5, 4)), strict=True):
        assert list(block.sizes) == [len(shard & set(members.tolist())) for shard in shards]


def test_simulated_messages_match_and_add_up_to_the_formula():
    for grid in (RankGrid.simulated(r, s) for r in (1, 2, 3) for s in (1, 2, 3, 5)):
        for dim in (0, 1):
            shapes = ((1, 5), (3, 4), (8, 2), (15, 7))
            blocks = [b for shape in shapes for b in matrix_blocks(shape, "flatten", dim, grid.shards)]
            owned = [OwnedBlock(block, i % grid.size) for i, block in enumerate(blocks)]
            total = 0
            for route in (to_owners, from_owners):
                transfers = [route(owned, RankGrid(grid.replica, grid.shard, rank)) for rank in range(grid.size)]
                total += sum(t.elements for way in transfers for t in way.send)
                for a in range(grid.size):
                    for b in range(grid.size):
                        sent = [t[1:] for t in transfers[a].send if t.rank == b]
                        assert sent == [t[1:] for t in transfers[b].receive if t.rank == a]
            assert total == sum(elements_sent(block, grid) for block in owned)
            wrong = RankGrid.simulated(grid.replicas + 1, grid.shards)
            assert total != sum(elements_sent(block, wrong) for block in owned)


def test_owners_are_within_a_third_of_the_best_and_equal_costs_go_round():
    def largest_load(costs, owners, ranks):
        return max(sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in range(ranks))

    assert assign_owners([1.0] * 7, 3) == (0, 1, 2, 0, 1, 2, 0)
    assert assign_owners([1.0, 1.0, 1.0, 1.0, 4.0], 2) == (1, 1, 1, 1, 0)  # the largest first, then to the least loaded
    generator = torch.Generator().manual_seed(0)
    for ranks in (2, 3, 8):
        costs = torch.rand(40, generator=generator).tolist()
        best = max(sum(costs) / ranks, *costs)  # no plan is better than this
        assert best <= largest_load(costs, assign_owners(costs, ranks), ranks) <= 4 / 3 * best
        assert largest_load(costs, [0] * 40, ranks) == pytest.approx(sum(costs))


class RefusedLayout(DistributedLayout):
    """Ranks without processes, whose plans differ whenever ``refused`` is set."""

    refused = False

    def agree(self, flags, names):  # noqa: ARG002
        if self.refused:
            raise ValueError("every rank must plan the same step")
        return list(flags)


def test_a_step_after_a_refused_plan_is_planned_anew():
    muon = Muon([Parameter(torch.ones(4, 3))])
    layout = muon._layouts.for_plain_tensors = RefusedLayout(RankGrid.simulated(2, 1))
    plans = []
    for layout.refused, orthogonalizer in ((False, NewtonSchulz()), (True, ExactPolar()), (False, NewtonSchulz())):
        muon.param_groups[0]["orthogonalizer"] = orthogonalizer.plain()
        with pytest.raises(ValueError, match="the same step") if layout.refused else nullcontext():
            muon._layouts.agree_on_gradients(muon._grouped_params())
        plans.append(layout._plan_hash)
    assert plans[0] == plans[2] != plans[1]


def test_ranks_compare_the_value_of_a_tensor_on_a_cpu_and_only_the_kind_of_one_on_an_accelerator():
    assert _comparable(torch.tensor(0.5)) == _comparable(torch.tensor([0.5])) == 0.5
    assert _comparable(torch.tensor(0.5, device="meta")) == "torch.float32 on meta"  # has no number to read
    assert _comparable("flatten") == "flatten"
