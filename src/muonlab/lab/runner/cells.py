"""One cell from its folder to its outcome: run by this process, or by a worker."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from muonlab.lab.cell_context import Desk, Stopped
from muonlab.lab.distributed.ranks import ALONE, LostRankError, OtherRankError, Ranks
from muonlab.lab.files.disk import FULL_DISK
from muonlab.lab.files.row_files import RowFiles, SavedRows
from muonlab.lab.runner.store import CellFolder, HeldError, locked
from muonlab.lab.settings import Settings
from muonlab.lab.spec import Spec
from muonlab.lab.training import checkpoint

Outcome = Literal["done", "failed", "stopped", "held"]
"""``"held"``: another process is running the cell."""
Show = Callable[[int, int, dict[str, float]], None]


@dataclass(frozen=True)
class Job:
    """A cell to be run: plain values, so that a worker process can be given it.

    Args:
        folder: of the cell.
        spec: of the cell.
        work: ``module:function`` that runs it.
        data: folder with folders of data, or None.
        checkpoint_seconds: between checkpoints.
        jobs: cells that run at the same time.
        session: number of the environment in ``env.json`` that it runs in.
        data_hash: of the data that its key was made with.
        keep_weights: whether its trained weights are written to its folder.
        key: of the cell.
        machine: that it runs on, described.
        cores: of the machine.
    """

    folder: Path
    spec: Settings
    work: str
    data: Path | None
    checkpoint_seconds: float
    jobs: int = 1
    session: int = 0
    data_hash: str | None = None
    keep_weights: bool = True
    key: str = ""
    machine: str = ""
    cores: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what other ranks need to take part, as plain values."""
        return {
            "folder": str(self.folder.absolute()),
            "spec": self.spec.to_dict(),
            "work": self.work,
            "data": None if self.data is None else str(self.data.absolute()),
            "checkpoint_seconds": self.checkpoint_seconds,
            "data_hash": self.data_hash,
            "keep_weights": self.keep_weights,
            "key": self.key,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        """Return the job of :meth:`to_dict`; the work of ranks together is training."""
        paths = {"folder": Path(values["folder"]), "data": None if values["data"] is None else Path(values["data"])}
        return cls(**{**values, **paths, "spec": Spec(**values["spec"])})


class CellDesk:
    """The :class:`muonlab.lab.cell_context.Desk` of a cell."""

    def __init__(self, job: Job, stopping: Callable[[], bool], show: Show) -> None:
        self.folder, self.data, self.key, self.data_hash = job.folder, job.data, job.key, job.data_hash
        self.checkpoint_seconds, self.keep_weights = job.checkpoint_seconds, job.keep_weights
        self._stopping, self._show = stopping, show
        self._files = RowFiles(job.folder)
        self.begin, self.save_rows, self.close = self._files.cut, self._files.save, self._files.close

    @property
    def stopping(self) -> bool:
        """Whether the work should save and stop."""
        return self._stopping()

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Append a row."""
        self._files.write(row, file)

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Show how far the cell is."""
        self._show(done, total, numbers)


class QuietDesk:
    """The desk of a rank that is not the leader: nothing is written or shown; the folder is for shards."""

    def __init__(self, job: Job, stopping: Callable[[], bool]) -> None:
        self.folder, self.data, self.key, self.data_hash = job.folder, job.data, job.key, job.data_hash
        self.checkpoint_seconds, self.keep_weights = job.checkpoint_seconds, job.keep_weights
        self._stopping = stopping

    @property
    def stopping(self) -> bool:
        """Whether the work should save and stop."""
        return self._stopping()

    def begin(self, saved: SavedRows) -> None:
        """Do nothing."""

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Do nothing."""

    def save_rows(self) -> SavedRows:
        """Return that there are none."""
        return {}

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Do nothing."""


def function_of(work: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    module, _, name = work.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def run_cell(job: Job, stopping: Callable[[], bool], show: Show, ranks: Ranks = ALONE) -> Outcome:
    """Run a cell to its end, its failure or the bell, and mark its folder accordingly; among ranks, on the leader.

    A full disk, a lost rank and an error that not all ranks have are not the cell's failure: they are raised, and the
    cell stays open.
    """
    try:
        with locked(job.folder), threads(job.spec.threads):
            return _run_held_cell(job, stopping, show, ranks)
    except HeldError:
        return "held"


def _run_held_cell(job: Job, stopping: Callable[[], bool], show: Show, ranks: Ranks) -> Outcome:
    folder = CellFolder(job.folder)
    if folder.status == "done":  # another process was faster
        return "done"
    checkpoint.sweep(job.folder)
    history = folder.begin(job.key, job.jobs, job.session, job.machine, job.cores, ranks.size)
    desk = CellDesk(job, stopping, show)
    ranks.publish("job", job.to_dict())
    try:
        summary = _worked(job, desk, ranks)
        rows = desk.save_rows()
    except Stopped:
        return "stopped"
    except Exception as error:
        if not _is_of_the_cell(error, ranks):
            raise
        why = {"error": describe(error), "traceback": traceback.format_exc(), "time": time.time()}
        folder.fail({"key": job.key, **why, "rows": desk.save_rows()})
        return "failed"
    finally:
        desk.close()
    folder.finish({"summary": summary, "rows": rows, **history, "time": time.time()})
    return "done"


def take_part(job: Job, stopping: Callable[[], bool], ranks: Ranks) -> None:
    """Work on a cell beside the leader, who marks its folder; an error that not all ranks have is raised."""
    with threads(job.spec.threads):
        try:
            _worked(job, QuietDesk(job, stopping), ranks)
        except Stopped:
            return
        except Exception as error:
            if not _is_of_the_cell(error, ranks):
                if not isinstance(error, (LostRankError, OtherRankError)):
                    ranks.report_error(describe(error))
                raise


def _is_of_the_cell(error: Exception, ranks: Ranks) -> bool:
    """Return whether all ranks have the same error, after which they can go on with the next cell together."""
    if isinstance(error, (LostRankError, OtherRankError)) or (isinstance(error, OSError) and error.errno in FULL_DISK):
        return False
    return ranks.all_ranks_agree(describe(error))


def _worked(job: Job, desk: Desk, ranks: Ranks) -> Any:
    """Do the work of a job; ranks are together again when all have done it, or all have stopped."""
    ranks.in_sync = False
    with ranks.detect_lost_ranks():
        try:
            result = function_of(job.work)(job.spec, desk, *([ranks] if ranks.is_distributed else []))
        except Stopped:
            ranks.in_sync = True
            raise
    ranks.in_sync = True
    return result


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads inside."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
