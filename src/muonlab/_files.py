"""Safe ways to read and replace files that may be damaged or hostile: regular files, limited size, limited depth."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

LARGEST_JSON = 2**28
"""Most bytes of a JSON file."""
LARGEST_ROWS = 2**31
"""Most bytes of a file of JSON lines."""
DEEPEST_JSON = 64
"""Most objects and arrays inside each other in JSON."""

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for its other end
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow_link: bool = False) -> int:
    """Open a regular file and return its descriptor; never waits.

    Args:
        path: of the file.
        flags: of :func:`os.open`, such as ``os.O_RDWR | os.O_CREAT``.
        follow_link: whether ``path`` may be a link to the file.

    Raises:
        OSError: if it is missing or cannot be opened.
        ValueError: if it is not a regular file.
    """
    try:
        facts = path.stat() if follow_link else path.lstat()
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    else:
        _require_regular(path, facts.st_mode)
    descriptor = os.open(path, flags | _NO_WAIT | (0 if follow_link else _NO_LINK), 0o666)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        way_out = "give a regular file; for a link, the file it points to"
        raise ValueError(f"a file must be a regular one, got {path}, which is {kind}: {way_out}")


def read_bytes(path: Path, *, at_most: int = LARGEST_JSON, follow_link: bool = False) -> bytes:
    """Return the content of a regular file of at most ``at_most`` bytes; raises as :func:`open_regular` does."""
    with os.fdopen(open_regular(path, follow_link=follow_link), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most:
            raise ValueError(f"a file must have at most {at_most:,} bytes, got {path} with {size:,}: use a smaller one")
        return file.read(at_most)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raises what :func:`read_bytes` and :func:`parse_json` raise."""
    return parse_json(read_bytes(path))


def parse_json(content: bytes) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: if it is not JSON, or more than :data:`DEEPEST_JSON` objects and arrays are inside each other.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        value = None
    else:
        if content.count(b"[") + content.count(b"{") <= DEEPEST_JSON or _is_shallow(value):
            return value
    raise ValueError(f"JSON must be nested at most {DEEPEST_JSON} deep, got deeper text: write plain objects")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST_JSON + 1):
        level = [
            item
            for container in level
            if isinstance(container, (dict, list))
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return True
    return False


def require_replaceable(path: Path) -> None:
    """Raise ValueError unless ``path`` is free, a regular file, or a link to one: a device is never replaced."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise ValueError(f"only a regular file is replaced, got {path}, which is {kind}: choose another name")
