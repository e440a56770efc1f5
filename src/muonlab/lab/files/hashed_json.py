"""JSON files that contain a hash of their own content, so that a changed bit is detected when the file is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muonlab.lab.files import disk

HASH = "file_sha256"
"""Last key of every file: the sha256 of the file without this key."""


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object and its hash to a JSON file, atomically."""
    disk.write_file(path, hashed_bytes(value))


def hashed_bytes(value: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file with its hash.

    Example:
        >>> hashed_bytes({"a": 1}).split()[1:4]
        [b'"a":', b'1,', b'"file_sha256":']
    """
    digest = hashlib.sha256(_encode(value)).hexdigest()
    return _encode({**value, HASH: digest}) + b"\n"


def read_json(path: Path, *, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the object in a JSON file, without its hash.

    Args:
        path: of the file.
        default: returned if there is no file; with None a missing file is an error.

    Raises:
        ValueError: if the file is missing, or is not byte for byte what :func:`write_json` wrote.
    """
    try:
        content = path.read_bytes() if path.is_file() or not path.exists() else b""  # reading a pipe would not end
    except (FileNotFoundError, NotADirectoryError):
        if default is not None:
            return dict(default)
        raise ValueError(f"a run directory must have all of its files, got {path} missing: {_way_out(path)}") from None
    value = _decode(content)
    if value is None:
        raise ValueError(
            f"a JSON file of a run directory must match the hash that it carries, got {path} damaged: {_way_out(path)}"
        )
    return value


def _decode(content: bytes) -> dict[str, Any] | None:
    """Return the object in the content of a file; None if a bit was changed.

    The object is encoded again and compared as bytes, so that a changed bit is found even if the value is the same.
    """
    try:
        value = json.loads(content)
        if not isinstance(value, dict):
            return None
        value.pop(HASH, None)
        return value if hashed_bytes(value) == content else None
    except (ValueError, RecursionError):
        return None


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, allow_nan=False).encode()


def _way_out(path: Path) -> str:
    if path.parent.parent.name == "cells":
        return "remove the folder of the cell and run the study again"
    return "restore it from a copy, or choose another --out"
