"""Wall and CPU seconds of training, without evaluation, rows, checkpoints and diagnostics."""

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
"""Columns of ``/proc/stat`` with idle time: idle and iowait."""
COUNTED = 8
"""Columns of ``/proc/stat`` up to steal; the guest columns after it are included in earlier ones."""


class _Now(NamedTuple):
    wall: float
    cpu: float
    busy: float | None


class Clock:
    """Adds up the time between :meth:`start` and :meth:`stop`; both synchronize the device.

    Args:
        device: the device to synchronize.
        alone: whether this process alone trains the cell; otherwise the load by other processes is unknown.

    Attributes:
        seconds: wall-clock seconds.
        cpu_seconds: CPU seconds of all threads of this process. With one thread they hardly depend on what else runs
            on the machine.
        other_seconds: CPU seconds that all other processes used in the same time, over all cores; None if unknown.
    """

    def __init__(self, device: torch.device, *, alone: bool = True) -> None:
        self.device = device
        self.seconds = self.cpu_seconds = 0.0
        self.other_seconds: float | None = 0.0 if alone else None
        self._started: _Now | None = None
        self._excluded = _Now(0.0, 0.0, None)  # since start()

    def start(self) -> None:
        """Start the clock; does nothing if it is running."""
        if self._started is None:
            wait(self.device)
            self._started = _now()

    def stop(self) -> None:
        """Stop the clock; does nothing if it is not running."""
        if self._started is not None:
            wait(self.device)
            before, now, excluded = self._started, _now(), self._excluded
            self._started, self._excluded = None, _Now(0.0, 0.0, None)
            wall, cpu = now.wall - before.wall, now.cpu - before.cpu
            self.seconds += wall - excluded.wall
            self.cpu_seconds += cpu - excluded.cpu
            if before.busy is None or now.busy is None or self.other_seconds is None:
                self.other_seconds = None
            elif wall > 0:  # assumes the same load by others in the excluded time
                self.other_seconds += (now.busy - before.busy - cpu) * max(0.0, 1 - excluded.wall / wall)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the block."""
        running = self._started is not None
        self.stop()
        yield
        if running:
            self.start()

    def exclude(self, seconds: float, cpu_seconds: float) -> None:
        """Subtract time since :meth:`start` that the caller has measured."""
        self._excluded = _Now(self._excluded.wall + seconds, self._excluded.cpu + cpu_seconds, None)

    def reading(self) -> dict[str, float | None]:
        """Return ``seconds``, ``cpu_seconds`` and ``other_seconds``, for rows and checkpoints."""
        others = None if self.other_seconds is None else max(0.0, self.other_seconds)
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "other_seconds": others}

    def resume(self, reading: Mapping[str, float | None]) -> None:
        """Continue from the reading of an earlier process."""
        self.seconds, self.cpu_seconds = float(reading["seconds"] or 0), float(reading["cpu_seconds"] or 0)
        self.other_seconds = reading["other_seconds"]


def _now() -> _Now:
    return _Now(time.perf_counter(), time.process_time(), busy_seconds())


def busy_seconds() -> float | None:
    """Return the busy seconds of all cores since the machine started; None if the system does not report them."""
    try:
        with _STAT.open("rb") as file:
            columns = [int(number) for number in file.readline().split()[1 : COUNTED + 1]]
    except (OSError, ValueError):
        return None
    ticks = sum(columns) - sum(columns[column] for column in IDLE if column < len(columns))
    return ticks / os.sysconf("SC_CLK_TCK") if columns else None
