"""A queue of studies: the cells of many run directories, a few at a time, in the order of a list kept in one file."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from muonlab import _checks
from muonlab.lab.runner.cells import Show as ShowProgress
from muonlab.lab.runner.open_study import Request, Task, opened_study
from muonlab.lab.runner.results import CellResult, listed, read_cell
from muonlab.lab.runner.run_study import room_on_disk, run_tasks
from muonlab.lab.runner.signals import listening
from muonlab.lab.runner.store import read_head
from muonlab.lab.studies import find
from muonlab.lab.study import PROFILES

Show = Callable[[str], None]
"""Shows a line of text."""
THREADS = 1
"""Of every cell, so that it can be timed in CPU seconds whatever runs beside it."""


@dataclass(frozen=True)
class Entry:
    """One entry of the list: cells of one study, of the first ``seeds`` seeds.

    Args:
        study: a name of ``muonlab list studies``.
        profile: ``"smoke"``, ``"small"`` or ``"paper"``.
        seeds: runs of each place. A later entry with more seeds adds to the same run directory.
        cell_minutes: CPU minutes that a cell takes, for the time left until a finished cell tells it.
        name: of the run directory; empty is ``STUDY-PROFILE``.
        settings: fields of the spec to replace in every cell.
    """

    study: str
    profile: str
    seeds: int
    cell_minutes: float
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find(self.study)
        _checks.one_of("profile", self.profile, PROFILES)
        _checks.integer("seeds", self.seeds, at_least=1)
        _checks.positive("cell_minutes", self.cell_minutes)
        object.__setattr__(self, "name", self.name or f"{self.study}-{self.profile}")
        if Path(self.name).name != self.name or self.name == "..":
            raise ValueError(f"name must be that of a folder in --out, got {self.name!r}: use letters and hyphens")


def read_list(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a list: a TOML file with a table ``[[run]]`` for each."""
    try:
        runs = tomllib.loads(path.read_text(encoding="utf-8")).get("run", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"a list of studies must be a TOML file, got {path}: {error}") from error
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise ValueError(f"a list of studies must have entries [[run]], got {path} with another kind of run: edit it")
    entries = []
    for number, run in enumerate(runs, start=1):
        unknown = set(run) - {one.name for one in fields(Entry)}
        missing = {"study", "profile", "seeds", "cell_minutes"} - set(run)
        if unknown or missing:
            problem = f"with {', '.join(sorted(unknown))}" if unknown else f"without {', '.join(sorted(missing))}"
            known = ", ".join(one.name for one in fields(Entry))
            raise ValueError(
                f"entries of a list have the fields {known}, got entry {number} of {path} {problem}: edit it"
            )
        entries.append(Entry(**run))
    if not entries:
        raise ValueError(f"a list of studies must have entries [[run]], got {path} with none: add one")
    for entry in entries:
        same = [one for one in entries if one.name == entry.name]
        if any((one.study, one.profile, one.settings) != (entry.study, entry.profile, entry.settings) for one in same):
            raise ValueError(
                f"entries of one name must differ in their seeds alone, got {path} with two kinds of {entry.name}: "
                f"give one of them another name"
            )
    return tuple(entries)


@dataclass(frozen=True)
class EntryProgress:
    """How far an entry is.

    Args:
        entry: of the list.
        cells: that it asks for and no earlier entry does.
        done: of these.
        failed: of these.
        open: of these; still to be run, or running.
        minutes: CPU minutes that the open ones will take, by the finished cells of the same label, or by the list.
    """

    entry: Entry
    cells: int
    done: int
    failed: int
    open: int
    minutes: float


def progress_of(entries: Sequence[Entry], out: Path, show: Show = lambda _: None) -> list[EntryProgress]:
    """Return how far each entry is, read from the run directories; data are not needed for it.

    What cannot be read counts as open; ``show`` is called with a line about it.
    """
    estimates = Estimates()
    status: dict[tuple[str, str, int], str] = {}
    for entry in {one.name: one for one in entries}.values():
        for cell in _cells_of(out / entry.name, show):
            status[entry.name, cell.label, cell.seed] = cell.status
            estimates.add(entry.name, cell)
    found = []
    seeds_before: dict[str, int] = {}
    for entry in entries:
        first = seeds_before.get(entry.name, 0)
        cells = find(entry.study).cells(entry.profile, seeds=entry.seeds, threads=THREADS, settings=entry.settings)
        asked = [(entry.name, cell.label, cell.spec.seed) for cell in cells if cell.spec.seed >= first]
        states = Counter(status.get(cell, "open") for cell in asked)
        minutes = sum(estimates.minutes(entry, cell[1]) for cell in asked if status.get(cell, "open") == "open")
        found.append(EntryProgress(entry, len(asked), states["done"], states["failed"], states["open"], minutes))
        seeds_before[entry.name] = max(entry.seeds, first)
    return found


