"""The learning rate and momentum of each optimizer with the least training loss, in the study lr-by-steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muonlab.lab.runner.results import CellResult, Results

Setting = tuple[float, float]
"""A learning rate and a momentum."""
Runs = Mapping[Setting, Mapping[str, Any]]
"""The row of every setting of one optimizer, with one seed on one network."""


@dataclass(frozen=True)
class Optimum:
    """Where the training loss at the end of the runs of one seed is least, between the points of the grid.

    Each is the lowest point of the parabola through the best point and its two neighbours, on a logarithmic scale.
    Held-out data take no part in the choice.

    Args:
        log_lr: log2 of the learning rate.
        log_memory: log2 of 1/(1 - momentum), the number of gradients that the momentum averages over.
        log_descent: ``log_lr`` plus log2 of ρ at the best point of the grid: the step as the theorems use it.
        lr_inside: whether the best learning rate is not at an end of the grid.
        momentum_inside: whether the best momentum is not at an end of the grid.
    """

    log_lr: float
    log_memory: float
    log_descent: float
    lr_inside: bool
    momentum_inside: bool


def runs_by_optimizer(
    cells: Iterable[CellResult],
) -> dict[tuple[str, str], dict[int, dict[Setting, Mapping[str, Any]]]]:
    """Return the rows of finished sweeps by network and optimizer, seed, and setting."""
    found: dict[tuple[str, str], dict[int, dict[Setting, Mapping[str, Any]]]] = {}
    for cell in cells:
        rates = [row for row in cell.metrics if row["event"] == "rate"]
        if cell.status != "done" or not rates:
            continue
        group = cell.points.get("network", ""), cell.points.get("optimizer", cell.label)
        runs = found.setdefault(group, {}).setdefault(cell.seed, {})
        runs |= {(float(row["lr"]), float(cell.spec["momentum"])): row for row in rates}
    return found


def lowest_point(x: Sequence[float], y: Sequence[float]) -> tuple[float, bool]:
    """Return where a curve is lowest, by the parabola through its least point and the two next to it.

    Args:
        x: increasing places.
        y: the values there.

    Returns:
        The place, and whether it is inside; at an end, it is that end.

    Example:
        >>> lowest_point([0, 1, 2, 3], [4.0, 1.0, 2.0, 9.0])
        (1.25, True)
        >>> lowest_point([0, 1, 2], [1.0, 2.0, 3.0])
        (0, False)
    """
    k = min(range(len(y)), key=y.__getitem__)
    if k in (0, len(y) - 1):
        return x[k], False
    left, right = x[k] - x[k - 1], x[k + 1] - x[k]
    fall, rise = (y[k - 1] - y[k]) / left, (y[k + 1] - y[k]) / right  # both at least 0
    if fall + rise == 0.0:
        return x[k], True
    return x[k] + (fall * right - rise * left) / (2.0 * (fall + rise)), True


def least_losses(runs: Runs, axis: int) -> dict[float, float]:
    """Return the least training loss at the end for each learning rate (axis 0) or each momentum (axis 1).

    The other of the two takes its best value for each.
    """
    least: dict[float, float] = {}
    for setting in sorted(runs):
        loss = float(runs[setting]["final_train_loss"])
        least[setting[axis]] = min(loss, least.get(setting[axis], math.inf))
    return dict(sorted(least.items()))


def optimum(runs: Runs) -> Optimum:
    """Return the best learning rate and momentum of one seed; each with the best value of the other."""
    over_rates, over_momenta = least_losses(runs, 0), least_losses(runs, 1)
    log_lr, lr_inside = lowest_point([math.log2(lr) for lr in over_rates], [*over_rates.values()])
    log_memory, momentum_inside = lowest_point([-math.log2(1.0 - m) for m in over_momenta], [*over_momenta.values()])
    best = min(runs.values(), key=lambda row: float(row["final_train_loss"]))
    descent = float(best.get("descent", math.nan))
    log_descent = log_lr + math.log2(descent) if descent > 0.0 else math.nan
    return Optimum(log_lr, log_memory, log_descent, lr_inside, momentum_inside)


def optima(cells: Iterable[CellResult]) -> dict[tuple[str, str], dict[int, Optimum]]:
    """Return the optimum of each seed, by network and optimizer."""
    return {
        group: {seed: optimum(runs) for seed, runs in by_seed.items()}
        for group, by_seed in runs_by_optimizer(cells).items()
    }


def optima_of(results: Results) -> list[dict[str, Any]]:
    """Return the best setting of each optimizer on each network: of least mean training loss over the seeds.

    ``shift_…`` are in powers of two: the mean over seeds of the optimum between the points of the grid, less that of
    the last optimizer of the study on the same network; ``…_error`` are the standard errors over seeds, or None for one
    seed. ``lr_inside`` and ``momentum_inside`` are false if the best of any seed is at an end of the grid.
    """
    by_seed, rows = optima(results.cells), []
    for (network, optimizer), runs in runs_by_optimizer(results.cells).items():
        settings = set.intersection(*(set(of_seed) for of_seed in runs.values()))
        if not settings:
            continue
        losses = {at: [float(of_seed[at]["final_train_loss"]) for of_seed in runs.values()] for at in sorted(settings)}
        best = min(losses, key=lambda at: statistics.fmean(losses[at]))
        mean = {name: _mean(of_seed[best].get(name) for of_seed in runs.values()) for name in _AVERAGED}
        reference = [name for place, name in by_seed if place == network][-1]
        shifts = {
            name: shift(by_seed[network, optimizer], by_seed[network, reference], name)
            for name in ("log_lr", "log_memory", "log_descent")
        }
        rows.append(
            {
                "network": network,
                "optimizer": optimizer,
                "runs": len(runs),
                "lr": best[0],
                "momentum": best[1],
                "train_loss": statistics.fmean(losses[best]),
                "train_loss_std": statistics.stdev(losses[best]) if len(runs) > 1 else 0.0,
                "test_accuracy": mean["final_test_accuracy"],
                "rho": mean["descent"],
                "lr_rho": None if mean["descent"] is None else best[0] * mean["descent"],
                "lr_s": None if mean["op_norm"] is None else best[0] * mean["op_norm"],
                **{f"shift_{name}": None if math.isnan(value) else value for name, (value, _) in shifts.items()},
                **{f"shift_{name}_error": error for name, (_, error) in shifts.items()},
                "lr_inside": all(found.lr_inside for found in by_seed[network, optimizer].values()),
                "momentum_inside": all(found.momentum_inside for found in by_seed[network, optimizer].values()),
            }
        )
    return rows


_AVERAGED = ("final_test_accuracy", "descent", "op_norm")


def shift(of: Mapping[int, Optimum], reference: Mapping[int, Optimum], name: str) -> tuple[float, float | None]:
    """Return the mean over shared seeds of the difference of a field, and its standard error.

    The mean is NaN without shared seeds, or if ρ was not recorded; the error is None then, and for one seed.
    """
    seeds = sorted(set(of) & set(reference))
    differences = [getattr(of[seed], name) - getattr(reference[seed], name) for seed in seeds]
    if not differences or any(math.isnan(difference) for difference in differences):
        return math.nan, None
    error = statistics.stdev(differences) / math.sqrt(len(seeds)) if len(seeds) > 1 else None
    return statistics.fmean(differences), error


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = list(values)
    return None if None in numbers or not numbers else statistics.fmean(float(x) for x in numbers if x is not None)
