"""The inequalities that the proofs state about a run.

``measured`` has the norms and products of :mod:`muonlab.lab.problems.runs` by name, with a row per step and a column
per seed.
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
    descent_floor,
    muon_bound,
    run_bound,
    schedule_error,
    sgdm_bound,
    trajectory_bound,
)
from muonlab.theory.momentum import MomentumForm, momentum_trace
from muonlab.theory.rates import Constants

TOLERANCE = 1e-9
"""An inequality is violated if its relative slack is below minus this: above rounding, below any wrong constant."""

_TRACKING = ("drift", "noise", "start")  # the terms of a bound that come from ‖∇f - N_t‖_*


@dataclass(frozen=True)
class Inequality:
    """``left ≤ Σ terms`` for every entry; each term can be multiplied by a factor, to test the inequality itself.

    Args:
        left: the measured side: an array over steps and seeds, over seeds, or one number.
        terms: name → its contribution to the right-hand side, of a shape that broadcasts with ``left``.
        rounding: float64 rounding error that ``left`` may have from cancellation.
        squares: whether the right-hand side is the root of the sum of the squared terms.
    """

    left: Array
    terms: Mapping[str, Array]
    rounding: Array = field(default_factory=lambda: np.zeros(()))
    squares: bool = False

    def right(self, **factors: float) -> Array:
        """Return the right-hand side, with the named terms multiplied by factors."""
        unknown = set(factors) - set(self.terms)
        if unknown:
            raise ValueError(f"a factor must name one of {sorted(self.terms)}, got {sorted(unknown)}: name a term")
        parts = [np.asarray(factors.get(name, 1.0) * value) for name, value in self.terms.items()]
        total = sum((part**2 if self.squares else part for part in parts), np.zeros(()))
        return np.asarray(np.sqrt(total) if self.squares else total)

    def slack(self, **factors: float) -> Array:
        """Return ``(right - left)`` relative to the larger of ``|left|`` and ``Σ|terms|``; negative where violated."""
        sizes = sum((np.abs(value) for value in self.terms.values()), np.zeros(()))
        scale = np.maximum(np.abs(self.left), sizes)
        gap = self.right(**factors) + self.rounding - self.left
        # numbers below 1e-300 have no digits left; such an entry counts as attained
        return np.asarray(np.divide(gap, scale, out=np.zeros_like(scale), where=scale > 1e-300))

    def holds(self, **factors: float) -> bool:
        """Return whether no entry is violated."""
        return bool(np.min(self.slack(**factors)) >= -TOLERANCE)


@dataclass(frozen=True)
class RunSettings:
    """How a run steps.

    Args:
        etas: learning rate of each step.
        beta: momentum.
        B: batch size.
        momentum_form: ``"heavy_ball"`` or ``"ema"``.
        nesterov: whether Nesterov's look-ahead is orthogonalized.
        weight_decay: λ, decoupled.
    """

    etas: Array
    beta: float
    B: int = 1
    momentum_form: MomentumForm = "heavy_ball"
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether the rate is constant, without Nesterov and weight decay, as in the paper's theorems."""
        return not (self.nesterov or self.weight_decay) and bool(np.all(self.etas == self.etas[0]))

    @property
    def momentum(self) -> dict[str, Any]:
        """The arguments of the theory that describe the momentum, except for β."""
        return {"momentum_form": self.momentum_form, "nesterov": self.nesterov}


