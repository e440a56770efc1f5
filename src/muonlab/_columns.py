"""Cells in columns: the one place that aligns text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return lines whose cells stand in columns, those of the columns ``right`` to the right.

    Example:
        >>> aligned([["name", "n"], ["a", "20"]], right=[1])
        ['name   n', 'a     20']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    placed = (
        [cell.rjust(w) if j in right else cell.ljust(w) for j, (cell, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in placed]
