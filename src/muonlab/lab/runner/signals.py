"""A bell that SIGTERM and Ctrl-C ring: work in hand is saved, then the process ends; a second ring ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Bell:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self.rung = False

    def ring(self) -> None:
        """Ask to stop."""
        self.rung = True


@contextmanager
def listening(
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT), *, patient: bool = False
) -> Iterator[Bell]:
    """Let signals ring a bell; in a thread that may not handle signals, the bell is there and nobody rings it.

    Args:
        signals: that ring.
        patient: whether a second ring does nothing rather than end the process.
    """
    bell = Bell()
    if threading.current_thread() is not threading.main_thread():
        yield bell
        return

    def handle(*_: object) -> None:
        if bell.rung and not patient:
            raise KeyboardInterrupt
        bell.ring()

    before = {one: signal.signal(one, handle) for one in signals}
    try:
        yield bell
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
