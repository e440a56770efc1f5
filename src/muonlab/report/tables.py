"""Tables of a study: final losses, losses over time beside the paper's, speed, slopes, costs, bounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from muonlab.lab import paper
from muonlab.lab.runner.results import CellResult
from muonlab.lab.runner.timing import UNITS, ClockName, on_clock
from muonlab.report.claims.rules import SGD_M, SVD, moments
from muonlab.report.curves import Rows, at_fractions, spread, trace
from muonlab.report.units import full_name, symbol
from muonlab.report.values import Cell, Spread, Table

Places = Mapping[str, Sequence[CellResult]]
"""Finished cells by label."""
FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the run, for a study that the paper has no table of."""
BOUNDS = {
    "paper": "paper",
    "sharp": "sharp",
    "corrected": "sharp, start corrected",
    "floor": "alignment floor",
    "floor_corrected": "floor, start corrected",
    "sgdm_paper": "paper, SGD-M",
    "sgdm_sharp": "sharp, SGD-M",
    "sgdm_L_F": "sharp, SGD-M by L_F",
}
"""Bounds that are known before a run, as people name them; the others take numbers from it."""
_FINAL = (("train_loss", "training loss"), ("test_loss", "test loss"), ("test_accuracy", "test accuracy"))


def final_losses(places: Places) -> Table:
    """Return the numbers of the last evaluation, mean and standard deviation over runs."""
    names = [(metric, words) for metric, words in _FINAL if any(_last(cells, metric) for cells in places.values())]
    rows = []
    for label, cells in places.items():
        numbers = [_spread(_last(cells, metric)) for metric, _ in names]
        rows.append((label, len(cells), *numbers, _number(_last(cells, "epoch")), _whole(_last(cells, "step"))))
    header = (_axes(places), "runs", *(words for _, words in names), "epochs", "updates")
    caption = "Last evaluation of each run: mean ± one standard deviation over runs (n − 1), where there are several."
    return Table("final-losses", "Final losses", caption, header, tuple(rows))


def losses_over_time(places: Places, study: str, clock: ClockName = "wall") -> Table | None:
    """Return training losses at fractions of the run, the paper's beside ours (Kim & Oh 2026, Tables 2-7).

    Args:
        places: the timed cells, with ``seconds`` of the clock.
        study: its name.
        clock: that they are timed by.
    """
    groups: dict[str, list[Rows]] = {label: [cell.metrics for cell in cells] for label, cells in places.items()}
    table = next((table for table in paper.TABLES if table.study == study), None)
    fractions = FRACTIONS if table is None else moments(table)
    steps = [label for label in groups if label != SVD] or None
    seconds, found = at_fractions(groups, "train_loss", fractions, of=steps)
    if not seconds:
        return None
    rows: list[tuple[Cell, ...]] = []
    for label, losses in found.items():
        rows.append((label, *(["here"] if table else []), *losses))
        if table is not None and label in table.losses:
            rows.append((label, "paper", *table.losses[label]))
    header = [
        _axes(places),
        *(["whose"] if table else []),
        *(f"{part:.0%} ({_seconds(moment, clock)})" for part, moment in zip(fractions, seconds, strict=True)),
    ]
    return Table(
        "losses-over-time",
        f"Training loss over {UNITS[clock]} of training" + (f", {table.item} of the paper beside it" if table else ""),
        _about_time(table, _seconds(seconds[-1], clock), but=f" but that of {SVD}" if SVD in groups else ""),
        tuple(header),
        tuple(rows),
    )


def _about_time(table: paper.TimedLosses | None, slowest: str, but: str) -> str:
    """Return what the columns are: which fractions, of what, and in which seconds there and here."""
    words = [
        f"Columns are fractions of the slowest run{but}, {slowest} of training here. A run that has "
        f"ended keeps its last loss; between evaluations it is interpolated. Mean ± one standard deviation over runs."
    ]
    if table is not None:
        there = ", ".join(f"{second:,}" for second in table.seconds)
        words.append(f"The paper's columns are {there} wall seconds of {table.model} on {table.dataset}, on its GPUs.")
        words += [f"Doubtful: {doubt.words}" for doubt in paper.DOUBTS if doubt.item == table.item]
    return " ".join(words)


