"""Files that are on the disk as a whole or not at all, and what a full disk says."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a disk, a quota or a limit that is reached."""


def write(path: Path, content: bytes, *, waiting: bool = True) -> None:
    """Write a small file as a whole or not at all; unless ``waiting``, the disk may take its time."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as file:  # never through a link that someone has put there
            file.write(content)
        if waiting:
            settle(part, path)
        else:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def settle(part: Path, path: Path) -> None:
    """Bring a file to the disk, give it its name, and bring the name to the disk."""
    sync(part)
    part.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk; what a full disk says only now is an error, too."""
    if path.is_dir():
        with suppress(OSError):  # not every system opens directories
            _sync_descriptor(os.open(path, os.O_RDONLY))
    else:
        _sync_descriptor(os.open(path, os.O_RDWR))


def _sync_descriptor(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
