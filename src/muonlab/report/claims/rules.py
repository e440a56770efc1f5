"""Rules that decide claims about training runs: each compares measured numbers and returns whether the claim held."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from muonlab.lab import paper
from muonlab.lab.grid_optima import Optimum, optima, shift
from muonlab.lab.slopes import slopes_of
from muonlab.polynomials.base import Array
from muonlab.report.claims.evidence import Evidence, MissingEvidenceError, RuleOutcome
from muonlab.report.curves import Curve, at_fractions, by_epoch

TOLERANCE = 0.05
"""Relative tolerance of the rules."""
LOSSES = ("train_loss", "test_loss")
NS = ("Muon (q=1)", "Muon (q=2)", "Muon (q=3)")
SVD = "Muon (SVD)"
SGD_M = "SGD-M"

Rule = Callable[[Evidence], RuleOutcome]


def below_at_every_epoch(lower: str, upper: str) -> Rule:
    """At the last epoch the mean losses are lower, and at no epoch are they more than 5 % higher."""

    def decide(evidence: Evidence) -> RuleOutcome:
        ends, worst = [], []
        for metric in LOSSES:
            ratio = _ratio(evidence, lower, upper, metric)
            ends.append(float(ratio[-1]))
            worst.append(float(ratio.max()))
        held = max(ends) < 1 and max(worst) <= 1 + TOLERANCE
        ours = f"last epoch: {_percent(ends[0])} in training, {_percent(ends[1])} in test loss"
        return RuleOutcome(held, ours, f"at the least favourable epoch {_percent(max(worst))}")

    return decide


def close_at_every_epoch(labels: Sequence[str], to: str) -> Rule:
    """At every epoch the mean losses differ by at most 5 %."""

    def decide(evidence: Evidence) -> RuleOutcome:
        gaps = {}
        for label, metric in itertools.product(labels, LOSSES):
            ratio = _ratio(evidence, label, to, metric)
            gaps[label, metric] = ratio[np.abs(ratio - 1).argmax()], ratio[-1]
        (label, metric), (worst, _) = max(gaps.items(), key=lambda item: abs(item[1][0] - 1))
        ends = max((end for _, end in gaps.values()), key=lambda end: abs(end - 1))
        what = f"{label}, {metric.replace('_', ' ')}"
        return RuleOutcome(
            bool(abs(worst - 1) <= TOLERANCE),
            f"largest gap {_percent(float(worst))} ({what}), at the last epoch {_percent(float(ends))}",
            "largest over epochs, both losses",
        )

    return decide


def falls_along(labels: Sequence[str], metrics: Sequence[str] = LOSSES) -> Rule:
    """At the last epoch the last of these is lower than the first, and none is over 5 % above the one before."""

    def decide(evidence: Evidence) -> RuleOutcome:
        losses = {metric: [evidence.last(label, metric) for label in labels] for metric in metrics}
        held = all(
            values[-1] < values[0] and all(b <= a * (1 + TOLERANCE) for a, b in pairwise(values))
            for values in losses.values()
        )
        ours = [
            f"{metric.replace('_', ' ')} {', '.join(_short(value) for value in values)}"
            for metric, values in losses.items()
        ]
        return RuleOutcome(held, "; ".join(ours), f"in the order {', '.join(labels)}")

    return decide


def ends_below(labels: Sequence[str], upper: str, *, by: float = 0.0) -> Rule:
    """At the last epoch each of these has a lower mean training loss, by at least the fraction ``by``."""

    def decide(evidence: Evidence) -> RuleOutcome:
        bar = float(_above_zero(upper, np.array(evidence.last(upper, "train_loss"))))
        ratios = {label: evidence.last(label, "train_loss") / bar for label in labels}
        worst = max(ratios, key=ratios.__getitem__)
        ours = ", ".join(f"{label} {_percent(ratio)}" for label, ratio in ratios.items())
        held = ratios[worst] <= 1 - by if by else ratios[worst] < 1
        return RuleOutcome(held, ours, f"against {upper} at {_short(bar)}")

    return decide


def sooner(labels: Sequence[str], than: str) -> Rule:
    """Each reaches the lowest test loss common to all runs in at least 5 % less time."""

    def decide(evidence: Evidence) -> RuleOutcome:
        target, seconds = evidence.to_reach([*labels, than], "test_loss")
        held = seconds[than] > 0 and all(seconds[label] <= seconds[than] * (1 - TOLERANCE) for label in labels)
        ours = ", ".join(f"{label} {seconds[label]:.3g} {evidence.second}" for label in (*labels, than))
        return RuleOutcome(held, ours, f"to a test loss of {_short(target)}")

    return decide


def first_of(label: str) -> Rule:
    """It reaches the lowest test loss common to all runs before every other."""

    def decide(evidence: Evidence) -> RuleOutcome:
        target, seconds = evidence.to_reach([*evidence.done], "test_loss")
        if label not in seconds:
            raise MissingEvidenceError(f"{label} was not run")
        first = min(seconds, key=seconds.__getitem__)
        ours = ", ".join(f"{name} {value:.3g} {evidence.second}" for name, value in seconds.items())
        alone = all(value > seconds[label] for name, value in seconds.items() if name != label)
        return RuleOutcome(alone, ours, f"to a test loss of {_short(target)}; first: {first}")

    return decide


def time_fractions(table: paper.TimedLosses) -> list[float]:
    """Return the columns of a table of the paper as fractions of its last one."""
    return [second / table.seconds[-1] for second in table.seconds]


def losses_at_columns(evidence: Evidence, table: paper.TimedLosses) -> dict[str, list[float]]:
    """Return our training losses at the same fractions of the training time as the paper's columns.

    The whole is the slowest run without the SVD, because in the paper's last column Newton-Schulz has ended and the SVD
    has not. Columns before the first evaluation of a run are left out.
    """
    groups = {label: evidence.timed_runs(label) for label in (*paper.OPTIMIZERS, *evidence.done)}
    others = [label for label in groups if label != SVD]
    _, columns_of = at_fractions(groups, "train_loss", time_fractions(table), slowest_of=others)
    losses = {label: [loss.mean for loss in columns_of[label] if loss is not None] for label in paper.OPTIMIZERS}
    shared, columns = min(map(len, losses.values())), len(table.seconds)
    if 2 * shared < columns:
        raise MissingEvidenceError(
            f"{columns - shared} of {columns} of the paper's moments are before a first evaluation"
        )
    return {label: row[-shared:] for label, row in losses.items()}


def _left_out(ours: dict[str, list[float]], table: paper.TimedLosses) -> str:
    """Return how many columns were left out, as the end of a sentence."""
    count = len(table.seconds) - min(map(len, ours.values()))
    return f"; left out, as before a first evaluation: {count} of {len(table.seconds)} columns" if count else ""


def order_of(table: paper.TimedLosses, *, without: Sequence[str] = ()) -> Rule:
    """Every two rows that the paper puts over 5 % apart in a column are in the same order here, in every column."""

    def decide(evidence: Evidence) -> RuleOutcome:
        ours = losses_at_columns(evidence, table)
        labels = [label for label in table.losses if label not in without]
        total = 0
        reversals: Counter[str] = Counter()
        for first, second in itertools.combinations(labels, 2):
            left, right = (table.losses[label][-len(ours[label]) :] for label in (first, second))
            for a, b, x, y in zip(left, right, ours[first], ours[second], strict=True):
                if abs(a - b) <= TOLERANCE * max(a, b):
                    continue
                total += 1
                if (a < b) != (x < y) or x == y:
                    reversals[f"{first} and {second}"] += 1
        same = total - reversals.total()
        pairs = ", ".join(f"{pair} ({count}×)" for pair, count in reversals.items())
        why = f"reversed: {pairs}" if reversals else "none reversed"
        return RuleOutcome(
            total > 0 and same == total, f"{same} of {total} pairs in the paper's order", why + _left_out(ours, table)
        )

    return decide


def ahead_at_every_moment(labels: Sequence[str], of: str, table: paper.TimedLosses) -> Rule:
    """Each has a lower mean loss at the table's last moment, and at no moment one over 5 % higher."""

    def decide(evidence: Evidence) -> RuleOutcome:
        ours = losses_at_columns(evidence, table)
        ratios = {label: np.array(ours[label]) / _above_zero(of, np.array(ours[of])) for label in labels}
        held = all(ratio[-1] < 1 and ratio.max() <= 1 + TOLERANCE for ratio in ratios.values())
        ends = ", ".join(f"{label} {_percent(float(ratio[-1]))}" for label, ratio in ratios.items())
        worst = max(float(ratio.max()) for ratio in ratios.values())
        why = f"at the least favourable moment {_percent(worst)}" + _left_out(ours, table)
        return RuleOutcome(held, f"at the last moment: {ends}", why)

    return decide


