"""A clock of training time alone: evaluation, rows, checkpoints and diagnostics stop it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from muonlab.orthogonalize.hardware import wait


class Clock:
    """Adds up the seconds between :meth:`start` and :meth:`stop`, with the device's work done at both ends.

    Args:
        device: whose work is waited for.
        seconds: that an earlier part of the same run took.
    """

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self.device = device
        self.seconds = seconds
        self._started: float | None = None

    def start(self) -> None:
        """Go on; nothing if it is going."""
        if self._started is None:
            wait(self.device)
            self._started = time.perf_counter()

    def stop(self) -> None:
        """Stand still; nothing if it stands."""
        if self._started is not None:
            wait(self.device)
            self.seconds += time.perf_counter() - self._started
            self._started = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside."""
        going = self._started is not None
        self.stop()
        yield
        if going:
            self.start()
