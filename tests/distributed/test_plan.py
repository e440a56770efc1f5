"""The work of a step is shared out evenly, and the program that measures it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from muonlab import NewtonSchulz
from muonlab.optim.distributed.plan import assign_owners, planned_blocks
from muonlab.optim.layout import GroupedParam

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("distributed", ROOT / "benchmarks" / "distributed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_shards_that_cut_a_turn_are_refused_with_the_rule_to_write():
    group = {"orthogonalizer": NewtonSchulz().plain(), "matrix_view": "interleaved_rows(2, 2, 3)"}
    weight = torch.zeros(20, 3)

    def planned(shards):
        return planned_blocks(GroupedParam(group, "kv_b_proj.weight", weight, weight, SimpleNamespace(shards=shards)))

    assert [one.block.sizes for one in planned(2)] == [(2, 2), (2, 2)]  # turns
    message = r"multiples of 5, got shards of 7, 7, 6 .* rules=\{'kv_b_proj.weight': 'flatten'\}"
    with pytest.raises(ValueError, match=message):
        planned(3)


def test_no_rank_has_a_tenth_more_than_the_mean_of_the_work_on_gpt_124m(program):
    found = program.planned()
    assert found["matrices"] == 72  # of each block: query, key, value, projection, and the two of its wide layer
    for ranks in ("2", "4", "8"):
        assert 1 <= found["most_over_mean"][ranks] <= 1.1
    assert found["most_over_mean"]["64"] == found["at_least"]["64"]  # 72 matrices on 64 ranks: no plan does better


def test_the_measure_of_balance_notices_a_bad_plan(program):
    balance = program.balance
    costs = [3.0, 3.0, 2.0, 2.0, 2.0]
    assert balance(costs, assign_owners(costs, 2), 2) <= 7 / 6
    assert balance(costs, (0, 0, 0, 1, 1), 2) == pytest.approx(8 / 6)
    assert balance(costs, (0,) * 5, 2) == 2


@pytest.mark.slow
def test_two_ranks_send_what_the_formula_of_the_program_says_and_share_the_work(program):
    found = program.timed(2, rounds=1, width=24)
    assert found["weights_are_bitwise_equal"]
    counts = {name: side["orthogonalized_by_all_ranks"] for name, side in found["sides"].items()}
    assert counts == {"every rank does everything": 48, "replicated": 24, "sharded": 24}
    for side in found["sides"].values():
        assert side["elements_sent_by_all_ranks"] == side["elements_sent_by_formula"]