def steps_lengthen(labels: Sequence[str]) -> Rule:
    """An update of the last takes over 5 % longer than of the first, and none is over 5 % shorter than before."""

    def decide(evidence: Evidence) -> RuleOutcome:
        seconds = [evidence.seconds_per_update(label) for label in labels]
        held = seconds[-1] > seconds[0] * (1 + TOLERANCE)
        held = held and all(b >= a * (1 - TOLERANCE) for a, b in pairwise(seconds))
        milliseconds = ", ".join(f"{value * 1e3:.3g}" for value in seconds)
        unit = evidence.second.replace("s", "ms")
        return RuleOutcome(held, f"{unit} per update: {milliseconds}", f"in the order {', '.join(labels)}")

    return decide


def slope_between(labels: Sequence[str], low: float, high: float, *, normalised: bool = False) -> Rule:
    """The log-log slope over the rank lies in an interval.

    A slope decides nothing if an end of the interval is closer to it than one standard error. A slope that is clearly
    outside decides the claim, whatever the other slopes are.
    """
    name = "normalised" if normalised else "raw"

    def decide(evidence: Evidence) -> RuleOutcome:
        slopes = _slopes(evidence, labels, name)
        near = [label for label, (slope, error) in slopes.items() if min(abs(slope - low), abs(slope - high)) < error]
        held = all(low <= slope <= high for label, (slope, _) in slopes.items() if label not in near)
        if held and near:
            raise MissingEvidenceError(
                f"the slopes are {_with_errors(slopes)}; the slope of {' and of '.join(near)} is closer than one "
                f"standard error to an end of the interval from {low:g} to {high:g}"
            )
        return RuleOutcome(held, _with_errors(slopes), f"asked: between {low:g} and {high:g}")

    return decide