def certain_inequalities(
    problem: KnownProblem, measured: Mapping[str, Array], settings: RunSettings
) -> dict[str, Inequality]:
    """Return the inequalities that hold for every step and run (docs/theory: Theorems A and B, one run)."""
    L, T, f = problem.L, len(measured["rho"]), measured["values"]
    beta, decay, etas = settings.beta, settings.weight_decay, settings.etas[:, None]
    ulps = 256 * np.finfo(np.float64).eps
    moves = etas * (measured["gain"] + decay * measured["weights"])  # at least ‖W_t - W_{t-1}‖_op
    betas = np.full(T, beta)
    A = L * np.stack([momentum_trace(column, betas, **settings.momentum).drift for column in moves.T], axis=1)
    load = etas * (np.abs(measured["rho"]) + measured["gain"])
    curvature = L / 2 * moves**2
    pull = etas * decay * measured["inward"]
    size = ulps * (measured["gradient"] + measured["momentum"])
    one_step = {"progress": -etas * measured["progress"], "curvature": curvature}
    inequalities = {
        "one_step": Inequality(
            np.diff(f, axis=0), one_step | ({"pull": -pull} if decay else {}), ulps * np.abs(f[:-1])
        ),
        "tracking": Inequality(measured["error"], {"drift": A, "noise": measured["noise"]}, size),
    }
    if settings.is_plain:
        lag = beta / (1 - beta)
        inequalities["tracking_plain"] = Inequality(
            measured["error_plain"].mean(axis=0),
            {
                "drift": L * etas[0] * lag * measured["gain"].max(axis=0),
                "start": np.asarray(lag * math.sqrt(2 * L * problem.D) / T),
                "noise": measured["noise_plain"].mean(axis=0),
            },
            size.mean(axis=0),
        )
    inequalities["pathwise"] = Inequality(
        (etas * measured["rho"] * measured["gradient"]).sum(axis=0) + pull.sum(axis=0),
        {
            "descent": f[0] - f[-1],
            "curvature": curvature.sum(axis=0),
            "drift": (load * A).sum(axis=0),
            "noise": (load * measured["noise"]).sum(axis=0),
        },
        ulps * np.abs(f[0]),
    )
    return inequalities


def run_certificates(
    problem: KnownProblem, measured: Mapping[str, Array], settings: RunSettings, failure: float
) -> Iterator[tuple[str, Inequality]]:
    """Yield the certificate of every run, and with weight decay that of its gap, where they apply to all seeds."""
    decay, given = settings.weight_decay, bound_constants(problem, settings.B, 1)
    del given["T"]  # run_bound counts the steps
    pulls = decay * measured["weights"]
    bounds = [
        run_bound(
            rho,
            gain,
            eta=settings.etas,
            beta=settings.beta,
            failure=failure,
            pull=pull if decay else None,
            tail=problem.tail,
            **settings.momentum,
            **given,
        )
        for rho, gain, pull in zip(measured["rho"].T, measured["gain"].T, pulls.T, strict=True)
    ]
    if all(bound.status == "applies" for bound in bounds):
        weights = (settings.etas / settings.etas.max())[:, None] * (measured["rho"] - pulls)
        average = (weights * measured["gradient"]).sum(axis=0) / weights.sum(axis=0)
        yield "run", Inequality(average, {name: np.array([b.terms[name] for b in bounds]) for name in bounds[0].terms})
    gaps = [bound.gap.bound for bound in bounds if bound.gap]
    if len(gaps) == len(bounds):
        yield "run_gap", Inequality(mean_gap(measured["rho"], measured, settings), {"gap": np.array(gaps)})


def mean_gap(rho: Array, measured: Mapping[str, Array], settings: RunSettings) -> Array:
    """Return the average of ``ρ_t ‖∇_t‖_* + λ ⟨∇_t, W_{t-1}⟩`` of each seed, weighted by the learning rates."""
    gaps = rho * measured["gradient"] + settings.weight_decay * measured["inward"]
    return np.asarray(settings.etas @ gaps / settings.etas.sum())


def expected_on_trajectory(
    problem: KnownProblem, schedule: Schedule | None, measured: Mapping[str, Array], settings: RunSettings
) -> Iterator[tuple[str, Inequality]]:
    """Yield the bounds on the mean over seeds of any run of Muon, with floors as constants (Theorems A, B and C).

    Args:
        problem: its constants.
        schedule: the Newton-Schulz steps from ``‖X‖_F = 1``; None for the exact polar factor.
        measured: see the module.
        settings: of the run.
    """
    rho, gain = 1.0, 1.0
    if schedule is not None:
        rho, gain = descent_floor(schedule, problem.r), schedule_error(schedule, 0.0).s_max
    given = bound_constants(problem, settings.B, 1)
    del given["T"]  # trajectory_bound counts the rates
    bound = trajectory_bound(
        etas=settings.etas, betas=settings.beta, rho=rho, s=gain, weight_decay=settings.weight_decay,
        weight_norm=float(measured["weights"][0, 0]), tail=problem.tail, **settings.momentum, **given,
    )  # fmt: skip
    if bound.status == "applies":
        weights = np.array(bound.weights)
        average = float((weights @ measured["gradient"] / weights.sum()).mean())
        yield "trajectory", Inequality(np.asarray(average), {k: np.asarray(v) for k, v in bound.terms.items()})
    if bound.gap:
        left = mean_gap(np.asarray(rho), measured, settings).mean()
        yield "trajectory_gap", Inequality(np.asarray(left), {"gap": np.asarray(bound.gap.bound)})


