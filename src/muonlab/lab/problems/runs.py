"""Real optimizers on problems of known constants, with every inequality of the proofs.

:func:`run_method` trains many seeds as one (seeds, m, n) parameter and returns, as :class:`Inequality` values, what the
proofs state about each step, each run and the mean over runs. A negative slack is a bug, here or in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    bound_constants,
    certain_inequalities,
    certificate_inequality,
    expected_for_muon,
    expected_for_sgdm,
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
        given = bound_constants(problem, B, T)
        if self.kind == "sgdm":
            return tuned_sgdm(L_F=problem.L_F if self.frobenius else None, constants=self.constants, **given)
        return tuned_muon(**given)


def _methods() -> Mapping[str, Method]:
    express, jordan = preset("polar_express"), preset("jordan")
    methods = [
        Method("sgdm", "sgdm"),
        Method("sgdm_L_F", "sgdm", frobenius=True),
        Method("sgdm_paper", "sgdm", constants="paper"),
        *(Method(f"muon_q{q}", "muon", Schedule((taylor(2),) * q, name=f"quintic x{q}")) for q in range(6)),
        Method("muon_svd", "muon"),
        Method("jordan", "muon", jordan.schedule(5)),
        Method("polar_express", "muon", express.schedule(5, safety=express.safety)),
    ]
    return MappingProxyType({method.name: method for method in methods})


METHODS: Mapping[str, Method] = _methods()
"""SGD-M tuned in three ways; Muon with q = 0…5 quintic steps, the exact polar factor, Jordan's steps, Polar Express."""


# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class MethodRun:
    """The measurements of one or more runs. Arrays have a column per seed and rows t = 1…T (``values``: t = 0…T).

    Args:
        problem: what was minimized.
        method: the optimizer.
        eta: step size.
        beta: momentum.
        B: batch size.
        values: ``f(W_t)``.
        gradients: ``‖∇f(W_{t-1})‖_*``.
        rho: descent ``⟨M_t, O_t⟩/‖M_t‖_*``.
        gain: ``‖O_t‖_op``.
        polar_error: ``‖O_t - Polar(M_t)‖_op`` (Kim & Oh 2026, Definition 3); meaningless for SGD-M.
        certain: inequalities for every run: ``one_step`` and ``tracking`` at every step, ``tracking_plain`` (its mean
            over the run with ``(1-β)M_t``), ``pathwise``, and without noise ``run`` (:func:`muonlab.theory.run_bound`).
        expected: bounds on the mean over seeds that apply, by name. ``…_after`` takes the largest measured polar error,
            so with noise it is a comparison, not a theorem. ``…_tracking`` is the part of a bound on ``‖∇f - N_t‖_*``.
            With noise also ``run``: each seed may violate it with probability ``failure``.
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
        """Return a bound divided by the measured mean."""
        return float(self.expected[bound].right() / self.averages.mean())


def run_method(
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
) -> MethodRun:
    """Run a method with the theorem's η and β on seeds ``seed … seed + seeds - 1``; return it with its inequalities.

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
        >>> round(run_method(bowl(4), METHODS["muon_svd"], T=200).ratio("paper"), 2)
        1.0
    """
    T, seeds = _checks.integer("T", T, at_least=1), _checks.integer("seeds", seeds, at_least=1)
    B = _checks.integer("B", B, at_least=1)
    tuned = method.tuned(problem, B=B, T=T)
    eta, beta = tuned.eta if eta is None else float(eta), tuned.beta if beta is None else float(beta)
    generators = [torch.Generator().manual_seed(seed + i) for i in range(seeds)]
    measured = _measure(problem, method, T=T, generators=generators, B=B, eta=eta, beta=beta)
    certain = certain_inequalities(problem, measured, eta, beta)
    if method.kind == "sgdm":
        expected = dict(expected_for_sgdm(problem, measured, B, eta, beta))
    else:
        normalised = method.prescale == "frobenius"
        expected = dict(expected_for_muon(problem, method.schedule, normalised, measured, B, eta, beta))
    certificate = certificate_inequality(problem, measured, B, eta, beta, failure)
    if certificate is not None:
        (expected if problem.sigma else certain)["run"] = certificate
    return MethodRun(
        problem=problem,
        method=method,
        eta=eta,
        beta=beta,
        B=B,
        values=measured["values"],
        gradients=measured["gradient"],
        rho=measured["rho"],
        gain=measured["gain"],
        polar_error=measured["polar_error"],
        certain=MappingProxyType(certain),
        expected=MappingProxyType(expected),
    )


@torch.no_grad()
def _measure(
    problem: KnownProblem,
    method: Method,
    *,
    T: int,
    generators: Sequence[torch.Generator],
    B: int,
    eta: float,
    beta: float,
) -> dict[str, Array]:
    """Train, and return every norm and product that appears in the proofs, by name."""
    W = torch.nn.Parameter(problem.start.repeat(len(generators), 1, 1))
    optimizer = method.build([W], eta, beta)
    steps: list[tuple[Tensor, Tensor]] = []
    if isinstance(optimizer, Muon):
        optimizer.register_orthogonalize_hook(lambda _, M, O: steps.append((M, O)))
    xi, rows, values = torch.zeros_like(W), [], [problem.value(W)]
    for t in range(1, T + 1):
        G = problem.gradient(W)
        fresh = draw_noise(problem, generators, B)
        W.grad = G + fresh
        optimizer.step()
        # SGD-M follows the momentum itself: O_t = M_t
        M, O = steps.pop() if steps else (optimizer.state[W]["momentum_buffer"].clone(),) * 2
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
    columns = {name: torch.stack([row[name] for row in rows]).numpy() for name in rows[0]}
    return {"values": torch.stack(values).numpy(), **columns}
