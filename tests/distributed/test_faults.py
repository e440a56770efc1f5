"""What is wrong on one rank is an error on all of them, before anything has changed, and nobody waits in vain."""

from __future__ import annotations

import pytest

from tests.distributed.registry import TIMEOUT, each_size


def messages(found):
    """Return the message that all ranks raised, and fail unless all raised the same."""
    assert all(one is not None for one in found), f"some ranks raised nothing: {found}"
    kinds, said = zip(*found, strict=True)
    assert len(set(kinds)) == len(set(said)) == 1, found
    return kinds[0], said[0]


@each_size("absent copy")
def test_a_gradient_that_one_copy_lacks_is_refused_by_all_ranks_by_name(ranks, size, cases):
    for case in cases:
        kind, said = messages(ranks(size).values(case))
        assert kind == "ValueError"
        assert "layer1" in said
        assert "layer0" not in said


@each_size("nan raise")
def test_nan_on_one_rank_raises_on_all_and_changes_nothing(ranks, size, cases):
    for case in cases:
        kind, said = messages(ranks(size).values(case))
        assert kind == "ValueError"
        assert "layer2" in said
        assert "layer1" not in said


@each_size("nan propagate")
def test_nan_that_may_propagate_reaches_its_own_parameter_only_and_no_rank_waits(ranks, size, cases):
    for case in cases:
        for names in ranks(size).values(case):
            assert all("layer2" in name for name in names)
        last = ranks(size).values(case)[-1]
        assert "momentum_buffer of layer2" in last


@each_size("plan")
def test_a_rank_with_another_plan_is_named_on_all_ranks_and_nothing_changes(ranks, size, cases):
    for case in cases:
        found = ranks(size).values(case)
        kind, said = messages([one["raised"] for one in found])
        assert kind == "ValueError"
        assert "rank 1" in said or (size == 2 and "rank 0" in said)  # of two, either is the odd one
        assert "rank 2" not in said
        assert all(one["unchanged"] for one in found)


@each_size("lost rank")
def test_ranks_that_wait_for_one_that_failed_before_its_step_end_with_an_error(ranks, size, cases):
    for case in cases:
        first, *others = ranks(size).values(case)
        assert first["raised"][0] == "ValueError"
        assert ("needs parameters" if "no_parameters" in case else "lr must") in first["raised"][1]
        for one in others:
            assert one["raised"] is not None
            assert "every rank must take part" in one["raised"][1]
            assert "\n" not in one["raised"][1]
            assert one["seconds"] < TIMEOUT.total_seconds()


@each_size("refused")
def test_a_placement_that_is_not_served_is_refused_by_name_with_its_way_out(ranks, size, cases):
    for case in cases:
        for found in ranks(size).values(case):
            kind, said = found["raised"]
            assert kind == "TypeError"
            assert "odd.weight" in said
            assert "\n" not in said
            assert "redistribute it" in said or "artial" in found["placements"]


def test_a_wire_of_float16_is_refused_by_name(ranks):
    for kind, said in ranks(2).values("a_wire_that_loses_small_momenta_is_refused"):
        assert kind == "ValueError"
        assert "comm_dtype must be one of None, torch.bfloat16" in said


@pytest.mark.slow
def test_the_strided_case_is_one(ranks):
    [placements] = {found["placements"] for found in ranks(4).values("refused_strided")}
    assert "StridedShard" in placements or "_S(" in placements


def test_messages_notice_a_rank_that_raised_nothing_or_something_else():
    with pytest.raises(AssertionError, match="raised nothing"):
        messages([["ValueError", "a"], None])
    with pytest.raises(AssertionError):
        messages([["ValueError", "a"], ["ValueError", "b"]])
