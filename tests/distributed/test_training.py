"""Real training over ranks, each on its part of the batch, ends where one process ends."""

from __future__ import annotations

from collections import Counter

from tests.distributed.registry import each_size


@each_size("real")
def test_fifty_steps_over_ranks_stay_within_1e_5_of_one_process(ranks, size, cases):
    """Relative to the largest entry of each parameter; rounding differs, since sums over the batch are cut."""
    for case in cases:
        for found in ranks(size).values(case):
            assert found["apart"] <= 1e-5
            assert found["loss"] <= 1e-4
            assert found["last"] < 0.8 * found["first"]


@each_size("real polar")
def test_the_exact_polar_factor_gives_the_losses_of_one_process(ranks, size, cases):
    """Weights are not compared: a polar factor amplifies rounding without bound where singular values are near zero."""
    for case in cases:
        for found in ranks(size).values(case):
            assert found["loss"] <= 1e-4
            assert found["last"] < 0.8 * found["first"]


@each_size("hooks")
def test_hooks_see_every_matrix_once_over_all_ranks_whole_and_with_its_outcome(ranks, size, cases):
    for case in cases:
        found = ranks(size).values(case)
        alone = Counter(tuple(one) for one in found[0]["alone"])
        assert Counter(tuple(one) for mine in found for one in mine["ranks"]) == alone
        assert max(alone.values()) == 1
        assert "unknown" not in {name for name, _ in alone}
