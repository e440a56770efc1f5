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

from muonlab.lab import checkpoint
from muonlab.lab.desk import Stopped
from muonlab.lab.disk import FULL_DISK, sha256
from muonlab.lab.environment import load
from muonlab.lab.rowfiles import RowFiles
from muonlab.lab.settings import Settings
from muonlab.lab.store import CellFolder, largest, locked

Outcome = Literal["done", "failed", "stopped"]
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
        jobs: cells that run at the same time; with more than one, clocks measure a shared machine.
        session: number of the environment in ``env.json`` that it runs in.
        data_hash: of the data that its key was made with.
    """

    folder: Path
    spec: Settings
    work: str
    data: Path | None
    checkpoint_seconds: float
    jobs: int = 1
    session: int = 0
    data_hash: str | None = None


class CellDesk:
    """The :class:`muonlab.lab.desk.Desk` of a cell."""

    def __init__(self, job: Job, stopping: Callable[[], bool], show: Show) -> None:
        self.folder, self.data, self.data_hash = job.folder, job.data, job.data_hash
        self.checkpoint_seconds = job.checkpoint_seconds
        self._stopping, self._show = stopping, show
        self._files = RowFiles(job.folder)
        self.load: float | None = None
        self.begin, self.lines, self.close = self._files.cut, self._files.settle, self._files.close

    @property
    def stopping(self) -> bool:
        """Whether the work should save and stop."""
        return self._stopping()

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Append a row, and look how busy the machine is."""
        self._files.write(row, file)
        self.load = largest(self.load, load())

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Show how far the cell is."""
        self._show(done, total, numbers)


def function_of(work: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    module, _, name = work.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def run_cell(job: Job, stopping: Callable[[], bool], show: Show) -> Outcome:
    """Run a cell to its end, its failure or the bell, and mark its folder accordingly.

    A full disk is not the cell's failure: it is raised, and the cell stays open.
    """
    folder = CellFolder(job.folder)
    with locked(job.folder), threads(job.spec.threads):
        if folder.status == "done":  # another process was faster
            return "done"
        checkpoint.sweep(job.folder)
        history = folder.begin(jobs=job.jobs, session=job.session, load=load())
        desk = CellDesk(job, stopping, show)
        try:
            summary = function_of(job.work)(job.spec, desk)
            rows = desk.lines()
        except Stopped:
            return "stopped"
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL_DISK:
                raise
            folder.fail({"error": describe(error), "traceback": traceback.format_exc(), "time": time.time()})
            return "failed"
        finally:
            desk.close()
        hashes = {name: sha256(job.folder / f"{name}.jsonl") for name in rows}
        history["load"] = largest(history["load"], desk.load, load())
        folder.finish({"summary": summary, "rows_sha256": hashes, **history, "time": time.time()})
    return "done"


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
