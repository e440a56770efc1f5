"""The projection simulates what a step sends: against the formula, by hand, and against the step's own buckets."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import Parameter

from muonlab import Muon
from muonlab.optim.distributed.exchange import OwnedBlock, elements_sent
from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.distributed.layout import DistributedLayout
from muonlab.optim.distributed.pipeline import DistributedPipeline
from muonlab.optim.distributed.plan import assign_owners
from muonlab.optim.views import matrix_blocks

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("projection_benchmark", ROOT / "benchmarks/projection.py")
program = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = program  # dataclasses look their module up
SPEC.loader.exec_module(program)
REPORT = json.loads((ROOT / "results/projection.json").read_text())

SHAPES = ((1, 5), (3, 4), (8, 2), (15, 7), (8, 2))
COSTS = (5.0, 12.0, 16.0, 105.0, 16.0)
HARDWARE = program.Hardware(operations=100.0, bandwidth=50.0, latency=0.25)


def blocks_of(shards, dim=0):
    return [block for shape in SHAPES for block in matrix_blocks(shape, "flatten", dim, shards)]


def test_simulated_messages_add_up_to_the_formula_and_the_busiest_rank_is_that_of_counting():
    for replicas in (1, 2, 3):
        for shards in (1, 2, 3, 5):
            for dim in (0, 1):
                blocks, ranks = blocks_of(shards, dim), replicas * shards
                for bucket in (1, 40, 1 << 25):
                    projection = program.project(
                        blocks, COSTS, RankGrid.simulated(replicas, shards), HARDWARE, bucket=bucket
                    )
                    assert projection.sent == projection.simulated
                owners = assign_owners(COSTS, ranks)
                wrong = RankGrid.simulated(replicas + 1, shards)
                assert projection.simulated != sum(
                    elements_sent(OwnedBlock(b, o), wrong) for b, o in zip(blocks, owners, strict=True)
                )
                if shards == 1:
                    continue
                sent, received = [0] * ranks, [0] * ranks
                for block, owner in zip(blocks, owners, strict=True):
                    held = [block.piece_elements(rank % shards) for rank in range(ranks)]
                    for rank in set(range(ranks)) - {owner}:
                        to_owner = held[rank] if rank // shards == owner // shards else 0
                        sent[rank] += to_owner
                        received[owner] += to_owner
                        sent[owner] += held[rank]
                        received[rank] += held[rank]
                assert (projection.max_sent, projection.max_received) == (max(sent), max(received))


def test_seconds_by_hand():
    alone = program.project(blocks_of(1), COSTS, RankGrid.simulated(1, 1), HARDWARE)
    assert (alone.sent, alone.simulated, alone.max_messages, alone.communication) == (0, 0, 0, 0.0)
    assert alone.sequential == alone.overlapped == alone.redundant == sum(COSTS) / 100.0
    # 6 of 12 elements go to the owner, 6 come back
    blocks = matrix_blocks((4, 3), "flatten", 0, 2)
    sharded = program.project(blocks, [300.0], RankGrid.simulated(1, 2), HARDWARE, element=2)
    assert (sharded.sent, sharded.max_sent, sharded.max_received, sharded.max_messages) == (12, 6, 6, 2)
    assert sharded.communication == 6 * 2 / 50 + 2 * 0.25
    assert (sharded.compute, sharded.sequential, sharded.overlapped, sharded.balance) == (3.0, 3.74, 3.0, 2.0)
    # rank 0 sends to 1 and 2, rank 1 to 3
    copies = program.project(matrix_blocks((4, 3), "flatten"), [300.0], RankGrid.simulated(4, 1), HARDWARE)
    assert (copies.sent, copies.simulated, copies.max_sent, copies.max_received) == (36, 36, 24, 12)
    # three of five matrices on each replica, nothing to send
    stack = program.project(matrix_blocks((5, 4, 4), "batch", 0, 2), [500.0], RankGrid.simulated(2, 2), HARDWARE)
    assert (stack.sent, stack.simulated, stack.operations, stack.balance) == (0, 0, 300.0, 1.2)
    for changed in ((100.0, 25.0, 0.25), (100.0, 50.0, 0.5), (50.0, 50.0, 0.25)):
        assert replace(sharded, hardware=program.Hardware(*changed)).sequential > sharded.sequential


def test_a_broadcast_reaches_every_other_rank_once_from_one_that_has_it():
    owned = [OwnedBlock(block, owner) for owner, block in enumerate(blocks_of(1)[:2])]
    for ranks in (2, 3, 5, 8, 13):
        for owner, transfers in enumerate(program.broadcasts(owned, RankGrid.simulated(ranks, 1))):
            left = [(sender, t.rank) for sender, way in enumerate(transfers) for t in way.send]
            assert sorted(receiver for _, receiver in left) == sorted(set(range(ranks)) - {owner})
            reached, rounds = {owner}, 0
            while left:
                new = {receiver for sender, receiver in left if sender in reached}
                assert new
                left = [(sender, receiver) for sender, receiver in left if receiver not in new]
                reached |= new
                rounds += 1
            assert rounds <= (ranks - 1).bit_length()


class SimulatedLayout(DistributedLayout):
    """Ranks without processes: keeps the buckets of a step and does none of its work."""

    def agree(self, flags, names):  # noqa: ARG002
        return list(flags)

    def pipeline(self, observe):
        self.buckets = []

        class Pipeline(DistributedPipeline):
            def _advance(pipeline, bucket):  # noqa: N805
                self.buckets.append([self.owned_block(p) for batch in bucket.batches for p in batch.pieces])
                return []

        return Pipeline(self, observe)


def test_buckets_are_those_of_a_step(monkeypatch):
    shapes = ((8, 6), (4, 9), (8, 6), (4, 9), (8, 6), (20, 5), (2, 2), (8, 6))
    for budget in (64, 500, 700, 2000, 1 << 20):
        monkeypatch.setattr("muonlab.optim.distributed.layout.BUCKET_BYTES_PER_RANK", budget // 4)
        params = [Parameter(torch.zeros(shape)) for shape in shapes]
        muon = Muon(params)
        layout = muon._layouts.for_plain_tensors = SimulatedLayout(RankGrid.simulated(4, 1))
        for p in params:
            p.grad = torch.ones_like(p)
        muon.step()
        owned = [OwnedBlock(block, layout._owners[p, 0]) for p in params for block in matrix_blocks(p.shape, "flatten")]
        assert list(program.buckets(owned, 4, budget)) == layout.buckets
        assert sum(map(len, layout.buckets)) == len(shapes)
        assert budget != 500 or len(layout.buckets) > 2


def test_the_committed_projection_is_what_the_program_finds_and_its_table_is_in_the_guide():
    groups = program.groups_of("gpt-124m", "default")
    committed = next(m for m in REPORT["models"] if (m["model"], m["muon"]) == ("gpt-124m", "default"))
    for layout, (replicas, shards) in program.layouts(8).items():
        grid = RankGrid.simulated(replicas, shards)
        projection = program.project(*program.priced_blocks(groups, shards), grid, program.HARDWARE)
        [row] = [row for row in committed["rows"] if (row["layout"], row["ranks"]) == (layout, 8)]
        assert json.loads(json.dumps(program.row(layout, projection))) == row
        assert projection.balance <= 1.1
    assert all(r["elements_sent"] == r["elements_sent_simulated"] for m in REPORT["models"] for r in m["rows"])
    guide = (ROOT / "docs/guides/distributed.md").read_text()
    for model in REPORT["models"]:
        for row in model["rows"]:
            if model["muon"] != "default" or row["ranks"] == 1:
                continue
            cells = [model["model"], f"{row['ranks']:,}", row["layout"], f"{row['balance']:.2f}"]
            cells += [f"{row['elements_sent'] * 4 / 1e9:,.1f}", f"{row['elements_sent_by_busiest'] * 4 / 1e9:.2f}"]
            cells += [f"{row[name]:,.1f}" for name in ("compute_ms", "communication_ms", "everyone_does_everything_ms")]
            assert f"| {' | '.join(cells)} |" in guide, cells
