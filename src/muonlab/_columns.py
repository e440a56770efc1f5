"""Text aligned in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return one string per line, with the cells padded to columns; the columns ``right`` are aligned to the right.

    Example:
        >>> aligned([["name", "n"], ["a", "20"]], right=[1])
        ['name   n', 'a     20']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [cell.rjust(w) if j in right else cell.ljust(w) for j, (cell, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in padded]
