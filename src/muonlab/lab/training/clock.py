"""The clock of training alone, in wall and processor seconds: evaluation, rows, checkpoints and diagnostics stop it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from muonlab.orthogonalize.hardware import wait

_STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of ``/proc/stat`` in which a core did nothing: idle, and waiting for a disk."""
COUNTED = 8
"""Columns of ``/proc/stat`` up to the time that a hypervisor gave to others; later columns repeat earlier ones."""


class _Now(NamedTuple):
    wall: float
    cpu: float
    busy: float | None


class Clock:
    """Adds up the time between :meth:`start` and :meth:`stop`, with the device's work done at both ends.

    Args:
        device: whose work is waited for.
        alone: whether no other process works on the same cell; else what other processes use is not known.

    Attributes:
        seconds: of the wall clock.
        cpu_seconds: of the processor, all threads of this process. With one thread they hardly depend on what else the
            machine does.
        other_seconds: of the processor that everything else on the machine used meanwhile, all cores together; None
            where the system does not say.
    """

    def __init__(self, device: torch.device, *, alone: bool = True) -> None:
        self.device = device
        self.seconds = self.cpu_seconds = 0.0
        self.other_seconds: float | None = 0.0 if alone else None
        self._started: _Now | None = None
        self._excluded = _Now(0.0, 0.0, None)  # since the clock was started

    def start(self) -> None:
        """Start, or do nothing if the clock is running."""
        if self._started is None:
            wait(self.device)
            self._started = _now()

    def stop(self) -> None:
        """Stop, or do nothing if the clock is not running."""
        if self._started is not None:
            wait(self.device)
            before, now, excluded = self._started, _now(), self._excluded
            self._started, self._excluded = None, _Now(0.0, 0.0, None)
            wall, cpu = now.wall - before.wall, now.cpu - before.cpu
            self.seconds += wall - excluded.wall
            self.cpu_seconds += cpu - excluded.cpu
            if before.busy is None or now.busy is None or self.other_seconds is None:
                self.other_seconds = None
            elif wall > 0:  # others are taken to be as busy while time is excluded as they are otherwise
                self.other_seconds += (now.busy - before.busy - cpu) * max(0.0, 1 - excluded.wall / wall)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude what happens inside."""
        running = self._started is not None
        self.stop()
        yield
        if running:
            self.start()

    def exclude(self, seconds: float, cpu_seconds: float) -> None:
        """Leave out part of the time since the clock was started, measured by whoever used it."""
        self._excluded = _Now(self._excluded.wall + seconds, self._excluded.cpu + cpu_seconds, None)

    def reading(self) -> dict[str, float | None]:
        """Return the three sums, for rows and checkpoints."""
        others = None if self.other_seconds is None else max(0.0, self.other_seconds)
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "other_seconds": others}

    def resume(self, reading: Mapping[str, float | None]) -> None:
        """Continue from a reading of an earlier process."""
        self.seconds, self.cpu_seconds = float(reading["seconds"] or 0), float(reading["cpu_seconds"] or 0)
        self.other_seconds = reading["other_seconds"]


def _now() -> _Now:
    return _Now(time.perf_counter(), time.process_time(), busy_seconds())


def busy_seconds() -> float | None:
    """Return the seconds that all cores together were in use since the machine started; None where unknown."""
    try:
        with _STAT.open("rb") as file:
            columns = [int(number) for number in file.readline().split()[1 : COUNTED + 1]]
    except (OSError, ValueError):
        return None
    ticks = sum(columns) - sum(columns[column] for column in IDLE if column < len(columns))
    return ticks / os.sysconf("SC_CLK_TCK") if columns else None
