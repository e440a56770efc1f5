"""Theorems A, B and C and Corollary A1 on 1,200 simulated configurations each: violations, and slack. Prints JSON.

A configuration has a problem, a shape, noise, a direction, learning rates (some of them zero), momenta, a form of
momentum and, for B and C, weight decay. ``least`` is the least quotient of right and left side; below 1 is a violation.

- ``run``: the inequality for every run, with ρ_t, s_t and norms as measured.
- ``mean over seeds``: constants fixed in advance, and the mean over seeds in place of the expectation.
- ``expectation``: constants fixed in advance, noise of two points and six steps. All 64 outcomes are computed, so the
  expectation is exact.

With weight decay the last two kinds compare the average of the gradient norms where Theorem B bounds it, else the
Frank-Wolfe gap; ``compared`` counts these, and the gaps that were not positive, which have no quotient.

    OMP_NUM_THREADS=1 python benchmarks/trajectory.py            # about eleven minutes
    OMP_NUM_THREADS=1 python benchmarks/trajectory.py --quick    # 30 configurations each
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from muonlab.polynomials import Schedule, preset, taylor
from muonlab.polynomials.base import Array
from muonlab.theory import descent_floor, schedule_bound, schedule_error, schedule_factors, trajectory_bound
from muonlab.theory.lr_schedules import LR_SCHEDULES
from muonlab.theory.momentum import momentum_trace
from tests.paper.simulation import Direction, by_newton_schulz, gaussian, huber, quadratic, run, svd_polar, wells

T, R = 12, 3
EXACT = 6
"""Steps of the runs of which every outcome is computed."""
SCHEDULES = {
    "normalised": Schedule(()),
    "two quintic steps": Schedule.repeat(taylor(2), 2),
    "jordan": preset("jordan").schedule(5),
    "polar express": preset("polar_express").schedule(5),
}
FLOORS = {name: (descent_floor(F, R), schedule_error(F, 0.0).s_max) for name, F in SCHEDULES.items()}
FLOORS["svd"] = (1.0, 1.0)
TAIL, INDEX = 1.5, 1.7
"""The finite moment of Theorem C, and the index of the Pareto distribution."""


def configuration(rng: np.random.Generator, theorem: str) -> dict[str, Any]:
    """Draw a configuration."""
    n = int(rng.integers(R, 6))
    kind = str(rng.choice(["wells", "quadratic", "huber"]))
    start = rng.standard_normal((R, n)) * rng.uniform(0.3, 3)
    if kind == "quadratic":
        objective = quadratic(rng.standard_normal((4, R)) / 2, rng.standard_normal((R, n)))
    else:
        objective = wells(R) if kind == "wells" else huber(R, float(rng.uniform(0.2, 1)))
    peak, t = 10 ** rng.uniform(-2.5, 0), np.arange(T)
    rates = {
        "constant": np.ones(T),
        "linear": 1 - t / T,
        "warm-up from zero": np.minimum(t / 4, 1.0),
        "pauses": (t % 3 > 0).astype(float),
    }
    betas = {"steady": np.full(T, rng.uniform(0, 0.98)), "rising": np.linspace(0.2, 0.95, T)}
    decay = 0.0 if theorem == "A" or (theorem == "C" and rng.random() < 0.5) else 10 ** rng.uniform(-2, 0)
    return {
        "objective": objective,
        "start": start,
        "direction": str(rng.choice([*FLOORS])),
        "etas": peak * rates[str(rng.choice([*rates]))],
        "betas": betas[str(rng.choice([*betas]))],
        "form": str(rng.choice(["ema", "heavy_ball"])),
        "nesterov": bool(rng.random() < 0.5),
        "decay": min(float(decay), 1 / peak),
        "sigma": float(rng.choice([0.0, 0.3, 2.0])) if theorem != "C" else float(rng.choice([0.1, 0.5, 2.0])),
    }


def direction_of(c: dict[str, Any]) -> Direction:
    """Return what orthogonalizes in this configuration; it takes stacks of matrices."""
    name = c["direction"]
    return svd_polar if name == "svd" else by_newton_schulz(SCHEDULES[name], prescale="frobenius")


def pareto(scale: float) -> Any:
    """Return symmetric Pareto noise of flat spectrum: infinite variance, a finite moment of order ``TAIL``."""
    return lambda rng, G: scale * rng.choice([-1, 1]) * (1 + rng.pareto(INDEX)) * np.eye(*G.shape) / math.sqrt(R)


class Comparison(NamedTuple):
    """The quotient of a bound and what it bounds, and which quantity that was."""

    quotient: float
    compared: Literal["gradient norms", "gap", "gap, not positive", "both sides"]


def of_gap(bound: float, gap: float) -> Comparison:
    """Compare a bound on the Frank-Wolfe gap with the gap."""
    return Comparison(bound / gap, "gap") if gap > 0 else Comparison(math.inf, "gap, not positive")


def quotients(c: dict[str, Any], theorem: str, seeds: int) -> tuple[float, Comparison]:
    """Return the least quotient right/left over the runs, and that of the bound and the mean over them."""
    name, objective, etas, decay = c["direction"], c["objective"], c["etas"], c["decay"]
    direction = direction_of(c)
    noise = pareto(c["sigma"]) if theorem == "C" else gaussian(c["sigma"])
    form = {"momentum_form": c["form"], "nesterov": c["nesterov"]}
    runs = [
        run(objective, c["start"], direction, eta=etas, beta=c["betas"], T=T, noise=noise, seed=seed, decay=decay,
            **form)
        for seed in range(seeds if c["sigma"] else 1)
    ]  # fmt: skip
    pathwise = math.inf
    for one in runs:
        trace = momentum_trace(etas * (one.gain + decay * one.weights), c["betas"], **form)
        left = float(np.sum(etas * (one.rho * one.gradients + decay * one.inward)))
        right = one.decrease() + objective.L / 2 * float(np.sum((etas * (one.gain + decay * one.weights)) ** 2))
        right += float(np.sum(etas * (np.abs(one.rho) + one.gain) * (objective.L * trace.drift + one.noise)))
        # far to the left of zero a quotient says nothing: the sides are compared after adding the decrease
        shift = max(0.0, -one.decrease())
        pathwise = min(pathwise, (right + shift) / (left + shift) if left + shift > 0 else math.inf)
    rho, gain = FLOORS[name]
    moment = c["sigma"] * ((INDEX / (INDEX - TAIL)) ** (1 / TAIL) if theorem == "C" else 1.0)
    bound = trajectory_bound(
        L=objective.L, D=objective.value(c["start"]), sigma=moment, r=R, B=1, etas=etas, betas=c["betas"], rho=rho,
        s=gain, weight_decay=decay, weight_norm=runs[0].weights[0], tail=TAIL if theorem == "C" else 2.0, **form,
    )  # fmt: skip
    weights = np.array(bound.weights)
    if bound.status == "applies":
        mean = float(np.mean([np.sum(weights * one.gradients) / np.sum(weights) for one in runs]))
        return pathwise, Comparison(bound.total / mean, "gradient norms")
    assert bound.gap is not None
    gap = float(np.mean([np.sum(etas * (rho * one.gradients + decay * one.inward)) / np.sum(etas) for one in runs]))
    return pathwise, of_gap(bound.gap.bound, gap)


def exact_quotient(c: dict[str, Any], theorem: str, chance: float) -> Comparison:
    """Compare the bound with the expectation over all outcomes of noise of two points.

    The noise is ``(1 - chance) a I/√r`` with probability ``chance``, else ``-chance a I/√r``, where a is the size
    ``c["sigma"]``.
    """
    objective, size, decay = c["objective"], c["sigma"], c["decay"]
    etas, betas = c["etas"][:EXACT], c["betas"][:EXACT]
    form = {"momentum_form": c["form"], "nesterov": c["nesterov"]}
    up = np.array(list(product([False, True], repeat=EXACT if size else 1)))  # an outcome in each row
    odds = np.where(up, chance, 1 - chance).prod(axis=1)
    signed = size * np.where(up, 1 - chance, -chance) / math.sqrt(R)
    tail = TAIL if theorem == "C" else 2.0
    moment = size * (chance * (1 - chance) ** tail + (1 - chance) * chance**tail) ** (1 / tail)
    rho, gain = FLOORS[c["direction"]]
    constants = {"L": objective.L, "D": objective.value(c["start"]), "sigma": moment, "r": R, "B": 1}
    nuclear, inward = every_outcome(c, direction_of(c), etas, betas, signed)
    if theorem == "A1":
        bound = schedule_bound(
            **constants, T=EXACT, alignment=rho / gain, op_norm=gain, lr_schedule=c["lr_schedule"],
            nesterov=c["nesterov"], eta=c["peak"], beta=float(betas[0]),
        )  # fmt: skip
        return Comparison(bound.total / float(odds @ (nuclear @ etas) / np.sum(etas)), "gradient norms")
    trajectory = trajectory_bound(
        **constants, etas=etas, betas=betas, rho=rho, s=gain, weight_decay=decay,
        weight_norm=float(np.linalg.norm(c["start"], 2)), tail=tail, **form,
    )  # fmt: skip
    if trajectory.status == "applies":
        weights = np.array(trajectory.weights)
        average = float(odds @ (nuclear @ weights) / np.sum(weights))
        return Comparison(trajectory.total / average, "gradient norms")
    assert trajectory.gap is not None
    gap = float(odds @ ((rho * nuclear + decay * inward) @ etas) / np.sum(etas))
    return of_gap(trajectory.gap.bound, gap)


def every_outcome(
    c: dict[str, Any], direction: Direction, etas: Array, betas: Array, signed: Array
) -> tuple[Array, Array]:
    """Return ``‖∇_t‖_*`` and ``⟨∇_t, W_{t-1}⟩`` with a row for each outcome and a column for each step."""
    W = np.broadcast_to(c["start"], (len(signed), *c["start"].shape))
    M, nuclear, inward = np.zeros_like(W), [], []
    flat = np.eye(*c["start"].shape)
    for t, (eta, beta) in enumerate(zip(etas, betas, strict=True)):
        G = c["objective"].gradient(W)
        noisy = G + signed[:, min(t, signed.shape[1] - 1), None, None] * flat
        fresh = 1.0 if c["form"] == "heavy_ball" else 1 - beta
        M = beta * M + fresh * noisy
        Z = fresh * noisy + beta * M if c["nesterov"] else M
        nuclear.append(np.linalg.svd(G, compute_uv=False).sum(axis=-1))
        inward.append(np.sum(G * W, axis=(-2, -1)))
        W = (1 - eta * c["decay"]) * W - eta * direction(Z)
    return np.stack(nuclear, axis=1), np.stack(inward, axis=1)


def of_schedule(c: dict[str, Any], rng: np.random.Generator, steps: int) -> dict[str, Any]:
    """Return the configuration as Corollary A1 has it: a named schedule and one momentum."""
    name = LR_SCHEDULES[int(rng.integers(len(LR_SCHEDULES)))]
    peak = float(c["etas"].max())
    betas = np.full(steps, c["betas"][0])
    return {**c, "lr_schedule": name, "peak": peak, "etas": peak * schedule_factors(name, steps), "betas": betas}


def simulated(theorem: str, configurations: int) -> dict[str, list[Comparison]]:
    """Return the comparisons of every configuration, by kind."""
    found: dict[str, list[Comparison]] = {}
    if theorem != "A1":
        rng = np.random.default_rng(ord(theorem))
        seeds = 24 if theorem == "C" else 8
        pairs = [quotients(configuration(rng, theorem), theorem, seeds) for _ in range(configurations)]
        found["run"] = [Comparison(least, "both sides") for least, _ in pairs]
        found["mean over seeds"] = [comparison for _, comparison in pairs]
    rng = np.random.default_rng([*theorem.encode(), EXACT])
    found["expectation"] = []
    for _ in range(configurations):
        c = configuration(rng, "A" if theorem == "A1" else theorem)
        chance = float(rng.choice([0.1, 0.5]))
        found["expectation"].append(
            exact_quotient(of_schedule(c, rng, EXACT) if theorem == "A1" else c, theorem, chance)
        )
    return found


def summary(comparisons: list[Comparison]) -> dict[str, Any]:
    """Return counts, violations and the least and the median quotient, and how often which quantity was compared."""
    values = np.array([comparison.quotient for comparison in comparisons])
    names = sorted({comparison.compared for comparison in comparisons})
    of = {name: [c.quotient for c in comparisons if c.compared == name] for name in names}
    return {
        "configurations": len(comparisons),
        "violations": int(np.sum(values < 1 - 1e-9)),
        "least": float(np.min(values)),
        "median": float(np.median(values)),
        "compared": {
            name: {"configurations": len(found), "least": min(found) if min(found) < math.inf else None}
            for name, found in of.items()
        },
    }


def main() -> None:
    """Print the least quotients of every theorem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="30 configurations of each theorem, to check the program")
    configurations = 30 if parser.parse_args().quick else 1200
    found: dict[str, Any] = {}
    for theorem in ("A", "A1", "B", "C"):
        found[theorem] = {
            kind: summary(comparisons) for kind, comparisons in simulated(theorem, configurations).items()
        }
        print(theorem, file=sys.stderr, flush=True)
    print(json.dumps({"steps": T, "theorems": found}, indent=1))


if __name__ == "__main__":
    main()
