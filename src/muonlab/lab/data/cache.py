"""The cache of decoded arrays: a directory per source, renamed into place when complete, checked by hash when read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muonlab import _files
from muonlab._cache import cache_directory
from muonlab.lab.files.disk import FULL_DISK, sync
from muonlab.lab.files.hashed_json import read_json, write_json

if sys.platform != "win32":
    import fcntl

_META = "meta.json"
_ATTEMPTS = 3
_DESCRIBED = ("dtype", "shape", "sha256", "header")
"""Keys of an array that must be those of its file."""

Decode = Callable[[Path], Mapping[str, Any]]
"""Writes ``.npy`` files into a directory, may use its subdirectory ``scratch``, and returns facts to keep."""


class _DamagedError(Exception):
    """An array does not match the metadata."""


@dataclass(frozen=True)
class CachedDataset:
    """The metadata of one directory of the cache.

    Args:
        path: the directory.
        hash: of the content of all arrays.
        arrays: dtype, shape, sha256 and file size of each array.
        facts: what ``Decode`` returned.
    """

    path: Path
    hash: str
    arrays: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]

    def count(self, name: str) -> int:
        """Return the length of an array."""
        return int(self.arrays[name]["shape"][0])

    def open_arrays(self) -> dict[str, NDArray[Any]]:
        """Map every array and check its hash; copy-on-write, so that the file never changes."""
        arrays = {}
        for name, expected in self.arrays.items():
            try:
                array = np.load(self.path / f"{name}.npy", mmap_mode="c", allow_pickle=False)
                same = _describe(array) == {key: expected[key] for key in _DESCRIBED}
            except Exception as error:  # numpy raises many types for a damaged file
                raise _DamagedError from error
            if not same:
                raise _DamagedError
            arrays[name] = array
        return arrays


def data_directory(cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of decoded data in ``cache``, ``MUONLAB_CACHE`` or the user's cache directory."""
    directory = cache_directory() if cache is None else Path(cache)
    if directory is None:
        raise ValueError("decoded data need a cache directory, got none and no home directory: set MUONLAB_CACHE")
    return directory / "data"


def read(path: Path) -> CachedDataset | None:
    """Return the metadata of a directory, or None if it is missing or does not match the files; reads no array."""
    try:
        cached = CachedDataset(path, **read_json(path / _META))
        sizes = {name: _size(path / f"{name}.npy") for name in cached.arrays}
        complete = cached.hash == _total_hash(cached.arrays) and all(
            sizes[name] == expected["bytes"] for name, expected in cached.arrays.items()
        )
        return cached if complete else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def get_or_decode(directory: Path, key: str, decode: Decode) -> CachedDataset:
    """Return the cached data of a key; decode them if they are missing.

    If several processes ask for the same key, one decodes and the others wait. Partial data of a killed process are
    removed.
    """
    cached = read(directory / key)
    if cached is not None:
        return cached
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _exclusive(directory / f"{key}.lock") as held:
            cached = read(directory / key)
            if cached is not None:
                return cached
            if held:
                for part in directory.glob(f"{key}.*.part"):
                    shutil.rmtree(part, ignore_errors=True)
            return _decode(directory, key, decode)
    except Exception as error:
        _explain_disk_error(directory, error)
        raise


def get_or_decode_arrays(directory: Path, key: str, decode: Decode) -> tuple[CachedDataset, dict[str, NDArray[Any]]]:
    """Return the cached data of a key and its arrays; damaged data are decoded again."""
    for _ in range(_ATTEMPTS):
        cached = get_or_decode(directory, key, decode)
        try:
            return cached, cached.open_arrays()
        except _DamagedError:
            try:
                _discard(directory, key)
            except OSError as error:
                _explain_disk_error(directory, error)
                raise
    raise OSError(f"the cache {directory / key} is damaged each time it is written: set MUONLAB_CACHE to another disk")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write one array."""
    with array_writer(path, array.dtype.str, array.shape) as write:
        write(array)


@contextmanager
def array_writer(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write one array piece by piece; with plain writes a full disk is an error, not SIGBUS as with a memory map."""
    kind = np.dtype(dtype)
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

        def write(piece: NDArray[Any]) -> None:
            file.write(np.ascontiguousarray(piece, dtype=kind).data)

        yield write


def _decode(directory: Path, key: str, decode: Decode) -> CachedDataset:
    part = Path(tempfile.mkdtemp(dir=directory, prefix=f"{key}.", suffix=".part"))
    try:
        facts = decode(part)
        shutil.rmtree(part / "scratch", ignore_errors=True)
        arrays = {}
        for path in sorted(part.glob("*.npy")):
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            arrays[path.stem] = {**_describe(array), "bytes": path.stat().st_size}
            sync(path)
        content: dict[str, Any] = {"hash": _total_hash(arrays), "arrays": arrays, "facts": dict(facts)}
        write_json(part / _META, content)
        if read(directory / key) is None:  # without locks, another process may have been faster
            _discard(directory, key)
            with suppress(OSError):
                part.rename(directory / key)
        sync(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return CachedDataset(directory / key, **content)


def _discard(directory: Path, key: str) -> None:
    """Remove a directory of the cache; it is renamed first, so that no other process reads a part of it."""
    if (directory / key).exists():
        aside = Path(tempfile.mkdtemp(dir=directory, prefix=f"{key}.", suffix=".part"))
        with suppress(FileNotFoundError):
            (directory / key).rename(aside / "old")
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    """Wait for a lock that ends with the process; yield False if the file system has no locks."""
    with os.fdopen(_files.open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        held = False
        if sys.platform != "win32":
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
                held = True
        yield held


def _describe(array: np.memmap[Any, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    with open(str(array.filename), "rb") as file:
        header = hashlib.sha256(file.read(array.offset)).hexdigest()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest, "header": header}


def _size(path: Path) -> int:
    """Return the size of a regular file."""
    descriptor = _files.open_regular(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _total_hash(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    content = [[name, *(facts[key] for key in ("dtype", "shape", "sha256"))] for name, facts in sorted(arrays.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _explain_disk_error(directory: Path, error: BaseException) -> None:
    """Raise a one-line ``OSError`` if a full or read-only disk is in the chain of causes of an error."""
    cause: BaseException | None = error
    while cause is not None:
        number = cause.errno if isinstance(cause, OSError) else None
        inside = isinstance(cause, OSError) and str(directory) in str(cause.filename or "")
        if number in FULL_DISK or (number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR) and inside):
            raise OSError(
                f"the cache {directory} cannot be written ({os.strerror(number or 0)}): "
                f"free some space, or set MUONLAB_CACHE to another directory"
            ) from error
        cause = cause.__cause__ or cause.__context__
