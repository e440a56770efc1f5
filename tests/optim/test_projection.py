"""The projection plays through what a step sends: against the formula, by hand, and against the step's own buckets."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

from muonlab import Muon
from muonlab.optim.layout.blocks import cut
from muonlab.optim.layout.distributed import Distributed
from muonlab.optim.layout.exchange import Item, elements_sent
from muonlab.optim.layout.grid import Grid
from muonlab.optim.layout.plan import assign, balance
from muonlab.optim.layout.projection import Hardware, _broadcasts, buckets, project

ROOT = Path(__file__).parents[2]
SHAPES = ((1, 5), (3, 4), (8, 2), (15, 7), (8, 2))
COSTS = (5.0, 12.0, 16.0, 105.0, 16.0)
HARDWARE = Hardware(operations=100.0, bandwidth=50.0, latency=0.25)
GRIDS = [(r, s) for r in (1, 2, 3) for s in (1, 2, 3, 5)]


def blocks_of(shards, dim=0, shapes=SHAPES):
    return [block for shape in shapes for block in cut(shape, "flatten", dim, shards)]


@pytest.mark.parametrize(("replicas", "shards"), GRIDS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("bucket", [1, 40, 1 << 25])
def test_messages_played_through_add_up_to_the_formula(replicas, shards, dim, bucket):
    blocks = blocks_of(shards, dim)
    of = project(blocks, COSTS, Grid.of(replicas, shards), HARDWARE, bucket=bucket)
    assert of.sent == of.simulated
    owners = assign(COSTS, replicas * shards)
    wrong = Grid.of(replicas + 1, shards)
    assert of.simulated != sum(elements_sent(Item(b, o), wrong) for b, o in zip(blocks, owners, strict=True))


@pytest.mark.parametrize(("replicas", "shards"), [grid for grid in GRIDS if grid[1] > 1])
def test_the_busiest_rank_is_that_of_counting_rank_by_rank(replicas, shards):
    blocks, ranks = blocks_of(shards), replicas * shards
    of = project(blocks, COSTS, Grid.of(replicas, shards), HARDWARE)
    sent, received = [0] * ranks, [0] * ranks
    for block, owner in zip(blocks, assign(COSTS, ranks), strict=True):
        held = [block.elements(rank % shards) for rank in range(ranks)]
        for rank in set(range(ranks)) - {owner}:
            to_owner = held[rank] if rank // shards == owner // shards else 0
            sent[rank] += to_owner
            received[owner] += to_owner
            sent[owner] += held[rank]
            received[rank] += held[rank]
    assert (of.most_sent, of.most_received) == (max(sent), max(received))
    assert sum(sent) == sum(received) == of.sent


def test_one_rank_is_one_process():
    of = project(blocks_of(1), COSTS, Grid.of(1, 1), HARDWARE)
    assert (of.sent, of.simulated, of.most_sent, of.most_received, of.most_messages) == (0, 0, 0, 0, 0)
    assert of.operations == of.all_operations == sum(COSTS)
    assert of.balance == 1.0
    assert of.communication == 0.0
    assert of.apart == of.overlapped == of.compute == of.everyone == sum(COSTS) / 100.0


def test_seconds_by_hand():
    blocks = cut((4, 3), "flatten", 0, 2)  # 6 of 12 elements go to the owner, 6 come back
    of = project(blocks, [300.0], Grid.of(1, 2), HARDWARE, element=2)
    assert (of.sent, of.most_sent, of.most_received, of.most_messages) == (12, 6, 6, 2)
    assert of.compute == 3.0
    assert of.communication == 6 * 2 / 50 + 2 * 0.25
    assert of.apart == 3.0 + 0.74
    assert of.overlapped == 3.0
    assert of.balance == 2.0


def test_copies_by_hand():
    of = project(cut((4, 3), "flatten"), [300.0], Grid.of(4, 1), HARDWARE)  # 0 to 1 and 2, 1 to 3
    assert (of.sent, of.simulated, of.most_sent, of.most_received, of.most_messages) == (36, 36, 24, 12, 2)
    assert of.communication == 24 * 4 / 50 + 2 * 0.25
    assert of.everyone == of.compute == 3.0


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 13])
def test_a_broadcast_reaches_every_other_rank_once_from_one_that_has_it(ranks):
    items = [Item(block, owner) for owner, block in enumerate(blocks_of(1)[:2])]
    for owner, legs in enumerate(_broadcasts(items, Grid.of(ranks, 1))):
        elements, has = items[owner].block.elements(0), {owner}
        left = [(giver, leg.rank) for giver, mine in enumerate(legs) for leg in mine.out]
        assert sorted(taker for _, taker in left) == sorted(set(range(ranks)) - {owner})
        assert all(leg.elements == elements for mine in legs for way in mine for leg in way)
        rounds = 0
        while left:
            reached = {taker for giver, taker in left if giver in has}
            assert reached
            left = [(giver, taker) for giver, taker in left if taker not in reached]
            has |= reached
            rounds += 1
        assert rounds <= (ranks - 1).bit_length()
        for me, mine in enumerate(legs):
            givers = [giver for giver, one in enumerate(legs) for leg in one.out if leg.rank == me]
            assert [leg.rank for leg in mine.back] == givers


@pytest.mark.parametrize(
    "wrong", [Hardware(100.0, 25.0, 0.25), Hardware(100.0, 50.0, 0.5), Hardware(50.0, 50.0, 0.25)], ids=str
)
def test_every_assumed_number_counts(wrong):
    of = project(blocks_of(2), COSTS, Grid.of(2, 2), HARDWARE)
    assert replace(of, hardware=wrong).apart > of.apart
    assert replace(of, element=8).communication > of.communication


def test_the_balance_is_that_of_the_plan():
    of = project(blocks_of(3), COSTS, Grid.of(1, 3), HARDWARE)
    assert of.balance == pytest.approx(balance(COSTS, assign(COSTS, 3), 3), rel=1e-12)
    assert of.operations == 105.0


def test_stacks_that_stay_are_the_work_of_every_replica_and_send_nothing():
    of = project(cut((5, 4, 4), "batch", 0, 2), [500.0], Grid.of(2, 2), HARDWARE)
    assert (of.sent, of.simulated, of.most_messages) == (0, 0, 0)
    assert of.operations == 300.0  # three of five matrices, on each replica
    assert of.balance == 1.2


class Played(Distributed):
    """Ranks without processes: it keeps the buckets of a step and does none of its work."""

    def agree(self, flags, names):  # noqa: ARG002
        return flags

    def orthogonalize(self, batches, done):  # noqa: ARG002
        self.found = [[self._item(part) for batch in one.batches for part in batch.parts]
                      for one in self._buckets(batches)]  # fmt: skip
        return iter(())


@pytest.mark.parametrize("room", [64, 500, 700, 2000, 1 << 20])
def test_buckets_are_those_of_a_step(monkeypatch, room):
    monkeypatch.setattr("muonlab.optim.layout.distributed.BUCKET", room // 4)
    shapes = ((8, 6), (4, 9), (8, 6), (4, 9), (8, 6), (20, 5), (2, 2), (8, 6))
    params = [Parameter(torch.zeros(shape)) for shape in shapes]
    muon = Muon(params)
    played = muon._layouts.plain = Played(Grid.of(4, 1))
    for p in params:
        p.grad = torch.ones_like(p)
    muon.step()
    ours = [Item(block, played._owners[p, 0]) for p in params for block in cut(p.shape, "flatten")]
    assert list(buckets(ours, 4, room)) == played.found
    assert sum(map(len, played.found)) == len(shapes)
    if room == 500:
        assert len(played.found) > 2


def test_blocks_of_another_grid_and_missing_costs_are_refused():
    with pytest.raises(ValueError, match=r"cut into the 3 shards of the grid, got 2 pieces of \(1, 5\)"):
        project(blocks_of(2), COSTS, Grid.of(1, 3), HARDWARE)
    with pytest.raises(ValueError, match="each block must have a cost, got 4 for 5"):
        project(blocks_of(2), COSTS[:4], Grid.of(1, 2), HARDWARE)
    with pytest.raises(ValueError, match="bandwidth"):
        Hardware(1.0, 0.0, 0.0)


# --------------------------------------------------------------------------------------------- the committed numbers


def report():
    return json.loads((ROOT / "results/projection.json").read_text())


def benchmark():
    spec = importlib.util.spec_from_file_location("projection_benchmark", ROOT / "benchmarks/projection.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_projection_is_what_the_program_finds():
    module = benchmark()
    found = next(m for m in report()["models"] if (m["model"], m["muon"]) == ("gpt-124m", "default"))
    groups = module.groups_of("gpt-124m", "default")
    for layout, (replicas, shards) in module.layouts(8).items():
        of = project(*module.jobs(groups, shards), Grid.of(replicas, shards), module.HARDWARE)
        [row] = [row for row in found["rows"] if (row["layout"], row["ranks"]) == (layout, 8)]
        assert json.loads(json.dumps(module.row(layout, of))) == row
        assert of.balance <= 1.1


def test_all_committed_rows_were_checked_against_the_formula():
    rows = [row for model in report()["models"] for row in model["rows"]]
    assert len(rows) == 4 * 10
    assert {row["ranks"] for row in rows} == {1, 8, 64, 1024}
    assert all(row["elements_sent"] == row["elements_sent_simulated"] for row in rows)


def test_the_table_of_the_guide_is_the_committed_result():
    guide = (ROOT / "docs/guides/distributed.md").read_text()
    for model in report()["models"]:
        if model["muon"] != "default":
            continue
        for row in model["rows"]:
            if row["ranks"] == 1:
                continue
            cells = [model["model"], f"{row['ranks']:,}", row["layout"], f"{row['balance']:.2f}"]
            cells += [f"{row['elements_sent'] * 4 / 1e9:,.1f}", f"{row['elements_sent_by_busiest'] * 4 / 1e9:.2f}"]
            cells += [f"{row[name]:,.1f}" for name in ("compute_ms", "communication_ms", "everyone_does_everything_ms")]
            assert f"| {' | '.join(cells)} |" in guide, cells
    for value in report()["assumed"].values():
        assert not isinstance(value, float) or f"{value:g}".replace("+", "") in guide, value
