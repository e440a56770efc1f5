"""The rows of a running study as they are saved, for trackers such as TensorBoard."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from muonlab import _checks
from muonlab.lab.runner.results import load_results


def watch(path: str | os.PathLike[str], *, every: float = 10.0) -> Iterator[dict[str, Any]]:
    """Yield the rows of a study as its cells save them; end when no cell is open.

    A row is one of :meth:`Results.rows`. A running cell saves its rows with each checkpoint; rows that a resumed cell
    repeats are not yielded twice.

    Args:
        path: the run directory.
        every: seconds between two looks at the directory.

    Raises:
        ValueError: if it is not a run directory, or a file was changed.

    Example:
        >>> import tempfile
        >>> from muonlab.lab import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run("quickstart", out=folder, settings={"steps": 2, "epochs": None})
        ...     list(watch(folder)) == results.rows()
        True
    """
    _checks.positive("every", every)
    yielded: Counter[tuple[str, int]] = Counter()
    while True:
        results = load_results(path)
        read: Counter[tuple[str, int]] = Counter()
        for row in results.rows():
            cell = row["label"], row["seed"]
            read[cell] += 1
            if read[cell] > yielded[cell]:
                yielded[cell] += 1
                yield row
        if results.status != "open":
            return
        time.sleep(every)