def speed(places: Places, clock: ClockName = "wall") -> Table:
    """Return the time of an update by both clocks; an orthogonalization by its difference from SGD-M.

    Args:
        places: cells whose times can be compared, as they were read: with ``seconds`` of the wall clock.
        clock: that claims use.
    """
    taken: dict[ClockName, dict[str, Spread | None]] = {
        by: {label: _per_update(cells, by) for label, cells in places.items()} for by in UNITS
    }
    of_sgdm = taken[clock].get(SGD_M)
    rows = []
    for label in places:
        chosen = taken[clock][label]
        both = (taken["wall"][label], taken["cpu"][label])
        rows.append((label, _reciprocal(chosen.mean if chosen else None), *both, _beyond(chosen, of_sgdm)))
    unit = UNITS[clock]
    caption = f"Times of training alone, mean over runs. Claims about time use {full_name(clock)}."
    if of_sgdm is not None:
        caption += " Orthogonalization: of all matrices together, as the difference from an update of SGD-M."
    header = (
        _axes(places),
        f"updates per {unit.removesuffix('s')}",
        "wall seconds per update",
        "CPU seconds per update",
        f"orthogonalization, {unit} per update",
    )
    columns = 4 if of_sgdm is None else 5
    return Table("speed", "Speed", caption, header[:columns], tuple(row[:columns] for row in rows), digits=3)


def _per_update(cells: Sequence[CellResult], clock: ClockName) -> Spread | None:
    """Return the time of an update by a clock, over the runs that it was measured in."""
    times = [on_clock(cell, clock).seconds_per_update for cell in cells if _has(cell, clock)]
    return _spread([one for one in times if one is not None])


def _has(cell: CellResult, clock: ClockName) -> bool:
    return clock == "wall" or cell.last.get("cpu_seconds") is not None


