"""The results of a study, read from its run directory: cells, rows, certificates, sessions."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muonlab import _checks
from muonlab.lab.files.hashed_json import read_json
from muonlab.lab.files.row_files import SavedRows, read_rows, saved_content
from muonlab.lab.runner.machine import describe_machine
from muonlab.lab.runner.store import (
    NEVER_RUN,
    CellFolder,
    CellStatus,
    cell_folders,
    check_own_folder,
    folder_name,
    key_of,
    read_head,
)
from muonlab.lab.training import checkpoint

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CellResult:
    """The content of a cell's folder.

    Args:
        label: its points on the axes, joined.
        points: its point on each axis, by the name of the axis.
        spec: its fields.
        status: ``"done"``, ``"failed"`` or ``"open"``.
        metrics: rows of ``metrics.jsonl``; of an open cell, those that its last checkpoint saved.
        summary: final numbers of a finished cell.
        error: the error of a failed cell, in one line.
        jobs: number of cells that ran at the same time, this one included.
        sessions: indices of its sessions in ``env.json``.
        folder: its folder.
        machines: descriptions of the machines that it ran on; more than one if it was moved.
        cores: of the machine; None if unknown.
        ranks: numbers of processes that trained it together; empty before it is started.
        recorded: rows of ``certificates.jsonl``; None reads them when they are needed.
        saved: the numbers of lines and the hashes of its files of rows.
    """

    label: str
    points: Mapping[str, str]
    spec: Mapping[str, Any]
    status: CellStatus
    metrics: tuple[Mapping[str, Any], ...] = field(repr=False)
    summary: Mapping[str, Any]
    error: str | None
    jobs: int
    sessions: tuple[int, ...]
    folder: Path = field(repr=False)
    machines: tuple[str, ...] = ()
    cores: int | None = None
    ranks: tuple[int, ...] = ()
    recorded: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)
    saved: SavedRows = field(default_factory=dict, repr=False)

    @property
    def last(self) -> Mapping[str, Any]:
        """The row of the last evaluation; empty if there is none."""
        return next((row for row in reversed(self.metrics) if row["event"] == "evaluation"), {})

    @property
    def seconds_per_update(self) -> float | None:
        """Mean training seconds of an update; None if there was none."""
        return self.last["seconds"] / self.last["step"] if self.last.get("step") else None

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.spec["seed"])

    def value_on(self, axis: str) -> int | float | str:
        """Return the number that the field or option ``FIELD.OPTION`` of an axis has; its label if it has none."""
        field, dot, option = axis.partition(".")
        value = self.spec.get(field)
        if dot and isinstance(value, Mapping):
            value = value.get("options", {}).get(option)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else self.points[axis]

    def certificates(self) -> Sequence[Mapping[str, Any]]:
        """Return the recorder's rows; empty if the study does not record."""
        if self.recorded is not None:
            return self.recorded
        return read_rows(self.folder / "certificates.jsonl", self.saved.get("certificates"))

    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights by name, checked by their hash.

        Raises:
            ValueError: if the cell is not done, its weights were not kept, or the file was changed.
        """
        return checkpoint.load_weights(self.folder, self.summary.get("weights_sha256"))


@dataclass(frozen=True)
class Results:
    """The cells of a study in the order in which it declares them, and the sessions in which they were run."""

    study: str
    profile: str
    head: Mapping[str, Any] = field(repr=False)
    environments: tuple[Mapping[str, Any], ...] = field(repr=False)
    cells: tuple[CellResult, ...] = field(repr=False)
    folder: Path
    cells_to_run: int | None = None
    """Number of cells that this call of :func:`muonlab.lab.run` had to run; None if the results were only read."""

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that options replaced."""
        return {name: value for name, value in self.head["settings"].items() if name not in ("device", "threads")}

    def places(self, *, status: CellStatus | None = None) -> dict[str, list[CellResult]]:
        """Return the cells by label, in their order; only those with ``status`` if it is given."""
        return by_label(cell for cell in self.cells if status in (None, cell.status))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all cells: of each its label, seed, values on the axes and status, and what it recorded.

        A recorded number with the name of an axis, such as the learning rate of a schedule, is called ``current_…``.
        """
        return [
            {
                "label": cell.label,
                **{axis: cell.value_on(axis) for axis in cell.points},
                "seed": cell.seed,
                "status": cell.status,
                **{f"current_{name}" if name in cell.points else name: value for name, value in row.items()},
            }
            for cell in self.cells
            for row in cell.metrics
        ]

    def to_frame(self) -> Any:
        """Return :meth:`rows` as a pandas DataFrame."""
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame(self.rows())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`rows` to a CSV file; a number that a row does not have is empty."""
        rows = self.rows()
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)

    def of_ended_seeds(self) -> Results:
        """Return the results of the seeds whose cells are all done or failed; of all seeds if there is none."""
        running = {cell.seed for cell in self.cells if cell.status == "open"}
        ended = tuple(cell for cell in self.cells if cell.seed not in running)
        return replace(self, cells=ended) if ended else self

    @property
    def status(self) -> CellStatus:
        """``"open"`` if a cell is open, else ``"failed"`` if one failed, else ``"done"``."""
        statuses = {cell.status for cell in self.cells}
        return "open" if "open" in statuses else "failed" if "failed" in statuses else "done"


