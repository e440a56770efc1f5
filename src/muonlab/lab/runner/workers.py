"""Cells side by side: worker processes that take one cell after another, and die with nothing lost."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

from muonlab.lab.runner.cells import Job, Outcome, Show, describe, run_cell
from muonlab.lab.runner.signals import Bell, listening
from muonlab.lab.runner.store import CellFolder

_CONTEXT = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in an unknown state
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ended(NamedTuple):
    """How the job of a number ended; ``error`` stops the whole study."""

    number: int
    outcome: Outcome | None
    error: str | None = None
    number_of_error: int | None = None


class _Worker:
    """A process, the pipe to it, and the number of the job that it has."""

    def __init__(self) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process: SpawnProcess = _CONTEXT.Process(target=_work, args=(theirs,), daemon=True)
        # The worker inherits this: signals wait until it handles them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.number = -1
        self.job: Job | None = None
        self.told = False
        self.heard = False

    def stop(self) -> None:
        """Ask it to save and end, once."""
        if not self.told:
            self.told = True
            self.process.terminate()

    def take(self, number: int, job: Job) -> None:
        self.number, self.job = number, job
        self.pipe.send(job)

    def retire(self) -> None:
        self.pipe.close()  # the worker reads the end of its pipe, and ends
        self.process.join()


def run_side_by_side(
    total: int, count: int, bell: Bell, show: Callable[[int], Show], begin: Callable[[int], Job]
) -> Generator[Ended]:
    """Run jobs on ``count`` workers; yield how each ended, as it ends.

    Args:
        total: number of jobs.
        count: of workers.
        bell: when it rings, workers save what they have in hand, and no job is begun.
        show: gives the function that shows the progress of a job by number.
        begin: called with a job's number when a worker takes it; returns the job.
    """
    waiting = list(range(total))[::-1]
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < count and not bell.rung:
                workers.append(_Worker())
                _give(workers[-1], waiting, begin)
            if not workers:
                return
            for worker in _ready(workers, bell):
                ended = _listen(worker, show, bell)
                if ended is None:
                    continue
                yield ended
                if waiting and not bell.rung and ended.outcome != "stopped" and worker.process.is_alive():
                    _give(worker, waiting, begin)
                else:
                    worker.retire()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.retire()


def _give(worker: _Worker, waiting: list[int], begin: Callable[[int], Job]) -> None:
    number = waiting.pop()
    worker.take(number, begin(number))


def _ready(workers: list[_Worker], bell: Bell) -> list[_Worker]:
    """Wait for a worker to say something; a bell that rings meanwhile is passed on."""
    while True:
        if bell.rung:
            for worker in workers:
                worker.stop()
        found = wait([worker.pipe for worker in workers], timeout=0.2)
        if found:
            return [worker for worker in workers if worker.pipe in found]


def _listen(worker: _Worker, show: Callable[[int], Show], bell: Bell) -> Ended | None:
    try:
        message = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        code = worker.process.exitcode
        if bell.rung:
            return Ended(worker.number, "stopped")
        if not worker.heard:  # nothing of the cell was touched
            why = (
                "a worker that did not start: call run(jobs=…) in a script's if __name__ == '__main__', not from a pipe"
            )
            return Ended(worker.number, None, why)
        why = f"its process ended with code {code}" + (": out of memory?" if code == -signal.SIGKILL else "")
        assert worker.job is not None
        CellFolder(worker.job.folder).fail({"key": worker.job.key, "error": why, "traceback": "", "time": None})
        return Ended(worker.number, "failed")
    worker.heard = True
    if message[0] == "ready":
        return None
    if message[0] == "progress":
        show(worker.number)(*message[1:])
        return None
    return Ended(worker.number, *message[1:])


def _work(pipe: Connection) -> None:
    """Take jobs from the pipe until it ends: the body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent passes it on
    with listening((signal.SIGTERM,), patient=True) as bell:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

        def show(done: int, total: int, numbers: dict[str, float]) -> None:
            try:
                pipe.send(("progress", done, total, numbers))
            except OSError:  # the parent is gone: save and end
                bell.ring()

        with suppress(OSError):
            pipe.send(("ready",))
        while not bell.rung:
            try:
                job: Job = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                ended = Ended(-1, run_cell(job, lambda: bell.rung, show))
            except Exception as error:
                ended = Ended(-1, None, describe(error), getattr(error, "errno", None))
            try:
                pipe.send(("ended", *ended[1:]))
            except OSError:
                return