def bound_constants(problem: KnownProblem, B: int, T: int) -> dict[str, Any]:
    """Return the arguments that every bound takes."""
    return {"L": problem.L, "D": problem.D, "sigma": problem.sigma, "r": problem.r, "B": B, "T": T}


def expected_for_sgdm(
    problem: KnownProblem, measured: Mapping[str, Array], B: int, eta: float, beta: float
) -> Iterator[tuple[str, Inequality]]:
    """Yield the bounds on the mean over seeds that apply to SGD-M, by name (Kim & Oh 2026, Theorem 3)."""
    given = {**bound_constants(problem, B, len(measured["rho"])), "eta": eta, "beta": beta}
    average, square = float(measured["gradient"].mean()), float((measured["gradient_F"] ** 2).mean())
    kinds: tuple[tuple[str, Constants, float | None], ...] = (
        ("sgdm_paper", "paper", None),
        ("sgdm_sharp", "sharp", None),
        ("sgdm_L_F", "sharp", problem.L_F),
    )
    for name, constants, L_F in kinds:
        bound = sgdm_bound(constants=constants, L_F=L_F, **given)
        if bound.status == "applies":
            yield name, bound_inequality(bound, average)
            # the proof bounds the root mean square, so that is what tests its constants
            yield f"{name}_rms", bound_inequality(bound, math.sqrt(problem.r * square))


def expected_for_muon(
    problem: KnownProblem,
    schedule: Schedule | None,
    normalised: bool,
    measured: Mapping[str, Array],
    B: int,
    eta: float,
    beta: float,
) -> Iterator[tuple[str, Inequality]]:
    """Yield the bounds on the mean over seeds that apply to Muon, by name (Kim & Oh 2026, Theorems 1 and 4).

    Args:
        problem: its constants.
        schedule: the Newton-Schulz steps, None for the exact polar factor.
        normalised: whether the steps start from ``‖X‖_F = 1``, as the alignment floor needs.
        measured: see the module.
        B: batch size.
        eta: step size.
        beta: momentum.
    """
    given = {**bound_constants(problem, B, len(measured["rho"])), "eta": eta, "beta": beta}
    bounds: list[tuple[str, Bound, float, float]] = []  # with the ρ and s that make it the alignment theorem
    if schedule is None:
        bounds += [
            ("paper", muon_bound(constants="paper", **given), 1.0, 1.0),
            ("sharp", muon_bound(**given), 1.0, 1.0),
        ]
        bounds += [("corrected", alignment_bound(alignment=1.0, start="corrected", **given), 1.0, 1.0)]
    else:
        epsilon, gain = float(measured["polar_error"].max()), schedule_error(schedule, 0.0).s_max
        bounds += [("paper_after", muon_bound(epsilon=epsilon, constants="paper", **given), 1 - epsilon, 1 + epsilon)]
        if gain <= 1.0:
            bounds += [("sharp_after", muon_bound(epsilon=epsilon, **given), 1 - epsilon, 1.0)]
        if normalised:
            given |= {"alignment": alignment_floor(schedule, problem.r), "op_norm": gain}
            rho = given["alignment"] * gain
            bounds += [("floor", alignment_bound(**given), rho, gain)]
            bounds += [("floor_corrected", alignment_bound(start="corrected", **given), rho, gain)]
    for name, bound, rho, s in bounds:
        if bound.status == "applies":
            yield name, bound_inequality(bound, float(measured["gradient"].mean()))
            error = measured["error_plain" if "start" in bound.terms else "error"]
            yield f"{name}_tracking", tracking_inequality(bound, rho, s, float(error.mean()))


def tracking_inequality(bound: Bound, rho: float, s: float, left: float) -> Inequality:
    """Return the part of a bound on the mean of ``‖∇f - N_t‖_*``: its tracking terms, without the factor (ρ+s)/ρ."""
    parts = {name: np.asarray(bound.terms[name] * rho / (rho + s)) for name in _TRACKING if name in bound.terms}
    return Inequality(np.asarray(left), parts, rounding=np.asarray(1e-12 * bound.total))


def bound_inequality(bound: Bound, left: float) -> Inequality:
    """Return the inequality between a measured average and its bound."""
    terms = {name: np.asarray(value) for name, value in bound.terms.items()}
    return Inequality(np.asarray(left), terms, squares=bound.combine == "root_sum_square")
