"""What the work of a cell is given: a place for rows and checkpoints, a way to show progress, and a bell to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from muonlab.lab.files.row_files import SavedRows


class Stopped(Exception):  # noqa: N818 - not an error: the work is saved and can go on
    """Work that was asked to stop has saved what it needs to go on."""


class Desk(Protocol):
    """A cell's side of the runner; the training loop and the measurements are written against it."""

    folder: Path
    """The cell's own folder, for checkpoints."""
    data: Path | None
    """Where data folders lie; None is ``MUONLAB_DATA`` or the hub."""
    key: str
    """The cell's, which its checkpoints carry."""
    data_hash: str | None
    """Of the data that the cell's key was made with; None where nobody asked."""
    checkpoint_seconds: float
    """Seconds of work between checkpoints."""
    keep_weights: bool
    """Whether the trained weights are written to the folder."""

    @property
    def stopping(self) -> bool:
        """Whether the work should save, and raise :class:`Stopped`."""
        ...

    def begin(self, saved: SavedRows) -> None:
        """Cut each file of rows to what was saved (nothing where not named); called once, before :meth:`write`."""
        ...

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Append a row to ``metrics.jsonl`` or another file of rows."""
        ...

    def save_rows(self) -> SavedRows:
        """Bring the rows to the disk; return how many lines each file has, and their hash."""
        ...

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Show how far the cell is; cheap, and may be called at every update."""
        ...
