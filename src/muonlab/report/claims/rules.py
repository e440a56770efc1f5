"""Rules that decide claims: each takes what was measured and says whether the claim held, with the numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from muonlab.lab import paper
from muonlab.lab.slopes import slopes_of
from muonlab.report.claims.evidence import Decided, Evidence, MissingError
from muonlab.report.curves import Array, Curve, at_fractions, by_epoch

TOLERANCE = 0.05
"""5 %, unless a claim says otherwise."""
LOSSES = ("train_loss", "test_loss")
NS = ("Muon (q=1)", "Muon (q=2)", "Muon (q=3)")
SVD = "Muon (SVD)"
SGD_M = "SGD-M"

Rule = Callable[[Evidence], Decided]


def below_at_every_epoch(lower: str, upper: str) -> Rule:
    """At the last epoch the mean losses are lower, and at no epoch are they more than 5 % higher."""

    def decide(given: Evidence) -> Decided:
        ends, worst = [], []
        for metric in LOSSES:
            ratio = _ratio(given, lower, upper, metric)
            ends.append(float(ratio[-1]))
            worst.append(float(ratio.max()))
        held = max(ends) < 1 and max(worst) <= 1 + TOLERANCE
        ours = f"last epoch: {_percent(ends[0])} in training, {_percent(ends[1])} in test loss"
        return Decided(held, ours, f"at the least favourable epoch {_percent(max(worst))}")

    return decide


def close_at_every_epoch(labels: Sequence[str], to: str) -> Rule:
    """At every epoch the mean losses differ by at most 5 %."""

    def decide(given: Evidence) -> Decided:
        gaps = {}
        for label, metric in itertools.product(labels, LOSSES):
            ratio = _ratio(given, label, to, metric)
            gaps[label, metric] = ratio[np.abs(ratio - 1).argmax()], ratio[-1]
        (label, metric), (worst, _) = max(gaps.items(), key=lambda item: abs(item[1][0] - 1))
        ends = max((end for _, end in gaps.values()), key=lambda end: abs(end - 1))
        what = f"{label}, {metric.replace('_', ' ')}"
        return Decided(
            bool(abs(worst - 1) <= TOLERANCE),
            f"largest gap {_percent(float(worst))} ({what}), at the last epoch {_percent(float(ends))}",
            "largest over epochs, both losses",
        )

    return decide


def falls_along(labels: Sequence[str], metrics: Sequence[str] = LOSSES) -> Rule:
    """At the last epoch the last of these is lower than the first, and none is over 5 % above the one before."""

    def decide(given: Evidence) -> Decided:
        found = {metric: [given.last(label, metric) for label in labels] for metric in metrics}
        held = all(
            values[-1] < values[0] and all(b <= a * (1 + TOLERANCE) for a, b in pairwise(values))
            for values in found.values()
        )
        words = [
            f"{metric.replace('_', ' ')} {', '.join(_short(v) for v in values)}" for metric, values in found.items()
        ]
        return Decided(held, "; ".join(words), f"in the order {', '.join(labels)}")

    return decide


def ends_below(labels: Sequence[str], upper: str, *, by: float = 0.0, metric: str = "train_loss") -> Rule:
    """At the last epoch every one of these has a lower mean loss, by the given part."""

    def decide(given: Evidence) -> Decided:
        bar = float(_above_zero(upper, np.array(given.last(upper, metric))))
        ratios = {label: given.last(label, metric) / bar for label in labels}
        worst = max(ratios, key=ratios.__getitem__)
        words = ", ".join(f"{label} {_percent(ratio)}" for label, ratio in ratios.items())
        held = ratios[worst] <= 1 - by if by else ratios[worst] < 1
        return Decided(held, words, f"against {upper} at {_short(bar)}")

    return decide


def sooner(labels: Sequence[str], than: str, metric: str = "test_loss") -> Rule:
    """Each reaches the lowest loss that all runs reach in at least 5 % less time."""

    def decide(given: Evidence) -> Decided:
        target, seconds = given.to_reach([*labels, than], metric)
        held = seconds[than] > 0 and all(seconds[label] <= seconds[than] * (1 - TOLERANCE) for label in labels)
        words = ", ".join(f"{label} {seconds[label]:.3g} {given.second}" for label in (*labels, than))
        return Decided(held, words, f"to a {metric.replace('_', ' ')} of {_short(target)}")

    return decide


def first_of(label: str, metric: str = "test_loss") -> Rule:
    """It reaches the lowest loss that all runs reach before every other."""

    def decide(given: Evidence) -> Decided:
        target, seconds = given.to_reach([*given.done], metric)
        if label not in seconds:
            raise MissingError(f"{label} was not run")
        first = min(seconds, key=seconds.__getitem__)
        words = ", ".join(f"{name} {value:.3g} {given.second}" for name, value in seconds.items())
        alone = all(value > seconds[label] for name, value in seconds.items() if name != label)
        return Decided(alone, words, f"to a {metric.replace('_', ' ')} of {_short(target)}; first: {first}")

    return decide


def moments(table: paper.TimedLosses) -> list[float]:
    """Return the columns of a table of the paper as fractions of its last one."""
    return [second / table.seconds[-1] for second in table.seconds]


def timed(given: Evidence, table: paper.TimedLosses, metric: str = "train_loss") -> dict[str, list[float]]:
    """Return our losses at the same fractions of the run as the paper's columns.

    The run is the slowest but that with the SVD: the paper's last column is where Newton-Schulz ends, its SVD does not.
    """
    groups = {label: given.timed_runs(label) for label in (*paper.OPTIMIZERS, *given.done)}
    _, found = at_fractions(groups, metric, moments(table), of=[label for label in groups if label != SVD])
    losses = {label: [one.mean for one in found[label] if one is not None] for label in paper.OPTIMIZERS}
    shared, columns = min(map(len, losses.values())), len(table.seconds)
    if 2 * shared < columns:
        raise MissingError(f"{columns - shared} of {columns} of the paper's moments are before a first evaluation")
    return {label: row[-shared:] for label, row in losses.items()}  # columns before a first evaluation are left out


def _left_out(ours: dict[str, list[float]], table: paper.TimedLosses) -> str:
    """Say how many columns come before a first evaluation."""
    count = len(table.seconds) - min(map(len, ours.values()))
    return f"; left out, as before a first evaluation: {count} of {len(table.seconds)} columns" if count else ""


def order_of(table: paper.TimedLosses, *, without: Sequence[str] = ()) -> Rule:
    """Every two rows that the paper puts over 5 % apart in a column are in the same order here, in every column."""

    def decide(given: Evidence) -> Decided:
        ours = timed(given, table)
        labels = [label for label in table.losses if label not in without]
        same, total = 0, 0
        wrong: dict[str, int] = {}
        for one, other in itertools.combinations(labels, 2):
            columns = zip(
                *(side[-len(ours[one]) :] for side in (table.losses[one], table.losses[other])),
                ours[one],
                ours[other],
                strict=True,
            )
            for a, b, x, y in columns:
                if abs(a - b) <= TOLERANCE * max(a, b):
                    continue
                total += 1
                if (a < b) == (x < y) and x != y:
                    same += 1
                else:
                    wrong[f"{one} and {other}"] = wrong.get(f"{one} and {other}", 0) + 1
        words = ", ".join(f"{pair} ({count}×)" for pair, count in wrong.items())
        why = f"reversed: {words}" if wrong else "none reversed"
        return Decided(
            total > 0 and same == total, f"{same} of {total} pairs in the paper's order", why + _left_out(ours, table)
        )

    return decide


def ahead_at_every_moment(labels: Sequence[str], of: str, table: paper.TimedLosses) -> Rule:
    """At the last moment each has a lower mean loss, and at none of the table's moments one over 5 % higher."""

    def decide(given: Evidence) -> Decided:
        ours = timed(given, table)
        ratios = {label: np.array(ours[label]) / _above_zero(of, np.array(ours[of])) for label in labels}
        held = all(ratio[-1] < 1 and ratio.max() <= 1 + TOLERANCE for ratio in ratios.values())
        words = ", ".join(f"{label} {_percent(float(ratio[-1]))}" for label, ratio in ratios.items())
        worst = max(float(ratio.max()) for ratio in ratios.values())
        why = f"at the least favourable moment {_percent(worst)}" + _left_out(ours, table)
        return Decided(held, f"at the last moment: {words}", why)

    return decide


