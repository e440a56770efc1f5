"""Studies, run: every cell that is not done, one by one or side by side, resumable at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from muonlab import _checks
from muonlab.lab.distributed.ranks import ALONE, OtherRankError, Ranks
from muonlab.lab.files.disk import FULL_DISK
from muonlab.lab.runner.cells import Job, Outcome, Show, run_cell, take_part
from muonlab.lab.runner.open_study import Request, Task, opened_study
from muonlab.lab.runner.progress import Board, board
from muonlab.lab.runner.results import Results, load_results, read_cell
from muonlab.lab.runner.signals import Bell, listening
from muonlab.lab.runner.store import read_head
from muonlab.lab.runner.workers import run_side_by_side
from muonlab.lab.studies import find
from muonlab.lab.study import PROFILES, Profile, Study

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
    status of the results is then ``"open"``; while data are read, they raise :class:`muonlab.lab.cell_context.Stopped`.

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
        listening(patient=ranks.is_distributed) as bell,  # torchrun may pass a signal on that came by itself
        opened_study(request, bell, ranks, visible=progress) as opened_run,
        board(study.name, len(opened_run.tasks), visible=progress) as shown,
    ):
        run_tasks(opened_run.tasks, jobs, bell, shown, ranks)
    return load_results(folder, opened_run.names)


def follow(ranks: Ranks) -> int:
    """Take part in every cell that the leader begins, until it says that it ends; return its exit code."""
    with listening(patient=True) as bell:
        while "end" not in (word := ranks.wait_for("job")):
            try:
                take_part(Job.from_dict(word), lambda: bell.rung, ranks)
            except OtherRankError:  # the one who has it says it
                return 2
            except OSError as error:
                if error.errno in FULL_DISK:  # the leader says it
                    return 2
                raise
    return int(word["end"])


def _check_together(study: Study, jobs: int, ranks: Ranks) -> None:
    if not ranks.is_distributed:
        return
    if jobs > 1:
        raise ValueError(f"--jobs must be 1 under torchrun, whose ranks work on one cell together, got {jobs}: drop it")
    if study.work != TRAINING:
        raise ValueError(f"{study.name} measures one process, got torchrun: run it as muonlab run {study.name} …")


def _threads(asked: int | None, jobs: int, folder: Path, profile: Profile) -> int:
    if asked is not None:
        return _checks.integer("threads", asked, at_least=1)
    found = read_head(folder)
    if found is not None:  # its cells are of so many threads, whatever machine this is
        return int(found["settings"]["threads"])
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks on this machine
    return profile.threads or max(1, (os.cpu_count() or 1) // (jobs * together))


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
