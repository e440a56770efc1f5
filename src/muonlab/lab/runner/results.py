"""The outcome of a study, read from its run directory: cells, rows, certificates, environment."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muonlab.lab.files.hashed_json import read_json
from muonlab.lab.files.row_files import SavedRows, read_rows, saved_content
from muonlab.lab.runner.environment import describe_machine
from muonlab.lab.runner.store import NEVER_RUN, CellFolder, Status, folder_name, key_of, read_head
from muonlab.lab.training import checkpoint

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CellResult:
    """A cell as its folder has it.

    Args:
        label: its place on the axes, in words.
        points: the same by axis.
        spec: its fields.
        status: ``"done"``, ``"failed"`` or ``"open"``.
        metrics: rows of ``metrics.jsonl``; of an open cell, those that its last checkpoint saved.
        summary: final numbers of a cell that is done.
        error: in one line, of one that failed.
        jobs: cells that ran at the same time, itself included.
        sessions: the environments that it was run in, by number.
        folder: its folder.
        machines: that it was run on, described; one, unless it was moved while it ran.
        cores: of the machine; None if it is unknown.
        ranks: numbers of processes that trained it together, in turn; none before it was begun.
        recorded: rows of ``certificates.jsonl``; None reads them when they are asked for.
        saved: the lines and hashes of its files of rows.
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
    machines: tuple[str, ...] = ()
    cores: int | None = None
    ranks: tuple[int, ...] = ()
    recorded: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)
    saved: SavedRows = field(default_factory=dict, repr=False)

    @property
    def last(self) -> Mapping[str, Any]:
        """The row of its last evaluation; empty if there is none."""
        return next((row for row in reversed(self.metrics) if row["event"] == "evaluation"), {})

    @property
    def seconds_per_update(self) -> float | None:
        """Seconds of training for an update, over all of it; None if there was none."""
        return self.last["seconds"] / self.last["step"] if self.last.get("step") else None

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.spec["seed"])

    def certificates(self) -> Sequence[Mapping[str, Any]]:
        """Return the recorder's rows; none if the study does not record."""
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
    """A study's cells, in the order in which it declares them, and what they were made with."""

    study: str
    profile: str
    head: Mapping[str, Any] = field(repr=False)
    environments: tuple[Mapping[str, Any], ...] = field(repr=False)
    cells: tuple[CellResult, ...] = field(repr=False)
    folder: Path

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

    def of_ended_seeds(self) -> Results:
        """Return the results of the seeds whose cells have all ended, done or failed; all of them if there is none."""
        running = {cell.seed for cell in self.cells if cell.status == "open"}
        ended = tuple(cell for cell in self.cells if cell.seed not in running)
        return replace(self, cells=ended) if ended else self

    @property
    def status(self) -> Status:
        """``"open"`` if a cell is still to be run, else ``"failed"`` if one failed, else ``"done"``."""
        found = {cell.status for cell in self.cells}
        return "open" if "open" in found else "failed" if "failed" in found else "done"