def steps_lengthen(labels: Sequence[str]) -> Rule:
    """An update of the last takes over 5 % longer than of the first, and none is over 5 % shorter than before."""

    def decide(given: Evidence) -> Decided:
        seconds = [given.seconds_per_update(label) for label in labels]
        held = seconds[-1] > seconds[0] * (1 + TOLERANCE)
        held = held and all(b >= a * (1 - TOLERANCE) for a, b in pairwise(seconds))
        words = ", ".join(f"{value * 1e3:.3g}" for value in seconds)
        unit = given.second.replace("s", "ms")
        return Decided(held, f"{unit} per update: {words}", f"in the order {', '.join(labels)}")

    return decide


def slope_between(labels: Sequence[str], low: float, high: float, *, normalised: bool = False) -> Rule:
    """The log-log slope over the rank lies in an interval.

    A slope decides nothing if an end of the interval is closer to it than one standard error. A slope that is clearly
    outside decides the claim, whatever the other slopes are.
    """
    name = "normalised" if normalised else "raw"

    def decide(given: Evidence) -> Decided:
        slopes = _slopes(given, labels, name)
        near = [label for label, (slope, error) in slopes.items() if min(abs(slope - low), abs(slope - high)) < error]
        held = all(low <= slope <= high for label, (slope, _) in slopes.items() if label not in near)
        if held and near:
            raise MissingError(
                f"the slopes are {_with_errors(slopes)}; the slope of {' and of '.join(near)} is closer than one "
                f"standard error to an end of the interval from {low:g} to {high:g}"
            )
        return Decided(held, _with_errors(slopes), f"asked: between {low:g} and {high:g}")

    return decide


