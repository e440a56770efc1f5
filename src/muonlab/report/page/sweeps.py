"""The section of a page on a sweep: losses over the values of an axis, and the best setting of each optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.selection import Best, best, number_of
from muonlab.report import figures
from muonlab.report.curves import Curve
from muonlab.report.values import Figure, MeanStd, Section, Table

LEAST_VALUES = 3
"""Fewest values of an axis that make a sweep."""
LOSSES = {"validation_loss": "validation loss", "test_loss": "test loss"}


def sweep_section(results: Results) -> Section | None:
    """Return a figure for each axis of numbers named after a field, and a table of the best settings; None without."""
    swept = [axis for axis in _axes(results) if _values(results.cells, axis) >= LEAST_VALUES]
    drawn = [figure for axis in swept if (figure := _figure(results, axis)) is not None]
    if not drawn:
        return None
    intro = "The loss at the end of training over the values of each swept setting."
    by = _grouping(results)
    table = None if by is None else _table(results, by)
    return Section("sweep", "Sweep", intro, tuple(drawn), () if table is None else (table,))


def best_labels(results: Results) -> list[str]:
    """Return the label of the best setting of each group of a sweep; empty without one."""
    by = _grouping(results)
    return [] if by is None else [row.label for row in _best(results, by)]


def _best(results: Results, by: str) -> list[Best]:
    """Return the best settings, chosen by validation loss; empty without one."""
    try:
        return best(results.of_ended_seeds(), by)
    except ValueError:
        return []


def _axes(results: Results) -> list[str]:
    return list(dict.fromkeys(axis for cell in results.cells for axis in cell.points))


def _grouping(results: Results) -> str | None:
    """Return the first axis that is not swept, if another one is: each of its values has a best setting."""
    swept = [axis for axis in _axes(results) if _values(results.cells, axis) >= LEAST_VALUES]
    return next((axis for axis in _axes(results) if axis not in swept), None) if swept else None


def _values(cells: Sequence[CellResult], axis: str) -> int:
    return len({number for cell in cells if (number := number_of(cell, axis)) is not None})


def _figure(results: Results, axis: str) -> Figure | None:
    """Return the losses over an axis, a curve for each combination of the other axes."""
    curves: dict[str, list[Curve]] = {}
    for metric, name in LOSSES.items():
        groups: dict[str, dict[float, list[float]]] = {}
        for cell in results.cells:
            value, loss = number_of(cell, axis), cell.last.get(metric)
            if cell.status == "done" and value is not None and loss is not None:
                label = ", ".join(point for other, point in cell.points.items() if other != axis) or "all"
                groups.setdefault(label, {}).setdefault(value, []).append(float(loss))
        curves[name] = [_curve(label, by_value) for label, by_value in groups.items()]
    return figures.sweep_figure(axis, curves)


def _curve(label: str, by_value: dict[float, list[float]]) -> Curve:
    x = np.array(sorted(by_value))
    runs = min(len(losses) for losses in by_value.values())
    mean = np.array([np.mean(by_value[value]) for value in x])
    std = np.array([np.std(by_value[value], ddof=1) for value in x]) if runs > 1 else None
    return Curve(label, x, mean, std, runs)


def _table(results: Results, by: str) -> Table | None:
    """Return the best setting of each value of an axis, chosen by validation loss; None if there is none."""
    rows = _best(results, by)
    if not rows:
        return None
    settings = list(dict.fromkeys(axis for row in rows for axis in row.setting))
    cells = tuple(
        (
            row.group,
            *(row.setting.get(axis) for axis in settings),
            MeanStd(row.value, row.value_std if row.runs > 1 else None, row.runs),
            MeanStd(row.test_loss, row.test_loss_std if row.runs > 1 else None, row.runs),
            ", ".join(row.at_edge) or "–",
        )
        for row in rows
    )
    caption = (
        "The setting of each with the least mean validation loss over the seeds that have ended, and its test loss, "
        "both ± one standard deviation over seeds. At the edge: the best value of a grid of three or more is its least "
        "or its largest."
    )
    header = (by, *settings, "validation loss", "test loss", "at the edge of the grid")
    return Table("best-settings", "Best settings", caption, header, cells)