def flatter(labels: Sequence[str], than: str) -> Rule:
    """The log-log slope over the rank is smaller.

    Two slopes decide nothing if they differ by less than the root of the sum of their squared standard errors. A slope
    that is clearly larger decides the claim, whatever the other slopes are.
    """

    def decide(evidence: Evidence) -> RuleOutcome:
        slopes = _slopes(evidence, [*labels, than], "raw")
        bar, bar_error = slopes[than]
        near = [label for label in labels if abs(slopes[label][0] - bar) < math.hypot(slopes[label][1], bar_error)]
        held = all(slopes[label][0] < bar for label in labels if label not in near)
        if held and near:
            raise MissingEvidenceError(
                f"the slopes are {_with_errors(slopes)}; the slope of {' and of '.join(near)} differs from that of "
                f"{than} by less than the standard error of the difference"
            )
        return RuleOutcome(held, _with_errors(slopes), "raw slopes")

    return decide


def optimum_shifts(field: str, *, of: str, to: str, sign: int) -> Rule:
    """The optimum of one optimizer differs from that of another in the predicted direction, on every network.

    A network decides nothing if the mean difference is at most one standard error over seeds, or if the best of a seed
    is at an end of the grid. A network with a clear difference in the other direction decides the claim.

    Args:
        field: of :class:`muonlab.lab.grid_optima.Optimum`: ``"log_lr"``, ``"log_descent"`` or ``"log_memory"``.
        of: the optimizer.
        to: the optimizer that it is compared with.
        sign: 1 if the optimum is predicted to be larger, -1 if smaller.
    """
    inside = "momentum_inside" if field == "log_memory" else "lr_inside"

    def decide(evidence: Evidence) -> RuleOutcome:
        found = optima(evidence.finished)
        networks = list(dict.fromkeys(network for network, _ in found))
        if not networks:
            raise MissingEvidenceError("no sweep is finished")
        clear, texts, doubts = [], [], []
        for network in networks:
            ours, reference = (_optima_of(found, network, optimizer) for optimizer in (of, to))
            value, error = shift(ours, reference, field)
            if math.isnan(value):
                raise MissingEvidenceError(f"{of} and {to} share no seed with recorded steps on {network}")
            if error is None:
                raise MissingEvidenceError(f"{network} has no standard error: it needs two or more seeds")
            texts.append(f"{network} {value:+.2f} ± {error:.2f}".replace("-", "−"))
            if not all(getattr(optimum, inside) for optimum in (*ours.values(), *reference.values())):
                doubts.append(f"the best on {network} is at an end of the grid")
            elif abs(value) <= error:
                doubts.append(f"the difference on {network} is at most its standard error")
            else:
                clear.append(sign * value > 0)
        held = all(clear)
        if held and doubts:
            raise MissingEvidenceError(f"log2 of {of} over {to}: {', '.join(texts)}; {'; '.join(doubts)}")
        predicted = "above 0" if sign > 0 else "below 0"
        return RuleOutcome(held, f"log2 of {of} over {to}: {', '.join(texts)}", f"predicted: {predicted}")

    return decide


