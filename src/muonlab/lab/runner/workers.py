"""Worker processes that run several cells at the same time; a killed worker loses no saved work."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from muonlab.lab.files.disk import FULL_DISK
from muonlab.lab.runner.cells import CellJob, Outcome, ShowProgress, error_line, run_cell
from muonlab.lab.runner.session import CellTask
from muonlab.lab.runner.signals import StopSignal, handle_signals
from muonlab.lab.runner.store import CellFolder

_CONTEXT = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in an unknown state
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_in_workers(
    tasks: Sequence[CellTask],
    count: int,
    stop: StopSignal,
    begin: Callable[[CellTask], ShowProgress],
    end: Callable[[CellTask, Outcome], None],
) -> None:
    """Run cells on ``count`` worker processes until all have ended or a stop is requested.

    Args:
        tasks: the cells, in the order in which they are started.
        count: number of workers.
        stop: when it is requested, workers save their cells and no further cell is started.
        begin: called when a cell is started; returns the function that shows its progress.
        end: called with the outcome of each cell.

    Raises:
        OSError: if the disk is full.
        ValueError: if a worker cannot start, or has an error outside of its cell.
    """
    waiting = deque(tasks)
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < count and not stop.requested:
                workers.append(_Worker())
                workers[-1].assign(task := waiting.popleft(), begin(task))
            if not workers:
                return
            for worker in _wait_for_messages(workers, stop):
                outcome = worker.receive(stop)
                if outcome is None:
                    continue
                end(worker.task, outcome)
                if waiting and not stop.requested and outcome != "stopped" and worker.process.is_alive():
                    worker.assign(task := waiting.popleft(), begin(task))
                else:
                    worker.join()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _wait_for_messages(workers: list[_Worker], stop: StopSignal) -> list[_Worker]:
    """Return the workers that have sent a message; meanwhile pass a stop request on to all of them."""
    while True:
        if stop.requested:
            for worker in workers:
                worker.terminate()
        ready = wait([worker.pipe for worker in workers], timeout=0.2)
        if ready:
            return [worker for worker in workers if worker.pipe in ready]


class _Worker:
    """A worker process, the pipe to it, and the cell that it runs."""

    task: CellTask
    _show: ShowProgress

    def __init__(self) -> None:
        self.pipe, child_pipe = _CONTEXT.Pipe()
        self.process: SpawnProcess = _CONTEXT.Process(target=_work, args=(child_pipe,), daemon=True)
        # The worker inherits the mask: signals are pending until it can handle them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child_pipe.close()
        self._terminated = False
        self._started = False

    def assign(self, task: CellTask, show: ShowProgress) -> None:
        """Send it a cell to run."""
        self.task, self._show = task, show
        self._job = task.start()
        self.pipe.send(self._job)

    def receive(self, stop: StopSignal) -> Outcome | None:
        """Read one message; return the outcome of the cell, or None if it is still running."""
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._ended(stop)
        self._started = True
        if kind == "progress":
            self._show(*content)
        elif kind == "error":
            message, number = content
            if number in FULL_DISK:
                raise OSError(number, os.strerror(number))
            raise ValueError(f"a worker must run without errors, got {message}: rerun the same command to resume")
        return content[0] if kind == "outcome" else None

    def _ended(self, stop: StopSignal) -> Outcome:
        """Return the outcome of a cell whose process has ended."""
        self.process.join()
        if stop.requested:
            return "stopped"
        if not self._started:  # the cell was not touched
            raise ValueError(
                "a worker process must start, got one that did not: call run(jobs=…) in a script under "
                "if __name__ == '__main__', not from a pipe"
            )
        code = self.process.exitcode
        reason = f"its process ended with code {code}" + (": out of memory?" if code == -signal.SIGKILL else "")
        failure = {"key": self._job.key, "error": reason, "traceback": "", "time": None}
        CellFolder(self._job.folder).fail(failure)
        return "failed"

    def terminate(self) -> None:
        """Ask it, once, to save its cell and end."""
        if not self._terminated:
            self._terminated = True
            self.process.terminate()

    def join(self) -> None:
        """Close the pipe, on which the worker ends, and wait for it."""
        self.pipe.close()
        self.process.join()


def _work(pipe: Connection) -> None:
    """Run the jobs that arrive on the pipe until it is closed: the body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent passes it on
    with handle_signals((signal.SIGTERM,), ignore_repeated=True) as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

        def show(done: int, total: int, numbers: dict[str, float]) -> None:
            try:
                pipe.send(("progress", done, total, numbers))
            except OSError:  # the parent has ended: save and stop
                stop.request_stop()

        with suppress(OSError):
            pipe.send(("ready",))
        while not stop.requested:
            try:
                job: CellJob = pipe.recv()
            except (EOFError, OSError):
                return
            message: tuple[Any, ...]
            try:
                message = ("outcome", run_cell(job, lambda: stop.requested, show))
            except Exception as error:
                message = ("error", error_line(error), getattr(error, "errno", None))
            try:
                pipe.send(message)
            except OSError:
                return
