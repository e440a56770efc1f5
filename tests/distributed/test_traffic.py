"""What ranks send is what the formula says; the work is shared, each matrix once; bfloat16 halves the bytes."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest

from tests.distributed.cases.traffic import PROBLEMS
from tests.distributed.problems import STACKS, Matrix
from tests.distributed.registry import each_size
from tests.distributed.wire import pieces, sent_for, stays, total_for, units

FLOAT32 = 4


def grid(case, size):
    """Return replicas and shards of a problem."""
    matrices, shape = PROBLEMS[case.removeprefix("traffic_")]
    return matrices, *(shape or ((1, size) if isinstance(matrices[0].where, int) else (size, 1)))


def owner_of(steps, step, one, block):
    """Return which rank's hooks saw all of a unit in a step."""
    name = f"{one.label}/{block}/"
    [owner] = [r for r, mine in enumerate(steps) if any(seen.startswith(name) for seen, _ in mine[step]["seen"])]
    return owner


def expected(case, size, steps, step, formula=sent_for, shards_off=0):
    """Return the elements that each rank should send in a step, by the owners that were seen."""
    matrices, replicas, shards = grid(case, size)
    moving = [(one, block) for one, block in units(matrices) if not stays(one)]
    found = [
        formula(one, block, owner_of(steps, step, one, block), replicas, shards + shards_off) for one, block in moving
    ]
    return [sum(column) for column in zip(*found, strict=True)] if formula is sent_for else sum(found)


def steps_of(ranks, size, case):
    return [found["steps"] for found in ranks(size).values(case)]


@each_size("traffic")
def test_every_rank_sends_the_elements_of_the_formula_and_nothing_to_itself(ranks, size, cases):
    for case in cases:
        steps = steps_of(ranks, size, case)
        for step in range(len(steps[0])):
            assert [mine[step]["bytes"] for mine in steps] == [FLOAT32 * n for n in expected(case, size, steps, step)]
            assert sum(mine[step]["bytes"] for mine in steps) == FLOAT32 * expected(case, size, steps, step, total_for)
            assert all(mine[step]["to_self"] == 0 for mine in steps)


@each_size("traffic")
def test_all_else_that_is_sent_is_a_word_per_parameter(ranks, size, cases):
    for case in cases:
        steps = steps_of(ranks, size, case)
        count = len(grid(case, size)[0])
        for mine in steps:
            for step in mine:
                assert not [name for name, _ in step["others"] if "object" in name]
                # and the 33 numbers of a plan, of every rank
                assert sum(elements for _, elements in step["others"]) <= count + 34 * (size + 1)


@each_size("traffic")
def test_every_matrix_is_orthogonalized_once_by_one_rank_to_the_bits_of_one_process(ranks, size, cases):
    for case in cases:
        found = ranks(size).values(case)
        for step, alone in enumerate(found[0]["alone"]):
            seen = Counter(tuple(one) for mine in found for one in mine["steps"][step]["seen"])
            assert seen == Counter(tuple(one) for one in alone["seen"])
            assert sum(mine["steps"][step]["orthogonalized"] for mine in found) == alone["orthogonalized"]
            assert [len(mine["steps"][step]["seen"]) for mine in found] == [
                mine["steps"][step]["orthogonalized"] for mine in found
            ]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_work_is_shared_by_all_ranks(ranks, size):
    for case in ("traffic_replicated", "traffic_shard0", "traffic_shard1"):
        for mine in steps_of(ranks, size, case):
            assert all(step["orthogonalized"] > 0 for step in mine)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_formula_with_one_shard_more_is_noticed(ranks, size):
    for case in ("traffic_shard0", "traffic_shard1"):
        steps = steps_of(ranks, size, case)
        measured = sum(mine[1]["bytes"] for mine in steps)
        assert measured == FLOAT32 * expected(case, size, steps, 1, total_for)
        assert measured != FLOAT32 * expected(case, size, steps, 1, total_for, shards_off=1)


@pytest.mark.slow
def test_stacks_on_replicas_are_orthogonalized_by_each_replica(ranks):
    found = ranks(4).values("counts_hsdp_stack")
    count = sum(prod(one.shape[:-2]) for one in STACKS)
    for step in range(len(found[0])):
        assert sum(mine[step]["bytes"] for mine in found) == 0
        assert sum(mine[step]["orthogonalized"] for mine in found) == 2 * count


@each_size("implicit")
def test_nothing_is_sent_behind_the_back_of_torch_distributed(ranks, size, cases):
    for case in cases:
        for found in ranks(size).values(case):
            assert sum(count for _, count in found["below"]) == found["above"] > 0


@each_size("half")
def test_bfloat16_halves_the_bytes_and_keeps_all_ranks_alike(ranks, size, cases):
    for case in cases:
        found = ranks(size).values(case)
        assert all(mine["half"] * 2 == mine["full"] for mine in found)
        assert sum(mine["full"] for mine in found) > 0
        assert all(mine["crcs"] == found[0]["crcs"] for mine in found)
        assert all(mine["momenta"] == [] for mine in found)  # only what is sent is rounded
        lr, steps, scale = 0.01, 20, (40 / 9) ** 0.5
        assert 0 < found[0]["apart"] < steps * lr * scale * 2**-7


@each_size("small messages")
def test_watched_gradients_cost_two_numbers_and_rescaled_weights_a_row_of_norms(ranks, size, cases):
    for case in cases:
        from tests.distributed.problems import SHAPES

        rows = sum(one.shape[0] for one in SHAPES)
        for found in ranks(size).values(case):
            for name, most in {"watched": 3 * len(SHAPES), "rescaled": rows + len(SHAPES)}.items():
                last = found[name][-1]
                assert sum(elements for _, elements in last["others"]) <= most + 8


def test_the_formula_by_hand():
    even, uneven = Matrix((4, 3), where=0), Matrix((5, 2), where=0)
    assert pieces(uneven, 0, 4) == [4, 4, 2, 0]
    assert sent_for(even, 0, 0, 1, 2) == [6, 6]
    assert total_for(even, 0, 1, 1, 2) == 12
    assert sent_for(uneven, 0, 3, 1, 4) == [4, 4, 2, 10]
    assert sent_for(Matrix((4, 3), where="plain"), 0, 2, 4, 1) == [0, 0, 36, 0]
    assert sent_for(even, 0, 1, 2, 2) == [6, 18, 0, 0]
    assert total_for(even, 0, 1, 2, 2) == 24


def test_the_formula_is_the_sum_over_ranks():
    matrices = Matrix((5, 12), where=0), Matrix((3, 7), where=1), Matrix((21, 8), (9, 5, 7), where=0)
    for (replicas, shards), (one, block) in product(((1, 2), (1, 3), (2, 2), (4, 1)), units(matrices)):
        for owner in range(replicas * shards):
            grid_at = one, block, owner, replicas, shards
            assert sum(sent_for(*grid_at)) == total_for(*grid_at)
