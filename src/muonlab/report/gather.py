"""Read a run directory for its page: every cell that is intact, and a list of what could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muonlab.lab.runner.results import (
    CellResult,
    Results,
    cell_names,
    earlier_names,
    read_cell,
    repeated_cells,
    sessions_of,
    without_session,
)
from muonlab.lab.runner.store import HEAD, cell_folders, read_head
from muonlab.report.values import ReadProblem

LONGEST_ERROR = 10_000
"""Characters of an error message that a page shows."""


@dataclass(frozen=True)
class GatheredRun:
    """The readable part of a run directory.

    Args:
        results: of the cells that could be read.
        problems: what could not be read, and why.
        lost: number of cells that could not be read. If there are any, no claim is judged: a missing cell might have
            contradicted it.
    """

    results: Results
    problems: tuple[ReadProblem, ...]
    lost: int = 0


def find_runs(folder: Path) -> list[Path]:
    """Return the run directories directly in a folder, sorted by name; the folder itself if it is a run directory."""
    if (folder / HEAD).exists():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{HEAD}") if not path.parent.is_symlink())


def gather_run(folder: Path) -> GatheredRun:
    """Read a run directory. Files that cannot be read are listed as problems.

    Raises:
        ValueError: if ``study.json`` is missing or damaged.
    """
    head = read_head(folder)
    if head is None:
        raise ValueError(f"a report needs a run directory, got {folder} without a {HEAD}: run a study first")
    problems: list[ReadProblem] = []
    sessions = _read_sessions(folder, problems)
    total, names = _listed_cells(folder, problems)
    read = [cell for name in names if (cell := _read_cell(folder / "cells" / name, head, problems)) is not None]
    cells = _without_repeated(read, problems)
    if sessions:
        problems += [ReadProblem("env.json", f"does not match {cell}") for cell in without_session(cells, sessions)]
    results = Results(head["study"], head["profile"], head, tuple(sessions), tuple(cells), folder)
    return GatheredRun(results, tuple(problems), total - len(cells))


def error_text(error: Exception, folder: Path) -> str:
    """Return the message of an error with paths relative to the run directory, because pages are shared."""
    return str(error).replace(f"{folder}/", "")[:LONGEST_ERROR]


def _read_sessions(folder: Path, problems: list[ReadProblem]) -> list[dict[str, Any]]:
    try:
        return sessions_of(folder)
    except (ValueError, OSError) as error:
        problems.append(ReadProblem("env.json", error_text(error, folder)))
        return []


def _listed_cells(folder: Path, problems: list[ReadProblem]) -> tuple[int, list[str]]:
    """Return how many cells there are, listed or not, and the folder names of the listed ones, each once."""
    present: set[str] = set()
    try:
        present = cell_folders(folder)
        names = cell_names(folder)
        present -= set(earlier_names(folder))
    except (ValueError, OSError) as error:
        problems.append(ReadProblem("cells.json", f"{error_text(error, folder)} (no cell is shown)"))
        return len(present), []
    unlisted = sorted(present - set(names))
    counts = Counter(names)
    problems += [ReadProblem(f"cells/{name}", "is not listed in cells.json") for name in unlisted]
    problems += [ReadProblem(f"cells/{name}", "is listed twice in cells.json") for name, n in counts.items() if n > 1]
    return len(names) + len(unlisted), list(counts)


def _read_cell(path: Path, head: Mapping[str, Any], problems: list[ReadProblem]) -> CellResult | None:
    try:
        cell = read_cell(path, head)
        return replace(cell, recorded=tuple(cell.certificates()))
    except (ValueError, OSError) as error:
        problems.append(ReadProblem(f"cells/{path.name}", error_text(error, path.parent.parent)))
        return None


def _without_repeated(cells: list[CellResult], problems: list[ReadProblem]) -> list[CellResult]:
    """Drop all cells that share their label and seed with another cell: it is unknown which of them is right."""
    counts = Counter((cell.label, cell.seed) for cell in cells)
    problems += [ReadProblem("cells", f"has {message}; none of them is shown") for message in repeated_cells(cells)]
    return [cell for cell in cells if counts[cell.label, cell.seed] == 1]
