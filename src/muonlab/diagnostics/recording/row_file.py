"""A file of JSON lines that a killed process leaves readable and a resumed one goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from muonlab.diagnostics.certificates import text

_PIECE = 1 << 20
"""Bytes that are read at a time from the end of a file, in search of its last whole line."""
_LONGEST = 1 << 24
"""Bytes that a line of a recording can have."""
_EVENTS = ("matrix", "whole", "missing")
_BEGIN = b'{"event"'


class RowFile:
    """Appends rows, one JSON object a line; each call of :meth:`write` ends with a flush to the system.

    A file that exists must be a recording. Its last line, if a kill has cut it off, is dropped at the first write.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"a recording goes into a directory that exists, got {self.path}: create it first")
        if self.path.is_dir():
            raise ValueError(f"a recording is a file, got the directory {self.path}: add a name such as rows.jsonl")
        self._file = self.path.open("a+b")
        self._resumed = False
        try:
            self._end()
        except BaseException:
            self._file.close()
            raise

    def _end(self) -> tuple[int, bool]:
        """Return where the whole lines of a recording end, and whether the last has yet to get its line end."""
        size = self._file.seek(0, os.SEEK_END)
        if not size:
            return 0, False
        self._file.seek(0)
        first = self._file.readline(_LONGEST)
        start, tail = self._last_line(size)
        is_cut = not start and tail.startswith(_BEGIN) and not _is_json(tail)
        is_tail = not tail or tail.startswith(_BEGIN) or (start > 0 and _BEGIN.startswith(tail))
        if not (_is_row(first) or is_cut) or not is_tail or len(tail) > _LONGEST:
            raise ValueError(
                f"a recording goes on with a file of JSON lines, got {self.path}, which is something else: choose a "
                f"new name"
            )
        whole = bool(tail) and _is_json(tail)
        return (size if whole else start), whole

    def _last_line(self, size: int) -> tuple[int, bytes]:
        """Return where the bytes after the last line end begin, and them, or more than a line can have."""
        start, pieces = size, [b""]
        while start and b"\n" not in pieces[-1] and size - start <= _LONGEST:
            first = max(0, start - _PIECE)
            self._file.seek(first)
            pieces.append(self._file.read(start - first))
            start = first
        whole = pieces[-1].rfind(b"\n") + 1
        pieces[-1] = pieces[-1][whole:]
        return start + whole, b"".join(reversed(pieces))

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows."""
        lines = [json.dumps(text.plain(row), allow_nan=False, ensure_ascii=True) for row in rows]
        if not self._resumed:  # looked at again: another may have written since
            end, is_open = self._end()
            if end < self._file.seek(0, os.SEEK_END):
                self._file.truncate(end)
            self._file.write(b"\n" if is_open else b"")
            self._resumed = True
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _is_row(line: bytes) -> bool:
    row = json.loads(line.decode()) if line.startswith(b"{") and _is_json(line) else {}
    return row.get("event") in _EVENTS
