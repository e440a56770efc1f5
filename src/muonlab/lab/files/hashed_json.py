"""JSON files that contain a hash of their own content, so that a changed bit is detected when the file is read.

They are the JSON files of a run directory and of the data cache. :func:`read_json` is their only reader: it accepts
regular files of limited size, the bytes that :func:`write_json` wrote, and the form of ``forms.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muonlab import _files
from muonlab.lab.files import disk
from muonlab.lab.files.forms import FORMS, mismatch

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


def read_json(path: Path, *, default: Mapping[str, Any] | None = None, any_form: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file, without its hash.

    Args:
        path: of the file; its name says which form it must have.
        default: returned if there is no file; with None a missing file is an error.
        any_form: whether the form is left to a later :func:`check_form`.

    Raises:
        ValueError: if the file is missing, is not byte for byte what :func:`write_json` wrote, or has another form.
    """
    try:
        content = _files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        if default is not None:
            return dict(default)
        raise ValueError(f"a run directory must have all of its files, got {path} missing: {_way_out(path)}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {_way_out(path)}") from None
    value = _decode(content)
    if value is None:
        raise ValueError(
            f"a JSON file of a run directory must match the hash that it carries, got {path} damaged: {_way_out(path)}"
        )
    if not any_form:
        check_form(path, value)
    return value


def check_form(path: Path, value: Mapping[str, Any]) -> None:
    """Raise ValueError unless the object in a file has the form of ``forms.py``."""
    form = FORMS.get("checkpoint" if path.parent.name == "checkpoints" else path.name, {})
    problem = mismatch(value, form)
    if problem is not None:
        raise ValueError(
            f"{path.name} must have the form that the lab writes, got {path}, where {problem}: {_way_out(path)}"
        )


def _decode(content: bytes) -> dict[str, Any] | None:
    """Return the object in the content of a file; None if a bit was changed.

    The object is encoded again and compared as bytes, so that a changed bit is found even if the value is the same.
    """
    try:
        value = _files.parse_json(content)
        if not isinstance(value, dict):
            return None
        value.pop(HASH, None)
        return value if hashed_bytes(value) == content else None
    except ValueError:
        return None


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, allow_nan=False).encode()


def _way_out(path: Path) -> str:
    if path.parent.parent.name == "cells":
        return "remove the folder of the cell and run the study again"
    return "restore it from a copy, or choose another --out"
