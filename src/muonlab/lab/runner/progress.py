"""Progress on the standard error: bars on a terminal, one line per finished cell elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muonlab.lab.runner.cells import ShowProgress


class ProgressDisplay:
    """Shows the progress of the cells that are running; this base class shows nothing."""

    def begin(self, name: str) -> ShowProgress:  # noqa: ARG002
        """Show that a cell is running; return the function that shows its progress."""
        return lambda *_: None

    def end(self, name: str, outcome: str) -> None:
        """Show the outcome of a cell."""


class LineDisplay(ProgressDisplay):
    """Prints a line to the standard error when a cell ends."""

    def __init__(self, total: int) -> None:
        self.total, self.ended = total, 0

    def end(self, name: str, outcome: str) -> None:
        """Print the outcome of a cell."""
        self.ended += 1
        print(f"{self.ended} of {self.total}: {name}: {outcome}", file=sys.stderr, flush=True)


@contextmanager
def progress_display(title: str, total: int, *, visible: bool) -> Iterator[ProgressDisplay]:
    """Yield bars on a terminal, lines elsewhere, and nothing if not ``visible``."""
    if visible and sys.stderr.isatty():
        with _bars(title, total) as bars:
            yield bars
    else:
        yield LineDisplay(total) if visible else ProgressDisplay()


@contextmanager
def reading_progress(name: str, *, visible: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows the progress of reading a dataset on a terminal."""
    with progress_display(f"reading {name}", 1, visible=visible and sys.stderr.isatty()) as display:
        show: list[ShowProgress] = []

        def progress(done: int, total: int, what: str) -> None:
            show[:] = show or [display.begin(what)]
            show[0](done, total, {})

        yield progress


@contextmanager
def _bars(title: str, total: int) -> Iterator[ProgressDisplay]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        study = progress.add_task(title, total=total, numbers="")
        tasks = {}

        class BarDisplay(ProgressDisplay):
            """One bar for the study and one for each running cell."""

            def begin(self, name: str) -> ShowProgress:
                task = tasks[name] = progress.add_task(name, total=None, numbers="")

                def show(done: int, total: int, numbers: dict[str, float]) -> None:
                    progress.update(task, completed=done, total=total, numbers=_loss_and_speed(done, numbers))

                return show

            def end(self, name: str, outcome: str) -> None:
                progress.remove_task(tasks.pop(name))
                progress.console.print(f"{name}: {outcome}", markup=False, highlight=False)
                progress.advance(study)

        yield BarDisplay()


def _loss_and_speed(done: int, numbers: dict[str, float]) -> str:
    loss = [f"loss {numbers['loss']:.3f}"] if "loss" in numbers else []
    speed = [f"{done / numbers['seconds']:.3g} steps/s"] if numbers.get("seconds") else []
    return " ".join([*loss, *speed])
