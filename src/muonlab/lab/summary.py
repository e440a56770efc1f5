"""A study's results in a few numbers: each place on the axes, mean and spread over its seeds."""

from __future__ import annotations

import statistics
from typing import Any

from muonlab.lab.results import CellResult, Results
from muonlab.lab.studies import studies

NUMBERS = ("train_loss", "test_loss", "test_accuracy", "seconds")
"""Of the last evaluation."""


def report(results: Results) -> dict[str, Any]:
    """Return what a finished or interrupted study says, for people and programs."""
    found = studies().get(results.study)
    places: dict[str, list[CellResult]] = {}
    for cell in results.cells:
        places.setdefault(cell.label, []).append(cell)
    return {
        "study": results.study,
        "profile": results.profile,
        "smaller_than_the_paper": found.profiles[results.profile].words if found else None,  # type: ignore[index]
        "status": results.status,
        "folder": str(results.folder),
        "data": {name: {"label": d["label"], "words": d["words"]} for name, d in results.head["data"].items()},
        "places": [{"label": label, **_place(cells)} for label, cells in places.items()],
        "failures": [{"cell": c.folder.name, "error": c.error} for c in results.cells if c.status == "failed"],
        "seconds_comparable": all(cell.jobs == 1 for cell in results.cells),
    }


def _place(cells: list[CellResult]) -> dict[str, Any]:
    done = [cell for cell in cells if cell.status == "done"]
    rows = [dict(cell.metrics[-1]) if cell.metrics else {} for cell in done]
    for row, cell in zip(rows, done, strict=True):
        row |= {name: value for name, value in cell.summary.items() if isinstance(value, (int, float))}
    names = [name for name in _names(rows) if all(isinstance(row.get(name), (int, float)) for row in rows)]
    return {
        "runs": len(cells),
        "done": len(done),
        **{name: _spread([float(row[name]) for row in rows]) for name in names},
    }


def _names(rows: list[dict[str, Any]]) -> list[str]:
    """Return what is worth telling: the usual numbers of training, else all that the work summed up."""
    if rows and "test_loss" in rows[0]:
        return [*NUMBERS, *(name for name in ("gradient_nuclear_norm",) if name in rows[0])]
    return [name for name in rows[0] if name not in ("step",)] if rows else []


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}
