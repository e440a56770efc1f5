"""What the proofs claim of a run, as inequalities whose terms are open to wrong factors.

``seen`` is what :mod:`muonlab.lab.problems.runs` measured: norms and products by name, one row per step and
one column per seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from muonlab.lab.problems.definitions import KnownProblem
from muonlab.polynomials import Schedule
from muonlab.polynomials.base import Array
from muonlab.theory import (
    Bound,
    alignment_bound,
    alignment_floor,
    muon_bound,
    run_bound,
    schedule_error,
    sgdm_bound,
    staleness,
)
from muonlab.theory.rates import Constants

TOLERANCE = 1e-9
"""Relative slack below which an inequality counts as violated: far above rounding, far below any wrong constant."""

_TRACKING = ("drift", "noise", "start")  # the terms of a bound that stand for ‖∇f - N_t‖_*


@dataclass(frozen=True)
class Inequality:
    """``left ≤ Σ terms``, entry by entry, its terms open to wrong factors.

    Args:
        left: what was measured: an array over steps and seeds, over seeds, or one number.
        terms: name → its contribution to the right-hand side, of a shape that broadcasts with ``left``.
        rounding: what float64 may add to the left, from numbers that cancelled in it.
        squares: whether it is the squares of the terms that add up, to the square of the right-hand side.
    """

    left: Array
    terms: Mapping[str, Array]
    rounding: Array = field(default_factory=lambda: np.zeros(()))
    squares: bool = False

    def right(self, **factors: float) -> Array:
        """Return the right-hand side, the named terms multiplied by a factor."""
        unknown = set(factors) - set(self.terms)
        if unknown:
            raise ValueError(f"a factor must name one of {sorted(self.terms)}, got {sorted(unknown)}: name a term")
        parts = [np.asarray(factors.get(name, 1.0) * value) for name, value in self.terms.items()]
        total = sum((part**2 if self.squares else part for part in parts), np.zeros(()))
        return np.asarray(np.sqrt(total) if self.squares else total)

    def slack(self, **factors: float) -> Array:
        """Return ``(right - left)`` over the largest of the magnitudes that make them up; negative where violated."""
        sizes = sum((np.abs(value) for value in self.terms.values()), np.zeros(()))
        scale = np.maximum(np.abs(self.left), sizes)
        gap = self.right(**factors) + self.rounding - self.left
        # below 1e-300 numbers have lost their digits, and such an entry counts as attained
        return np.asarray(np.divide(gap, scale, out=np.zeros_like(scale), where=scale > 1e-300))

    def holds(self, **factors: float) -> bool:
        """Return whether no entry is violated."""
        return bool(np.min(self.slack(**factors)) >= -TOLERANCE)


def certain(problem: KnownProblem, seen: Mapping[str, Array], eta: float, beta: float) -> dict[str, Inequality]:
    """Return the inequalities that hold on every run (docs/theory/alignment-theorem.md, steps 2-4 and 7)."""
    L, T, f = problem.L, len(seen["rho"]), seen["values"]
    etas, ulps = np.full(T, eta), 256 * np.finfo(np.float64).eps
    A = np.stack([staleness(gain, etas, L, beta) for gain in seen["gain"].T], axis=1)
    load = eta * (np.abs(seen["rho"]) + seen["gain"])
    curvature = L / 2 * (eta * seen["gain"]) ** 2
    lag = beta / (1 - beta)
    size = ulps * (seen["gradient"] + seen["momentum"])
    return {
        "one_step": Inequality(
            np.diff(f, axis=0), {"progress": -eta * seen["progress"], "curvature": curvature}, ulps * np.abs(f[:-1])
        ),
        "tracking": Inequality(seen["error"], {"drift": A, "noise": seen["noise"]}, size),
        "tracking_plain": Inequality(
            seen["error_plain"].mean(axis=0),
            {
                "drift": L * eta * lag * seen["gain"].max(axis=0),
                "start": np.asarray(lag * math.sqrt(2 * L * problem.D) / T),
                "noise": seen["noise_plain"].mean(axis=0),
            },
            size.mean(axis=0),
        ),
        "pathwise": Inequality(
            (eta * seen["rho"] * seen["gradient"]).sum(axis=0),
            {
                "descent": f[0] - f[-1],
                "curvature": curvature.sum(axis=0),
                "drift": (load * A).sum(axis=0),
                "noise": (load * seen["noise"]).sum(axis=0),
            },
            ulps * np.abs(f[0]),
        ),
    }


def certificate(
    problem: KnownProblem, seen: Mapping[str, Array], B: int, eta: float, beta: float, failure: float
) -> Inequality | None:
    """Return the per-run certificate of every seed, or None where some step does not descend."""
    given = {**constants_of(problem, B, 1), "eta": eta, "beta": beta, "failure": failure}
    del given["T"]  # it is the number of steps seen
    columns = zip(seen["rho"].T, seen["gain"].T, strict=True)
    bounds = [run_bound(rho, gain, **given) for rho, gain in columns]
    if any(bound.status != "applies" for bound in bounds):
        return None
    weighted = (seen["rho"] * seen["gradient"]).sum(axis=0) / seen["rho"].sum(axis=0)
    return Inequality(weighted, {name: np.array([b.terms[name] for b in bounds]) for name in bounds[0].terms})


def constants_of(problem: KnownProblem, B: int, T: int) -> dict[str, Any]:
    """Return the constants that every bound takes, by name."""
    return {"L": problem.L, "D": problem.D, "sigma": problem.sigma, "r": problem.r, "B": B, "T": T}


def expected_of_sgdm(
    problem: KnownProblem, seen: Mapping[str, Array], B: int, eta: float, beta: float
) -> Iterator[tuple[str, Inequality]]:
    """Yield the bounds on the mean over seeds that apply to SGD-M, by name (Kim & Oh 2026, Theorem 3)."""
    given = {**constants_of(problem, B, len(seen["rho"])), "eta": eta, "beta": beta}
    average, square = float(seen["gradient"].mean()), float((seen["gradient_F"] ** 2).mean())
    kinds: tuple[tuple[str, Constants, float | None], ...] = (
        ("sgdm_paper", "paper", None),
        ("sgdm_sharp", "sharp", None),
        ("sgdm_L_F", "sharp", problem.L_F),
    )
    for name, constants, L_F in kinds:
        bound = sgdm_bound(constants=constants, L_F=L_F, **given)
        if bound.status == "applies":
            yield name, of_bound(bound, average)
            # what the proof bounds, and what its constants can be tested on, is the root mean square
            yield f"{name}_rms", of_bound(bound, math.sqrt(problem.r * square))


def expected_of_muon(
    problem: KnownProblem,
    schedule: Schedule | None,
    normalised: bool,
    seen: Mapping[str, Array],
    B: int,
    eta: float,
    beta: float,
) -> Iterator[tuple[str, Inequality]]:
    """Yield the bounds on the mean over seeds that apply to Muon, by name (Kim & Oh 2026, Theorems 1 and 4).

    Args:
        problem: its constants.
        schedule: the Newton-Schulz steps, None for the exact polar factor.
        normalised: whether the steps start from ``‖X‖_F = 1``, as the alignment floor needs.
        seen: what was measured.
        B: batch size.
        eta: step size.
        beta: momentum.
    """
    given = {**constants_of(problem, B, len(seen["rho"])), "eta": eta, "beta": beta}
    found: list[tuple[str, Bound, float, float]] = []  # with the ρ and s for which it is the alignment theorem
    if schedule is None:
        found += [("paper", muon_bound(constants="paper", **given), 1.0, 1.0), ("sharp", muon_bound(**given), 1.0, 1.0)]
        found += [("corrected", alignment_bound(alignment=1.0, start="corrected", **given), 1.0, 1.0)]
    else:
        epsilon, gain = float(seen["polar_error"].max()), schedule_error(schedule, 0.0).s_max
        found += [("paper_after", muon_bound(epsilon=epsilon, constants="paper", **given), 1 - epsilon, 1 + epsilon)]
        if gain <= 1.0:
            found += [("sharp_after", muon_bound(epsilon=epsilon, **given), 1 - epsilon, 1.0)]
        if normalised:
            given |= {"alignment": alignment_floor(schedule, problem.r), "op_norm": gain}
            rho = given["alignment"] * gain
            found += [("floor", alignment_bound(**given), rho, gain)]
            found += [("floor_corrected", alignment_bound(start="corrected", **given), rho, gain)]
    for name, bound, rho, s in found:
        if bound.status == "applies":
            yield name, of_bound(bound, float(seen["gradient"].mean()))
            error = seen["error_plain" if "start" in bound.terms else "error"]
            yield f"{name}_tracking", tracking_of_bound(bound, rho, s, float(error.mean()))


def tracking_of_bound(bound: Bound, rho: float, s: float, left: float) -> Inequality:
    """Return what a bound claims of the mean of ``‖∇f - N_t‖_*``: its terms for that, without the factor (ρ+s)/ρ."""
    parts = {name: np.asarray(bound.terms[name] * rho / (rho + s)) for name in _TRACKING if name in bound.terms}
    return Inequality(np.asarray(left), parts, rounding=np.asarray(1e-12 * bound.total))


def of_bound(bound: Bound, left: float) -> Inequality:
    """Return the claim that a bound makes of a measured average."""
    terms = {name: np.asarray(value) for name, value in bound.terms.items()}
    return Inequality(np.asarray(left), terms, squares=bound.combine == "root_sum_square")