def load_results(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> Results:
    """Read a run directory; nothing in it is executed, and every file is checked by its hash.

    Args:
        path: what ``muonlab run`` named, or ``run(...).folder``.
        names: of cells' folders; None is all.

    Raises:
        ValueError: if it is no run directory, a file was changed, or a cell is missing or there twice.
    """
    folder = Path(path)
    head = read_head(folder)
    if head is None:
        raise ValueError(f"results are read from a run directory, got {folder} without a study.json: run a study first")
    environments = sessions_of(folder)
    if names is None:
        names = listed(folder)
        _check_listed(folder, names)
    cells = tuple(read_cell(folder / "cells" / name, head) for name in names)
    for message in [*repeated(cells), *without_session(cells, environments)]:
        raise ValueError(
            f"a run directory must have each cell and its session once, got {folder} with {message}: restore it from "
            f"a copy, or choose another --out"
        )
    return Results(head["study"], head["profile"], head, tuple(environments), cells, folder)


def without_session(cells: Sequence[CellResult], environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which cells name a session that ``env.json`` does not have, in words."""
    return [
        f"{cell.folder.name}, whose session is not in env.json"
        for cell in cells
        if any(
            not isinstance(number, int)
            or number >= len(environments)
            or describe_machine(environments[number]) not in cell.machines
            for number in cell.sessions
        )
    ]


def _check_listed(folder: Path, names: Sequence[str]) -> None:
    there = {path.name for path in (folder / "cells").glob("*") if path.is_dir()}
    for name, problem in [
        *((name, "listed without a folder") for name in names if not (folder / "cells" / name / "spec.json").exists()),
        *((name, "in a folder that is not listed") for name in sorted(there - set(names))),
        *((name, "listed twice") for name, count in Counter(names).items() if count > 1),
    ]:
        raise ValueError(
            f"cells.json must list each cell of the run directory once, got {folder} with {name} {problem}: rerun the "
            f"command of the study, or remove what does not belong to it"
        )


def repeated(cells: Sequence[CellResult]) -> list[str]:
    """Return which cells have the same label and seed as another, in words."""
    counts = Counter((cell.label, cell.seed) for cell in cells)
    return [f"{count} cells of {label}, seed {seed}" for (label, seed), count in counts.items() if count > 1]


def listed(folder: Path) -> list[str]:
    """Return the names of the cells' folders, in the order of the study."""
    return _list(folder / "cells.json", "cells", str)


def sessions_of(folder: Path) -> list[dict[str, Any]]:
    """Return what each session of a run directory was run with."""
    return _list(folder / "env.json", "sessions", dict)


def _list(path: Path, name: str, kind: type) -> list[Any]:
    found = read_json(path, default={name: []}).get(name)
    if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
        raise ValueError(f"{path.name} must have a list of {name}, got {path} damaged: choose another --out")
    return found


def read_cell(path: Path, head: Mapping[str, Any] | None = None) -> CellResult:
    """Read the folder of a cell, checked by its hashes.

    Args:
        path: of the folder.
        head: of the run directory, which the cell must belong to; None does not compare them.
    """
    try:
        return _read_cell(path, head)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the files of a cell must have what a study writes, got {path} without ({type(error).__name__}: {error}): "
            f"remove the folder and run the study again"
        ) from error


def _read_cell(path: Path, head: Mapping[str, Any] | None) -> CellResult:
    about = read_json(path / "spec.json")
    key = _checked_key(path, about)
    if head is not None:
        _check_belongs(path, about, head)
    status = CellFolder(path).status
    done = read_json(path / "done.json") if status == "done" else {}
    failed = read_json(path / "failed.json", default={})
    history = done or read_json(path / "history.json", default={"key": key, **NEVER_RUN})
    rows, key_of_rows = ({}, None) if "rows" in {**done, **failed} else checkpoint.saved_rows(path)
    saved = done.get("rows", failed.get("rows", rows))
    for found in (history["key"], failed.get("key"), key_of_rows):
        if found not in (None, key):
            raise ValueError(
                f"the files of a cell must be its own, got {path} with those of another cell: remove the folder and "
                f"run the study again"
            )
    for name, about_rows in saved.items():
        saved_content(path / f"{name}.jsonl", about_rows, finished=status == "done")
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


def _check_belongs(path: Path, about: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Refuse a cell of other numerics, data or settings than the run directory says."""
    identity, spec = about["identity"], about["spec"]
    hashes = {data.get("hash") for data in head["data"].values()} | {None}
    settings = {name: value for name, value in head["settings"].items() if name not in spec or spec[name] != value}
    if identity["numerics"] != head["numerics"] or identity["data"] not in hashes or settings:
        raise ValueError(
            f"a cell must belong to its run directory, got {path} with other numerics, data or settings than study.json"
            f": choose another --out"
        )


def _checked_key(path: Path, about: Mapping[str, Any]) -> str:
    """Return the key of a cell, whose folder must be named after it and whose spec must go with it."""
    identity, spec, label = about["identity"], about["spec"], about["label"]
    key = key_of(identity)
    name = folder_name(label, spec["seed"], key)
    decides = {name: spec.get(name) for name in identity["spec"]}
    if path.name != name or decides != identity["spec"] or label != ", ".join(about["points"].values()):
        raise ValueError(
            f"the folder of a cell must be named after its label, seed and key, got {path} with the cell {name}: "
            f"remove the folder and run the study again"
        )
    return key
