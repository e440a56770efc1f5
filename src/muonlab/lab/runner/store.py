"""A run directory: one writer, what it is a run of, a folder per cell, and which cells are done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from muonlab.lab.files.hashed_json import read_json, write_json
from muonlab.lab.study import Cell, Study, cell_name
from muonlab.lab.training import checkpoint

NUMERICS = 1
"""Raised whenever a change makes the same spec give other numbers; cells of another value are not taken for done."""
FORMAT = 2
"""Of the run directory."""
HEAD = "study.json"

Status = Literal["done", "failed", "open"]
NEVER_RUN: Mapping[str, Any] = {"jobs": 1, "sessions": [], "machines": [], "cores": None, "ranks": []}
"""How a cell was run that has not been begun."""


class HeldError(ValueError):
    """A directory is held by another process."""


def head(study: Study, profile: str, settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run directory is a run of; two runs with the same head may share one."""
    return {
        "format": FORMAT,
        "numerics": NUMERICS,
        "study": study.name,
        "profile": profile,
        "settings": dict(settings),
        "data": dict(data),
    }


def identity(cell: Cell, data: str | None) -> dict[str, Any]:
    """Return all that decides a cell's numbers: its spec, ``NUMERICS`` and the hash of its data.

    Of the spec only what is not the default: a new field whose default changes nothing keeps the cells that there are.
    The version of the package is left out for the same reason.
    """
    return {"spec": cell.spec.non_defaults(), "numerics": NUMERICS, "data": data}


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the hash of an identity: the key of a cell."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def folder_name(label: str, seed: int, key: str) -> str:
    """Return the name of a cell's folder: what people call the cell, and the start of its key."""
    return f"{cell_name(label, seed)}-{key[:12]}"


@dataclass(frozen=True)
class CellFolder:
    """The folder of a cell: ``spec.json``, rows, checkpoints, and ``done.json`` or ``failed.json`` at its end."""

    path: Path

    @property
    def status(self) -> Status:
        """Whether the cell is done, failed, or open: still to be run, or to be resumed."""
        if (self.path / "done.json").exists():
            return "done"
        return "failed" if (self.path / "failed.json").exists() else "open"

    @property
    def was_killed(self) -> bool:
        """Whether the cell failed because its process was killed, so that there is no traceback."""
        return not read_json(self.path / "failed.json", default={"traceback": "unknown"}).get("traceback")

    def create(self, cell: Cell, identity: Mapping[str, Any]) -> None:
        """Make the folder and write in it which cell it is of; one that is there must be of the same spec."""
        self.path.mkdir(parents=True, exist_ok=True)
        spec = cell.spec.to_dict()
        if not (self.path / "spec.json").exists():
            about = {"label": cell.label, "points": dict(cell.points), "identity": dict(identity), "spec": spec}
            write_json(self.path / "spec.json", about)
            return
        was = read_json(self.path / "spec.json")["spec"]
        for name in [name for name in spec if was.get(name, spec[name]) != spec[name]]:  # a default was changed
            raise ValueError(
                f"a cell must be run with the spec that it began with, got {self.path.name} with {name} = "
                f"{was[name]!r} where this run has {spec[name]!r}: choose another --out"
            )

    def begin(self, key: str, jobs: int, session: int, machine: str, cores: int | None, ranks: int) -> dict[str, Any]:
        """Note that the cell is being run; return how it has been run so far.

        Args:
            key: of the cell.
            jobs: cells that run at the same time; the most are kept.
            session: number of the environment in ``env.json``; all are kept.
            machine: that it is run on, described; all are kept.
            cores: of the machine.
            ranks: number of processes that train it together; all are kept.
        """
        (self.path / "failed.json").unlink(missing_ok=True)
        seen = read_json(self.path / "history.json", default=NEVER_RUN)
        history = {
            "key": key,
            "jobs": max(jobs, seen["jobs"]),
            "sessions": sorted({session, *seen["sessions"]}),
            "machines": sorted({machine, *seen["machines"]}),
            "cores": cores,
            "ranks": sorted({ranks, *seen["ranks"]}),
        }
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
    """Hold a run directory for writing: a new one, or one of the same study, profile, settings and data."""
    found = read_head(path)
    if found is not None:
        _check_same(path, found, of)
    elif path.is_dir() and any(child.name != "lock" and child.suffix != ".part" for child in path.iterdir()):
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
    _check_format(path / HEAD)
    read = read_json(path / HEAD)
    kinds = {"study": str, "profile": str, "settings": dict, "data": dict}
    if not all(isinstance(read.get(name), kind) for name, kind in kinds.items()) or "threads" not in read["settings"]:
        raise ValueError(f"{HEAD} must say what a run directory is, got {path / HEAD} damaged: choose another --out")
    return read


def _check_format(path: Path) -> None:
    """Refuse a run directory of another format, whose files may not carry hashes."""
    found = None
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_bytes()) if path.is_file() else None
    if isinstance(found, dict) and found.get("format") != FORMAT:
        raise ValueError(
            f"a run directory must have the format {FORMAT}, got {path.parent} with {found.get('format')!r}: use the "
            f"version of muonlab that made it, or choose another --out"
        )


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(wanted))
    for name in wanted:
        was, now = ((_hashes(one[name]) if name == "data" else one.get(name)) for one in (found, plain))
        if was != now:
            raise ValueError(
                f"a run directory holds one study, got {path} with {name} {json.dumps(was)} where this run has "
                f"{json.dumps(now)}: choose another --out"
            )


def _hashes(data: Mapping[str, Any]) -> dict[str, str]:
    """Return datasets by the start of their hash: where they were read from may differ between machines."""
    return {
        name: str(about.get("hash", about) if isinstance(about, dict) else about)[:12] for name, about in data.items()
    }


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a directory; the system lets go of it even if this process is killed."""
    import fcntl

    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(
                f"a run directory has one writer, got {path}, which another process is writing: wait for it, or "
                f"choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)
