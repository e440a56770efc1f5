"""The best setting of each group of a sweep: chosen on validation data, reported on test data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muonlab.lab.runner.results import CellResult, Results


@dataclass(frozen=True)
class Best:
    """The best setting of one group.

    Args:
        group: the value of the axis that groups the cells.
        setting: the values of the other axes: numbers, or labels where an axis has no numbers.
        label: of its cells.
        runs: number of seeds.
        chosen_by: name of the number by which the setting was chosen.
        value: its mean over the seeds, at the last evaluation.
        value_std: its standard deviation over the seeds; 0 for one.
        test_loss: mean over the seeds, at the last evaluation.
        test_loss_std: standard deviation over the seeds; 0 for one.
        at_edge: axes of three or more numbers of which the smallest or largest is the best: the grid may be too narrow.
        missing: number of cells of the group that are not done, or failed; they were not compared.
    """

    group: str
    setting: Mapping[str, int | float | str]
    label: str
    runs: int
    chosen_by: str
    value: float
    value_std: float
    test_loss: float
    test_loss_std: float
    at_edge: tuple[str, ...] = ()
    missing: int = 0


def best(results: Results, by: str = "optimizer", on: str = "validation_loss") -> list[Best]:
    """Return for each value of an axis the setting of the other axes with the least mean over the seeds.

    A setting is compared if all of its seeds are done; the training of one that diverged has failed.

    Args:
        results: of a study.
        by: name of the axis whose values are compared, each at its own best setting.
        on: number of the last evaluation by which settings are chosen: ``"validation_loss"``, for which the spec sets
            ``validation`` examples aside, or ``"train_loss"``; choosing by a test loss would make it too low.

    Raises:
        ValueError: if no cell has such an axis, or no finished cell has the number.
    """
    if on.startswith("test"):
        raise ValueError(f"settings must not be chosen by test data, got on={on!r}: use validation_loss")
    cells = [cell for cell in results.cells if by in cell.points]
    if not cells:
        axes = ", ".join(dict.fromkeys(axis for cell in results.cells for axis in cell.points)) or "none"
        raise ValueError(f"by must be an axis of the study, got {by!r}: its axes are {axes}")
    if not any(on in cell.last for cell in cells if cell.status == "done"):
        raise ValueError(f"the rows must have {on}, got none: set Spec(validation=…), or choose by on='train_loss'")
    groups: dict[str, list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(cell.points[by], []).append(cell)
    found = (_best_of(name, members, by, on) for name, members in groups.items())
    return [one for one in found if one is not None]


def _best_of(group: str, cells: Sequence[CellResult], by: str, on: str) -> Best | None:
    settings: dict[tuple[tuple[str, str], ...], list[CellResult]] = {}
    for cell in cells:
        settings.setdefault(tuple((axis, label) for axis, label in cell.points.items() if axis != by), []).append(cell)
    whole = {
        setting: members
        for setting, members in settings.items()
        if all(cell.status == "done" and math.isfinite(cell.last.get(on, math.nan)) for cell in members)
    }
    if not whole:
        return None
    chosen = min(whole, key=lambda setting: _mean_and_std(whole[setting], on)[0])
    runs = whole[chosen]
    return Best(
        group,
        {axis: runs[0].value_on(axis) for axis, _ in chosen},
        runs[0].label,
        len(runs),
        on,
        *_mean_and_std(runs, on),
        *_mean_and_std(runs, "test_loss"),
        tuple(axis for axis, _ in chosen if _is_at_edge(axis, runs[0], cells)),
        sum(cell.status != "done" for cell in cells),
    )


def _mean_and_std(cells: Sequence[CellResult], name: str) -> tuple[float, float]:
    values = [float(cell.last[name]) for cell in cells]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _is_at_edge(axis: str, cell: CellResult, cells: Sequence[CellResult]) -> bool:
    """Return whether a cell is at an end of an axis of three or more numbers."""
    values = {number for each in cells if (number := number_of(each, axis)) is not None}
    return len(values) > 2 and number_of(cell, axis) in (min(values), max(values))


def number_of(cell: CellResult, axis: str) -> float | None:
    """Return the number that a cell has on an axis; None for an axis of labels."""
    value = cell.value_on(axis)
    return None if isinstance(value, str) else float(value)
