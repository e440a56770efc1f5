"""Studies, run: every cell that is not done, one by one or side by side, resumable at any moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from muonlab import _checks
from muonlab.lab.bell import Bell, listening
from muonlab.lab.board import Board, board
from muonlab.lab.cells import Job, Outcome, Show, run_cell, take_part
from muonlab.lab.disk import FULL_DISK
from muonlab.lab.environment import describe_machine, environment
from muonlab.lab.planning import Planned, by_name, check, identified, planned
from muonlab.lab.ranks import ALONE, Elsewhere, Ranks
from muonlab.lab.results import Results, listed, load_results, read_cell, sessions_of
from muonlab.lab.sealed import write_json
from muonlab.lab.spec import Spec
from muonlab.lab.store import head, key_of, opened, read_head
from muonlab.lab.studies import find
from muonlab.lab.study import PROFILES, Profile, Study
from muonlab.lab.workers import run_side_by_side

TRAINING = Study.work
"""The work that several ranks can do together."""


def run(
    study: Study | str,
    profile: str = "smoke",
    *,
    seeds: int | None = None,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    threads: int | None = None,
    jobs: int = 1,
    settings: Mapping[str, Any] | None = None,
    retry: bool = False,
    keep_weights: bool = True,
    checkpoint_seconds: float = 60.0,
    progress: bool = False,
    notes: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> Results:
    """Run the cells of a study that are not done; return all that were asked for.

    A finished cell is never run again, an interrupted one resumes bit-for-bit from its last checkpoint, a failed one
    is kept with its traceback and tried again only with ``retry``. SIGTERM and Ctrl-C save and return early: the
    status of the results is then ``"open"``; while data are read, they raise :class:`muonlab.lab.desk.Stopped`.

    Args:
        study: a name of ``muonlab list studies``, or a :class:`Study`.
        profile: ``"smoke"``, ``"small"`` or ``"paper"``.
        seeds: runs of each cell; None is the profile's number.
        data: folder with a folder for each dataset in the hub's layout; None is ``MUONLAB_DATA``, else the hub.
        out: run directory; None is ``runs/STUDY-PROFILE``.
        device: ``"cpu"``, ``"cuda"``, ``"mps"``.
        threads: of torch for a cell; None is that of the run directory, or of the profile, or the cores over ``jobs``.
        jobs: cells at the same time.
        settings: fields of the spec to replace in every cell.
        retry: whether cells that failed are tried again.
        keep_weights: whether the trained weights of each cell are kept; their hash is, in any case.
        checkpoint_seconds: between checkpoints.
        progress: whether to show progress on the standard error.
        notes: kept with the session in ``env.json``; the command line notes which rules will judge the run.
        ranks: processes that train each cell together, of which this is the leader; the others :func:`follow` it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run("quickstart", out=folder, settings={"steps": 2, "epochs": None})
        >>> results.status
        'done'
    """
    study = find(study) if isinstance(study, str) else study
    _checks.integer("jobs", jobs, at_least=1)
    _check_together(study, jobs, ranks)
    if out is not None and not os.fspath(out):
        raise ValueError("--out must name a directory, got an empty name: leave it away for runs/STUDY-PROFILE")
    folder = Path("runs") / f"{study.name}-{profile}" if out is None else Path(out)
    _checks.one_of("profile", profile, PROFILES)
    count = _threads(threads, jobs, folder, study.profiles[profile])  # type: ignore[index]
    request = Request(
        study, profile, folder, count, seeds=seeds, data=None if data is None else Path(data), device=device,
        settings=settings or {}, retry=retry, keep_weights=keep_weights, checkpoint_seconds=checkpoint_seconds,
        jobs=jobs, notes=notes or {},
    )  # fmt: skip
    with (
        room_on_disk(folder),
        listening(patient=ranks.joined) as bell,  # torchrun may pass a signal on that came by itself
        opened_study(request, bell, ranks, visible=progress) as opened_run,
        board(study.name, len(opened_run.tasks), visible=progress) as shown,
    ):
        run_tasks(opened_run.tasks, jobs, bell, shown, ranks)
    return load_results(folder, opened_run.names)


@dataclass(frozen=True)
class Request:
    """What of a study is to be run, where and how: the arguments of :func:`run`, checked.

    ``retry_killed`` tries only those failed cells again whose process was killed.
    """

    study: Study
    profile: str
    folder: Path
    threads: int
    seeds: int | None = None
    data: Path | None = None
    device: str = "cpu"
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry: bool = False
    retry_killed: bool = False
    keep_weights: bool = True
    checkpoint_seconds: float = 60.0
    jobs: int = 1
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.non_negative("checkpoint_seconds", self.checkpoint_seconds)


class StudyRun:
    """A study whose run directory is held for writing, and the cells of it that are to be run.

    Attributes:
        names: of the folders of all cells that were asked for.
        tasks: the cells to run.
    """

    def __init__(self, request: Request, cells: Sequence[Planned], ranks: Ranks) -> None:
        self.request, self.names = request, [cell.folder.path.name for cell in cells]
        self._about = {**request.notes, "ranks": ranks.size, "parallel": ranks.parallel}
        self._session: tuple[int, dict[str, Any]] | None = None
        _write_cells(request.folder, cells)
        self.tasks = [Task(self, cell) for cell in _todo(cells, request)]

    def session(self) -> tuple[int, dict[str, Any]]:
        """Return the number and the content of this session in ``env.json``, written when the first cell is begun."""
        if self._session is None:
            sessions, study = sessions_of(self.request.folder), self.request.study
            about = {"claims": list(study.claims), "items": list(study.items), **self._about}
            program = Path(sys.argv[0]).name.replace("__main__.py", "muonlab")  # python -m muonlab
            sessions.append({**environment(), **about, "command": [program, *sys.argv[1:]]})
            write_json(self.request.folder / "env.json", {"sessions": sessions})
            self._session = len(sessions) - 1, sessions[-1]
        return self._session


class Task(NamedTuple):
    """A cell to run, and the study that it is of."""

    run: StudyRun
    planned: Planned

    @property
    def name(self) -> str:
        """What progress calls it."""
        return f"{self.planned.cell.label}, seed {self.planned.cell.spec.seed}"

    @property
    def folder(self) -> Path:
        """Of the cell."""
        return self.planned.folder.path

    def begin(self) -> Job:
        """Return the job for a worker, now that it is begun."""
        request, (number, session) = self.run.request, self.run.session()
        return Job(
            folder=self.folder,
            spec=self.planned.cell.spec,
            work=request.study.work,
            data=request.data,
            checkpoint_seconds=request.checkpoint_seconds,
            jobs=request.jobs,
            session=number,
            data_hash=self.planned.data_hash,
            keep_weights=request.keep_weights,
            key=key_of(self.planned.identity),
            machine=describe_machine(session),
            cores=session["cores"],
        )


@contextmanager
def opened_study(request: Request, bell: Bell, ranks: Ranks = ALONE, *, visible: bool = False) -> Iterator[StudyRun]:
    """Hold the run directory of a study for writing: its cells are planned and checked before anything is written."""
    cells = request.study.cells(
        request.profile, seeds=request.seeds, device=request.device, threads=request.threads, settings=request.settings
    )
    origins = identified(cells, request.data, bell, visible=visible)
    settings = {**request.settings, "device": request.device, "threads": request.threads}
    of = head(request.study, request.profile, settings, by_name(origins))
    all_cells = planned(request.folder, cells, origins)
    if _todo(all_cells, request):
        check(request.study, all_cells)
        _check_spread(all_cells, ranks)
    with opened(request.folder, of):
        yield StudyRun(request, all_cells, ranks)


def follow(ranks: Ranks) -> int:
    """Take part in every cell that the leader begins, until it says that it ends; return its exit code."""
    with listening(patient=True) as bell:
        while "end" not in (word := ranks.hear("job")):
            try:
                take_part(Job.from_dict(word), lambda: bell.rung, ranks)
            except Elsewhere:  # the one who has it says it
                return 2
            except OSError as error:
                if error.errno in FULL_DISK:  # the leader says it
                    return 2
                raise
    return int(word["end"])


def _check_together(study: Study, jobs: int, ranks: Ranks) -> None:
    if not ranks.joined:
        return
    if jobs > 1:
        raise ValueError(f"--jobs must be 1 under torchrun, whose ranks work on one cell together, got {jobs}: drop it")
    if study.work != TRAINING:
        raise ValueError(f"{study.name} measures one process, got torchrun: run it as muonlab run {study.name} …")


def _check_spread(cells: Sequence[Planned], ranks: Ranks) -> None:
    if ranks.joined:
        from muonlab.lab.parts import check as check_spec

        for one in cells:
            assert isinstance(one.cell.spec, Spec)
            check_spec(one.cell.spec, one.examples, ranks)


def _todo(cells: Sequence[Planned], request: Request) -> list[Planned]:
    return [
        one
        for one in cells
        if (status := one.folder.status) == "open"
        or (status == "failed" and (request.retry or (request.retry_killed and one.folder.was_killed)))
    ]


def _threads(asked: int | None, jobs: int, folder: Path, profile: Profile) -> int:
    if asked is not None:
        return _checks.integer("threads", asked, at_least=1)
    found = read_head(folder)
    if found is not None:  # its cells are of so many threads, whatever machine this is
        return int(found["settings"]["threads"])
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks on this machine
    return profile.threads or max(1, (os.cpu_count() or 1) // (jobs * together))


def _write_cells(folder: Path, cells: Sequence[Planned]) -> None:
    """Make the folder of each cell, and list the cells in order."""
    names, earlier = [one.folder.path.name for one in cells], listed(folder)
    seeds = {one.cell.spec.seed for one in cells}
    for name in earlier:
        if name not in names and any(f"-seed{seed}-" in name for seed in seeds):
            raise ValueError(
                f"a run directory holds one study, got {folder} with {name}, which the study does not have (any more), "
                f"its profile was changed: choose another --out, or remove {folder}"
            )
    for one in cells:
        one.folder.create(one.cell, one.identity)
    if not set(names) <= set(earlier):
        write_json(folder / "cells.json", {"cells": [*names, *(name for name in earlier if name not in names)]})


def run_tasks(
    tasks: Sequence[Task],
    count: int,
    bell: Bell,
    shown: Board,
    ranks: Ranks = ALONE,
    *,
    name: Callable[[Task], str] = lambda task: task.name,
) -> None:
    """Run cells, ``count`` at a time, until all have ended or the bell rings; ``name`` is what progress calls each."""
    with closing(_outcomes(tasks, [name(task) for task in tasks], count, bell, shown, ranks)) as outcomes:
        for number, outcome in outcomes:
            shown.end(name(tasks[number]), _words(tasks[number].folder, outcome))


def _outcomes(
    tasks: Sequence[Task], names: Sequence[str], count: int, bell: Bell, shown: Board, ranks: Ranks
) -> Generator[tuple[int, Outcome]]:
    if count == 1:
        for number, task in enumerate(tasks):
            if bell.rung:
                return
            outcome = run_cell(task.begin(), lambda: bell.rung, shown.begin(names[number]), ranks)
            yield number, outcome
            if outcome == "stopped":  # perhaps because another rank was asked to
                return
        return
    shows: dict[int, Show] = {}

    def begin(number: int) -> Job:
        shows[number] = shown.begin(names[number])
        return tasks[number].begin()

    with closing(run_side_by_side(len(tasks), count, bell, shows.__getitem__, begin)) as ends:
        for ended in ends:
            if ended.outcome is None and ended.number_of_error in FULL_DISK:
                raise OSError(ended.number_of_error, os.strerror(ended.number_of_error))
            if ended.outcome is None:
                raise ValueError(f"a worker must be able to run, got {ended.error}: rerun the same command to resume")
            yield ended.number, ended.outcome


def _words(folder: Path, outcome: Outcome) -> str:
    if outcome in ("stopped", "held"):
        return {"stopped": "stopped, saved", "held": "skipped, another process is running it"}[outcome]
    result = read_cell(folder)
    if outcome == "failed":
        return f"failed: {result.error}"
    last = result.metrics[-1] if result.metrics else {}
    told = [f"{name.replace('_', ' ')} {last[name]:.4g}" for name in ("train_loss", "test_loss") if name in last]
    seconds = result.summary.get("seconds")
    return ", ".join(["done", *told, *([f"{seconds:.3g} s"] if seconds is not None else [])])


@contextmanager
def room_on_disk(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise ValueError(
            f"there must be room on the disk, got {error.strerror} while writing {folder}: make room and run the same "
            f"command again; what was finished is kept"
        ) from error
