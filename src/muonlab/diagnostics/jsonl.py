"""A file of JSON lines that a killed process leaves readable and a resumed one goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from muonlab.diagnostics import text

_PIECE = 1 << 20
"""Bytes that are read at a time from the end of a file, in search of its last whole line."""


class RowFile:
    """Appends rows, one JSON object a line; each call of :meth:`write` ends with a flush to the system.

    A last line that was cut off by a kill is dropped when the file is opened again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"a recording goes into a directory that exists, got {self.path}: create it first")
        if self.path.is_dir():
            raise ValueError(f"a recording is a file, got the directory {self.path}: add a name such as rows.jsonl")
        self._file = self.path.open("a+b")
        try:
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def _resume(self) -> None:
        """Make the file end with a whole line: a half one is dropped, a whole one without its end is ended."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        if size and self._file.read(1) != b"{":
            raise ValueError(
                f"a recording goes on with a file of JSON lines, got {self.path}, which is something else: choose a "
                f"new name"
            )
        start, tail = size, b""
        while start and b"\n" not in tail:
            first = max(0, start - _PIECE)
            self._file.seek(first)
            start, tail = first, self._file.read(start - first) + tail
        whole = tail.rfind(b"\n") + 1
        if whole == len(tail):
            return
        if _is_json(tail[whole:]):
            self._file.write(b"\n")
        else:
            self._file.truncate(start + whole)

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows."""
        lines = [json.dumps(text.plain(row), allow_nan=False, ensure_ascii=True) for row in rows]
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
