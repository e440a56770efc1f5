"""The run directory: its header ``study.json``, its lock, and a folder for each cell.

A cell is identified by its key, the hash of everything that decides its numbers. Its status is read from its folder:
``done.json`` means done, ``failed.json`` failed, and neither means open.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from muonlab import _files
from muonlab.lab.files.hashed_json import check_form, read_json, write_json
from muonlab.lab.settings import plain_value
from muonlab.lab.study import Cell, Study, cell_name
from muonlab.lab.training import checkpoint

NUMERICS = 1
"""Increased whenever a change makes the same spec give other numbers, so that older cells are not reused."""
FORMAT = 2
"""Version of the format of run directories."""
HEAD = "study.json"

CellStatus = Literal["done", "failed", "open"]
NEVER_RUN: Mapping[str, Any] = {"jobs": 1, "sessions": [], "machines": [], "cores": None, "ranks": []}
"""``history.json`` of a cell that has not been started."""


class LockedError(ValueError):
    """Another process holds the lock of a directory."""


# --------------------------------------------------------------------------------------------------- the run directory


def study_head(study: Study, profile: str, settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``study.json``; runs with the same content may share a run directory."""
    return {
        "format": FORMAT,
        "numerics": NUMERICS,
        "study": study.name,
        "profile": profile,
        "settings": {name: plain_value(value) for name, value in settings.items()},
        "data": dict(data),
    }


def check_own_folder(path: Path) -> None:
    """Raise ValueError if the folder of a cell, or the folder of the cells, is a link out of the run directory."""
    for folder in (path.parent, path):
        _require_no_link(folder)


def cell_folders(run: Path) -> set[str]:
    """Return the names of the folders in ``cells`` of a run directory; raise if that is a link."""
    _require_no_link(run / "cells")
    return {path.name for path in (run / "cells").glob("*") if path.is_dir()}


def _require_no_link(folder: Path) -> None:
    if folder.is_symlink():
        raise ValueError(
            f"the cells of a run directory must be in it, got the link {folder}: replace it by the folder itself"
        )


@contextmanager
def hold_directory(path: Path, head: Mapping[str, Any]) -> Iterator[None]:
    """Lock a run directory for writing; create it if it does not exist.

    Raises:
        ValueError: if it holds other files, or another study, profile, settings or data than ``head`` says.
        LockedError: if another process is writing to it.
    """
    existing = read_head(path)
    if existing is not None:
        _check_same(path, existing, head)
    elif path.is_dir() and any(child.name != "lock" and child.suffix != ".part" for child in path.iterdir()):
        raise ValueError(f"--out must be a run directory or empty, got {path} with other files: choose another")
    elif path.exists() and not path.is_dir():
        raise ValueError(f"--out must be a directory, got the file {path}: choose another")
    path.mkdir(parents=True, exist_ok=True)
    with hold_lock(path):
        if existing is None:
            write_json(path / HEAD, head)
        yield


def read_head(path: Path) -> dict[str, Any] | None:
    """Return the content of ``study.json``, or None if the directory is not a run directory."""
    if not (path / HEAD).exists():
        return None
    head = read_json(path / HEAD, any_form=True)
    if head.get("format") != FORMAT:
        raise ValueError(
            f"a run directory must have the format {FORMAT}, got {path} with {head.get('format')!r}: use the version "
            f"of muonlab that made it, or choose another --out"
        )
    check_form(path / HEAD, head)
    return head


def _check_same(path: Path, existing: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(head))
    for name in head:
        was, now = ((_short_hashes(each[name]) if name == "data" else each[name]) for each in (existing, plain))
        if was != now:
            seeded = ", or seed the random numbers of the function that makes the data" if name == "data" else ""
            raise ValueError(
                f"a run directory holds one study, got {path} with {name} {json.dumps(was)} where this run has "
                f"{json.dumps(now)}: choose another --out{seeded}"
            )


