"""A run directory as it is found: what is sound, and a list of what is not. Nothing in it is executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muonlab.lab.results import CellResult, Results, listed, read_cell, sessions_of
from muonlab.lab.store import FORMAT, HEAD, read_head
from muonlab.report.values import Problem

Row = Mapping[str, Any]
_NUMBER = (int, float)
_AN_EVALUATION = {"step": int, "epoch": _NUMBER, "seconds": _NUMBER}
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
    """The sound part of a run directory, what could not be used, and how many cells are lost with it."""

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
    if head.get("format") != FORMAT:
        raise ValueError(
            f"a run directory must have the format {FORMAT}, got {folder} with {head.get('format')!r}: use the muonlab "
            f"that made it ({head.get('version', 'unknown')})"
        )
    problems: list[Problem] = []
    sessions = _sessions(folder, problems)
    names, own = _names(folder, problems)
    cells = [cell for name in own if (cell := _cell(folder / "cells" / name, problems)) is not None]
    of = {**head, "data": _data(head["data"], problems)}
    results = Results(head["study"], head["profile"], of, tuple(sessions), tuple(cells), folder)
    return Found(results, tuple(problems), len(names) - len(cells))


def _names(folder: Path, problems: list[Problem]) -> tuple[list[str], list[str]]:
    """Return the names of cells in the order of the study, unlisted ones last, and those that are folders here."""
    there = sorted(path.name for path in (folder / "cells").glob("*") if path.is_dir())
    try:
        ordered = listed(folder, begun=False)
    except (ValueError, OSError) as error:
        problems.append(Problem("cells.json", f"{words_of(error, folder)} (cells are shown by name)"))
        ordered = []
    names = list(dict.fromkeys([*ordered, *there]))
    own = [name for name in names if _is_own(folder / "cells", name)]
    problems += [Problem(f"cells/{name}", "leads out of the run directory") for name in names if name not in own]
    return names, own


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


def _cell(path: Path, problems: list[Problem]) -> CellResult | None:
    where = f"cells/{path.name}"
    try:
        if not (path / "spec.json").exists():
            gone = "has no spec.json: it was not written to its end" if path.exists() else "is listed, and is not there"
            problems.append(Problem(where, gone))
            return None
        cell = read_cell(path)
        recorded = cell.certificates()
    except (ValueError, OSError) as error:
        problems.append(Problem(where, words_of(error, path.parent.parent)))
        return None
    wrong = _wrong(cell)
    if wrong:
        problems.append(Problem(where, wrong))
        return None
    metrics = _sound_rows(cell.metrics, f"{where}/metrics.jsonl", problems)
    return replace(cell, metrics=metrics, recorded=_sound_rows(recorded, f"{where}/certificates.jsonl", problems))


def words_of(error: Exception, folder: Path) -> str:
    """Return what an error says, with paths from the run directory: a page is sent to others."""
    return str(error).replace(f"{folder}/", "")


def _wrong(cell: CellResult) -> str:
    """Return what makes a cell unusable, beyond files that cannot be read; empty if nothing does."""
    if isinstance(cell.spec.get("seed"), bool) or not isinstance(cell.spec.get("seed"), int):
        return f"its seed must be a whole number, got {cell.spec.get('seed')!r}"
    if not all(isinstance(label, str) for label in cell.points.values()):
        return "its points must be words"
    if len(cell.label) > LONGEST:
        return f"its label must have at most {LONGEST:,} letters, got {len(cell.label):,}"
    if not all(_is_plain(value) for value in cell.summary.values()):
        return "its summary must have numbers and words only"
    if not _is(cell.jobs, int) or not all(isinstance(session, int) for session in cell.sessions):
        return "its done.json must count jobs and sessions"
    return ""


def _sound_rows(rows: Sequence[Row], where: str, problems: list[Problem]) -> tuple[Row, ...]:
    sound = tuple(row for row in rows if _is_sound(row))
    if len(sound) < len(rows):
        problems.append(Problem(where, f"{len(rows) - len(sound)} of {len(rows)} rows lack what rows have"))
    return sound


def _is_sound(row: Row) -> bool:
    kinds = _ROWS.get(str(row["event"]), {})
    numbers = (row.get(name) for name in _RECORDED if row["event"] == "matrix")
    return (
        all(_is(row.get(name), kind) for name, kind in kinds.items())
        and all(number is None or _is(number, _NUMBER) for number in numbers)
        and _all_finite(row.values())
    )


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, _NUMBER) and _all_finite([value]))


def _all_finite(values: Iterable[Any]) -> bool:
    return all(abs(value) < LARGEST for value in values if isinstance(value, _NUMBER))
