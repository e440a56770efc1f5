"""Recorders, AutoSteps and certificates over ranks say what they say of one process."""

from __future__ import annotations

import pytest

from tests.distributed.registry import listed


@pytest.mark.parametrize(("size", "case"), listed("watched"))
def test_every_rank_has_the_rows_changes_and_certificates_of_one_process(ranks, size, case):
    assert ranks(size).values(case) == [None] * size  # a case compares by itself, and raises
