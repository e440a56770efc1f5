"""Arrays decoded once and kept: a directory per source, written aside and renamed, checked by content when read."""

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

from muonlab._cache import cache_directory
from muonlab.lab.files.disk import FULL_DISK, sync

if sys.platform != "win32":
    import fcntl

_META = "meta.json"
_ATTEMPTS = 3


class _DamagedError(Exception):
    """An array of the cache is not what its metadata say."""


@dataclass(frozen=True)
class Stored:
    """What the cache holds of one source, as its metadata say.

    Args:
        path: the directory.
        hash: of the content of all arrays.
        arrays: dtype, shape, sha256 and bytes of each array.
        facts: what else was learnt while decoding.
    """

    path: Path
    hash: str
    arrays: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]

    def count(self, name: str) -> int:
        """Return the length of an array."""
        return int(self.arrays[name]["shape"][0])

    def open(self) -> dict[str, NDArray[Any]]:
        """Map every array, its content checked.

        Mapped copy-on-write: torch wants arrays that could be written, and nothing written ever reaches the file.
        """
        found = {}
        for name, said in self.arrays.items():
            try:
                array = np.load(self.path / f"{name}.npy", mmap_mode="c", allow_pickle=False)
                same = _facts(array) == {key: said[key] for key in ("dtype", "shape", "sha256")}
            except Exception as error:  # whatever numpy makes of a damaged file
                raise _DamagedError from error
            if not same:
                raise _DamagedError
            found[name] = array
        return found


Fill = Callable[[Path], Mapping[str, Any]]
"""Writes ``.npy`` files into a directory, may use its folder ``scratch``, and returns facts to keep."""


def home(cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of decoded data: below ``cache``, ``MUONLAB_CACHE`` or the user's cache directory."""
    if cache is not None:
        return Path(cache) / "data"
    directory = cache_directory()
    if directory is None:
        raise ValueError("decoded data need a cache directory, got none, as there is no home: set MUONLAB_CACHE to one")
    return directory / "data"


def read(path: Path) -> Stored | None:
    """Return what a directory of the cache holds, or None where it is missing or visibly damaged; reads no array."""
    try:
        content = json.loads((path / _META).read_text(encoding="utf-8"))
        found = Stored(path, content["hash"], content["arrays"], content["facts"])
        sizes = {name: (path / f"{name}.npy").stat().st_size for name in found.arrays}
        whole = found.hash == _total(found.arrays) and all(
            sizes[name] == said["bytes"] for name, said in found.arrays.items()
        )
        return found if whole else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def fetch(where: Path, key: str, fill: Fill) -> Stored:
    """Return what the cache holds under a key, decoded by ``fill`` if it is not there yet.

    Of two processes that want the same, one decodes and the other waits. What a killed one left behind is removed.
    """
    found = read(where / key)
    if found is not None:
        return found
    try:
        where.mkdir(parents=True, exist_ok=True)
        with _exclusive(where / f"{key}.lock", wait=True) as held:
            found = read(where / key)
            if found is not None:
                return found
            if held:
                _sweep(where, key)
            return _build(where, key, fill)
    except Exception as error:
        _refuse(where, error)
        raise


def fetch_arrays(where: Path, key: str, fill: Fill) -> tuple[Stored, dict[str, NDArray[Any]]]:
    """Return what the cache holds and its arrays; where their content is damaged, it is decoded again."""
    for _ in range(_ATTEMPTS):
        found = fetch(where, key, fill)
        try:
            return found, found.open()
        except _DamagedError:
            try:
                _discard(where, key)
            except OSError as error:
                _refuse(where, error)
                raise
    raise OSError(f"the cache {where / key} is damaged each time it is written: set MUONLAB_CACHE to another disk")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write one array."""
    with array_writer(path, array.dtype.str, array.shape) as put:
        put(array)


@contextmanager
def array_writer(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write one array piece by piece, by plain writes: a full disk is then an error and not the end of the process."""
    kind = np.dtype(dtype)
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

        def put(piece: NDArray[Any]) -> None:
            file.write(np.ascontiguousarray(piece, dtype=kind).data)

        yield put


def _build(where: Path, key: str, fill: Fill) -> Stored:
    part = Path(tempfile.mkdtemp(dir=where, prefix=f"{key}.", suffix=".part"))
    try:
        facts = fill(part)
        shutil.rmtree(part / "scratch", ignore_errors=True)
        arrays = {}
        for path in sorted(part.glob("*.npy")):
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            arrays[path.stem] = {**_facts(array), "bytes": path.stat().st_size}
            sync(path)
        content = {"hash": _total(arrays), "arrays": arrays, "facts": dict(facts)}
        (part / _META).write_text(json.dumps(content, indent=1), encoding="utf-8")
        sync(part / _META)
        sync(part)
        _put_in_place(part, where, key)
        sync(where)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    found = read(where / key)
    if found is None:
        raise OSError(f"the cache {where / key} cannot be read after writing: set MUONLAB_CACHE to another directory")
    return found


def _put_in_place(part: Path, where: Path, key: str) -> None:
    """Rename a finished part; without locks another may have been first, and its directory is as good as ours."""
    try:
        part.rename(where / key)
    except OSError:
        if read(where / key) is None:
            _discard(where, key)
            with suppress(OSError):
                part.rename(where / key)


def _discard(where: Path, key: str) -> None:
    """Remove a directory of the cache, out of its place first so that nobody meets a half of it."""
    if (where / key).exists():
        aside = Path(tempfile.mkdtemp(dir=where, prefix=f"{key}.", suffix=".part"))
        with suppress(FileNotFoundError):
            (where / key).rename(aside / "old")
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(where: Path, key: str) -> None:
    """Remove what killed processes left: every part whose lock nobody holds; that of ``key`` is held here."""
    for part in where.glob("*.part"):
        owner = part.name.partition(".")[0]
        if owner == key:
            shutil.rmtree(part, ignore_errors=True)
            continue
        with _exclusive(where / f"{owner}.lock", wait=False) as held:
            if held:
                shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _exclusive(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock that ends with the process; yields whether it is held, as not every file system has locks."""
    with path.open("ab") as file:
        held = False
        if sys.platform != "win32":
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
        yield held


def _facts(array: NDArray[Any]) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest}


def _total(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    said = [[name, *(facts[key] for key in ("dtype", "shape", "sha256"))] for name, facts in sorted(arrays.items())]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _refuse(where: Path, error: BaseException) -> None:
    """Turn a full or forbidden disk, however deep in an error, into one line."""
    cause: BaseException | None = error
    while cause is not None:
        number = cause.errno if isinstance(cause, OSError) else None
        beneath = isinstance(cause, OSError) and str(where) in str(cause.filename or "")
        if number in FULL_DISK or (number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR) and beneath):
            raise OSError(
                f"the cache {where} cannot be written ({os.strerror(number or 0)}): "
                f"make room there, or set MUONLAB_CACHE to another directory"
            ) from error
        cause = cause.__cause__ or cause.__context__
