"""Stop requests: the first SIGTERM or Ctrl-C asks the work to save and stop, a second one interrupts it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopSignal:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def request_stop(self) -> None:
        """Ask the work to save and stop."""
        self.requested = True


@contextmanager
def handle_signals(
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT), *, ignore_repeated: bool = False
) -> Iterator[StopSignal]:
    """Yield a stop signal that these signals set; outside the main thread, which cannot handle signals, none sets it.

    Args:
        signals: that request a stop.
        ignore_repeated: whether a second signal is ignored instead of raising KeyboardInterrupt.
    """
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(*_: object) -> None:
        if stop.requested and not ignore_repeated:
            raise KeyboardInterrupt
        stop.request_stop()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
