"""A study's results in a few numbers: mean and standard deviation over the seeds for each label."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping
from typing import Any

from muonlab.lab.runner.cells import import_function
from muonlab.lab.runner.results import CellResult, Results, earlier_names
from muonlab.lab.runner.timing import timing_of
from muonlab.lab.studies import studies
from muonlab.lab.study import WHOLE, Profile

NUMBERS = (
    "train_loss",
    "validation_loss",
    "test_loss",
    "test_accuracy",
    "seconds",
    "cpu_seconds",
    "gradient_nuclear_norm",
)
"""Numbers of the last evaluation that are shown."""


def summarize(results: Results) -> dict[str, Any]:
    """Return the results of a finished or interrupted study, as ``muonlab run --json`` prints them."""
    timing = timing_of(results)
    return {
        "command": command(results),
        "study": results.study,
        "profile": results.profile,
        "smaller_than_the_paper": differences(results) or None,
        "changed": _changes(results),
        "status": results.status,
        "cells_to_run": results.cells_to_run,
        "folder": str(results.folder),
        "earlier": earlier(results) or None,
        "data": {name: {"label": d["label"], "words": d["words"]} for name, d in results.head["data"].items()},
        "places": [{"label": label, **_mean_numbers(cells)} for label, cells in results.places().items()],
        "analysis": _analysis(results),
        "failures": [{"cell": c.folder.name, "error": c.error} for c in results.cells if c.status == "failed"],
        "clock": timing.clock,
        "timing": timing.explanation,
    }


def _analysis(results: Results) -> list[dict[str, Any]]:
    """Return the rows of the study's own table; empty unless all cells are done."""
    study = studies().get(results.study)
    if study is None or not study.analysis or results.status != "done":
        return []
    return list(import_function(study.analysis)(results))


def definition(results: Results) -> Mapping[str, Any]:
    """Return title, differences and file of a study of the user's own, from its last session; empty for ours."""
    return next((session for session in reversed(results.environments) if "title" in session), {})


def differences(results: Results) -> str:
    """Return what differs from the paper, with the number of runs of each setting; empty if nothing does."""
    study, own = studies().get(results.study), definition(results)
    text = str(own["differences"]) if own else ""
    if study is not None and not own and results.profile in study.profiles:
        text = study.profiles[results.profile].differences
    runs = max((len(cells) for cells in results.places().values()), default=1)
    return Profile(runs, text).differences_with(runs)


def earlier(results: Results) -> str:
    """Return a sentence about the cells of an earlier definition of the study, which are kept; empty without any."""
    count = len(earlier_names(results.folder))
    cells = "1 cell" if count == 1 else f"{count} cells"
    return f"Kept, but not shown: {cells} of an earlier definition of the study." if count else ""


def command(results: Results) -> str:
    """Return the command that reproduces these results, without --out; DIR is the directory of the data."""
    settings, changes = results.head["settings"], _changes(results)
    file = definition(results).get("file")
    name = f"./{file}" if file else results.study
    arguments = ["muonlab", "run", name, *([] if results.profile == WHOLE else ["--profile", results.profile])]
    if any(data.get("source") == "folder" for data in results.head["data"].values()):
        arguments += ["--data", "DIR"]
    arguments += ["--seeds", str(1 + max((cell.seed for cell in results.cells), default=0))]
    arguments += ["--device", str(settings.get("device", "cpu")), "--threads", str(settings["threads"])]
    return shlex.join([*arguments, *(["--set", *changes] if changes else [])])


def _changes(results: Results) -> list[str]:
    """Return the settings that options replaced, as ``key=value`` arguments."""
    return [f"{name}={'none' if value is None else value}" for name, value in results.changed.items()]


def _mean_numbers(cells: list[CellResult]) -> dict[str, Any]:
    done = [cell for cell in cells if cell.status == "done"]
    rows = [_numbers(cell) for cell in done]
    names = [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
    return {
        "runs": len(cells),
        "done": len(done),
        **{name: _mean_and_std([row[name] for row in rows]) for name in names},
    }


def _numbers(cell: CellResult) -> dict[str, float]:
    """Return the numbers of a cell that the table shows: those of training, else those of its summary.

    Of the numbers of a summary that both clocks measured, those of the wall clock are shown.
    """
    last = cell.metrics[-1] if cell.metrics else {}
    if "test_loss" not in last:
        numbers = {name: float(value) for name, value in cell.summary.items() if isinstance(value, (int, float))}
        return {name: value for name, value in numbers.items() if not name.startswith(("cpu_", "other_"))}
    return {name: last[name] for name in NUMBERS if name in last} | _last_alignment(cell)


def _last_alignment(cell: CellResult) -> dict[str, float]:
    """Return the alignment of the whole network at the last recorded step, if certificates were recorded."""
    whole = [row for row in cell.certificates() if row["event"] == "whole" and row.get("alignment") is not None]
    return {"alignment": whole[-1]["alignment"]} if whole else {}


def _mean_and_std(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}
