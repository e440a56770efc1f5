"""A study's results in a few numbers: each place on the axes, mean and spread over its seeds."""

from __future__ import annotations

import shlex
import statistics
from typing import Any

from muonlab.lab.runner.cells import function_of
from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.runner.timing import timing_of
from muonlab.lab.studies import studies

NUMBERS = ("train_loss", "test_loss", "test_accuracy", "seconds", "cpu_seconds", "gradient_nuclear_norm")
"""Of the last evaluation."""


def report(results: Results) -> dict[str, Any]:
    """Return what a finished or interrupted study says, for people and programs."""
    found, timing = studies().get(results.study), timing_of(results)
    return {
        "command": command(results),
        "study": results.study,
        "profile": results.profile,
        "smaller_than_the_paper": found.profiles[results.profile].words if found else None,  # type: ignore[index]
        "changed": _changes(results),
        "status": results.status,
        "folder": str(results.folder),
        "data": {name: {"label": d["label"], "words": d["words"]} for name, d in results.head["data"].items()},
        "places": [{"label": label, **_place(cells)} for label, cells in results.places().items()],
        "analysis": _analysed(results),
        "failures": [{"cell": c.folder.name, "error": c.error} for c in results.cells if c.status == "failed"],
        "clock": timing.clock,
        "timing": timing.words,
    }


def _analysed(results: Results) -> list[dict[str, Any]]:
    """Return the rows of the study's own table, once all of it is done."""
    found = studies().get(results.study)
    if found is None or not found.analysis or results.status != "done":
        return []
    rows: list[dict[str, Any]] = function_of(found.analysis)(results)
    return rows


def command(results: Results) -> str:
    """Return the command that makes these results again, but for where data and results lie."""
    settings, changes = results.head["settings"], _changes(results)
    words = ["muonlab", "run", results.study, "--profile", results.profile]
    words += ["--seeds", str(1 + max((cell.seed for cell in results.cells), default=0))]
    words += ["--device", str(settings.get("device", "cpu")), "--threads", str(settings["threads"])]
    return shlex.join([*words, *(["--set", *changes] if changes else [])])


def _changes(results: Results) -> list[str]:
    """Return the settings that options replaced, as the command line takes them."""
    return [f"{name}={'none' if value is None else value}" for name, value in results.changed.items()]


def _place(cells: list[CellResult]) -> dict[str, Any]:
    done = [cell for cell in cells if cell.status == "done"]
    rows = [_numbers(cell) for cell in done]
    names = [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
    return {
        "runs": len(cells),
        "done": len(done),
        **{name: _spread([row[name] for row in rows]) for name in names},
    }


def _numbers(cell: CellResult) -> dict[str, float]:
    """Return what the table shows of a cell: the usual numbers of training, else those that its work summed up.

    Of numbers that both clocks measured, those of the wall clock.
    """
    last = cell.metrics[-1] if cell.metrics else {}
    if "test_loss" not in last:
        numbers = {name: float(value) for name, value in cell.summary.items() if isinstance(value, (int, float))}
        return {name: value for name, value in numbers.items() if not name.startswith(("cpu_", "other_"))}
    return {name: last[name] for name in NUMBERS if name in last} | _certified(cell)


def _certified(cell: CellResult) -> dict[str, float]:
    """Return the alignment of all matrices together in the last recorded step."""
    whole = [row for row in cell.certificates() if row["event"] == "whole" and row.get("alignment") is not None]
    return {"alignment": whole[-1]["alignment"]} if whole else {}


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}
