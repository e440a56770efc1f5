"""Recorders, AutoSteps and certificates over ranks say what they say of one process."""

from __future__ import annotations

from tests.distributed.registry import each_size


@each_size("watched")
def test_every_rank_has_the_rows_changes_and_certificates_of_one_process(ranks, size, cases):
    for case in cases:
        assert ranks(size).values(case) == [None] * size  # a case compares by itself, and raises