def slopes(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return log-log slopes over the rank, the paper's beside ours (Kim & Oh 2026, Table 8)."""
    header = ("optimizer", "ω raw", "ω raw, paper", "ω of ‖∇f‖_*/√r", "ω of ‖∇f‖_*/√r, paper", "standard error of ω")
    names = ("optimizer", "raw", "paper_raw", "normalised", "paper_normalised", "standard_error")
    caption = (
        "Exponents of the rank in the epoch mean of ‖∇f‖_*, by least squares on logarithms (Table 8). Every run is one "
        "point. The standard error (n − 2 degrees of freedom) is that of both exponents."
    )
    return Table("slopes", "Log–log slopes", caption, header, tuple(tuple(row[n] for n in names) for row in rows), 3)


def costs(summaries: Mapping[str, Mapping[str, Any]], clock: ClockName = "wall") -> Table:
    """Return the time of every method by shape, and the ratio that Lemma 11 predicts.

    Args:
        summaries: of the timed cells, by shape, with numbers of the clock.
        clock: that they are timed by.
    """
    unit = symbol(clock)
    names = {
        "svd_seconds": f"SVD, {unit}",
        "horner_seconds": f"steps as the paper counts them, {unit}",
        "ours_seconds": f"steps here, {unit}",
        "measured_ratio": "SVD over steps",
        "predicted_ratio": "predicted",
        "measured_over_predicted": "measured over predicted",
        "ratio_to_ours": "SVD over steps here",
    }
    rows = tuple((label, *(summary.get(name) for name in names)) for label, summary in summaries.items())
    caption = (
        f"Medians of interleaved repetitions on one Gaussian matrix of each shape; throughputs of other shapes. Times "
        f"are {full_name(clock)}."
    )
    title = f"{UNITS[clock]} per orthogonalization (Lemma 11)"
    return Table("costs", title[0].upper() + title[1:], caption, ("shape", *names.values()), rows, 3)


def bounds(cells: Sequence[CellResult]) -> Table:
    """Return the mean of ``‖∇f‖_*`` of each method on each problem, and the tightest bound known beforehand."""
    names = {
        "measured": "mean of ‖∇f‖_*",
        "bound": "tightest bound",
        "bound_over_measured": "bound over measured",
        "inequalities": "inequalities",
        "violated": "violated",
        "least_slack": "least relative slack",
    }
    found = [{**cell.summary, "bound": BOUNDS.get(cell.summary.get("bound", ""))} for cell in cells]
    rows = tuple(
        (*_problem(cell), *(summary.get(name) for name in names)) for cell, summary in zip(cells, found, strict=True)
    )
    caption = "Real optimizers on problems of known L, D and σ, with the theorem's step size and momentum."
    return Table("bounds", "Bounds and measured averages", caption, ("problem", "method", *names.values()), rows, 3)


def _problem(cell: CellResult) -> tuple[str, str]:
    return cell.points.get("problem", cell.label), cell.points.get("method", "")


def certificates(places: Places) -> Table | None:
    """Return what the last recorded step says of each layer, mean over runs."""
    names = {
        "lambda_0": "1 − δ_0",
        "chi": "χ_q",
        "alignment": "alignment a",
        "alignment_floor": "floor",
        "gradient_nuclear": "‖gradient‖_*",
    }
    rows: list[tuple[Cell, ...]] = []
    for label, cells in places.items():
        layers: dict[str, list[Mapping[str, Any]]] = {}
        for cell in cells:
            for row in _last_step(cell):
                layers.setdefault(str(row.get("name", "")), []).append(row)
        for layer, found in layers.items():
            sides = found[0].get("shape")
            shape = "×".join(map(str, sides)) if isinstance(sides, list) else ""
            rows_of = [{**row, "lambda_0": _complement(row.get("delta_0"))} for row in found]
            numbers = [_number([row.get(name) for row in rows_of]) for name in names]
            factor = _number([_reciprocal(row.get("alignment")) for row in found])
            rows.append((label, layer, shape, *numbers[:3], factor, *numbers[3:]))
    if not rows:
        return None
    header = [_axes(places), "layer", "shape", *names.values()]
    header.insert(6, "1/a")
    caption = (
        "The last recorded step, mean over runs. χ_q is the paper's factor by the smallest singular value, 1/a that of "
        "the alignment theorem for the same update; the floor is what the rank alone guarantees of a."
    )
    return Table("certificates", "Certificates by layer", caption, tuple(header), tuple(rows))


def _complement(delta: float | None) -> float | None:
    return None if delta is None else 1 - delta


def _last_step(cell: CellResult) -> list[Mapping[str, Any]]:
    rows = [row for row in cell.certificates() if row["event"] == "matrix" and isinstance(row.get("step"), int)]
    last = max((row["step"] for row in rows), default=None)
    return [row for row in rows if row["step"] == last]


def _last(cells: Sequence[CellResult], metric: str) -> list[float]:
    """Return a metric at the last evaluation of each run; empty if one has none."""
    values = [trace([cell.last], metric, "seconds")[1] for cell in cells]
    return [float(value[0]) for value in values] if all(map(len, values)) else []


def _spread(values: Sequence[float]) -> Spread | None:
    return spread(values) if values else None


def _axes(places: Places) -> str:
    """Return what the labels are of: the axes of the study, in words."""
    points = next((cells[0].points for cells in places.values() if cells), {})
    return ", ".join(points) or "run"


def _number(values: Sequence[Any]) -> float | None:
    """Return the mean, or None where a value is missing."""
    sound = [float(value) for value in values if isinstance(value, (int, float))]
    return statistics.fmean(sound) if sound and len(sound) == len(values) else None


def _whole(values: Sequence[float]) -> Cell:
    mean = _number(values)
    return None if mean is None else int(mean) if mean.is_integer() else mean


def _beyond(taken: Spread | None, plain: Spread | None) -> Spread | None:
    """Return what an update takes beyond a plain one, where it takes more."""
    if taken is None or plain is None or taken.mean <= plain.mean:
        return None
    known = [one.std for one in (taken, plain) if one.std is not None]
    return Spread(taken.mean - plain.mean, math.hypot(*known) if len(known) == 2 else None, taken.runs)


def _reciprocal(value: float | None) -> float | None:
    return 1 / value if value and abs(value) > 1e-300 else None


def _seconds(value: float, clock: ClockName) -> str:
    """Return seconds in three digits.

    Example:
        >>> _seconds(0.6454, "wall"), _seconds(3612.0, "cpu")
        ('0.645 s', '3,612 CPU s')
    """
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {symbol(clock)}"