def _short_hashes(data: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the start of the hash of each dataset: data with the same hash may come from different places."""
    return {name: str(about["hash"])[:12] for name, about in data.items()}


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a directory; the system releases it when this process ends, even if it is killed."""
    import fcntl

    handle = _files.open_regular(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"a run directory has one writer, got {path}, which another process is writing to: wait for it, or "
                f"choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)


# ------------------------------------------------------------------------------------------------------------ one cell


def identity(cell: Cell, data: str | None, code: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return everything that decides a cell's numbers: its spec, ``NUMERICS`` and the hash of its data.

    ``code`` is what a study of the user adds (``planning.code_of``).

    Only the fields of the spec that differ from their defaults are included, so that adding a field whose default
    changes nothing keeps the keys of existing cells. The version of the package is left out for the same reason.
    """
    return {"spec": cell.spec.non_defaults(), "numerics": NUMERICS, "data": data, **(code or {})}


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of a cell: the sha256 of its identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def folder_name(label: str, seed: int, key: str) -> str:
    """Return the name of a cell's folder: its label, its seed and the start of its key."""
    return f"{cell_name(label, seed)}-{key[:12]}"


@dataclass(frozen=True)
class CellFolder:
    """The folder of a cell: ``spec.json``, rows, checkpoints, and ``done.json`` or ``failed.json`` at the end."""

    path: Path

    @property
    def status(self) -> CellStatus:
        """``"done"``, ``"failed"``, or ``"open"``: still to be run, or to be resumed."""
        if (self.path / "done.json").exists():
            return "done"
        return "failed" if (self.path / "failed.json").exists() else "open"

    @property
    def was_killed(self) -> bool:
        """Whether the cell failed because its process was killed, which leaves no traceback."""
        return not read_json(self.path / "failed.json", default={"traceback": "unknown"}).get("traceback")

    def create(self, cell: Cell, identity: Mapping[str, Any]) -> None:
        """Create the folder with its ``spec.json``; an existing one must have the same spec."""
        check_own_folder(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        spec = cell.spec.to_dict()
        if not (self.path / "spec.json").exists():
            about = {"label": cell.label, "points": dict(cell.points), "identity": dict(identity), "spec": spec}
            write_json(self.path / "spec.json", about)
            return
        was = read_json(self.path / "spec.json")["spec"]
        for name in spec:
            if was.get(name, spec[name]) != spec[name]:  # a default was changed
                raise ValueError(
                    f"a cell must be run with the spec that it began with, got {self.path.name} with {name} = "
                    f"{was[name]!r} where this run has {spec[name]!r}: choose another --out"
                )

    def start(self, key: str, jobs: int, session: int, machine: str, cores: int | None, ranks: int) -> dict[str, Any]:
        """Add this run of the cell to ``history.json``; return the history.

        Args:
            key: of the cell.
            jobs: number of cells that run at the same time; the largest is kept.
            session: index of the session in ``env.json``; all are kept.
            machine: description of the machine; all are kept.
            cores: of the machine.
            ranks: number of processes that train the cell; all are kept.
        """
        (self.path / "failed.json").unlink(missing_ok=True)
        before = read_json(self.path / "history.json", default=NEVER_RUN)
        history = {
            "key": key,
            "jobs": max(jobs, before["jobs"]),
            "sessions": sorted({session, *before["sessions"]}),
            "machines": sorted({machine, *before["machines"]}),
            "cores": cores,
            "ranks": sorted({ranks, *before["ranks"]}),
        }
        write_json(self.path / "history.json", history)
        return history

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Mark the cell as done, then remove its history and checkpoints."""
        write_json(self.path / "done.json", outcome)
        (self.path / "history.json").unlink(missing_ok=True)
        checkpoint.remove(self.path)

    def fail(self, failure: Mapping[str, Any]) -> None:
        """Record why the cell failed; its checkpoints are kept."""
        write_json(self.path / "failed.json", failure)