def _cells_of(folder: Path, show: Show) -> list[CellResult]:
    """Return the cells of a run directory that can be read."""
    found = []
    try:
        head = read_head(folder)
        names = [] if head is None else listed(folder)
    except (ValueError, OSError) as error:
        show(f"{folder.name} cannot be read: {error}")
        return []
    for name in names:
        try:
            found.append(read_cell(folder / "cells" / name, head))
        except (ValueError, OSError) as error:
            show(f"{folder.name} has a cell that cannot be read: {error}")
    return found


class Estimates:
    """How long cells take: the mean of the finished cells of the same label, else what the list says."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, cell: CellResult) -> None:
        """Learn from a cell of a run directory, if it is done and was timed."""
        if isinstance(seconds := cell.summary.get("cpu_seconds"), float):
            self._seconds.setdefault((name, cell.label), []).append(seconds)

    def minutes(self, entry: Entry, label: str) -> float:
        """Return the CPU minutes that a cell is going to take."""
        known = self._seconds.get((entry.name, label))
        return sum(known) / len(known) / 60 if known else entry.cell_minutes


def run_queue(
    entries: Sequence[Entry],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int = 2,
    checkpoint_seconds: float = 60.0,
    notes: Callable[[str], Mapping[str, Any]] = lambda _: {},
    show: Show = lambda _: None,
) -> bool:
    """Run the cells of all entries that are not done; return whether it was asked to stop before the end.

    Cells are run in the order of the entries, ``jobs`` at a time, each with one thread, without keeping weights.
    SIGTERM and Ctrl-C save the cells that are running. An entry that cannot be run, because its data are not there or
    its run directory is damaged or held by another process, is shown as a problem, and the others are run. A cell whose
    process was killed is resumed by the next queue.

    Args:
        entries: of :func:`read_list`.
        out: directory of the run directories.
        data: folder with a folder for each dataset; None is ``MUONLAB_DATA``, else the hub.
        jobs: cells at the same time.
        checkpoint_seconds: between the checkpoints of a cell.
        notes: gives what is kept with a session in ``env.json``, by the name of the study.
        show: called with a line of text: what is left at the start, problems, and each cell that ends.
    """
    with room_on_disk(out), listening() as bell, ExitStack() as held:
        tasks = []
        for entry in {one.name: one for one in sorted(entries, key=lambda one: one.seeds)}.values():  # the most seeds
            request = Request(
                find(entry.study), entry.profile, out / entry.name, THREADS, seeds=entry.seeds, data=data,
                settings=entry.settings, retry_killed=True, keep_weights=False, checkpoint_seconds=checkpoint_seconds,
                jobs=jobs, notes=notes(entry.study),
            )  # fmt: skip
            try:
                tasks += held.enter_context(opened_study(request, bell)).tasks
            except (ValueError, OSError) as error:
                show(f"{entry.name} cannot be run: {error}")
        tasks.sort(key=lambda task: entries.index(_entry_of(task, entries)))  # within an entry as the study has them
        run_tasks(tasks, jobs, bell, _Lines(tasks, entries, out, jobs, show), name=_name)
        return bell.rung


def _entry_of(task: Task, entries: Sequence[Entry]) -> Entry:
    """Return the first entry that asks for a cell."""
    name, seed = task.run.request.folder.name, task.planned.cell.spec.seed
    return next(entry for entry in entries if entry.name == name and seed < entry.seeds)


def _name(task: Task) -> str:
    return f"{task.run.request.folder.name}, {task.name}"


class _Lines:
    """Shows a line for each cell that ends, with what is left and how long it will take."""

    def __init__(self, tasks: Sequence[Task], entries: Sequence[Entry], out: Path, jobs: int, show: Show) -> None:
        self.left = {_name(task): (_entry_of(task, entries), task) for task in tasks}
        self.jobs, self.show, self.estimates = jobs, show, Estimates()
        for entry in {one.name: one for one, _ in self.left.values()}.values():
            for cell in _cells_of(out / entry.name, show):
                self.estimates.add(entry.name, cell)
        self.show(self._what_is_left())

    def begin(self, name: str) -> ShowProgress:  # noqa: ARG002
        """Show nothing."""
        return lambda *_: None

    def end(self, name: str, words: str) -> None:
        """Show how a cell ended."""
        if not words.startswith("stopped"):
            entry, task = self.left.pop(name)
            if words.startswith("done"):
                self.estimates.add(entry.name, read_cell(task.folder))
        self.show(f"{name}: {words}. {self._what_is_left()}")

    def _what_is_left(self) -> str:
        minutes = sum(self.estimates.minutes(entry, task.planned.cell.label) for entry, task in self.left.values())
        return f"Cells left: {len(self.left)}, about {duration(minutes / self.jobs)} with {self.jobs} at a time"


def duration(minutes: float) -> str:
    """Return a time in words.

    Example:
        >>> duration(3.2), duration(90.0)
        ('3 min', '1.5 h')
    """
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