def _optima_of(found: dict[tuple[str, str], dict[int, Optimum]], network: str, optimizer: str) -> dict[int, Optimum]:
    if (network, optimizer) not in found:
        raise MissingEvidenceError(f"{optimizer} was not run on {network}")
    return found[network, optimizer]


def _slopes(evidence: Evidence, labels: Sequence[str], name: str) -> dict[str, tuple[float, float]]:
    """Return the slope and its standard error of each label."""
    if evidence.results is None or evidence.results.status != "done":
        raise MissingEvidenceError("the study is not finished")
    try:
        fitted = {str(row["optimizer"]): (row[name], row["standard_error"]) for row in slopes_of(evidence.results)}
    except ValueError as error:
        raise MissingEvidenceError(str(error)) from error
    except LookupError as error:
        raise MissingEvidenceError(f"a run has no {str(error.args[0]).replace('_', ' ')}") from error
    slopes: dict[str, tuple[float, float]] = {}
    for label in labels:
        slope, uncertainty = fitted.get(label, (None, None))
        if not isinstance(slope, float):
            raise MissingEvidenceError(f"{label} has no slope")
        if not isinstance(uncertainty, float):
            raise MissingEvidenceError(
                f"the slope of {label}, {slope:.3f}, has no standard error: it needs three or more runs"
            )
        slopes[label] = slope, uncertainty
    return slopes


def _with_errors(slopes: dict[str, tuple[float, float]]) -> str:
    return ", ".join(f"{label} {slope:.3f} ± {error:.3f}" for label, (slope, error) in slopes.items())


def _ratio(evidence: Evidence, label: str, to: str, metric: str) -> Array:
    """Return the ratio of two mean losses after every epoch."""
    curve, reference = (_by_epoch(evidence, name, metric) for name in (label, to))
    if len(curve.x) != len(reference.x) or not np.allclose(curve.x, reference.x):
        raise MissingEvidenceError(f"{label} and {to} were evaluated at different epochs")
    return curve.mean / _above_zero(to, reference.mean)


def _above_zero(label: str, losses: Array) -> Array:
    """Return losses to divide by; raise if one of them is 0."""
    if not (losses > 0).all():
        raise MissingEvidenceError(f"{label} has a loss that is not above 0, so a ratio to it is undefined")
    return losses


def _by_epoch(evidence: Evidence, label: str, metric: str) -> Curve:
    curve = by_epoch(label, [[row for row in rows if row["step"]] for rows in evidence.runs(label)], metric)
    if curve is None:
        raise MissingEvidenceError(f"{label} has no {metric.replace('_', ' ')} that all its runs share")
    return curve


def _percent(ratio: float) -> str:
    """Return the difference of a ratio from 1 in percent.

    Example:
        >>> _percent(0.97), _percent(1.0512)
        ('−3.0 %', '+5.1 %')
    """
    return f"{'−' if ratio < 1 else '+'}{abs(ratio - 1) * 100:.1f} %"


def _short(value: float) -> str:
    return f"{value:.4g}"
