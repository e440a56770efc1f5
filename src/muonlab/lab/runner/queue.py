"""A queue of studies: runs the cells of many run directories, a few at a time, in the order of a TOML file."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from muonlab import _checks, _files
from muonlab.lab.runner.planning import StudyRequest
from muonlab.lab.runner.progress import ProgressDisplay
from muonlab.lab.runner.results import CellResult, cell_names, read_cell
from muonlab.lab.runner.run_study import explain_full_disk, run_cells
from muonlab.lab.runner.session import CellTask, open_session
from muonlab.lab.runner.signals import handle_signals
from muonlab.lab.runner.store import read_head
from muonlab.lab.studies import find

ShowLine = Callable[[str], None]
LARGEST_LIST = 2**20
"""Most bytes of a list of studies."""
THREADS = 1
"""Threads of every cell, so that it can be timed in CPU seconds while others run."""


@dataclass(frozen=True)
class QueueEntry:
    """One entry of a queue: a study, with the first ``seeds`` seeds.

    Args:
        study: a name of ``muonlab list studies``, or the path of a study file.
        profile: one of the study's.
        seeds: runs of each cell. A later entry with more seeds adds cells to the same run directory.
        cell_minutes: estimated CPU minutes of a cell, used until a finished cell gives a better estimate.
        name: of the run directory; empty is ``STUDY-PROFILE``, or ``STUDY`` if the study has one profile.
        settings: fields of the spec to replace in every cell.
    """

    study: str
    profile: str
    seeds: int
    cell_minutes: float
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        study = find(self.study)
        study.profile_name(self.profile)
        _checks.integer("seeds", self.seeds, at_least=1)
        _checks.positive("cell_minutes", self.cell_minutes)
        object.__setattr__(self, "name", self.name or study.folder_name(self.profile))
        if Path(self.name).name != self.name or self.name == "..":
            raise ValueError(f"name must be that of a folder in --out, got {self.name!r}: use letters and hyphens")


def read_queue(path: Path) -> tuple[QueueEntry, ...]:
    """Return the entries of a TOML file with a table ``[[run]]`` for each."""
    try:
        runs = tomllib.loads(_files.read_bytes(path, at_most=LARGEST_LIST, follow_link=True).decode()).get("run", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"a list of studies must be a TOML file, got {path}: {error}") from error
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise ValueError(f"a list of studies must have entries [[run]], got {path} without: add one")
    known = [each.name for each in fields(QueueEntry)]
    entries = []
    for number, run in enumerate(runs, start=1):
        unknown = set(run) - set(known)
        missing = {"study", "profile", "seeds", "cell_minutes"} - set(run)
        if unknown or missing:
            problem = f"with {', '.join(sorted(unknown))}" if unknown else f"without {', '.join(sorted(missing))}"
            raise ValueError(
                f"entries of a list have the fields {', '.join(known)}, got entry {number} of {path} {problem}: edit it"
            )
        if str(run["study"]).endswith(".py"):
            run["study"] = str(path.parent / run["study"])
        entries.append(QueueEntry(**run))
    first_of_name: dict[str, QueueEntry] = {}
    for entry in entries:
        first = first_of_name.setdefault(entry.name, entry)
        if (first.study, first.profile, first.settings) != (entry.study, entry.profile, entry.settings):
            raise ValueError(
                f"entries of one name must differ in their seeds alone, got {path} with two kinds of {entry.name}: "
                f"give one of them another name"
            )
    return tuple(entries)


def run_queue(
    entries: Sequence[QueueEntry],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int = 2,
    checkpoint_seconds: float = 60.0,
    notes: Callable[[str], Mapping[str, Any]] = lambda _: {},
    show: ShowLine = lambda _: None,
) -> bool:
    """Run the cells of all entries that are not done; return whether it was stopped before the end.

    Cells are run in the order of the entries, ``jobs`` at a time, each with one thread, without keeping weights.
    SIGTERM and Ctrl-C save the running cells. An entry that cannot be run, because its data are missing or its run
    directory is damaged or locked by another process, is reported, and the others are run. A cell whose process was
    killed is resumed by the next queue.

    Args:
        entries: of :func:`read_queue`.
        out: directory of the run directories.
        data: directory with a folder for each dataset; None is ``MUONLAB_DATA``, else the hub.
        jobs: number of cells that run at the same time.
        checkpoint_seconds: seconds between the checkpoints of a cell.
        notes: called with the name of a study; returns what is stored with the session in ``env.json``.
        show: called with each line of progress: what is left at the start, problems, and each cell that ends.
    """
    with explain_full_disk(out), handle_signals() as stop, ExitStack() as sessions:
        tasks: list[CellTask] = []
        by_name = {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.seeds)}  # the most seeds
        for entry in by_name.values():
            request = StudyRequest(
                find(entry.study),
                entry.profile,
                out / entry.name,
                THREADS,
                seeds=entry.seeds,
                data=data,
                settings=entry.settings,
                retry_killed=True,
                keep_weights=False,
                checkpoint_seconds=checkpoint_seconds,
                jobs=jobs,
                notes=notes(entry.study),
            )
            try:
                session = sessions.enter_context(open_session(request, stop))
            except (ValueError, OSError) as error:
                show(f"{entry.name} cannot be run: {error}")
                continue
            tasks += [replace(task, name=f"{entry.name}, {task.name}") for task in session.tasks]
        tasks.sort(key=lambda task: entries.index(_entry_of(task, entries)))  # within an entry in the study's order
        run_cells(tasks, jobs, stop, _QueueDisplay(tasks, entries, out, jobs, show))
        return stop.requested


def _entry_of(task: CellTask, entries: Sequence[QueueEntry]) -> QueueEntry:
    """Return the first entry that asks for a cell."""
    name, seed = task.session.request.folder.name, task.planned.cell.spec.seed
    return next(entry for entry in entries if entry.name == name and seed < entry.seeds)


class _QueueDisplay(ProgressDisplay):
    """Shows a line for each cell that ends, with the number of cells left and the estimated time."""

    def __init__(
        self, tasks: Sequence[CellTask], entries: Sequence[QueueEntry], out: Path, jobs: int, show: ShowLine
    ) -> None:
        self.left = {task.name: (_entry_of(task, entries), task) for task in tasks}
        self.jobs, self.show, self.estimates = jobs, show, TimeEstimates()
        for name in {entry.name for entry, _ in self.left.values()}:
            for cell in _readable_cells(out / name, show):
                self.estimates.add(name, cell)
        self.show(self._cells_left())

    def end(self, name: str, outcome: str) -> None:
        """Show the outcome of a cell."""
        if not outcome.startswith("stopped"):
            entry, task = self.left.pop(name)
            if outcome.startswith("done"):
                self.estimates.add(entry.name, read_cell(task.folder))
        self.show(f"{name}: {outcome}. {self._cells_left()}")

    def _cells_left(self) -> str:
        minutes = sum(self.estimates.minutes(entry, task.planned.cell.label) for entry, task in self.left.values())
        return f"Cells left: {len(self.left)}, about {duration(minutes / self.jobs)} with {self.jobs} at a time"


class TimeEstimates:
    """Estimated CPU time of cells: the mean of the finished cells of the same label, else that of the queue's entry."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, cell: CellResult) -> None:
        """Use the time of a cell of the run directory ``name``, if it is done and was timed."""
        if isinstance(seconds := cell.summary.get("cpu_seconds"), float):
            self._seconds.setdefault((name, cell.label), []).append(seconds)

    def minutes(self, entry: QueueEntry, label: str) -> float:
        """Return the estimated CPU minutes of a cell."""
        known = self._seconds.get((entry.name, label))
        return sum(known) / len(known) / 60 if known else entry.cell_minutes


