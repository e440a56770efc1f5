"""The outcome of a study, read from its run directory: cells, rows, certificates, environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muonlab.lab.rowfiles import read_rows
from muonlab.lab.store import CellFolder, Status, read_head


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
        folder: where it lies.
    """

    label: str
    points: Mapping[str, str]
    spec: Mapping[str, Any]
    status: Status
    metrics: tuple[Mapping[str, Any], ...] = field(repr=False)
    summary: Mapping[str, Any]
    error: str | None
    jobs: int
    folder: Path = field(repr=False)

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.spec["seed"])

    def certificates(self) -> list[dict[str, Any]]:
        """Return the recorder's rows; none if the study does not record."""
        return read_rows(self.folder / "certificates.jsonl")


@dataclass(frozen=True)
class Results:
    """A study's cells, in the order in which it declares them, and what they were made with."""

    study: str
    profile: str
    head: Mapping[str, Any] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    cells: tuple[CellResult, ...] = field(repr=False)
    folder: Path

    @property
    def status(self) -> Status:
        """``"done"`` if every cell is, ``"failed"`` if one failed, else ``"open"``."""
        found = {cell.status for cell in self.cells}
        return "failed" if "failed" in found else "open" if "open" in found else "done"


def load_results(path: str | os.PathLike[str]) -> Results:
    """Read a run directory; nothing in it is executed.

    Args:
        path: what ``muonlab run`` named, or ``run(...).folder``.
    """
    folder = Path(path)
    head = read_head(folder)
    if head is None:
        raise ValueError(f"results are read from a run directory, got {folder} without a study.json: run a study first")
    environment = _read(folder / "env.json")
    cells = tuple(read_cell(folder / "cells" / name) for name in listed(folder))
    return Results(head["study"], head["profile"], head, environment, cells, folder)


def listed(folder: Path) -> list[str]:
    """Return the names of the cells' folders, in the order of the study."""
    names: list[str] = _read(folder / "cells.json").get("cells", [])
    return [name for name in names if (folder / "cells" / name / "spec.json").exists()]


def read_cell(path: Path) -> CellResult:
    """Read the folder of a cell."""
    about, done, failed = (_read(path / f"{name}.json") for name in ("spec", "done", "failed"))
    return CellResult(
        label=about["label"],
        points=about["points"],
        spec=about["spec"],
        status=CellFolder(path).status,
        metrics=tuple(read_rows(path / "metrics.jsonl")),
        summary=done.get("summary", {}),
        error=failed.get("error"),
        jobs=done.get("jobs", 1),
        folder=path,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ValueError(f"a run directory has JSON files, got {path} damaged: remove its folder and run again")
    return read