def by_label(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Return cells by label, in their order."""
    groups: dict[str, list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(cell.label, []).append(cell)
    return groups


def load_results(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> Results:
    """Read a run directory; nothing in it is executed, and every file is checked by its hash.

    Args:
        path: the run directory, such as ``run(...).folder``.
        names: names of the cells' folders; None reads all but those of an earlier definition of the study.

    Raises:
        ValueError: if it is not a run directory, a file was changed, or a cell is missing or belongs elsewhere.
    """
    folder = _checks.path("path", path)
    head = read_head(folder)
    if head is None:
        raise ValueError(f"results are read from a run directory, got {folder} without a study.json: run a study first")
    environments = sessions_of(folder)
    if names is None:
        names = cell_names(folder)
        _check_listed(folder, [*names, *earlier_names(folder)])
    cells = tuple(read_cell(folder / "cells" / name, head) for name in names)
    for message in without_session(cells, environments):
        raise ValueError(
            f"a run directory must have the sessions of its cells, got {folder} with {message}: restore it from a "
            f"copy, or choose another --out"
        )
    return Results(head["study"], head["profile"], head, tuple(environments), cells, folder)


def cell_names(folder: Path) -> list[str]:
    """Return the names of the cells' folders, in the order of the study."""
    names: list[str] = read_json(folder / "cells.json", default={"cells": []})["cells"]
    return names


def earlier_names(folder: Path) -> list[str]:
    """Return the names of the folders of cells of an earlier definition of the study, which results leave out."""
    names: list[str] = read_json(folder / "cells.json", default={}).get("earlier", [])
    return names


def sessions_of(folder: Path) -> list[dict[str, Any]]:
    """Return the environment of each session of a run directory."""
    sessions: list[dict[str, Any]] = read_json(folder / "env.json", default={"sessions": []})["sessions"]
    return sessions


def _check_listed(folder: Path, names: Sequence[str]) -> None:
    for name in sorted(cell_folders(folder) - set(names)):
        raise ValueError(
            f"cells.json must list the cells of the run directory, got {folder} with {name}, which is not listed: "
            f"rerun the command of the study, or remove the folder"
        )


def without_session(cells: Sequence[CellResult], environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a message for each cell that names a session which ``env.json`` does not have."""
    machines = [describe_machine(environment) for environment in environments]
    return [
        f"{cell.folder.name}, whose session is not in env.json"
        for cell in cells
        if any(number >= len(machines) or machines[number] not in cell.machines for number in cell.sessions)
    ]


def repeated_cells(cells: Sequence[CellResult]) -> list[str]:
    """Return a message for each label and seed that more than one cell has."""
    counts = Counter((cell.label, cell.seed) for cell in cells)
    return [f"{count} cells of {label}, seed {seed}" for (label, seed), count in counts.items() if count > 1]


def read_cell(path: Path, head: Mapping[str, Any] | None = None) -> CellResult:
    """Read the folder of a cell, checked by its hashes.

    Args:
        path: of the folder.
        head: ``study.json`` of the run directory that the cell must belong to; None does not compare them.

    Raises:
        ValueError: if a file was changed, or belongs to another cell or another run directory.
    """
    check_own_folder(path)
    about = read_json(path / "spec.json")
    key = key_of(about["identity"])
    _check_own(path, about, key, head)
    status = CellFolder(path).status
    done = read_json(path / "done.json") if status == "done" else {}
    failed = read_json(path / "failed.json", default={})
    history = done or read_json(path / "history.json", default={"key": key, **NEVER_RUN})
    ended = {**failed, **done}
    saved, key_of_rows = (ended["rows"], None) if "rows" in ended else checkpoint.saved_rows(path)
    for found_key in (history["key"], failed.get("key"), key_of_rows):
        if found_key not in (None, key):
            raise ValueError(
                f"the files of a cell must be its own, got {path} with those of another cell: remove the folder and "
                f"run the study again"
            )
    for name, rows in saved.items():
        saved_content(path / f"{name}.jsonl", rows, finished=status == "done")
    return CellResult(
        label=about["label"],
        points=about["points"],
        spec=about["spec"],
        status=status,
        metrics=tuple(read_rows(path / "metrics.jsonl", saved.get("metrics"))),
        summary=done.get("summary", {}),
        error=failed.get("error"),
        jobs=history["jobs"],
        sessions=tuple(history["sessions"]),
        folder=path,
        machines=tuple(history["machines"]),
        cores=history["cores"],
        ranks=tuple(history["ranks"]),
        saved=saved,
    )


def _setting(spec: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, or of an option ``FIELD.OPTION``; a value that no setting has if it is missing."""
    field, dot, option = name.partition(".")
    place = spec.get(field, {}).get("options", {}) if dot else spec
    return place.get(option if dot else field, NotImplemented)


def _check_own(path: Path, about: Mapping[str, Any], key: str, head: Mapping[str, Any] | None) -> None:
    """Refuse a cell in the folder of another cell, or in the run directory of other numerics, data or settings."""
    identity, spec = about["identity"], about["spec"]
    name = folder_name(about["label"], spec["seed"], key)
    same_spec = all(spec.get(field) == value for field, value in identity["spec"].items())
    if path.name != name or not same_spec or about["label"] != ", ".join(about["points"].values()):
        raise ValueError(
            f"the folder of a cell must be named after its label, seed and key, got {path} with the cell {name}: "
            f"remove the folder and run the study again"
        )
    if head is None:
        return
    hashes = {data.get("hash") for data in head["data"].values()} | {None}
    settings = {name for name, value in head["settings"].items() if _setting(spec, name) != value}
    if identity["numerics"] != head["numerics"] or identity["data"] not in hashes or settings:
        raise ValueError(
            f"a cell must belong to its run directory, got {path} with other numerics, data or settings than study.json"
            f": choose another --out"
        )
