"""Atomic file writes, fsync, and the errors of a full disk."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from muonlab import _files

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exceeded quota and a file that is too large."""


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a small file atomically; with ``durable``, return only when it is on the disk.

    Raises:
        ValueError: if ``path`` is a directory, a pipe or a device.
    """
    _files.require_replaceable(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as file:  # "x": do not write through an existing link
            file.write(content)
        if durable:
            sync_and_rename(part, path)
        else:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sync_and_rename(part: Path, path: Path) -> None:
    """Sync a file, rename it to its final name, and sync the directory."""
    sync(part)
    part.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk; raises OSError if the disk is full."""
    if path.is_dir():
        with suppress(OSError):  # not every system can open a directory
            _sync_descriptor(os.open(path, os.O_RDONLY))
    else:
        _sync_descriptor(os.open(path, os.O_RDWR))


def _sync_descriptor(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the sha256 of a regular file in hexadecimal digits."""
    with os.fdopen(_files.open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
