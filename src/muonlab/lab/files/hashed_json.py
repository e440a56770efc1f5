"""JSON files that carry a hash of their own content, so that a changed bit is noticed when the file is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muonlab.lab.files import disk

SEAL = "file_sha256"
"""Last entry of every file: the sha256 of the file without this entry."""


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object to a sealed JSON file, as a whole or not at all."""
    disk.write(path, sealed(value))


def read_json(path: Path, *, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the object in a sealed JSON file.

    Args:
        path: of the file.
        default: returned if there is no file; None makes that an error.

    Raises:
        ValueError: if the content is not, byte for byte, what :func:`write_json` wrote.
    """
    try:
        content = path.read_bytes() if path.is_file() or not path.exists() else b""  # reading a pipe would not end
    except (FileNotFoundError, NotADirectoryError):
        if default is None:
            raise ValueError(
                f"a run directory must have all of its files, got {path} missing: {_way_out(path)}"
            ) from None
        return dict(default)
    value = _unsealed(content)
    if value is None:
        raise ValueError(
            f"a JSON file of a run directory must match the hash that it carries, got {path} damaged: {_way_out(path)}"
        )
    return value


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of a sealed file.

    Example:
        >>> sealed({"a": 1}).split()[1:4]
        [b'"a":', b'1,', b'"file_sha256":']
    """
    seal = hashlib.sha256(_text(value)).hexdigest()
    return _text({**value, SEAL: seal}) + b"\n"


def _unsealed(content: bytes) -> dict[str, Any] | None:
    """Return the object in the bytes of a sealed file; None if a bit of them was changed.

    The object is written again and compared as bytes: a bit that parses to the same value is noticed, too.
    """
    try:
        value = json.loads(content)
        if not isinstance(value, dict):
            return None
        value.pop(SEAL, None)
        return value if sealed(value) == content else None
    except (ValueError, RecursionError):
        return None


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, allow_nan=False).encode()


def _way_out(path: Path) -> str:
    if path.parent.parent.name == "cells":
        return "remove the folder of the cell and run the study again"
    return "restore it from a copy, or choose another --out"
