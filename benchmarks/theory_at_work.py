"""Bounds against measurements on problems of known constants: slack, growth in T and r, Theorems A to C. Prints JSON.

python benchmarks/theory_at_work.py [--quick]

Six minutes on one core; --quick takes 30 seconds and shorter runs.
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
    canyon,
    decaying,
    random_quadratic,
    random_wells,
    ravine,
    scaled_wells,
    target,
)
from muonlab.lab.problems.runs import METHODS, MethodRun, run_method
from muonlab.lab.slopes import log_log_slope
from muonlab.theory.lr_schedules import LrSchedule

GROWTH = ("sgdm", "sgdm_L_F", "muon_q0", "muon_q1", "muon_q3", "muon_q5", "muon_svd", "jordan", "polar_express")
FAMILIES_BY_RANK = ("scaled_wells", "bowl", "decaying", "ravine")
CHOSEN = ("sgdm_L_F", "muon_q2", "muon_svd", "polar_express")
RATES: tuple[LrSchedule, ...] = ("constant", "linear", "cosine")
CANYON = ("sgdm", "sgdm_L_F", "muon_q2", "muon_q5", "muon_svd", "jordan", "polar_express")


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
    for family in FAMILIES_BY_RANK:
        for sigma in (0.0, 1.0):
            for name in ("sgdm", "sgdm_L_F", "muon_q3", "muon_svd", "polar_express"):
                chosen = [FAMILIES[family](r).with_noise(sigma) for r in ranks]
                made = [run_method(problem, METHODS[name], T=T, seeds=seeds if sigma else 1) for problem in chosen]
                runs += made
                rows.append({**of_slopes(made, ranks), "problem": family, "sigma": sigma, "method": name})
    return rows, runs


def on_canyon(ranks: list[int], T: int) -> tuple[dict[str, object], list[MethodRun]]:
    """Return the averages at each rank on the problem where SGD-M pays √r although it knows L_F."""
    rows, runs = [], []
    for name in CANYON:
        for lr_schedule in ("constant", "linear"):
            made = [run_method(canyon(r, T=T), METHODS[name], T=T, lr_schedule=lr_schedule) for r in ranks]
            runs += made
            rows.append(
                {
                    "method": name,
                    "lr_schedule": lr_schedule,
                    "eta": rounded(made[0].eta),
                    "measured": [rounded(float(one.averages.mean())) for one in made],
                    "slope": round(log_log_slope(ranks, [float(one.averages.mean()) for one in made]), 3),
                }
            )
    return {"r": ranks, "T": T, "rows": rows}, runs


def with_decaying_rates(T: int) -> tuple[list[dict[str, object]], list[MethodRun]]:
    """Return the averages without noise at a constant rate and at rates that fall to zero."""
    rows, runs = [], []
    for problem, _ in problems()[:6]:
        for name in CHOSEN:
            made = {kind: run_method(problem, METHODS[name], T=T, lr_schedule=kind) for kind in RATES}
            runs += made.values()
            rows.append(
                {
                    "problem": problem.name,
                    "method": name,
                    "measured": {kind: rounded(float(one.averages.mean())) for kind, one in made.items()},
                    "last": {kind: rounded(float(one.gradients[-1].mean())) for kind, one in made.items()},
                    "trajectory_over_measured": {
                        kind: rounded(one.ratio("trajectory"))
                        for kind, one in made.items()
                        if "trajectory" in one.expected
                    },
                }
            )
    return rows, runs


def as_muon_is_run(T: int, seeds: int) -> tuple[list[dict[str, object]], list[MethodRun]]:
    """Return averages with noise: Algorithm 1, and Muon's default momentum (EMA, Nesterov) with a cosine rate."""
    rows, runs = [], []
    for problem, B in problems()[6:]:
        for name in CHOSEN:
            plain = run_method(problem, METHODS[name], T=T, B=B, seeds=seeds)
            ours = run_method(
                problem, METHODS[name], T=T, B=B, seeds=seeds, lr_schedule="cosine", momentum_form="ema", nesterov=True
            )
            runs += [plain, ours]
            rows.append(
                {
                    "problem": problem.name,
                    "sigma": problem.sigma,
                    "method": name,
                    "algorithm_1": rounded(float(plain.averages.mean())),
                    "measured": rounded(float(ours.averages.mean())),
                    **of_trajectory(ours),
                }
            )
    return rows, runs


def with_weight_decay(T: int, seeds: int) -> tuple[list[dict[str, object]], list[MethodRun]]:
    """Return the mean of ``ρ‖∇‖_* + λ⟨∇, W⟩`` and its bound (Theorem B)."""
    rows, runs = [], []
    noisy = target(2).with_noise(1.0, "two_point")
    for problem, decay in ((target(2), 1.8), (noisy, 1.8), (random_quadratic(), 0.05)):
        for name in CHOSEN:
            one = run_method(problem, METHODS[name], T=T, seeds=seeds if problem.sigma else 1, weight_decay=decay)
            runs.append(one)
            gaps = {key: item for key, item in (*one.certain.items(), *one.expected.items()) if key.endswith("_gap")}
            rows.append(
                {
                    "problem": problem.name,
                    "sigma": problem.sigma,
                    "weight_decay": decay,
                    "method": name,
                    "measured": rounded(float(one.averages.mean())),
                    "gap": {key: rounded(float(np.mean(item.left))) for key, item in gaps.items()},
                    "gap_bound": {key: rounded(float(np.mean(item.right()))) for key, item in gaps.items()},
                    **of_trajectory(one),
                }
            )
    return rows, runs


def with_heavy_tails(T: int, seeds: int) -> tuple[list[dict[str, object]], list[MethodRun]]:
    """Return averages under noise of infinite variance, and the bound of Theorem C for Muon."""
    rows, runs = [], []
    for problem in (random_wells().with_noise(2.0, "pareto"), bowl(4).with_noise(1.0, "pareto")):
        for name in CHOSEN:
            one = run_method(problem, METHODS[name], T=T, seeds=seeds)
            runs.append(one)
            rows.append(
                {
                    "problem": problem.name,
                    "sigma": problem.sigma,
                    "method": name,
                    "beta": rounded(one.beta),
                    "measured": rounded(float(one.averages.mean())),
                    "largest_average": rounded(float(one.averages.max())),
                    **of_trajectory(one),
                }
            )
    return rows, runs


def of_trajectory(one: MethodRun) -> dict[str, float | None]:
    """Return the bound of Theorems A to C over the weighted average that it bounds, if there is one."""
    return {"trajectory_over_measured": rounded(one.ratio("trajectory")) if "trajectory" in one.expected else None}


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
    print(f"growth in r, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    canyons, more = on_canyon([2, 8] if quick else [2, 8, 32, 64], 200)
    runs += more
    extended = {
        "decaying_rates": with_decaying_rates(T),
        "as_muon_is_run": as_muon_is_run(T, seeds),
        "weight_decay": with_weight_decay(T, seeds),
        "heavy_tails": with_heavy_tails(T, seeds),
    }
    runs += [one for _, made in extended.values() for one in made]
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
        "canyon": canyons,
        **{name: rows for name, (rows, _) in extended.items()},
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
