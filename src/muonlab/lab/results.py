"""The outcome of a study, read from its run directory: cells, rows, certificates, environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from muonlab.lab.disk import sha256
from muonlab.lab.rowfiles import read_rows
from muonlab.lab.store import CellFolder, Status, read_head, read_json

BUSY = 1.25
"""Processes for each core above which seconds are taken for those of a shared machine."""


@dataclass(frozen=True)
class CellResult:
    """A cell as its folder has it.

    Args:
        label: its place on the axes, in words.
        points: the same by axis.
        spec: its fields.
        status: ``"done"``, ``"failed"`` or ``"open"``.
        metrics: rows of ``metrics.jsonl``.
        summary: final numbers of a cell that is done.
        error: in one line, of one that failed.
        jobs: cells that ran beside it, itself included; with more than one its seconds are of a shared machine.
        sessions: the environments that it was run in, by number.
        folder: where it lies.
        load: the largest seen, in processes for each core; None where it is unknown.
        ranks: numbers of processes that trained it together, in turn; none before it was begun.
        beside: numbers of processes that trained the other cells of its study.
        recorded: rows of ``certificates.jsonl``; None reads them when they are asked for.
    """

    label: str
    points: Mapping[str, str]
    spec: Mapping[str, Any]
    status: Status
    metrics: tuple[Mapping[str, Any], ...] = field(repr=False)
    summary: Mapping[str, Any]
    error: str | None
    jobs: int
    sessions: tuple[int, ...]
    folder: Path = field(repr=False)
    load: float | None = None
    ranks: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    recorded: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)

    @property
    def last(self) -> Mapping[str, Any]:
        """The row of its last evaluation; empty if there is none."""
        return next((row for row in reversed(self.metrics) if row["event"] == "evaluation"), {})

    @property
    def seconds_per_update(self) -> float | None:
        """Seconds of training for an update, over all of it; None if there was none."""
        return self.last["seconds"] / self.last["step"] if self.last.get("step") else None

    @property
    def disturbed(self) -> str:
        """Why its seconds are those of a shared machine; empty if they are its own."""
        if self.jobs > 1:
            return "cells ran side by side"
        if len({*self.ranks, *self.beside}) > 1:
            return f"cells were trained by {', '.join(map(str, sorted({*self.ranks, *self.beside})))} processes"
        return f"the machine was busy ({self.load:.1f} processes for each core)" if (self.load or 0) > BUSY else ""

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.spec["seed"])

    def certificates(self) -> Sequence[Mapping[str, Any]]:
        """Return the recorder's rows; none if the study does not record."""
        return read_rows(self.folder / "certificates.jsonl") if self.recorded is None else self.recorded


@dataclass(frozen=True)
class Results:
    """A study's cells, in the order in which it declares them, and what they were made with."""

    study: str
    profile: str
    head: Mapping[str, Any] = field(repr=False)
    environments: tuple[Mapping[str, Any], ...] = field(repr=False)
    cells: tuple[CellResult, ...] = field(repr=False)
    folder: Path

    def __post_init__(self) -> None:
        beside = tuple(sorted({n for cell in self.cells for n in cell.ranks}))
        object.__setattr__(self, "cells", tuple(replace(cell, beside=beside) for cell in self.cells))

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that options replaced."""
        return {name: value for name, value in self.head["settings"].items() if name not in ("device", "threads")}

    def places(self, *, status: Status | None = None) -> dict[str, list[CellResult]]:
        """Return cells by label, in their order; those of one status if asked."""
        found: dict[str, list[CellResult]] = {}
        for cell in self.cells:
            if status in (None, cell.status):
                found.setdefault(cell.label, []).append(cell)
        return found

    @property
    def status(self) -> Status:
        """``"open"`` if a cell is still to be run, else ``"failed"`` if one failed, else ``"done"``."""
        found = {cell.status for cell in self.cells}
        return "open" if "open" in found else "failed" if "failed" in found else "done"


def load_results(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> Results:
    """Read a run directory; nothing in it is executed.

    Args:
        path: what ``muonlab run`` named, or ``run(...).folder``.
        names: of cells' folders; None is all.
    """
    folder = Path(path)
    head = read_head(folder)
    if head is None:
        raise ValueError(f"results are read from a run directory, got {folder} without a study.json: run a study first")
    environments = sessions_of(folder)
    cells = tuple(read_cell(folder / "cells" / name) for name in (listed(folder) if names is None else names))
    return Results(head["study"], head["profile"], head, tuple(environments), cells, folder)


def listed(folder: Path, *, begun: bool = True) -> list[str]:
    """Return the names of the cells' folders, in the order of the study; only those that are there if ``begun``."""
    names: list[str] = _list(folder / "cells.json", "cells", str)
    return [name for name in names if not begun or (folder / "cells" / name / "spec.json").exists()]


def sessions_of(folder: Path) -> list[dict[str, Any]]:
    """Return what each session of a run directory was run with."""
    return _list(folder / "env.json", "sessions", dict)


def _list(path: Path, name: str, kind: type) -> list[Any]:
    found = read_json(path, default={name: []}).get(name)
    if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
        raise ValueError(f"{path.name} must have a list of {name}, got {path} damaged: choose another --out")
    return found


def read_cell(path: Path) -> CellResult:
    """Read the folder of a cell; what was finished must be as it was then."""
    about, failed = (read_json(path / f"{name}.json", default={}) for name in ("spec", "failed"))
    done = read_json(path / "done.json", default={})
    history = done or read_json(path / "history.json", default={})
    if not all(isinstance(about.get(name), dict) for name in ("points", "spec")) or "seed" not in about["spec"]:
        raise ValueError(f"spec.json must say what a cell is, got {path / 'spec.json'} damaged: remove its folder")
    _check_unchanged(path, done)
    return CellResult(
        label=str(about.get("label", path.name)),
        points=about["points"],
        spec=about["spec"],
        status=CellFolder(path).status,
        metrics=tuple(read_rows(path / "metrics.jsonl")),
        summary=done.get("summary", {}),
        error=failed.get("error"),
        jobs=history.get("jobs", 1),
        sessions=tuple(history.get("sessions", ())),
        folder=path,
        ranks=_ranks(path, history),
        load=history.get("load") if isinstance(history.get("load"), float) else None,
    )


def _ranks(path: Path, history: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers of processes of the sessions in which a cell was run; those that noted none had one."""
    try:
        sessions = sessions_of(path.parent.parent)
    except ValueError:  # said by who reads the sessions
        return ()
    numbers = [n for n in history.get("sessions", ()) if isinstance(n, int) and 0 <= n < len(sessions)]
    found = {sessions[number].get("ranks", 1) for number in numbers}
    return tuple(sorted(n for n in found if isinstance(n, int)))


def _check_unchanged(path: Path, done: Mapping[str, Any]) -> None:
    """Refuse a finished cell whose files are no longer those that it was finished with."""
    if not (path / "done.json").exists():
        return
    hashes = done.get("rows_sha256")
    sound = (
        isinstance(hashes, dict) and isinstance(done.get("summary"), dict) and isinstance(done.get("sessions"), list)
    )
    for name, digest in hashes.items() if isinstance(hashes, dict) else ():
        rows = path / f"{name}.jsonl"
        sound = sound and rows.is_file() and sha256(rows) == digest
    if sound and "weights_sha256" in done["summary"]:
        sound = (path / "weights.safetensors").exists()
    if not sound:
        raise ValueError(
            f"a finished cell must keep its files, got {path} damaged: remove its folder and run the same command again"
        )
