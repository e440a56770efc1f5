"""A run directory: one writer, what it is a run of, a folder per cell, and which cells are done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from muonlab import __version__
from muonlab.lab import checkpoint, disk
from muonlab.lab.study import Cell, Study

NUMERICS = 1
"""Raised whenever a change makes the same spec give other numbers; cells of another value are not taken for done."""
FORMAT = 1
"""Of the run directory."""
HEAD = "study.json"

Status = Literal["done", "failed", "open"]


def head(study: Study, profile: str, settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run directory is a run of; two runs with the same head may share one."""
    return {
        "format": FORMAT,
        "version": __version__,
        "numerics": NUMERICS,
        "study": study.name,
        "profile": profile,
        "settings": dict(settings),
        "data": dict(data),
    }


def key(cell: Cell, work: str, data: str | None) -> str:
    """Return the hash of all that decides a cell's numbers: spec, code and data."""
    decides = {
        "spec": cell.spec.to_dict(),
        "work": work,
        "version": __version__,
        "numerics": NUMERICS,
        "data": data,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CellFolder:
    """The folder of a cell: ``spec.json``, rows, checkpoints, and ``done.json`` or ``failed.json`` at its end."""

    path: Path

    @property
    def status(self) -> Status:
        """Whether the cell is done, failed, or open to be run or gone on with."""
        if (self.path / "done.json").exists():
            return "done"
        return "failed" if (self.path / "failed.json").exists() else "open"

    def create(self, cell: Cell, hashed: str) -> None:
        """Make the folder and say in it which cell it is of."""
        self.path.mkdir(parents=True, exist_ok=True)
        about = {"label": cell.label, "points": dict(cell.points), "key": hashed, "spec": cell.spec.to_dict()}
        if not (self.path / "spec.json").exists():
            write_json(self.path / "spec.json", about)

    def begin(self, *, jobs: int, session: int, load: float | None = None) -> dict[str, Any]:
        """Note that the cell is being worked on; return most jobs, largest load and all sessions that it has seen."""
        (self.path / "failed.json").unlink(missing_ok=True)
        seen = read_json(self.path / "history.json", default={"jobs": 1, "sessions": []})
        try:
            history = {
                "jobs": max(jobs, seen["jobs"]),
                "sessions": sorted({session, *seen["sessions"]}),
                "load": largest(load, seen.get("load")),
            }
        except (KeyError, TypeError):
            raise ValueError(
                f"history.json must say how a cell was run, got {self.path / 'history.json'} damaged: remove its folder"
            ) from None
        write_json(self.path / "history.json", history)
        return history

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the cell as done, then drop what only a resume would need."""
        write_json(self.path / "done.json", summary)
        (self.path / "history.json").unlink(missing_ok=True)
        checkpoint.remove(self.path)

    def fail(self, failure: Mapping[str, Any]) -> None:
        """Record why the cell failed; its checkpoints stay."""
        write_json(self.path / "failed.json", failure)


@contextmanager
def opened(path: Path, of: Mapping[str, Any]) -> Iterator[None]:
    """Hold a run directory for writing: made anew, or one of the same study, profile, settings, data and version."""
    found = read_head(path)
    if found is not None:
        _check_same(path, found, of)
    elif path.is_dir() and any(child.name not in ("lock", f"{HEAD}.part") for child in path.iterdir()):
        raise ValueError(f"--out must be a run directory or empty, got {path} with other files: choose another")
    elif path.exists() and not path.is_dir():
        raise ValueError(f"--out must be a directory, got the file {path}: choose another")
    path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        if found is None:
            write_json(path / HEAD, of)
        yield


def read_head(path: Path) -> dict[str, Any] | None:
    """Return what a run directory is a run of, or None if it is none."""
    if not (path / HEAD).exists():
        return None
    try:
        read = read_json(path / HEAD, default={})
    except ValueError:
        read = {}
    kinds = {"study": str, "profile": str, "settings": dict, "data": dict}
    if not all(isinstance(read.get(name), kind) for name, kind in kinds.items()) or "threads" not in read["settings"]:
        raise ValueError(f"{HEAD} must say what a run directory is, got {path / HEAD} damaged: choose another --out")
    return read


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(wanted))
    for name in wanted:
        if found.get(name) != plain[name]:
            was, now = (_short(value) for value in (found.get(name), plain[name]))
            raise ValueError(
                f"a run directory holds one study, got {path} with {name} {was} where this run has {now}: "
                f"choose another --out"
            )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = {
            name: str(part.get("hash", part))[:12] if isinstance(part, dict) else part for name, part in value.items()
        }
    return json.dumps(value)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a directory; the system lets go of it even if this process is killed."""
    import fcntl

    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"a run directory has one writer, got {path}, which another process is writing: wait for it, or "
                f"choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)


def largest(*loads: float | None) -> float | None:
    """Return the largest of those that are known."""
    return max((load for load in loads if load is not None), default=None)


def read_json(path: Path, *, default: dict[str, Any]) -> dict[str, Any]:
    """Return the object in a JSON file, or the default if there is no file."""
    try:
        read = json.loads(path.read_bytes()) if path.is_file() or not path.exists() else None  # a pipe would not end
    except (FileNotFoundError, NotADirectoryError):
        return default
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        where = "its folder and run again" if path.parent.parent.name == "cells" else "it, or choose another --out"
        raise ValueError(f"a run directory has JSON objects in its files, got {path} damaged: remove {where}")
    return read


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file as a whole or not at all."""
    disk.write(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
