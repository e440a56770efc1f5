"""A run directory as it is found: what is sound, and a list of what is not. Nothing in it is executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muonlab.lab.runner.results import (
    CellResult,
    Results,
    cell_names,
    read_cell,
    repeated_cells,
    sessions_of,
    without_session,
)
from muonlab.lab.runner.store import HEAD, read_head
from muonlab.report.values import Problem

Row = Mapping[str, Any]
_NUMBER = (int, float)
_OPTIONAL = (int, float, type(None))
_CLOCKS = {"cpu_seconds": _OPTIONAL, "other_seconds": _OPTIONAL}
_AN_EVALUATION = {"step": int, "epoch": _NUMBER, "seconds": _NUMBER, **_CLOCKS}
_ROWS: Mapping[str, Mapping[str, Any]] = {
    "start": _AN_EVALUATION,
    "evaluation": _AN_EVALUATION,
    "cost": {"m": int, "n": int, "method": str, "seconds": _NUMBER},
    "frontier": {"m": int, "n": int, "schedule": str, "steps": int, "seconds": _NUMBER, "alignment": _NUMBER},
    "inequality": {"name": str, "kind": str, "held": bool},
    "matrix": {"step": int, "name": str},
    "whole": {"step": int},
}
"""What a row of each kind must have to be drawn."""
_RECORDED = ("q", "delta_0", "delta", "epsilon", "chi", "descent", "op_norm", "alignment", "alignment_floor")
"""Numbers of a certificate, any of which may be missing."""
LARGEST = 1e300
"""Whole numbers in JSON may be longer than any float."""
LONGEST = 10_000
"""Letters of a label, which stands in dozens of places."""
DEPTH = 2
"""How deep below a directory runs are looked for."""


@dataclass(frozen=True)
class Found:
    """The sound part of a run directory, what could not be used, and how many cells are lost with it.

    With a lost cell no claim is decided: it might have been evidence against it.
    """

    results: Results
    problems: tuple[Problem, ...]
    lost: int = 0


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories in a directory, itself alone if it is one; sorted by name."""
    if (folder / HEAD).exists():
        return [folder]
    levels = ["/".join(["*"] * depth) for depth in range(1, DEPTH + 1)]
    found = {path.parent for level in levels for path in folder.glob(f"{level}/{HEAD}")}
    return sorted(path for path in found if not path.is_symlink() and not path.parent.is_symlink())


def gather(folder: Path) -> Found:
    """Read a run directory; what cannot be used is listed, and a head that cannot be used is an error."""
    head = read_head(folder)
    if head is None:
        raise ValueError(f"a report is made of a run directory, got {folder} without a {HEAD}: run a study first")
    problems: list[Problem] = []
    sessions = _sessions(folder, problems)
    total, names = _names(folder, problems)
    read = [cell for name in names if (cell := _cell(folder / "cells" / name, head, problems)) is not None]
    cells = _without_repeated(read, problems)
    if sessions:
        problems += [Problem("env.json", f"does not go with {words}") for words in without_session(cells, sessions)]
    of = {**head, "data": _data(head["data"], problems)}
    results = Results(head["study"], head["profile"], of, tuple(sessions), tuple(cells), folder)
    return Found(results, tuple(problems), total - len(cells))


def _names(folder: Path, problems: list[Problem]) -> tuple[int, list[str]]:
    """Return how many cells there are, listed or not, and the names of those that are listed once, in this order."""
    there = {path.name for path in (folder / "cells").glob("*") if path.is_dir()}
    try:
        names = cell_names(folder)
    except (ValueError, OSError) as error:
        problems.append(Problem("cells.json", f"{words_of(error, folder)} (no cell is shown)"))
        return len(there), []
    unlisted = sorted(there - set(names))
    once = Counter(names)
    own = [name for name in once if _is_own(folder / "cells", name)]
    problems += [Problem(f"cells/{name}", "leads out of the run directory") for name in once if name not in own]
    problems += [Problem(f"cells/{name}", "is not listed in cells.json") for name in unlisted]
    problems += [Problem(f"cells/{name}", "is listed twice in cells.json") for name, n in once.items() if n > 1]
    return len(names) + len(unlisted), own


