"""The theory at work: real optimizers on problems of known constants, every inequality of the proofs checked.

:func:`run` trains many seeds as one (seeds, m, n) parameter and returns, as :class:`Inequality` values, what the proofs
claim of each step, of each run and of the mean over runs. A negative slack is a bug, here or in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from muonlab import _checks
from muonlab.lab.problems.definitions import KnownProblem, draw_noise
from muonlab.lab.problems.inequalities import (
    Inequality,
    certain,
    certificate,
    constants_of,
    expected_of_muon,
    expected_of_sgdm,
)
from muonlab.optim import SGDM, Muon, NewtonSchulz
from muonlab.optim.base import MomentumOptimizer
from muonlab.orthogonalize.prescale import Prescale
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.polynomials.base import Array
from muonlab.theory import Tuned, tuned_muon, tuned_sgdm
from muonlab.theory.rates import Constants

# --------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Method:
    """An optimizer and the theorem that tunes it.

    Args:
        name: for tables.
        kind: ``"sgdm"`` or ``"muon"``.
        schedule: the Newton-Schulz steps; None for the exact polar factor.
        prescale: ``"frobenius"``, for which the alignment floor holds, or ``"paper"``, ``max{1, ‖M‖_F}``.
        constants: whose constants tune SGD-M.
        frobenius: whether SGD-M is tuned to ``L_F`` rather than to L (Table 1 of the paper gives it L).
    """

    name: str
    kind: Literal["sgdm", "muon"]
    schedule: Schedule | None = None
    prescale: Prescale = "frobenius"
    constants: Constants = "sharp"
    frobenius: bool = False

    def build(self, params: Sequence[Tensor], eta: float, beta: float) -> MomentumOptimizer:
        """Return the optimizer (Kim & Oh 2026, Algorithms 1-3)."""
        if self.kind == "sgdm":
            return SGDM(params, lr=eta, momentum=beta)
        if self.schedule is None:
            return Muon.paper(params, eta, momentum=beta, polar="svd", matrix_view="batch")
        steps = NewtonSchulz(self.schedule, prescale=self.prescale, compute_dtype=None)
        return Muon.paper(params, eta, momentum=beta, orthogonalizer=steps, matrix_view="batch")

    def tuned(self, problem: KnownProblem, *, B: int, T: int) -> Tuned:
        """Return the theorem's η and β (Kim & Oh 2026, Theorems 1, 3 and 4)."""
        given = constants_of(problem, B, T)
        if self.kind == "sgdm":
            return tuned_sgdm(L_F=problem.L_F if self.frobenius else None, constants=self.constants, **given)
        return tuned_muon(**given)


def _methods() -> Mapping[str, Method]:
    express, jordan = preset("polar_express"), preset("jordan")
    every = [
        Method("sgdm", "sgdm"),
        Method("sgdm_L_F", "sgdm", frobenius=True),
        Method("sgdm_paper", "sgdm", constants="paper"),
        *(Method(f"muon_q{q}", "muon", Schedule((taylor(2),) * q, name=f"quintic x{q}")) for q in range(6)),
        Method("muon_svd", "muon"),
        Method("jordan", "muon", jordan.schedule(5)),
        Method("polar_express", "muon", express.schedule(5, safety=express.safety)),
    ]
    return MappingProxyType({method.name: method for method in every})


METHODS: Mapping[str, Method] = _methods()
"""SGD-M three ways, Muon with q = 0…5 quintic steps, with the exact polar factor, with Jordan's and Polar Express."""


# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Run:
    """What a batch of runs left. Arrays have one column per seed; rows are t = 1…T (``values``: t = 0…T).

    Args:
        problem: what was minimised.
        method: by what.
        eta: step size.
        beta: momentum.
        B: batch size.
        values: ``f(W_t)``.
        gradients: ``‖∇f(W_{t-1})‖_*``.
        rho: descent ``⟨M_t, O_t⟩/‖M_t‖_*``.
        gain: ``‖O_t‖_op``.
        polar_error: ``‖O_t - Polar(M_t)‖_op`` (Kim & Oh 2026, Definition 3); for SGD-M without meaning.
        certain: what holds on every run: ``one_step`` and ``tracking`` at every step, ``tracking_plain`` (its mean over
            the run with ``(1-β)M_t``), ``pathwise``, and without noise ``run`` (:func:`muonlab.theory.run_bound`).
        expected: bounds on the mean over seeds, by name, those that apply. ``…_after`` takes the largest polar error
            seen, so with noise it is no theorem but a comparison. ``…_tracking`` is the part of a bound that speaks of
            ``‖∇f - N_t‖_*`` alone. With noise also ``run``: each seed may violate it with probability ``failure``.
    """

    problem: KnownProblem
    method: Method
    eta: float
    beta: float
    B: int
    values: Array
    gradients: Array
    rho: Array
    gain: Array
    polar_error: Array
    certain: Mapping[str, Inequality]
    expected: Mapping[str, Inequality]

    @property
    def averages(self) -> Array:
        """``(1/T) Σ_t ‖∇f(W_{t-1})‖_*`` of each seed (Kim & Oh 2026, Definition 1)."""
        return np.asarray(self.gradients.mean(axis=0))

    @property
    def seeds(self) -> int:
        """Number of runs."""
        return int(self.gradients.shape[1])

    def ratio(self, bound: str) -> float:
        """Return how many times the measured mean a bound is."""
        return float(self.expected[bound].right() / self.averages.mean())


