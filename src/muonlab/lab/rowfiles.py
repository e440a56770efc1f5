"""Files of JSON lines that a resumed run cuts back to where its checkpoint was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO


class RowFiles:
    """The ``.jsonl`` files of a folder, by name; a line is handed to the system as soon as it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._lines: dict[str, int] = {}

    def cut(self, lines: dict[str, int]) -> None:
        """Keep so many lines of each file; those not named are removed."""
        for name in {*lines, *(path.stem for path in self.folder.glob("*.jsonl"))}:
            path = self.folder / f"{name}.jsonl"
            count = lines.get(name, 0)
            if not count:
                path.unlink(missing_ok=True)
                continue
            whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
            if len(whole) < count:
                raise ValueError(
                    f"{path.name} must have the {count} lines that the checkpoint counts, got {len(whole)}: "
                    f"remove the folder {self.folder.name} to run this cell again"
                )
            with path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in whole[:count]))
            self._lines[name] = count

    def write(self, row: dict[str, Any], name: str) -> None:
        """Append a row."""
        if name not in self._open:
            self._open[name] = (self.folder / f"{name}.jsonl").open("ab")
        self._open[name].write((json.dumps(row, allow_nan=False) + "\n").encode())
        self._open[name].flush()
        self._lines[name] = self._lines.get(name, 0) + 1

    def settle(self) -> dict[str, int]:
        """Bring the rows to the disk; return how many lines each file has."""
        for file in self._open.values():
            os.fsync(file.fileno())
        return dict(self._lines)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without a last line that a kill has cut off."""
    if not path.exists():
        return []
    if not path.is_file():
        raise ValueError(f"rows must be in a file, got {path}, which is none: remove it")
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or "event" not in row:
            raise ValueError(
                f"a file of rows must be JSON objects with an event, got {path} with line {number} damaged: remove the "
                f"folder of the cell and run again"
            )
        rows.append(row)
    return rows