def _without_repeated(cells: list[CellResult], problems: list[Problem]) -> list[CellResult]:
    """Return the cells but for those whose label and seed another has too: one cannot tell which is right."""
    counts = Counter((cell.label, cell.seed) for cell in cells)
    problems += [Problem("cells", f"has {message}, of which none is shown") for message in repeated_cells(cells)]
    return [cell for cell in cells if counts[cell.label, cell.seed] == 1]


def _is_own(folder: Path, name: str) -> bool:
    """Whether a name is that of a folder right here, and no link."""
    try:
        return Path(name).name == name != ".." and not (folder / name).is_symlink()
    except (OSError, ValueError):  # no file can have such a name
        return False


def _sessions(folder: Path, problems: list[Problem]) -> list[dict[str, Any]]:
    try:
        return sessions_of(folder)
    except (ValueError, OSError) as error:
        problems.append(Problem("env.json", words_of(error, folder)))
        return []


def _data(found: Mapping[str, Any], problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    sound = {name: about for name, about in found.items() if isinstance(about, dict)}
    if len(sound) < len(found):
        problems.append(Problem(HEAD, "what it says of the data is damaged, so their label is unknown"))
    return {name: {"label": "unknown", "words": name, **about} for name, about in sound.items()}


def _cell(path: Path, head: Mapping[str, Any], problems: list[Problem]) -> CellResult | None:
    try:
        cell = read_cell(path, head)
        cell = replace(cell, recorded=tuple(cell.certificates()))
        wrong = _wrong(cell)
    except (ValueError, OSError) as error:
        wrong = words_of(error, path.parent.parent)
    except (AttributeError, LookupError, TypeError) as error:
        wrong = f"does not have what a study writes ({type(error).__name__}: {error})"
    if wrong:
        problems.append(Problem(f"cells/{path.name}", wrong))
        return None
    return cell


def words_of(error: Exception, folder: Path) -> str:
    """Return what an error says, with paths from the run directory: a page is sent to others."""
    return str(error).replace(f"{folder}/", "")[:LONGEST]


def _wrong(cell: CellResult) -> str:
    """Return what no study writes, in a cell whose hashes are right; empty if there is nothing."""
    times = {name: _OPTIONAL for name in cell.summary if name.endswith("seconds")}
    wrong_rows = {
        name: sum(not _is_sound(row) for row in rows)
        for name, rows in (("metrics", cell.metrics), ("certificates", cell.certificates()))
    }
    rules = (
        (_is(cell.spec["seed"], int), f"its seed must be a whole number, got {cell.spec['seed']!r}"),
        (len(cell.label) <= LONGEST, f"its label must have at most {LONGEST:,} letters, got {len(cell.label):,}"),
        (all(map(_is_plain, cell.summary.values())), "its summary must have numbers and words only"),
        (_has(cell.summary, times), "the times of its summary must be numbers"),
        (_is(cell.jobs, int), f"its jobs must be a whole number, got {cell.jobs!r}"),
        (all(_is(number, int) for number in cell.sessions), "its sessions must be whole numbers"),
        (all(isinstance(machine, str) for machine in cell.machines), "its machines must be words"),
        *((not n, f"{n} rows of {name}.jsonl do not have what a study writes") for name, n in wrong_rows.items()),
    )
    return next((words for holds, words in rules if not holds), "")


def _is_sound(row: Row) -> bool:
    kinds = _ROWS.get(str(row["event"]), {})
    numbers = (row.get(name) for name in _RECORDED if row["event"] == "matrix")
    return (
        _has(row, kinds)
        and all(number is None or _is(number, _NUMBER) for number in numbers)
        and _all_finite(row.values())
    )


def _has(numbers: Row, kinds: Mapping[str, Any]) -> bool:
    return all(_is(numbers.get(name), kind) for name, kind in kinds.items())


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, _NUMBER) and _all_finite([value]))


def _all_finite(values: Iterable[Any]) -> bool:
    return all(abs(value) < LARGEST for value in values if isinstance(value, _NUMBER))
