"""Tables of a study: losses, losses over time next to the paper's, speed, slopes, optima, costs, certificates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from muonlab.lab import paper
from muonlab.lab.runner.results import CellResult
from muonlab.lab.runner.timing import UNITS, ClockName, on_clock, unit_name, unit_symbol
from muonlab.report.claims.rules import SGD_M, SVD, time_fractions
from muonlab.report.curves import Rows, at_fractions, mean_std, trace
from muonlab.report.values import MeanStd, ResultRow, Table, TableCell

CellsByLabel = Mapping[str, Sequence[CellResult]]
"""The runs of each setting by its label."""
FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Columns of a study for which the paper has no table, as fractions of the run."""
BOUNDS = {
    "paper": "paper",
    "sharp": "sharp",
    "corrected": "sharp, start corrected",
    "floor": "alignment floor",
    "floor_corrected": "floor, start corrected",
    "sgdm_paper": "paper, SGD-M",
    "sgdm_sharp": "sharp, SGD-M",
    "sgdm_L_F": "sharp, SGD-M by L_F",
    "trajectory": "Theorems A to C",
}
"""Printed names of the bounds that do not depend on numbers measured in the run."""
_FINAL = (("train_loss", "training loss"), ("test_loss", "test loss"), ("test_accuracy", "test accuracy"))


def final_losses(places: CellsByLabel) -> Table:
    """Return losses and accuracy of the last evaluation, mean and standard deviation over runs."""
    names = [(metric, name) for metric, name in _FINAL if any(_last(cells, metric) for cells in places.values())]
    rows = []
    for label, cells in places.items():
        numbers = [_mean_std(_last(cells, metric)) for metric, _ in names]
        rows.append((label, len(cells), *numbers, _mean(_last(cells, "epoch")), _whole_mean(_last(cells, "step"))))
    header = (_axes(places), "runs", *(name for _, name in names), "epochs", "updates")
    caption = "Last evaluation of each run; mean ± one standard deviation (n − 1) where there are several runs."
    return Table("final-losses", "Final losses", caption, header, tuple(rows))


def final_numbers(places: CellsByLabel) -> Table:
    """Return the numbers that the function of each cell returned, mean and standard deviation over runs."""
    names = list(dict.fromkeys(name for cells in places.values() for cell in cells for name in cell.summary))
    found: dict[tuple[str, str], list[float]] = {}
    for label, cells in places.items():
        for name in names:
            values = [cell.summary.get(name) for cell in cells]
            if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
                found[label, name] = [float(value) for value in values if value is not None]
    kept = [name for name in names if any((label, name) in found for label in places)]
    rows = tuple(
        (label, len(cells), *(_mean_std(found.get((label, name), [])) for name in kept))
        for label, cells in places.items()
        if kept
    )
    caption = "What each cell returned; mean ± one standard deviation (n − 1) where there are several runs."
    return Table("final-numbers", "Final numbers", caption, (_axes(places), "runs", *kept), rows)


def losses_over_time(places: CellsByLabel, study: str, clock: ClockName = "wall") -> Table | None:
    """Return training losses at fractions of the run, next to the paper's (Kim & Oh 2026, Tables 2-7).

    Args:
        places: the timed cells; their ``seconds`` are from ``clock``.
        study: name of the study.
        clock: the clock of the study.
    """
    groups: dict[str, list[Rows]] = {label: [cell.metrics for cell in cells] for label, cells in places.items()}
    table = next((table for table in paper.TABLES if table.study == study), None)
    fractions = FRACTIONS if table is None else time_fractions(table)
    others = [label for label in groups if label != SVD] or None
    seconds, losses_by_label = at_fractions(groups, "train_loss", fractions, slowest_of=others)
    if not seconds:
        return None
    rows: list[tuple[TableCell, ...]] = []
    for label, losses in losses_by_label.items():
        rows.append((label, *(["muonlab"] if table else []), *losses))
        if table is not None and label in table.losses:
            rows.append((label, "paper", *table.losses[label]))
    header = [
        _axes(places),
        *(["source"] if table else []),
        *(f"{part:.0%} ({_seconds(moment, clock)})" for part, moment in zip(fractions, seconds, strict=True)),
    ]
    return Table(
        "losses-over-time",
        f"Training loss over {UNITS[clock]} of training" + (f", with {table.item} of the paper" if table else ""),
        _about_time(table, _seconds(seconds[-1], clock), f", {SVD} excluded" if SVD in groups else ""),
        tuple(header),
        tuple(rows),
    )


