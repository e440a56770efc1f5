"""The sections of a study's page: the figures and tables that its rows allow."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from muonlab.lab.grid_optima import optima_of, runs_by_optimizer
from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.runner.timing import UNITS, Timing, timing_of, unit_name
from muonlab.lab.slopes import norms_by_rank, slopes_of
from muonlab.report import figures, tables
from muonlab.report.curves import Across, Curve, by_epoch, by_time
from muonlab.report.figures.training import LEGEND as MOST_NAMED
from muonlab.report.page.sweeps import best_labels, sweep_section
from muonlab.report.tables import CellsByLabel
from muonlab.report.values import Figure, Section, Table

if TYPE_CHECKING:
    from muonlab.polynomials import Polynomial, Schedule

MOST_LAYER_FIGURES = 6
_LOSSES = ("train_loss", "test_loss")
AVERAGES_INTRO = (
    "SGD-M takes steps in proportion to its momentum, Muon takes steps of the length that its learning rate gives. So "
    "SGD-M should win where gradient descent converges linearly: its steps shrink with the gradient, while Muon's, at "
    "a constant rate, swing about the minimum. Muon should win where the gradient keeps many small singular values, "
    "as on canyon: SGD-M moves little along each, and its average grows with the root of the rank. The table has the "
    "outcome, docs/theory/theory-at-work.md the argument."
)


def study_sections(results: Results, smoothing: int = 1) -> tuple[Section, ...]:
    """Return the sections of a study; one that was interrupted is shown up to its last checkpoint.

    Args:
        results: of the study.
        smoothing: number of evaluations in the running mean of each curve; 1 does not smooth.
    """
    done = results.places(status="done")
    begun = results.places() | done  # unfinished cells only of labels without a finished one
    timing = timing_of(results)
    sections = (
        _training(results, begun, done, smoothing, timing),
        _rank(results, done),
        _optima(results, done),
        sweep_section(results),
        _costs(timing),
        _averages(done),
        _bounds(done),
        _certificates(begun, done),
        _polynomials(results),
    )
    shown = tuple(section for section in sections if section is not None and (section.figures or section.tables))
    return shown or _results(done)


def _results(done: CellsByLabel) -> tuple[Section, ...]:
    """Return the final numbers of a study that has nothing else to show: one with a function of its own for cells."""
    made = tables.final_numbers(done)
    section = _section("results", "Results", "", [], [_with_hardware(made, done)]) if made.rows else None
    return (section,) if section else ()


def _training(
    results: Results, begun: CellsByLabel, done: CellsByLabel, smoothing: int, timing: Timing
) -> Section | None:
    finished = _with_rows(done, "evaluation")
    clock = timing.clock or "wall"
    chosen = best_labels(results) if len(begun) > MOST_NAMED else []
    title = f"Loss by epoch and by {UNITS[clock]} of training" if timing.clock else "Loss by epoch"
    timed = _with_rows(timing.places(), "evaluation")
    shown, shown_timed = (_of(places, chosen) for places in (_with_rows(begun, "evaluation"), timed))
    curves = _curves("epoch", shown, smoothing) | _curves("seconds", shown_timed, smoothing)
    drawn = figures.training_figure("training", title, curves, clock)
    made = [_with_hardware(tables.final_losses(finished), finished)] if finished else []
    if timed:
        over_time = tables.losses_over_time(timed, results.study, clock)
        speed = tables.speed(_on_wall_clock(timed, results), clock)
        made += [_with_timed_hardware(table, timing) for table in (over_time, speed) if table is not None]
    intro = f"Loss by epoch compares updates; loss by {UNITS[clock]} also counts their cost." if timing.clock else ""
    if chosen:
        intro += f" The curves are of the best settings of the sweep; the tables have all {len(begun)}."
    if smoothing > 1:
        intro += f" Curves are smoothed by the running mean of {smoothing} evaluations. Tables are not smoothed."
    return _section("training", "Training", intro.strip(), [drawn], made)


def _of(places: CellsByLabel, labels: Sequence[str]) -> CellsByLabel:
    """Return the cells with these labels; all of them if there is none."""
    return {label: cells for label, cells in places.items() if label in labels} if labels else places


def _on_wall_clock(places: CellsByLabel, results: Results) -> dict[str, list[CellResult]]:
    """Return the same cells with wall seconds in their rows."""
    read = {(cell.label, cell.seed): cell for cell in results.cells}
    return {label: [read[cell.label, cell.seed] for cell in cells] for label, cells in places.items()}


def _with_hardware(table: Table, places: CellsByLabel) -> Table:
    """Name the kinds of hardware in the caption of a table if its cells ran on several."""
    kinds = sorted({kind for cells in places.values() for cell in cells for kind in cell.machines})
    if len(kinds) < 2:
        return table
    sentence = f"The cells ran on {len(kinds)} kinds of hardware: {'; '.join(kinds)}."
    return replace(table, caption=f"{table.caption} {sentence}")


def _with_timed_hardware(table: Table, timing: Timing) -> Table:
    """Name the hardware of the timed cells in the caption of a table of times if other cells are left out."""
    if not timing.left_out:
        return table
    sentence = (
        f"Times are from cells on {timing.hardware}; {len(timing.left_out)} cells on other hardware are left out."
    )
    return replace(table, caption=f"{table.caption} {sentence}")


def _with_rows(places: CellsByLabel, event: str) -> dict[str, list[CellResult]]:
    """Return the cells that have rows of this event."""
    selected = {
        label: [cell for cell in cells if any(row["event"] == event for row in cell.metrics)]
        for label, cells in places.items()
    }
    return {label: cells for label, cells in selected.items() if cells}


def _curves(across: Across, places: CellsByLabel, smoothing: int) -> dict[tuple[str, str], list[Curve]]:
    aggregate = by_epoch if across == "epoch" else by_time
    curves: dict[tuple[str, str], list[Curve]] = {}
    for metric in _LOSSES:
        for label, cells in places.items():
            curve = aggregate(label, [cell.metrics for cell in cells], metric, smoothing=smoothing)
            if curve is not None:
                curves.setdefault((metric, across), []).append(curve)
    return curves


def _rank(results: Results, done: CellsByLabel) -> Section | None:
    norms = norms_by_rank(cell for cells in done.values() for cell in cells)
    if not norms:
        return None
    several = all(len(by_rank) > 1 for by_rank in norms.values())
    made = [_with_hardware(tables.slopes(slopes_of(results)), done)] if several else []
    intro = "The nuclear norm of the gradient of one layer, averaged over each epoch, against the rank of that layer."
    return _section("rank", "Rank", intro, [figures.rank_figure(norms)], made)


def _optima(results: Results, done: CellsByLabel) -> Section | None:
    sweeps = _with_rows(done, "rate")
    if not sweeps:
        return None
    intro = "The learning rate and the momentum with the least training loss at the end of a run, by optimizer."
    runs = runs_by_optimizer(cell for cells in sweeps.values() for cell in cells)
    rows = optima_of(results)
    made = [_with_hardware(table, sweeps) for table in (tables.best_settings(rows), tables.optimum_shifts(rows))]
    return _section("optima", "Best settings", intro, [figures.optima_figure(runs)], made)


def _costs(timing: Timing) -> Section | None:
    if timing.clock is None:
        return None
    done = timing.places()
    summaries = {label: _mean_summary(cells) for label, cells in done.items()}
    ratios = {"predicted_ratio", "measured_ratio"}
    timed = {label: summary for label, summary in summaries.items() if ratios <= set(summary)}
    if not timed:
        return None
    rows = [{**done[label][0].spec, **summary} for label, summary in timed.items()]
    plans = [row for label in timed for row in done[label][0].metrics if row["event"] == "frontier"]
    intro = (
        "Time of an SVD and of Newton–Schulz steps by shape, and the choices of the planner. Times are "
        f"{unit_name(timing.clock)}; the planner predicts wall seconds."
    )
    drawn = [figures.cost_figure(rows, clock=timing.clock), figures.frontier_figure(plans)]
    return _section("cost", "Cost", intro, drawn, [_with_timed_hardware(tables.costs(timed, timing.clock), timing)])


def _mean_summary(cells: Sequence[CellResult]) -> dict[str, float]:
    """Return the mean over runs of every number that all their summaries have."""
    numbers = [{name: x for name, x in cell.summary.items() if isinstance(x, (int, float))} for cell in cells]
    shared = [name for name in numbers[0] if all(name in summary for summary in numbers)]
    return {name: statistics.fmean(summary[name] for summary in numbers) for name in shared}


def _averages(done: CellsByLabel) -> Section | None:
    places = _with_rows(done, "inequality")
    cells = [cell for cells in places.values() for cell in cells]
    if not cells:
        return None
    return _section("averages", "SGD-M and Muon", AVERAGES_INTRO, [], [tables.averages(cells), tables.gaps(cells)])


def _bounds(done: CellsByLabel) -> Section | None:
    places = _with_rows(done, "inequality")
    checked = [cell for cells in places.values() for cell in cells]
    if not checked:
        return None
    rows = [
        {
            "problem": cell.points.get("problem", cell.label),
            "method": cell.points.get("method", ""),
            "measured": row.get("measured"),
            "bound": row.get("bound"),
            "name": tables.BOUNDS[row["name"]],
        }
        for cell in checked
        for row in cell.metrics
        if row["event"] == "inequality" and row["kind"] == "expected" and row["name"] in tables.BOUNDS
    ]
    of_trajectories = tables.BOUNDS["trajectory"]
    drawn = [
        figures.bounds_figure([row for row in rows if row["name"] != of_trajectories]),
        figures.bounds_figure(
            [row for row in rows if row["name"] == of_trajectories],
            name="trajectory-bounds",
            title="With schedules, Nesterov, weight decay and heavy tails",
        ),
    ]
    intro = (
        "Optimizers on problems with known constants; every inequality of the proofs is checked at every step. "
        "Theorems A to C bound the average in which steps are weighted by their learning rates; their figure shows "
        "this average."
    )
    return _section("bounds", "Bounds", intro, drawn, [_with_hardware(tables.bounds(checked), places)])


def _certificates(begun: CellsByLabel, done: CellsByLabel) -> Section | None:
    recorded = {label: cells[0] for label, cells in begun.items() if cells[0].certificates()}
    if not recorded:
        return None
    drawn = [
        figures.layers_figure(
            cell.certificates(),
            name=f"layers-{_anchor(label, number)}",
            title=f"Certificates of {label} by layer (seed {cell.seed})",
        )
        for number, (label, cell) in enumerate([*recorded.items()][:MOST_LAYER_FIGURES])
    ]
    intro = "The quantities of the proofs, measured on the momenta of these runs during training."
    if len(recorded) > MOST_LAYER_FIGURES:
        intro += f" Figures show the first {MOST_LAYER_FIGURES} of {len(recorded)} settings."
    table = tables.certificates(done)
    return _section("certificates", "Certificates", intro, drawn, [table and _with_hardware(table, done)])


def _polynomials(results: Results) -> Section | None:
    """Show τ, φ and F_q of the polynomials that Muon used in this study."""
    from muonlab.polynomials import PRESETS, Schedule, preset, taylor

    used: dict[str, Polynomial] = {}
    schedules: dict[str, Schedule] = {}
    for cell in results.cells:
        name, kappa, q = (cell.spec.get(key) for key in ("polynomial", "kappa", "q"))
        if cell.spec.get("optimizer") != "muon" or not isinstance(q, int) or not 0 <= q <= 50:
            continue
        if name == "taylor" and isinstance(kappa, int) and 1 <= kappa <= 30:
            label, schedule = f"Taylor, κ={kappa}", Schedule.repeat(taylor(kappa), q)
        elif isinstance(name, str) and name in PRESETS:
            label, schedule = name, preset(name).schedule(q)
        else:
            continue
        if len(set(schedule.polynomials)) == 1:  # otherwise there is no single step to draw
            used.setdefault(label, schedule.polynomials[0])
        schedules.setdefault(f"{label}, q={q}", schedule)
    if not schedules:
        return None
    intro = "The polynomials of the Newton–Schulz steps in this study."
    return _section(
        "polynomials", "Polynomials", intro, [figures.tau_phi_figure(used), figures.response_figure(schedules)], []
    )


def _section(
    name: str, title: str, intro: str, drawn: Sequence[Figure | None], made: Sequence[Table | None]
) -> Section:
    return Section(
        name,
        title,
        intro,
        tuple(figure for figure in drawn if figure is not None),
        tuple(table for table in made if table is not None and table.rows),
    )


def _anchor(label: str, number: int) -> str:
    """Return a name for a file and an anchor.

    Example:
        >>> _anchor("Muon (q=3)", 2)
        '2-muon-q-3'
    """
    return "-".join([str(number), *re.findall(r"[a-z0-9]+", label.lower()[:40])])
