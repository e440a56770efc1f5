"""Bounds against measurements on problems of known constants: slack, and growth in T and r. Prints JSON.

python benchmarks/theory_at_work.py [--quick]

Five minutes on one core; --quick takes 20 seconds and shorter runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace

import numpy as np
import torch

from muonlab.lab.problems.definitions import (
    FAMILIES,
    KnownProblem,
    bowl,
    decaying,
    random_quadratic,
    random_wells,
    ravine,
    scaled_wells,
)
from muonlab.lab.problems.runs import METHODS, MethodRun, run_method
from muonlab.lab.slopes import log_log_slope

GROWTH = ("sgdm", "sgdm_L_F", "muon_q0", "muon_q1", "muon_q3", "muon_q5", "muon_svd", "jordan", "polar_express")


def problems() -> list[tuple[KnownProblem, int]]:
    """Return problems and batch sizes: the random ones and one rank of each family, with and without noise."""
    still = [random_wells(), random_quadratic(), scaled_wells(4), bowl(4), decaying(4), ravine(4)]
    kinds = ("gaussian", "signs", "gaussian", "two_point", "signs", "gaussian")
    noisy = [
        (problem.with_noise(2.0 if i < 2 else 1.0, kinds[i]), 2 if i == 1 else 1) for i, problem in enumerate(still)
    ]
    return [(problem, 1) for problem in still] + noisy


def rounded(x: float) -> float | None:
    """Return four digits; None for infinity, which JSON lacks."""
    return float(f"{x:.4g}") if math.isfinite(x) else None


def last_line(one: MethodRun) -> float:
    """Return the last line of the proof of Theorem 4, which takes β for granted that is not clipped at 0."""
    problem, beta, T = one.problem, one.beta, len(one.rho)
    rate = math.sqrt(problem.L * problem.D / T)
    noise = problem.sigma * math.sqrt(problem.r / one.B)
    slow = (1 + 2 * beta + 2 / math.sqrt(1 + beta)) * math.sqrt(noise * rate)
    return math.sqrt(1 - beta) / 2 * rate + slow + 2 * math.sqrt(2) * beta * noise * math.sqrt(problem.r / T)


def row(one: MethodRun) -> dict[str, object]:
    """Return the measured mean, and every bound on it as a multiple."""
    hidden = ("_tracking", "_rms")
    shown = {name: rounded(one.ratio(name)) for name in one.expected if not name.endswith(hidden) and name != "run"}
    own = one.certain.get("run") or one.expected.get("run")
    if own is not None:
        shown["run"] = rounded(float(np.mean(own.right() / own.left)))
    if one.method.schedule is None and one.method.kind == "muon":
        shown["paper's tuned last line"] = rounded(last_line(one) / float(one.averages.mean()))
    return {
        "problem": one.problem.name,
        "sigma": one.problem.sigma,
        "noise": one.problem.noise if one.problem.sigma else "none",
        "method": one.method.name + (", max prescale" if one.method.prescale == "paper" else ""),
        "seeds": one.seeds,
        "T": len(one.rho),
        "eta": rounded(one.eta),
        "beta": rounded(one.beta),
        "measured": rounded(float(one.averages.mean())),
        "bound_over_measured": shown,
        "least_rho": rounded(float(one.rho.min())),
        "largest_polar_error": rounded(float(one.polar_error.max())) if one.method.kind == "muon" else None,
    }


def slack(runs: list[MethodRun]) -> dict[str, float | None]:
    """Return the least slack of everything; tracking beyond its first step, which is an equality for every run."""
    least: dict[str, float] = {}
    for one in runs:
        for name, inequality in (*one.certain.items(), *one.expected.items()):
            least[name] = min(least.get(name, math.inf), float(np.min(inequality.slack())))
    later = [float(one.certain["tracking"].slack()[1:].min()) for one in runs if one.beta > 0 and len(one.rho) > 1]
    return {name: rounded(least[name]) for name in sorted(least)} | {"tracking, t > 1, beta > 0": rounded(min(later))}


def growth_in_T(steps: list[int], seeds: int) -> tuple[list[dict[str, object]], list[MethodRun]]:
    """Return the log-log slopes in T of the mean and of its bound, tuned anew for every T."""
    rows, runs = [], []
    for problem in (scaled_wells(4), decaying(4), scaled_wells(4).with_noise(1.0), decaying(4).with_noise(1.0)):
        for name in GROWTH:
            made = [run_method(problem, METHODS[name], T=T, seeds=seeds if problem.sigma else 1) for T in steps]
            runs += made
            rows.append({**of_slopes(made, steps), "problem": problem.name, "sigma": problem.sigma, "method": name})
    return rows, runs


def growth_in_r(ranks: list[int], T: int, seeds: int) -> tuple[list[dict[str, object]], list[MethodRun]]:
    """Return the log-log slopes in r at one L, D and σ."""
    rows, runs = [], []
    for family in FAMILIES:
        for sigma in (0.0, 1.0):
            for name in ("sgdm", "sgdm_L_F", "muon_q3", "muon_svd", "polar_express"):
                chosen = [FAMILIES[family](r).with_noise(sigma) for r in ranks]
                made = [run_method(problem, METHODS[name], T=T, seeds=seeds if sigma else 1) for problem in chosen]
                runs += made
                rows.append({**of_slopes(made, ranks), "problem": family, "sigma": sigma, "method": name})
    return rows, runs


def of_slopes(made: list[MethodRun], x: list[int]) -> dict[str, object]:
    """Return the slope of the measured mean and of the tightest bound that is fixed before the run."""
    measured = [float(one.averages.mean()) for one in made]
    order = ("corrected", "floor_corrected", "sgdm_L_F", "sgdm_sharp")
    name = next(name for name in order if all(name in one.expected for one in made))
    bounds = [float(one.expected[name].right()) for one in made]
    return {
        "slope": round(log_log_slope(x, measured), 3),
        "bound": name,
        "slope_of_bound": round(log_log_slope(x, bounds), 3),
        "measured": [rounded(value) for value in measured],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer seeds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    began = time.perf_counter()
    T, seeds = (20, 2) if quick else (100, 8)
    steps, ranks = ([25, 100], [2, 4, 8]) if quick else ([25, 50, 100, 200, 400, 800, 1600], [2, 4, 8, 16, 32])
    runs = [
        run_method(problem, method, T=T, B=B, seeds=seeds if problem.sigma else 1)
        for problem, B in problems()
        for method in METHODS.values()
    ]
    runs += [
        run_method(problem, replace(METHODS[name], prescale="paper"), T=T, B=B, seeds=seeds if problem.sigma else 1)
        for problem, B in problems()
        for name in ("muon_q0", "muon_q3", "muon_q5")
    ]
    compared = [row(one) for one in runs]
    print(f"{len(runs)} batches compared, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    in_T, more = growth_in_T(steps, 2 if quick else 4)
    runs += more
    print(f"growth in T, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    in_r, more = growth_in_r(ranks, 20 if quick else 200, 2 if quick else 4)
    runs += more
    best = min((entry for entry in compared if not entry["sigma"]), key=tightest)
    report = {
        "command": "python benchmarks/theory_at_work.py" + (" --quick" if quick else ""),
        "runs": sum(one.seeds for one in runs),
        "steps": sum(one.seeds * len(one.rho) for one in runs),
        "violated": sum(not item.holds() for one in runs for item in (*one.certain.values(), *one.expected.values())),
        "least_slack": slack(runs),
        "tightest_without_noise": {key: best[key] for key in ("problem", "method", "bound_over_measured")},
        "growth_in_T": {"T": steps, "rows": in_T},
        "growth_in_r": {"r": ranks, "T": 20 if quick else 200, "rows": in_r},
        "compared": compared,
    }
    print(json.dumps(report, indent=1))


def tightest(entry: dict[str, object]) -> float:
    """Return the least ratio of a bound that is fixed before the run."""
    ratios = entry["bound_over_measured"]
    assert isinstance(ratios, dict)
    return min(
        (ratios[name] for name in ("paper", "sharp", "corrected", "floor", "floor_corrected") if name in ratios),
        default=math.inf,
    )


if __name__ == "__main__":
    main()