def _about_time(table: paper.TimedLosses | None, slowest: str, excluded: str) -> str:
    """Return the caption: what the columns mean here and in the paper."""
    sentences = [
        f"Columns are fractions of the training time of the slowest run{excluded}: {slowest} here. Losses are "
        f"interpolated between evaluations; a run that has ended keeps its last loss. Mean ± one standard deviation "
        f"over runs."
    ]
    if table is not None:
        seconds = ", ".join(f"{second:,}" for second in table.seconds)
        sentences.append(
            f"In the paper the columns are {seconds} wall seconds of {table.model} on {table.dataset}, on its GPUs."
        )
        sentences += [f"Doubtful: {doubt.words}" for doubt in paper.DOUBTS if doubt.item == table.item]
    return " ".join(sentences)


def speed(places: CellsByLabel, clock: ClockName = "wall") -> Table:
    """Return the time of an update by both clocks, and the time of an orthogonalization as difference from SGD-M.

    Args:
        places: cells whose times are comparable, with ``seconds`` of the wall clock.
        clock: the clock that claims use.
    """
    times: dict[ClockName, dict[str, MeanStd | None]] = {
        name: {label: _per_update(cells, name) for label, cells in places.items()} for name in UNITS
    }
    of_sgdm = times[clock].get(SGD_M)
    rows = []
    for label in places:
        time = times[clock][label]
        both = (times["wall"][label], times["cpu"][label])
        rows.append((label, _reciprocal(time.mean if time else None), *both, _difference(time, of_sgdm)))
    unit = UNITS[clock]
    caption = f"Times of training without evaluation, mean over runs. Claims about time use {unit_name(clock)}."
    if of_sgdm is not None:
        caption += " Orthogonalization is that of all matrices, measured as the difference from an update of SGD-M."
    header = (
        _axes(places),
        f"updates per {unit.removesuffix('s')}",
        "wall seconds per update",
        "CPU seconds per update",
        f"orthogonalization, {unit} per update",
    )
    columns = 4 if of_sgdm is None else 5
    return Table("speed", "Speed", caption, header[:columns], tuple(row[:columns] for row in rows), digits=3)


def _per_update(cells: Sequence[CellResult], clock: ClockName) -> MeanStd | None:
    """Return the time of an update, over the runs in which this clock was recorded."""
    recorded = [cell for cell in cells if clock == "wall" or cell.last.get("cpu_seconds") is not None]
    times = [on_clock(cell, clock).seconds_per_update for cell in recorded]
    return _mean_std([time for time in times if time is not None])


def slopes(rows: Sequence[ResultRow]) -> Table:
    """Return log-log slopes over the rank, next to the paper's (Kim & Oh 2026, Table 8)."""
    header = ("optimizer", "ω raw", "ω raw, paper", "ω of ‖∇f‖_*/√r", "ω of ‖∇f‖_*/√r, paper", "standard error of ω")
    names = ("optimizer", "raw", "paper_raw", "normalised", "paper_normalised", "standard_error")
    caption = (
        "Exponents ω of the rank in the epoch mean of ‖∇f‖_*, fitted by least squares on logarithms (Table 8). Every "
        "run is one point. Both exponents have the same standard error (n − 2 degrees of freedom)."
    )
    return Table("slopes", "Log–log slopes", caption, header, tuple(tuple(row[n] for n in names) for row in rows), 3)


def best_settings(rows: Sequence[ResultRow]) -> Table:
    """Return the learning rate and momentum of least training loss of each optimizer, and the step that they give."""
    names = {
        "network": "network",
        "optimizer": "optimizer",
        "lr": "learning rate η",
        "momentum": "momentum μ",
        "at_an_end": "at an end of the grid",
        "train_loss": "training loss",
        "test_accuracy": "test accuracy",
        "rho": "ρ",
        "lr_rho": "ηρ",
    }
    caption = (
        "The setting of the grid with the least mean training loss at the end (over the updates since the evaluation "
        "before the last), ± one standard deviation over seeds. Test data take no part in the choice. ρ = ⟨M, O⟩/‖M‖_* "
        "is the mean over the recorded steps. If the best of any seed is at an end of the grid, the true best may lie "
        "outside."
    )
    return Table("best-settings", "Best settings", caption, tuple(names.values()), _cells(rows, names))


def optimum_shifts(rows: Sequence[ResultRow]) -> Table:
    """Return how far the optima lie from those of the last optimizer."""
    names = {
        "network": "network",
        "optimizer": "optimizer",
        "shift_log_lr": "log2 of η",
        "shift_log_descent": "log2 of ηρ",
        "shift_log_memory": "log2 of 1/(1 − μ)",
        "at_an_end": "at an end of the grid",
    }
    caption = (
        "Distance from the optimum of the last optimizer on the same network, mean ± one standard error over seeds: 1 "
        "is a factor of 2. An optimum is the lowest point of a parabola through the best point of the grid and its "
        "neighbours, for each seed; at an end of the grid it is that end."
    )
    return Table("optimum-shifts", "Shifts of the optimum", caption, tuple(names.values()), _cells(rows, names))


