"""Files of JSON lines with a hash of what was saved; a resumed run cuts them back to what its checkpoint counts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

SavedRows = Mapping[str, Mapping[str, Any]]
"""For each file of rows, by name without ``.jsonl``: how many ``lines`` were saved, and the ``sha256`` of these."""


class RowFiles:
    """The ``.jsonl`` files of a folder, by name; a line is handed to the system as soon as it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._lines: dict[str, int] = {}
        self._hashes: dict[str, Any] = {}

    def cut(self, saved: SavedRows) -> None:
        """Cut each file to the lines that were saved, which must be unchanged; remove the files that are not named."""
        for name in {*saved, *(path.stem for path in self.folder.glob("*.jsonl"))}:
            path = self.folder / f"{name}.jsonl"
            if name not in saved:
                path.unlink(missing_ok=True)
                continue
            kept = saved_content(path, saved[name])
            with path.open("r+b") as file:
                file.truncate(len(kept))
            self._lines[name], self._hashes[name] = saved[name]["lines"], hashlib.sha256(kept)

    def write(self, row: dict[str, Any], name: str) -> None:
        """Append a row."""
        if name not in self._open:
            self._open[name] = (self.folder / f"{name}.jsonl").open("ab")
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._open[name].write(line)
        self._open[name].flush()
        self._lines[name] = self._lines.get(name, 0) + 1
        self._hashes.setdefault(name, hashlib.sha256()).update(line)

    def save(self) -> SavedRows:
        """Bring the rows to the disk; return how many lines each file has, and their hash."""
        for file in self._open.values():
            os.fsync(file.fileno())
        return {name: {"lines": count, "sha256": self._hashes[name].hexdigest()} for name, count in self._lines.items()}

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def saved_content(path: Path, saved: Mapping[str, Any], *, finished: bool = False) -> bytes:
    """Return the lines of a file that were saved; raise if they are not there or were changed.

    Args:
        path: of the file.
        saved: its entry of :data:`SavedRows`.
        finished: whether there must be nothing after these lines.
    """
    content = path.read_bytes() if path.is_file() else b""
    lines = content.split(b"\n")[:-1]
    kept = b"".join(line + b"\n" for line in lines[: saved["lines"]])
    if hashlib.sha256(kept).hexdigest() != saved["sha256"] or (finished and kept != content):
        raise ValueError(
            f"the rows of a cell must be those that it saved, got {path} damaged: remove the folder of the cell and "
            f"run the study again"
        )
    return kept


def read_rows(path: Path, saved: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the rows of a file that were saved; none if nothing was. Rows after these are not read."""
    if saved is None:
        return []
    rows = []
    for number, line in enumerate(saved_content(path, saved).splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or "event" not in row:
            raise ValueError(
                f"a file of rows must be JSON objects with an event, got {path} with line {number} damaged: remove the "
                f"folder of the cell and run the study again"
            )
        rows.append(row)
    return rows
