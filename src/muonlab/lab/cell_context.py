"""The interface between the runner and the function that runs a cell: rows, checkpoints, progress, stop requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from muonlab.lab.files.row_files import SavedRows


class Stopped(Exception):  # noqa: N818 - not an error: the cell is saved and can be resumed
    """The cell was asked to stop, and has saved what it needs to resume."""


class CellContext(Protocol):
    """What the runner gives to the function that runs a cell, such as the training loop."""

    folder: Path
    """The cell's folder, for checkpoints."""
    data: Path | None
    """Directory of the data folders; None is ``MUONLAB_DATA`` or the hub."""
    key: str
    """The cell's key, which is stored in its checkpoints."""
    data_hash: str | None
    """Hash of the data that the key was computed with; None if the data are not checked."""
    checkpoint_seconds: float
    """Seconds between checkpoints."""
    keep_weights: bool
    """Whether the trained weights are written to the folder."""

    @property
    def stopping(self) -> bool:
        """Whether the function should save and raise :class:`Stopped`."""
        ...

    def begin(self, saved: SavedRows) -> None:
        """Cut each file of rows to its saved lines and remove the others; called once, before :meth:`write`."""
        ...

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Append a row to ``metrics.jsonl`` or another file of rows."""
        ...

    def save_rows(self) -> SavedRows:
        """Sync the rows to the disk; return the number of lines of each file and their hash."""
        ...

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Show the progress of the cell; cheap enough to be called at every update."""
        ...
