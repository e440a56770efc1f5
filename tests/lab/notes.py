"""A CellContext that keeps rows and progress in lists, for tests without the runner."""

from __future__ import annotations

from typing import Any


class Notes:
    """Rows and progress in lists; ``stopping`` is a fixed value."""

    def __init__(self, *, stopping: bool = False) -> None:
        self.stopping, self.begun = stopping, 0
        self.rows: list[dict[str, Any]] = []
        self.seen: list[tuple[int, int]] = []

    def begin(self, saved: dict[str, Any]) -> None:
        assert saved == {}
        self.begun += 1

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        assert self.begun == 1, "rows are written after begin"
        assert file == "metrics"
        self.rows.append(row)

    def progress(self, done: int, total: int, **_: float) -> None:
        self.seen.append((done, total))
