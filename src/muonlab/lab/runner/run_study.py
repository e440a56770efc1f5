"""Runs a study: plans its cells, runs those that are not done, and reads the results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from muonlab import _checks
from muonlab.lab.distributed.ranks import ALONE, OtherRankError, Ranks
from muonlab.lab.files.disk import FULL_DISK
from muonlab.lab.runner.cells import CellJob, Outcome, error_line, join_cell, run_cell
from muonlab.lab.runner.planning import StudyRequest
from muonlab.lab.runner.progress import ProgressDisplay, progress_display
from muonlab.lab.runner.results import Results, load_results, read_cell
from muonlab.lab.runner.session import CellTask, open_session
from muonlab.lab.runner.signals import StopSignal, handle_signals
from muonlab.lab.runner.store import read_head
from muonlab.lab.runner.workers import run_in_workers
from muonlab.lab.studies import find
from muonlab.lab.study import Cell, Profile, Study

TRAINING = Study.work
"""The only work that several ranks can do together."""


def run(
    study: Study | str,
    profile: str | None = None,
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
    """Run the cells of a study that are not done; return the results of all requested cells.

    A finished cell is run again only after its folder is removed, or with another ``out``; an interrupted one resumes
    bit-for-bit from its last checkpoint; a failed one is kept with its traceback and run again only with ``retry``.
    SIGTERM and Ctrl-C save and return early: the status of the results is then ``"open"``. While data are read, they
    raise ``muonlab.lab.cell_context.Stopped``.

    Args:
        study: a name of ``muonlab list studies``, the path of a study file, or a :class:`muonlab.lab.Study`.
        profile: one of the study's, such as ``"smoke"``, ``"small"`` or ``"paper"``; None is ``"smoke"`` if the study
            has it, else the first.
        seeds: number of runs of each cell; None is the profile's number.
        data: directory with a folder for each dataset in the hub's layout; None is ``MUONLAB_DATA``, else the hub.
        out: run directory; None is ``runs/STUDY-PROFILE``, or ``runs/STUDY`` if the study has one profile.
        device: ``"cpu"``, ``"cuda"``, ``"mps"``.
        threads: torch threads of a cell; None is the number of the run directory, else that of the profile, else the
            cores divided by ``jobs``.
        jobs: number of cells that run at the same time.
        settings: fields of the spec to replace in every cell.
        retry: whether failed cells are run again.
        keep_weights: whether the trained weights of each cell are kept; their hash always is.
        checkpoint_seconds: seconds between checkpoints.
        progress: whether to show progress on the standard error.
        notes: stored with the session in ``env.json``; the command line stores the hash of the rules of the claims.
        ranks: processes that train each cell together, of which this is rank 0; the others call ``run_study.follow``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run("quickstart", out=folder, settings={"steps": 2, "epochs": None})
        >>> results.status
        'done'
    """
    study = find(study) if isinstance(study, str) else study
    _checks.integer("jobs", jobs, at_least=1)
    profile = study.profile_name(profile)
    _check_ranks(study, jobs, ranks)
    if out is not None and not os.fspath(out):
        raise ValueError("--out must name a directory, got an empty name: omit it for runs/STUDY-PROFILE")
    folder = Path("runs") / study.folder_name(profile) if out is None else _checks.path("out", out)
    request = StudyRequest(
        study,
        profile,
        folder,
        _threads(threads, jobs, folder, study.profiles[profile]),
        seeds=seeds,
        data=None if data is None else _checks.path("data", data),
        device=device,
        settings=settings or {},
        retry=retry,
        keep_weights=keep_weights,
        checkpoint_seconds=checkpoint_seconds,
        jobs=jobs,
        notes=notes or {},
    )
    with (
        explain_full_disk(folder),
        handle_signals(ignore_repeated=ranks.is_distributed) as stop,  # torchrun may send a signal that arrived already
        open_session(request, stop, ranks, visible=progress) as session,
        progress_display(study.name, len(session.tasks), visible=progress) as display,
    ):
        run_cells(session.tasks, jobs, stop, display, ranks)
    return replace(load_results(folder, session.names), cells_to_run=len(session.tasks))


def _check_ranks(study: Study, jobs: int, ranks: Ranks) -> None:
    if not ranks.is_distributed:
        return
    if jobs > 1:
        raise ValueError(f"--jobs must be 1 under torchrun, whose ranks work on one cell together, got {jobs}: drop it")
    if study.work != TRAINING:
        raise ValueError(f"{study.name} measures one process, got torchrun: run it as muonlab run {study.name} …")


def _threads(requested: int | None, jobs: int, folder: Path, profile: Profile) -> int:
    if requested is not None:
        return _checks.integer("threads", requested, at_least=1)
    head = read_head(folder)
    if head is not None:  # its cells have this number of threads, on whatever machine they are resumed
        return _checks.integer("threads of study.json", head["settings"]["threads"], at_least=1)
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return profile.threads or max(1, (os.cpu_count() or 1) // (jobs * local_ranks))


def run_cells(
    tasks: Sequence[CellTask], jobs: int, stop: StopSignal, display: ProgressDisplay, ranks: Ranks = ALONE
) -> None:
    """Run cells, ``jobs`` at a time, until all have ended or a stop is requested."""

    def end(task: CellTask, outcome: Outcome) -> None:
        display.end(task.name, _describe_outcome(task.folder, outcome))

    if jobs > 1:
        run_in_workers(tasks, jobs, stop, lambda task: display.begin(task.name), end)
        return
    for task in tasks:
        if stop.requested:
            return
        outcome = run_cell(task.start(), lambda: stop.requested, display.begin(task.name), ranks)
        end(task, outcome)
        if outcome == "stopped":  # another rank may have been asked to stop
            return


def _describe_outcome(folder: Path, outcome: Outcome) -> str:
    if outcome == "stopped":
        return "stopped, saved"
    if outcome == "locked":
        return "skipped, another process is running it"
    result = read_cell(folder)
    if outcome == "failed":
        return f"failed: {result.error}"
    last = result.metrics[-1] if result.metrics else {}
    losses = [f"{name.replace('_', ' ')} {last[name]:.4g}" for name in ("train_loss", "test_loss") if name in last]
    seconds = result.summary.get("seconds")
    return ", ".join(["done", *losses, *([f"{seconds:.3g} s"] if seconds is not None else [])])


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Turn the OSError of a full disk into a ValueError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise ValueError(
            f"the disk must have free space, got {error.strerror} while writing {folder}: free some space and rerun "
            f"the same command to resume; finished cells are kept"
        ) from error


def follow(ranks: Ranks, cells: Callable[[int], Iterable[Cell]]) -> int:
    """Run every cell that rank 0 starts, until it ends; return its exit code.

    Args:
        ranks: the processes, of which this is not rank 0.
        cells: returns the cells of the study with a number of threads; it is called after rank 0 has checked the study.
    """
    with handle_signals(ignore_repeated=True) as stop:
        while "end" not in (message := ranks.wait_for("job")):
            values = message["job"]
            try:
                job = CellJob.from_dict(values, (cell.spec for cell in cells(values["spec"]["threads"])))
            except Exception as error:
                ranks.report_error(error_line(error))
                raise
            try:
                join_cell(job, lambda: stop.requested, ranks)
            except OtherRankError:  # the rank that has the error prints it
                return 2
            except OSError as error:
                if error.errno in FULL_DISK:  # rank 0 prints it
                    return 2
                raise
    return int(message["end"])
