"""Progress on a terminal: a bar for the study and one for each cell at work; elsewhere a line per cell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from muonlab.lab.runner.cells import Show


class Board(Protocol):
    """What the runner shows its progress on."""

    def begin(self, name: str) -> Show:
        """Show that a cell is at work; return what shows its progress."""
        ...

    def end(self, name: str, words: str) -> None:
        """Show how a cell ended."""
        ...


class Silence:
    """Shows nothing."""

    def begin(self, name: str) -> Show:  # noqa: ARG002
        """Show nothing."""
        return lambda *_: None

    def end(self, name: str, words: str) -> None:
        """Show nothing."""


class Lines(Silence):
    """Writes a line to the standard error when a cell ends."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def end(self, name: str, words: str) -> None:
        """Write how a cell ended."""
        self.done += 1
        print(f"{self.done} of {self.total}: {name}: {words}", file=sys.stderr, flush=True)


@contextmanager
def board(title: str, total: int, *, visible: bool) -> Iterator[Board]:
    """Return a board that suits the standard error: bars on a terminal, lines elsewhere, nothing if not visible."""
    if not visible or not sys.stderr.isatty():
        yield Lines(total) if visible else Silence()
        return
    with _bars(title, total) as bars:
        yield bars


@contextmanager
def reading(name: str, *, visible: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows how far the reading of a dataset is."""
    with board(f"reading {name}", 1, visible=visible and sys.stderr.isatty()) as shown:
        show: list[Show] = []

        def progress(done: int, total: int, what: str) -> None:
            show[:] = show or [shown.begin(what)]
            show[0](done, total, {})

        yield progress


@contextmanager
def _bars(title: str, total: int) -> Iterator[Board]:
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

        class Bars:
            """A bar for each cell at work."""

            def begin(self, name: str) -> Show:
                task = tasks[name] = progress.add_task(name, total=None, numbers="")

                def show(done: int, total: int, numbers: dict[str, float]) -> None:
                    words = " ".join(_words(done, numbers))
                    progress.update(task, completed=done, total=total, numbers=words)

                return show

            def end(self, name: str, words: str) -> None:
                progress.remove_task(tasks.pop(name))
                progress.console.print(f"{name}: {words}", markup=False, highlight=False)
                progress.advance(study)

        yield Bars()


def _words(done: int, numbers: dict[str, float]) -> Iterator[str]:
    if "loss" in numbers:
        yield f"loss {numbers['loss']:.3f}"
    if numbers.get("seconds"):
        yield f"{done / numbers['seconds']:.3g} steps/s"