def run(
    problem: KnownProblem,
    method: Method,
    *,
    T: int,
    seeds: int = 1,
    B: int = 1,
    seed: int = 0,
    eta: float | None = None,
    beta: float | None = None,
    failure: float = 0.05,
) -> Run:
    """Run a method with the theorem's η and β on seeds ``seed … seed + seeds - 1`` and compare with its bounds.

    Args:
        problem: see :mod:`muonlab.lab.problems.definitions`.
        method: one of :data:`METHODS`, or another.
        T: number of steps.
        seeds: number of runs, all from ``W_0``; a seed's noise does not depend on the others.
        B: batch size.
        seed: the first seed.
        eta: step size; None takes the theorem's.
        beta: momentum; None takes the theorem's.
        failure: probability with which a noisy run may violate its own certificate.

    Example:
        >>> from muonlab.lab.problems.definitions import bowl
        >>> one = run(bowl(4), METHODS["muon_svd"], T=200)
        >>> round(one.ratio("paper"), 2)
        1.0
    """
    T, seeds = _checks.integer("T", T, at_least=1), _checks.integer("seeds", seeds, at_least=1)
    B = _checks.integer("B", B, at_least=1)
    tuned = method.tuned(problem, B=B, T=T)
    eta, beta = tuned.eta if eta is None else float(eta), tuned.beta if beta is None else float(beta)
    seen = _observe(problem, method, T=T, generators=_generators(seed, seeds), B=B, eta=eta, beta=beta)
    always = certain(problem, seen, eta, beta)
    if method.kind == "sgdm":
        mean = dict(expected_of_sgdm(problem, seen, B, eta, beta))
    else:
        normalised = method.prescale == "frobenius"
        mean = dict(expected_of_muon(problem, method.schedule, normalised, seen, B, eta, beta))
    own = certificate(problem, seen, B, eta, beta, failure)
    if own is not None:
        (mean if problem.sigma else always)["run"] = own
    return Run(
        problem=problem,
        method=method,
        eta=eta,
        beta=beta,
        B=B,
        values=seen["values"],
        gradients=seen["gradient"],
        rho=seen["rho"],
        gain=seen["gain"],
        polar_error=seen["polar_error"],
        certain=MappingProxyType(always),
        expected=MappingProxyType(mean),
    )


def _generators(seed: int, seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + i) for i in range(seeds)]


@torch.no_grad()
def _observe(
    problem: KnownProblem,
    method: Method,
    *,
    T: int,
    generators: Sequence[torch.Generator],
    B: int,
    eta: float,
    beta: float,
) -> dict[str, Array]:
    """Train, and return every norm and product that the proofs speak of, by name."""
    W = torch.nn.Parameter(problem.start.repeat(len(generators), 1, 1))
    optimizer = method.build([W], eta, beta)
    shown: list[tuple[Tensor, Tensor]] = []
    if isinstance(optimizer, Muon):
        optimizer.register_orthogonalize_hook(lambda _, M, O: shown.append((M, O)))
    xi, rows, values = torch.zeros_like(W), [], [problem.value(W)]
    for t in range(1, T + 1):
        G = problem.gradient(W)
        fresh = draw_noise(problem, generators, B)
        W.grad = G + fresh
        optimizer.step()
        # SGD-M follows the momentum itself: O_t = M_t
        M, O = shown.pop() if shown else (optimizer.state[W]["momentum_buffer"].clone(),) * 2
        values.append(problem.value(W))
        xi = beta * xi + fresh
        mass = -math.expm1(t * math.log(beta)) if beta else 1.0  # 1 - β^t
        N, kept = (1 - beta) * M, (1 - beta) * xi
        s = torch.linalg.svdvals(torch.stack([G, M, O, G - N / mass, kept, G - N]))
        nuclear, rank = s.sum(dim=-1), s[1] > 1e-10 * s[1, :, :1]
        gain = torch.where(s[2, :, 0] > 1e-250, s[2, :, 0], 0.0)  # below, ρ has no digits left and W does not move
        rho = torch.where(gain > 0, (M / nuclear[1, :, None, None] * O).sum(dim=(-2, -1)), 0.0)
        rows.append(
            {
                "gradient": nuclear[0],
                "gradient_F": torch.linalg.matrix_norm(G),
                "momentum": nuclear[1] * (1 - beta) / mass,
                "rho": rho,
                "gain": gain,
                "polar_error": torch.where(rank, (s[2] - 1).abs(), 0.0).amax(dim=-1),
                "progress": (G * O).sum(dim=(-2, -1)),
                "error": nuclear[3],
                "noise": nuclear[4] / mass,
                "error_plain": nuclear[5],
                "noise_plain": nuclear[4],
            }
        )
    seen = {name: torch.stack([row[name] for row in rows]).numpy() for name in rows[0]}
    return {"values": torch.stack(values).numpy(), **seen}


# ------------------------------------------------------------------------------------------------------ summaries


def least_slack(runs: Iterable[Run]) -> dict[str, float]:
    """Return the smallest slack of every inequality over all runs, steps and seeds; negative means violated."""
    worst: dict[str, float] = {}
    for one in runs:
        for name, claim in (*one.certain.items(), *one.expected.items()):
            worst[name] = min(worst.get(name, math.inf), float(np.min(claim.slack())))
    return worst


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of ``y ∝ x^slope`` by least squares on logarithms.

    Example:
        >>> round(slope([1, 2, 4], [3, 6, 12]), 6)
        1.0
    """
    if len(x) != len(y) or len(set(x)) < 2 or min(*x, *y) <= 0:
        raise ValueError(f"a slope needs positive points at two or more places, got x = {x} and y = {y}: give such")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
