"""The parts of a study's page: which figures and tables its rows allow, whatever study it is."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muonlab.lab.results import CellResult, Results
from muonlab.lab.slopes import norms_by_rank, slopes_of
from muonlab.report import figures, tables
from muonlab.report.curves import Curve, by_epoch, by_time
from muonlab.report.tables import Places
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
    alone = all(cell.jobs == 1 for cell in results.cells)  # else seconds are of a shared machine
    parts = (
        _training(results, begun, done, smoothing, alone=alone),
        _rank(results, done),
        _costs(done) if alone else None,
        _bounds(done),
        _certificates(begun, done),
        _polynomials(results),
    )
    return tuple(part for part in parts if part is not None and (part.figures or part.tables))


def _training(results: Results, begun: Places, done: Places, smoothing: int, *, alone: bool) -> Section | None:
    trained = _with(begun, "evaluation")
    finished = _with(done, "evaluation")
    title = "Loss by epoch and by seconds of training" if alone else "Loss by epoch"
    drawn = figures.training_figure("training", title, _curves(trained, smoothing, over_time=alone))
    made: list[Table | None] = [tables.final_losses(finished)] if finished else []
    if finished and alone:
        made += [tables.losses_over_time(finished, results.study), tables.speed(finished)]
    words = "Losses by epoch show what an update does, by seconds what it costs." if alone else ""
    if smoothing > 1:
        words += f" Curves are smoothed: the running mean of {smoothing} evaluations. Tables are not."
    return _section("training", "Training", words, [drawn], made)


def _with(places: Places, event: str) -> dict[str, list[CellResult]]:
    """Return the cells that have rows of a kind."""
    found = {
        label: [cell for cell in cells if any(row["event"] == event for row in cell.metrics)]
        for label, cells in places.items()
    }
    return {label: cells for label, cells in found.items() if cells}


def _curves(places: Places, smoothing: int, *, over_time: bool) -> dict[tuple[str, str], list[Curve]]:
    found: dict[tuple[str, str], list[Curve]] = {}
    for metric in _LOSSES:
        for label, cells in places.items():
            runs = [cell.metrics for cell in cells]
            for across, aggregate in (("epoch", by_epoch), ("seconds", by_time))[: 1 + over_time]:
                curve = aggregate(label, runs, metric, smoothing=smoothing)
                if curve is not None:
                    found.setdefault((metric, across), []).append(curve)
    return found


def _rank(results: Results, done: Places) -> Section | None:
    norms = norms_by_rank(cell for cells in done.values() for cell in cells)
    if not norms:
        return None
    made = [tables.slopes(slopes_of(results))] if all(len(by_rank) > 1 for by_rank in norms.values()) else []
    words = "The epoch mean of the nuclear norm of the gradient of one layer, against that layer's rank."
    return _section("rank", "Rank", words, [figures.rank_figure(norms)], made)


def _costs(done: Places) -> Section | None:
    found = {label: _mean_summary(cells) for label, cells in done.items()}
    ratios = {"predicted_ratio", "measured_ratio"}
    timed = {label: summary for label, summary in found.items() if ratios <= set(summary)}
    if not timed:
        return None
    rows = [{**done[label][0].spec, **summary} for label, summary in timed.items()]
    plans = [row for label in timed for row in done[label][0].metrics if row["event"] == "frontier"]
    words = "An SVD against Newton–Schulz steps, shape by shape, and what the planner would choose instead."
    drawn = [
        figures.cost_figure(rows),
        figures.frontier_figure(plans, title="Planner: time of an orthogonalization against its alignment"),
    ]
    return _section("cost", "Cost", words, drawn, [tables.costs(timed)])


def _mean_summary(cells: Sequence[CellResult]) -> dict[str, float]:
    """Return the numbers that every run of a place sums up to, as means."""
    numbers = [{name: value for name, value in cell.summary.items() if _is_number(value)} for cell in cells]
    shared = [name for name in numbers[0] if all(name in one for one in numbers)]
    return {name: statistics.fmean(one[name] for one in numbers) for name in shared}


def _bounds(done: Places) -> Section | None:
    checked = [cell for cells in _with(done, "inequality").values() for cell in cells]
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
    return _section("bounds", "Bounds", words, [figures.bounds_figure(rows)], [tables.bounds(checked)])


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
    return _section("certificates", "Certificates", words, drawn, [tables.certificates(done)])


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