def _readable_cells(folder: Path, show: ShowLine) -> list[CellResult]:
    """Return the cells of a run directory that can be read; show a line about those that cannot."""
    cells = []
    try:
        head = read_head(folder)
        names = [] if head is None else cell_names(folder)
    except (ValueError, OSError) as error:
        show(f"{folder.name} cannot be read: {error}")
        return []
    for name in names:
        try:
            cells.append(read_cell(folder / "cells" / name, head))
        except (ValueError, OSError) as error:
            show(f"{folder.name} has a cell that cannot be read: {error}")
    return cells


@dataclass(frozen=True)
class EntryProgress:
    """The progress of an entry.

    Args:
        entry: of the queue.
        cells: number of cells that it asks for and no earlier entry does.
        done: of these.
        failed: of these.
        open: of these; still to be run, or running.
        minutes: estimated CPU minutes of the open cells.
    """

    entry: QueueEntry
    cells: int
    done: int
    failed: int
    open: int
    minutes: float


def queue_progress(entries: Sequence[QueueEntry], out: Path, show: ShowLine = lambda _: None) -> list[EntryProgress]:
    """Return the progress of each entry, read from the run directories without reading data.

    A cell that cannot be read counts as open; ``show`` is called with a line about it.
    """
    estimates = TimeEstimates()
    status: dict[tuple[str, str, int], str] = {}
    for name in dict.fromkeys(entry.name for entry in entries):
        for cell in _readable_cells(out / name, show):
            status[name, cell.label, cell.seed] = cell.status
            estimates.add(name, cell)
    progress = []
    first_seed: dict[str, int] = {}  # that no earlier entry asks for
    for entry in entries:
        first = first_seed.get(entry.name, 0)
        cells = find(entry.study).cells(entry.profile, seeds=entry.seeds, threads=THREADS, settings=entry.settings)
        keys = [(entry.name, cell.label, cell.spec.seed) for cell in cells if cell.spec.seed >= first]
        counts = Counter(status.get(key, "open") for key in keys)
        minutes = sum(estimates.minutes(entry, key[1]) for key in keys if status.get(key, "open") == "open")
        progress.append(EntryProgress(entry, len(keys), counts["done"], counts["failed"], counts["open"], minutes))
        first_seed[entry.name] = max(entry.seeds, first)
    return progress


def duration(minutes: float) -> str:
    """Return a time in minutes or hours.

    Example:
        >>> duration(3.2), duration(90.0)
        ('3 min', '1.5 h')
    """
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
