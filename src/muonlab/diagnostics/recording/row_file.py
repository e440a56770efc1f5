"""A file of JSON lines that stays readable when the process is killed, and that a resumed run appends to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from muonlab import _checks, _files
from muonlab.diagnostics.certificates import text

_LONGEST = 1 << 24
"""Bytes that a line of a recording can have."""
_EVENTS = ("matrix", "whole", "missing")
_START = b'{"event"'


class RowFile:
    """Append rows, one JSON object a line; each call of :meth:`write` passes them to the operating system.

    An existing file must be a recording. If its last line was cut off by a kill, the first write removes it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _checks.path("to", path)
        if not self.path.parent.is_dir():
            raise ValueError(f"a recording needs a directory that exists, got {self.path}: create it first")
        if self.path.is_dir():
            raise ValueError(f"a recording is a file, got the directory {self.path}: add a name such as rows.jsonl")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        descriptor = _files.open_regular(self.path, flags, follow_link=True)
        self._file = os.fdopen(descriptor, "a+b", buffering=0)
        self._resumed = False
        try:
            self._end_of_rows()
        except BaseException:
            self._file.close()
            raise

    def _end_of_rows(self) -> tuple[int, bool]:
        """Return where the complete rows end, and whether the last one has no newline yet; refuse other files."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        first = (self._file.read(_LONGEST) or b"").partition(b"\n")[0]
        self._file.seek(max(0, size - _LONGEST))
        tail = self._file.read()
        last = tail[tail.rfind(b"\n") + 1 :]
        start = size - len(last)
        is_cut_off = start == 0 and last.startswith(_START) and not _is_json(last)
        is_row_start = last.startswith(_START) or (start > 0 and _START.startswith(last))
        if size and not ((_is_row(first) or is_cut_off) and is_row_start and len(last) < _LONGEST):
            raise ValueError(f"only a recording can be appended to, got {self.path} of another kind: choose a new name")
        is_complete = bool(last) and _is_json(last)
        return (size if is_complete else start), is_complete

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows; numbers that are not finite become null."""
        lines = [json.dumps(text.plain(row), allow_nan=False, ensure_ascii=True) for row in rows]
        if not self._resumed:  # checked again: another process may have written since
            end, needs_newline = self._end_of_rows()
            if end < self._file.seek(0, os.SEEK_END):
                self._file.truncate(end)
            self._write_all(b"\n" if needs_newline else b"")
            self._resumed = True
        self._write_all("".join(f"{line}\n" for line in lines).encode())

    def _write_all(self, content: bytes) -> None:
        """Write without a buffer: what a full disk did not take must not come back as an error of ``close``."""
        while content:
            content = content[self._file.write(content) or 0 :]

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