def _cells(rows: Sequence[ResultRow], names: Mapping[str, str]) -> tuple[tuple[TableCell, ...], ...]:
    return tuple(tuple(_with_spread({**row, "at_an_end": _at_an_end(row)}, name) for name in names) for row in rows)


def _at_an_end(row: ResultRow) -> str | None:
    """Return which of the best settings of any seed are at an end of the grid."""
    ends = [name for name, key in (("η", "lr_inside"), ("μ", "momentum_inside")) if not row[key]]
    return ", ".join(ends) or None


def _with_spread(row: ResultRow, name: str) -> TableCell:
    """Return a number with its standard deviation or error if the row has one and there are several runs."""
    value, spread = row[name], row.get(f"{name}_std", row.get(f"{name}_error"))
    return value if spread is None or row["runs"] < 2 else MeanStd(float(value), float(spread), int(row["runs"]))


def costs(summaries: Mapping[str, ResultRow], clock: ClockName = "wall") -> Table:
    """Return the time of every method by shape, and the ratio that Lemma 11 predicts.

    Args:
        summaries: the summary of the timed cells by shape, with times of ``clock``.
        clock: the clock of the study.
    """
    unit = unit_symbol(clock)
    names = {
        "svd_seconds": f"SVD, {unit}",
        "horner_seconds": f"steps in the paper's form, {unit}",
        "ours_seconds": f"steps in muonlab, {unit}",
        "measured_ratio": "SVD over steps",
        "predicted_ratio": "predicted",
        "measured_over_predicted": "measured over predicted",
        "ratio_to_ours": "SVD over steps in muonlab",
    }
    rows = tuple((label, *(summary.get(name) for name in names)) for label, summary in summaries.items())
    caption = (
        f"Medians of interleaved repetitions on one Gaussian matrix per shape, in {unit_name(clock)}. The prediction "
        f"uses throughputs measured on other shapes."
    )
    title = f"{UNITS[clock]} per orthogonalization (Lemma 11)"
    return Table("costs", title[0].upper() + title[1:], caption, ("shape", *names.values()), rows, 3)


def bounds(cells: Sequence[CellResult]) -> Table:
    """Return the mean of ``‖∇f‖_*`` of each method on each problem, and its tightest bound known before the run."""
    names = {
        "measured": "mean of ‖∇f‖_*",
        "bound": "tightest bound",
        "bound_over_measured": "bound over measured",
        "inequalities": "inequalities",
        "violated": "violated",
        "least_slack": "least relative slack",
    }
    summaries = [{**cell.summary, "bound": BOUNDS.get(cell.summary.get("bound", ""))} for cell in cells]
    rows = tuple(
        (cell.points.get("problem", cell.label), cell.points.get("method", ""), *(summary.get(name) for name in names))
        for cell, summary in zip(cells, summaries, strict=True)
    )
    caption = (
        "Optimizers on problems with known L, D and σ, with the step size and momentum of the theorem. The bound of "
        "Theorems A to C is divided by the mean that it bounds, in which steps are weighted by their learning rates."
    )
    return Table("bounds", "Bounds and measured averages", caption, ("problem", "method", *names.values()), rows, 3)


def averages(cells: Sequence[CellResult]) -> Table:
    """Return the mean of ``‖∇f‖_*`` with a row for each problem and a column for each method, and whose is least.

    Runs with weight decay are left out: there SGD-M and Muon approach different points, and neither is stationary.
    """
    measured: dict[str, dict[str, list[Any]]] = {}
    for cell in cells:
        if cell.spec.get("weight_decay"):
            continue
        of_problem = measured.setdefault(str(cell.points.get("problem", cell.label)), {})
        of_problem.setdefault(str(cell.points.get("method", "")), []).append(cell.summary.get("measured"))
    methods = list(dict.fromkeys(method for of_problem in measured.values() for method in of_problem))
    rows: list[tuple[TableCell, ...]] = []
    winners: list[str] = []
    for problem, of_problem in measured.items():
        means = {method: _mean(of_problem.get(method, [])) for method in methods}
        finite = {method: mean for method, mean in means.items() if mean is not None}
        winners.append(min(finite, key=finite.__getitem__, default=""))
        rows.append((problem, winners[-1], *means.values()))
    sgdm = sum(winner.startswith("sgdm") for winner in winners)
    muon = len(winners) - sgdm - winners.count("")
    caption = (
        f"Mean of ‖∇f‖_* over all steps and runs, every step counted once. SGD-M has the least mean in {sgdm} of "
        f"{len(rows)} rows, Muon in {muon}."
    )
    return Table(
        "averages", "Which optimizer has the least average", caption, ("problem", "least", *methods), tuple(rows), 3
    )


