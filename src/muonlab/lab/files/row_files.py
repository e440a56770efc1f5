"""Files of JSON lines with a hash of the saved lines; a resumed run cuts them back to its checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from muonlab import _files

SavedRows = Mapping[str, Mapping[str, Any]]
"""For each file of rows, by name without ``.jsonl``: the number of saved ``lines`` and their ``sha256``."""


class RowFiles:
    """The ``.jsonl`` files of a folder, by name; every line is flushed as soon as it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._lines: dict[str, int] = {}
        self._hashes: dict[str, Any] = {}

    def cut(self, saved: SavedRows) -> None:
        """Cut each file to its saved lines, which must be unchanged; remove the files that are not in ``saved``."""
        for name in {*saved, *(path.stem for path in self.folder.glob("*.jsonl"))}:
            path = self.folder / f"{name}.jsonl"
            if name not in saved:
                path.unlink(missing_ok=True)
                continue
            kept = saved_content(path, saved[name])
            with os.fdopen(_files.open_regular(path, os.O_RDWR), "r+b") as file:
                file.truncate(len(kept))
            self._lines[name], self._hashes[name] = saved[name]["lines"], hashlib.sha256(kept)

    def write(self, row: dict[str, Any], name: str) -> None:
        """Append a row."""
        if name not in self._open:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._open[name] = os.fdopen(_files.open_regular(self.folder / f"{name}.jsonl", flags), "ab")
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._open[name].write(line)
        self._open[name].flush()
        self._lines[name] = self._lines.get(name, 0) + 1
        self._hashes.setdefault(name, hashlib.sha256()).update(line)

    def save(self) -> SavedRows:
        """Sync the rows to the disk; return the number of lines of each file and their hash."""
        for file in self._open.values():
            os.fsync(file.fileno())
        return {name: {"lines": count, "sha256": self._hashes[name].hexdigest()} for name, count in self._lines.items()}

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def saved_content(path: Path, saved: Mapping[str, Any], *, finished: bool = False) -> bytes:
    """Return the saved lines of a file.

    Args:
        path: of the file.
        saved: its entry of :data:`SavedRows`.
        finished: whether the file must end after these lines.

    Raises:
        ValueError: if the lines are missing or were changed.
    """
    try:
        content = _files.read_bytes(path, at_most=_files.LARGEST_ROWS)
    except (FileNotFoundError, NotADirectoryError):
        content = b""
    lines = content.split(b"\n")[:-1]
    kept = b"".join(line + b"\n" for line in lines[: saved["lines"]])
    if hashlib.sha256(kept).hexdigest() != saved["sha256"] or (finished and kept != content):
        raise ValueError(
            f"the rows of a cell must be those that it saved, got {path} damaged: remove the folder of the cell and "
            f"run the study again"
        )
    return kept


def read_rows(path: Path, saved: Mapping[str, Any] | None, *, finished: bool = False) -> list[dict[str, Any]]:
    """Return the saved rows of a file, none if ``saved`` is None; the arguments are those of :func:`saved_content`."""
    if saved is None:
        return []
    return [_files.parse_json(line) for line in saved_content(path, saved, finished=finished).splitlines()]