def flatter(labels: Sequence[str], than: str) -> Rule:
    """The log-log slope over the rank is smaller.

    Two slopes decide nothing if they differ by less than the root of the sum of their squared standard errors. A slope
    that is clearly larger decides the claim, whatever the other slopes are.
    """

    def decide(given: Evidence) -> Decided:
        slopes = _slopes(given, [*labels, than], "raw")
        bar, bar_error = slopes[than]
        near = [label for label in labels if abs(slopes[label][0] - bar) < math.hypot(slopes[label][1], bar_error)]
        held = all(slopes[label][0] < bar for label in labels if label not in near)
        if held and near:
            raise MissingError(
                f"the slopes are {_with_errors(slopes)}; the slope of {' and of '.join(near)} differs from that of "
                f"{than} by less than the standard error of the difference"
            )
        return Decided(held, _with_errors(slopes), "raw slopes")

    return decide


def _slopes(given: Evidence, labels: Sequence[str], name: str) -> dict[str, tuple[float, float]]:
    """Return the slope and its standard error of each label."""
    if given.results is None or given.results.status != "done":
        raise MissingError("the study is not finished")
    try:
        found = {str(row["optimizer"]): (row[name], row["standard_error"]) for row in slopes_of(given.results)}
    except ValueError as error:
        raise MissingError(str(error)) from error
    except LookupError as error:
        raise MissingError(f"a run has no {str(error.args[0]).replace('_', ' ')}") from error
    slopes: dict[str, tuple[float, float]] = {}
    for label in labels:
        slope, uncertainty = found.get(label, (None, None))
        if not isinstance(slope, float):
            raise MissingError(f"{label} has no slope")
        if not isinstance(uncertainty, float):
            raise MissingError(f"the slope of {label}, {slope:.3f}, has no standard error: it needs three or more runs")
        slopes[label] = slope, uncertainty
    return slopes


def _with_errors(slopes: dict[str, tuple[float, float]]) -> str:
    return ", ".join(f"{label} {slope:.3f} ± {error:.3f}" for label, (slope, error) in slopes.items())


def _ratio(given: Evidence, label: str, to: str, metric: str) -> Array:
    """Return the ratio of two mean losses after every epoch."""
    one, other = (_by_epoch(given, which, metric) for which in (label, to))
    if len(one.x) != len(other.x) or not np.allclose(one.x, other.x):
        raise MissingError(f"{label} and {to} were evaluated at different epochs")
    return one.mean / _above_zero(to, other.mean)


def _above_zero(label: str, losses: Array) -> Array:
    """Return losses that others are compared with; of 0 nothing is a part."""
    if not (losses > 0).all():
        raise MissingError(f"{label} has a loss that is not above 0, so that no ratio to it can be told")
    return losses


def _by_epoch(given: Evidence, label: str, metric: str) -> Curve:
    found = by_epoch(label, [[row for row in rows if row["step"]] for rows in given.runs(label)], metric)
    if found is None:
        raise MissingError(f"{label} has no {metric.replace('_', ' ')} that all its runs share")
    return found


def _percent(ratio: float) -> str:
    """Return a ratio as a signed part of one.

    Example:
        >>> _percent(0.97), _percent(1.0512)
        ('−3.0 %', '+5.1 %')
    """
    if not math.isfinite(ratio):
        return "no number"
    return f"{'−' if ratio < 1 else '+'}{abs(ratio - 1) * 100:.1f} %"


def _short(value: float) -> str:
    return f"{value:.4g}"
