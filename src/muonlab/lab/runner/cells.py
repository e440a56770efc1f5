"""One cell, from its folder to its outcome: in this process, in a worker process, or on several ranks."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from muonlab.lab.cell_context import CellContext, Stopped
from muonlab.lab.distributed.ranks import ALONE, LostRankError, OtherRankError, Ranks
from muonlab.lab.files.disk import FULL_DISK
from muonlab.lab.files.row_files import RowFiles, SavedRows
from muonlab.lab.runner.store import CellFolder, LockedError, hold_lock
from muonlab.lab.settings import Settings
from muonlab.lab.study import Work
from muonlab.lab.training import checkpoint

Outcome = Literal["done", "failed", "stopped", "locked"]
"""``"locked"``: another process is running the cell."""
ShowProgress = Callable[[int, int, dict[str, float]], None]
"""Called with the steps done, their total, and numbers such as ``loss`` and ``seconds``."""
_CHANGED = (
    "the file of a study must stay the same while it runs, got another model, optimizer or loss than when "
    "the study was planned: rerun the same command"
)


@dataclass(frozen=True)
class CellJob:
    """A cell and how to run it, which can be sent to a worker process.

    Args:
        folder: the cell's folder.
        spec: the cell's spec.
        work: the function that runs the cell, or ``module:function``.
        data: directory of the data folders, or None.
        checkpoint_seconds: seconds between checkpoints.
        jobs: number of cells that run at the same time.
        session: index of the session in ``env.json``.
        data_hash: hash of the data; it is part of the key.
        keep_weights: whether the trained weights are written to the folder.
        key: the cell's key.
        machine: description of the machine.
        cores: number of cores of the machine.
        planned: the spec as plain values when the cell was planned.
    """

    folder: Path
    spec: Settings
    work: Work
    data: Path | None
    checkpoint_seconds: float
    jobs: int = 1
    session: int = 0
    data_hash: str | None = None
    keep_weights: bool = True
    key: str = ""
    machine: str = ""
    cores: int | None = None
    planned: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON values for the other ranks, with an absolute path for each folder."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        data = None if self.data is None else str(self.data.absolute())
        return {**values, "folder": str(self.folder.absolute()), "data": data, "spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], specs: Iterable[Settings]) -> CellJob:
        """Rebuild a job from :meth:`to_dict`; its spec is the one of ``specs`` that has the same plain values.

        Raises:
            ValueError: if there is none, because the file of the study was edited.
        """
        spec = next((spec for spec in specs if spec.to_dict() == values["spec"]), None)
        if spec is None:
            raise ValueError(_CHANGED)
        data = None if values["data"] is None else Path(values["data"])
        return cls(**{**values, "folder": Path(values["folder"]), "data": data, "spec": spec})

    def check_code(self) -> None:
        """Raise ``ValueError`` if the code of the spec has changed since the cell was planned."""
        if self.planned is not None and self.spec.to_dict() != self.planned:
            raise ValueError(_CHANGED)


class RunnerContext:
    """The :class:`CellContext` of a running cell.

    Without ``show`` it writes nothing; this is so on all ranks except 0.
    """

    def __init__(self, job: CellJob, stop_requested: Callable[[], bool], show: ShowProgress | None = None) -> None:
        self.folder, self.data, self.key, self.data_hash = job.folder, job.data, job.key, job.data_hash
        self.checkpoint_seconds, self.keep_weights = job.checkpoint_seconds, job.keep_weights
        self._stop_requested, self._show = stop_requested, show
        self._rows = RowFiles(job.folder) if show else None

    @property
    def stopping(self) -> bool:
        """Whether the work should save and stop."""
        return self._stop_requested()

    def begin(self, saved: SavedRows) -> None:
        """Truncate each row file to the lines that the checkpoint saved."""
        if self._rows:
            self._rows.cut(saved)

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Append a row."""
        if not isinstance(row, dict) or not isinstance(row.get("event"), str):
            raise ValueError(f"a row must be a dictionary with 'event', got {row!r}: add {{'event': 'measured', ...}}")
        if self._rows:
            self._rows.write(row, file)

    def save_rows(self) -> SavedRows:
        """Sync the rows to the disk; return the number of lines of each file and their hash."""
        return self._rows.save() if self._rows else {}

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Show the progress of the cell."""
        if self._show:
            self._show(done, total, numbers)

    def close(self) -> None:
        """Close the files of rows."""
        if self._rows:
            self._rows.close()


def run_cell(job: CellJob, stop_requested: Callable[[], bool], show: ShowProgress, ranks: Ranks = ALONE) -> Outcome:
    """Run a cell until it is done, fails or is stopped, and write the outcome to its folder.

    With several ranks, call this on rank 0 and :func:`join_cell` on the others. A full disk, a lost rank, or an error
    on only some ranks does not count as a failure of the cell: it is raised, and the cell stays open.
    """
    try:
        with hold_lock(job.folder), torch_threads(job.spec.threads):
            return _run_locked_cell(job, stop_requested, show, ranks)
    except LockedError:
        return "locked"


def _run_locked_cell(job: CellJob, stop_requested: Callable[[], bool], show: ShowProgress, ranks: Ranks) -> Outcome:
    folder = CellFolder(job.folder)
    if folder.status == "done":  # another process has finished it since it was planned
        return "done"
    checkpoint.remove_incomplete_files(job.folder)
    history = folder.start(job.key, job.jobs, job.session, job.machine, job.cores, ranks.size)
    context = RunnerContext(job, stop_requested, show)
    if ranks.is_distributed:
        ranks.publish("job", {"job": job.to_dict()})
    try:
        summary = _call_work(job, context, ranks)
        rows = context.save_rows()
    except Stopped:
        return "stopped"
    except Exception as error:
        if not _is_failure_of_cell(error, ranks):
            raise
        reason = {"error": error_line(error), "traceback": traceback.format_exc(), "time": time.time()}
        folder.fail({"key": job.key, **reason, "rows": context.save_rows()})
        return "failed"
    finally:
        context.close()
    folder.finish({"summary": summary, "rows": rows, **history, "time": time.time()})
    return "done"


def join_cell(job: CellJob, stop_requested: Callable[[], bool], ranks: Ranks) -> None:
    """Run a cell together with rank 0, which writes its folder; raise an error that not all ranks have."""
    with torch_threads(job.spec.threads):
        try:
            _call_work(job, RunnerContext(job, stop_requested), ranks)
        except Stopped:
            return
        except Exception as error:
            if not _is_failure_of_cell(error, ranks):
                if not isinstance(error, (LostRankError, OtherRankError)):
                    ranks.report_error(error_line(error))
                raise


def _call_work(job: CellJob, context: CellContext, ranks: Ranks) -> Any:
    """Call the function that runs the cell; ranks are in step again when all have returned or stopped."""
    ranks.in_sync = False
    with ranks.detect_lost_ranks():
        try:
            job.check_code()
            result = work_function(job.work)(job.spec, context, *([ranks] if ranks.is_distributed else []))
            _check_numbers(result)
        except Stopped:
            ranks.in_sync = True
            raise
    ranks.in_sync = True
    return result


def _check_numbers(result: object) -> None:
    """Raise unless the function of a cell returned numbers or other plain values by name."""
    if not isinstance(result, Mapping):
        raise TypeError(
            f"the function of a cell must return a dictionary, got {type(result).__name__}: return {{}} if it has no "
            f"final numbers"
        )
    for name, value in result.items():
        try:
            json.dumps(value)
        except TypeError:
            raise TypeError(
                f"the function of a cell must return plain numbers or text, got {name!r} of type "
                f"{type(value).__name__}: convert it, for example with float(...)"
            ) from None


def _is_failure_of_cell(error: Exception, ranks: Ranks) -> bool:
    """Return whether the error belongs to the cell.

    It does if it is the same on all ranks (this is called on each of them), and not a full disk or a lost rank.
    """
    if isinstance(error, (LostRankError, OtherRankError)) or (isinstance(error, OSError) and error.errno in FULL_DISK):
        return False
    return ranks.all_ranks_agree(error_line(error))


def error_line(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def work_function(work: Work) -> Callable[..., Any]:
    """Return the function that runs the cells of a study."""
    return import_function(work) if isinstance(work, str) else work


def import_function(path: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads inside the context."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
