"""The parts of a study's page: which figures and tables its rows allow, whatever study it is."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.runner.timing import UNITS, Timing, timing_of
from muonlab.lab.slopes import norms_by_rank, slopes_of
from muonlab.report import figures, tables
from muonlab.report.curves import Across, Curve, by_epoch, by_time
from muonlab.report.tables import Places
from muonlab.report.units import full_name
from muonlab.report.values import Figure, Section, Table

if TYPE_CHECKING:
    from muonlab.polynomials import Polynomial, Schedule

MOST_LAYER_FIGURES = 6
_LOSSES = ("train_loss", "test_loss")


def sections(results: Results, smoothing: int = 1) -> tuple[Section, ...]:
    """Return what can be shown of a study: an interrupted one as far as it went.

    Args:
        results: of the study.
        smoothing: evaluations in a running mean of each curve; 1 is none.
    """
    done = results.places(status="done")
    begun = results.places() | done  # what is not finished is shown only where nothing else is
    timing = timing_of(results)
    parts = (
        _training(results, begun, done, smoothing, timing),
        _rank(results, done),
        _costs(timing),
        _bounds(done),
        _certificates(begun, done),
        _polynomials(results),
    )
    return tuple(part for part in parts if part is not None and (part.figures or part.tables))


def _training(results: Results, begun: Places, done: Places, smoothing: int, timing: Timing) -> Section | None:
    finished = _with(done, "evaluation")
    clock = timing.clock or "wall"
    title = f"Loss by epoch and by {UNITS[clock]} of training" if timing.clock else "Loss by epoch"
    timed = _with(timing.places() | _finished(timing), "evaluation")
    curves = _curves("epoch", _with(begun, "evaluation"), smoothing) | _curves("seconds", timed, smoothing)
    drawn = figures.training_figure("training", title, curves, clock)
    made: list[Table | None] = [_mixed(tables.final_losses(finished), finished)] if finished else []
    if timed_places := _with(_finished(timing), "evaluation"):
        over_time = tables.losses_over_time(timed_places, results.study, clock)
        speed = tables.speed(_as_read(timed_places, results), clock)
        made += [_one_machine(table, timing) for table in (over_time, speed) if table is not None]
    words = f"Losses by epoch show what an update does, by {UNITS[clock]} what it costs." if timing.clock else ""
    if smoothing > 1:
        words += f" Curves are smoothed: the running mean of {smoothing} evaluations. Tables are not."
    return _section("training", "Training", words, [drawn], made)


def _finished(timing: Timing) -> dict[str, list[CellResult]]:
    """Return the timed cells that are done, by label."""
    found = {label: [cell for cell in cells if cell.status == "done"] for label, cells in timing.places().items()}
    return {label: cells for label, cells in found.items() if cells}


def _as_read(places: Places, results: Results) -> dict[str, list[CellResult]]:
    """Return cells with the seconds of the wall clock again."""
    read = {(cell.label, cell.seed): cell for cell in results.cells}
    return {label: [read[cell.label, cell.seed] for cell in cells] for label, cells in places.items()}


def _mixed(table: Table, places: Places) -> Table:
    """Return a table whose caption says on which kinds of hardware its cells ran, if on several."""
    kinds = sorted({kind for cells in places.values() for cell in cells for kind in cell.machines})
    if len(kinds) < 2:
        return table
    words = f"Its cells ran on {len(kinds)} kinds of hardware: {'; '.join(kinds)}."
    return replace(table, caption=f"{table.caption} {words}")


def _one_machine(table: Table, timing: Timing) -> Table:
    """Return a table of times whose caption says of which cells they are, if not of all."""
    if not timing.left_out:
        return table
    words = f"Times are of the cells that ran on {timing.hardware}; {len(timing.left_out)} other cells are left out."
    return replace(table, caption=f"{table.caption} {words}")


def _with(places: Places, event: str) -> dict[str, list[CellResult]]:
    """Return the cells that have rows of a kind."""
    found = {
        label: [cell for cell in cells if any(row["event"] == event for row in cell.metrics)]
        for label, cells in places.items()
    }
    return {label: cells for label, cells in found.items() if cells}


def _curves(across: Across, places: Places, smoothing: int) -> dict[tuple[str, str], list[Curve]]:
    aggregate = by_epoch if across == "epoch" else by_time
    found: dict[tuple[str, str], list[Curve]] = {}
    for metric in _LOSSES:
        for label, cells in places.items():
            curve = aggregate(label, [cell.metrics for cell in cells], metric, smoothing=smoothing)
            if curve is not None:
                found.setdefault((metric, across), []).append(curve)
    return found


def _rank(results: Results, done: Places) -> Section | None:
    norms = norms_by_rank(cell for cells in done.values() for cell in cells)
    if not norms:
        return None
    several = all(len(by_rank) > 1 for by_rank in norms.values())
    made = [_mixed(tables.slopes(slopes_of(results)), done)] if several else []
    words = "The epoch mean of the nuclear norm of the gradient of one layer, against that layer's rank."
    return _section("rank", "Rank", words, [figures.rank_figure(norms)], made)


def _costs(timing: Timing) -> Section | None:
    if timing.clock is None:
        return None
    done = _finished(timing)
    found = {label: _mean_summary(cells) for label, cells in done.items()}
    ratios = {"predicted_ratio", "measured_ratio"}
    timed = {label: summary for label, summary in found.items() if ratios <= set(summary)}
    if not timed:
        return None
    rows = [{**done[label][0].spec, **summary} for label, summary in timed.items()]
    plans = [row for label in timed for row in done[label][0].metrics if row["event"] == "frontier"]
    words = (
        "An SVD against Newton–Schulz steps, shape by shape, and what the planner would choose instead. Times are "
        f"{full_name(timing.clock)}; those of the planner are predicted by the wall clock."
    )
    drawn = [
        figures.cost_figure(rows, clock=timing.clock),
        figures.frontier_figure(plans, title="Planner: time of an orthogonalization against its alignment"),
    ]
    return _section("cost", "Cost", words, drawn, [_one_machine(tables.costs(timed, timing.clock), timing)])


def _mean_summary(cells: Sequence[CellResult]) -> dict[str, float]:
    """Return the numbers that every run of a place sums up to, as means."""
    numbers = [{name: value for name, value in cell.summary.items() if _is_number(value)} for cell in cells]
    shared = [name for name in numbers[0] if all(name in one for one in numbers)]
    return {name: statistics.fmean(one[name] for one in numbers) for name in shared}


def _bounds(done: Places) -> Section | None:
    places = _with(done, "inequality")
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
    words = "Runs on problems whose constants are known: every inequality of the proofs is checked, step by step."
    return _section("bounds", "Bounds", words, [figures.bounds_figure(rows)], [_mixed(tables.bounds(checked), places)])


def _certificates(begun: Places, done: Places) -> Section | None:
    drawn: list[Figure | None] = []
    recorded = {label: cells for label, cells in begun.items() if cells[0].certificates()}
    for number, (label, cells) in enumerate(recorded.items()):
        if number < MOST_LAYER_FIGURES:
            seed = cells[0].seed
            title = f"Certificates of {label}, layer by layer (seed {seed})"
            drawn.append(
                figures.layers_figure(cells[0].certificates(), name=f"layers-{_word(label, number)}", title=title)
            )
    if not recorded:
        return None
    words = "What the proofs say about the momenta of these very runs, as recorded while they trained."
    if len(recorded) > MOST_LAYER_FIGURES:
        words += f" Figures are of the first {MOST_LAYER_FIGURES} of {len(recorded)}."
    table = tables.certificates(done)
    return _section("certificates", "Certificates", words, drawn, [table and _mixed(table, done)])


def _polynomials(results: Results) -> Section | None:
    """Return τ, φ and F_q of the polynomials that the study's Muons used."""
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
        if len(set(schedule.polynomials)) == 1:  # others have no one step to draw
            used.setdefault(label, schedule.polynomials[0])
        schedules.setdefault(f"{label}, q={q}", schedule)
    if not schedules:
        return None
    words = "The polynomials of the Newton–Schulz steps that this study takes."
    return _section(
        "polynomials", "Polynomials", words, [figures.tau_phi_figure(used), figures.response_figure(schedules)], []
    )


def _section(
    name: str, title: str, words: str, drawn: Sequence[Figure | None], made: Sequence[Table | None]
) -> Section:
    return Section(
        name,
        title,
        words,
        tuple(figure for figure in drawn if figure is not None),
        tuple(table for table in made if table is not None and table.rows),
    )


def _word(label: str, number: int) -> str:
    """Return a name for files and anchors.

    Example:
        >>> _word("Muon (q=3)", 2)
        '2-muon-q-3'
    """
    return "-".join([str(number), *re.findall(r"[a-z0-9]+", label.lower()[:40])])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