def gaps(cells: Sequence[CellResult]) -> Table:
    """Return the mean Frank-Wolfe gap of the runs with weight decay, next to its bound (docs/theory/theorem-b.md)."""
    rows = tuple(
        (
            cell.points.get("problem", cell.label),
            cell.points.get("method", ""),
            cell.summary.get("measured"),
            row.get("measured"),
            row.get("bound"),
        )
        for cell in cells
        for row in cell.metrics
        if row["event"] == "inequality" and row["name"] == "trajectory_gap"
    )
    caption = (
        "With weight decay λ the weights stay in a ball of radius about 1/λ. If the minimum is outside of it, the "
        "gradient does not vanish, and ρ‖∇f‖_* + λ⟨∇f, W⟩ measures the distance from the stationary points on the ball."
    )
    header = ("problem", "method", "mean of ‖∇f‖_*", "mean of ρ‖∇f‖_* + λ⟨∇f, W⟩", "bound of Theorem B")
    return Table("gaps", "Weight decay: the Frank–Wolfe gap", caption, header, rows, 3)


def certificates(places: CellsByLabel) -> Table | None:
    """Return the certificate of each layer at the last recorded step, mean over runs."""
    names = {
        "lambda_0": "1 − δ_0",
        "chi": "χ_q",
        "alignment": "alignment a",
        "alignment_floor": "floor",
        "gradient_nuclear": "‖gradient‖_*",
    }
    rows: list[tuple[TableCell, ...]] = []
    for label, cells in places.items():
        layers: dict[str, list[ResultRow]] = {}
        for cell in cells:
            for row in _last_step(cell):
                layers.setdefault(str(row.get("name", "")), []).append(row)
        for layer, certified in layers.items():
            shape = "×".join(map(str, certified[0].get("shape", ())))
            extended = [
                {**row, "lambda_0": 1 - row["delta_0"] if row.get("delta_0") is not None else None} for row in certified
            ]
            numbers = [_mean([row.get(name) for row in extended]) for name in names]
            factor = _mean([_reciprocal(row.get("alignment")) for row in certified])
            rows.append((label, layer, shape, *numbers[:3], factor, *numbers[3:]))
    if not rows:
        return None
    header = [_axes(places), "layer", "shape", *names.values()]
    header.insert(6, "1/a")
    caption = (
        "Last recorded step, mean over runs. χ_q is the paper's factor, given by the smallest singular value; 1/a is "
        "the factor of the alignment theorem for the same update; the floor is the value of a that the rank guarantees."
    )
    return Table("certificates", "Certificates by layer", caption, tuple(header), tuple(rows))


def _last_step(cell: CellResult) -> list[ResultRow]:
    rows = [row for row in cell.certificates() if row["event"] == "matrix"]
    last = max((row["step"] for row in rows), default=None)
    return [row for row in rows if row["step"] == last]


def _last(cells: Sequence[CellResult], metric: str) -> list[float]:
    """Return a metric at the last evaluation of each run; empty if a run lacks it."""
    values = [trace([cell.last], metric, "seconds")[1] for cell in cells]
    return [float(value[0]) for value in values] if all(map(len, values)) else []


def _mean_std(values: Sequence[float]) -> MeanStd | None:
    return mean_std(values) if values else None


def _axes(places: CellsByLabel) -> str:
    """Return the header of the labels: the axes of the study."""
    points = next((cells[0].points for cells in places.values() if cells), {})
    return ", ".join(points) or "run"


def _mean(values: Sequence[Any]) -> float | None:
    """Return the mean, or None if a value is missing."""
    sound = [float(value) for value in values if isinstance(value, (int, float))]
    return statistics.fmean(sound) if sound and len(sound) == len(values) else None


def _whole_mean(values: Sequence[float]) -> TableCell:
    mean = _mean(values)
    return None if mean is None else int(mean) if mean.is_integer() else mean


def _difference(time: MeanStd | None, of_sgdm: MeanStd | None) -> MeanStd | None:
    """Return how much longer an update takes than one of SGD-M; None if it is not longer."""
    if time is None or of_sgdm is None or time.mean <= of_sgdm.mean:
        return None
    std = None if time.std is None or of_sgdm.std is None else math.hypot(time.std, of_sgdm.std)
    return MeanStd(time.mean - of_sgdm.mean, std, time.runs)


def _reciprocal(value: float | None) -> float | None:
    return 1 / value if value else None


def _seconds(value: float, clock: ClockName) -> str:
    """Return seconds with three significant digits and their unit.

    Example:
        >>> _seconds(0.6454, "wall"), _seconds(3612.0, "cpu")
        ('0.645 s', '3,612 CPU s')
    """
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {unit_symbol(clock)}"
