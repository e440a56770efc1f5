"""Real optimizers on problems of known constants, with every inequality of the proofs.

:func:`run_method` trains many seeds as one (seeds, m, n) parameter and returns, as :class:`Inequality` values, what the
proofs state about each step, each run and the mean over runs. A negative slack is a bug, here or in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from muonlab import _checks
from muonlab.lab.problems.definitions import KnownProblem, draw_noise
from muonlab.lab.problems.inequalities import (
    Inequality,
    RunSettings,
    bound_constants,
    certain_inequalities,
    expected_for_muon,
    expected_for_sgdm,
    expected_on_trajectory,
    run_certificates,
)
from muonlab.optim import SGDM, Muon, NewtonSchulz
from muonlab.optim.base import MomentumOptimizer
from muonlab.orthogonalize.prescale import Prescale
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.polynomials.base import Array
from muonlab.theory import Tuned, schedule_factors, tuned_muon, tuned_sgdm
from muonlab.theory.bound import ProblemConstants
from muonlab.theory.lr_schedules import LrSchedule
from muonlab.theory.momentum import MomentumForm
from muonlab.theory.rates import Constants
from muonlab.theory.trajectory import noise_unit

# --------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class TunedMethod:
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

    def build(self, params: Sequence[Tensor], settings: RunSettings) -> MomentumOptimizer:
        """Return the optimizer with the first step's learning rate (Kim & Oh 2026, Algorithms 1-3, and options)."""
        options: dict[str, Any] = {"nesterov": settings.nesterov, "weight_decay": settings.weight_decay}
        eta, beta = float(settings.etas[0]), settings.beta
        if self.kind == "sgdm":
            return SGDM(params, lr=eta, momentum=beta, **options)
        options |= {"momentum_form": settings.momentum_form, "matrix_view": "batch"}
        if self.schedule is None:
            return Muon.paper(params, eta, momentum=beta, polar="svd", **options)
        steps = NewtonSchulz(self.schedule, prescale=self.prescale, compute_dtype=None)
        return Muon.paper(params, eta, momentum=beta, orthogonalizer=steps, **options)

    def tuned(self, problem: KnownProblem, *, B: int, T: int) -> Tuned:
        """Return the theorem's η and β (Kim & Oh 2026, Theorems 1, 3 and 4).

        For Muon under heavy tails, β balances the two parts of Theorem C that depend on it, as Theorem 1's does for
        p = 2: ``1-β = (√(LD/T)/u)^{2p/(3p-2)}`` with the unit u of the noise. SGD-M has no such theorem and is tuned as
        if σ were a standard deviation.
        """
        given = bound_constants(problem, B, T)
        if self.kind == "sgdm":
            return tuned_sgdm(L_F=problem.L_F if self.frobenius else None, constants=self.constants, **given)
        if problem.tail == 2 or not problem.sigma:
            return tuned_muon(**given)
        ratio = math.sqrt(problem.L * problem.D / T) / noise_unit(ProblemConstants(**given), problem.tail)
        fresh = min(1.0, ratio ** (2 * problem.tail / (3 * problem.tail - 2)))
        return Tuned(math.sqrt(fresh * problem.D / (T * problem.L)), 1 - fresh)

    def rates(self, eta: float, lr_schedule: LrSchedule, T: int) -> Array:
        """Return the learning rate of each step, for the rate that the theorem gives if it is constant.

        Muon's peak is raised until ``Σ η_t²`` is that of the constant rate, as the best peak of Corollary A1 is;
        SGD-M's is not raised, because larger rates may diverge.
        """
        factors = schedule_factors(lr_schedule, T)
        peak = eta if self.kind == "sgdm" else eta * math.sqrt(T / float(np.sum(factors**2)))
        return peak * factors


def _methods() -> Mapping[str, TunedMethod]:
    express, jordan = preset("polar_express"), preset("jordan")
    methods = [
        TunedMethod("sgdm", "sgdm"),
        TunedMethod("sgdm_L_F", "sgdm", frobenius=True),
        TunedMethod("sgdm_paper", "sgdm", constants="paper"),
        *(TunedMethod(f"muon_q{q}", "muon", Schedule((taylor(2),) * q, name=f"quintic x{q}")) for q in range(6)),
        TunedMethod("muon_svd", "muon"),
        TunedMethod("jordan", "muon", jordan.schedule(5)),
        TunedMethod("polar_express", "muon", express.schedule(5, safety=express.safety)),
    ]
    return MappingProxyType({method.name: method for method in methods})


METHODS: Mapping[str, TunedMethod] = _methods()
"""SGD-M tuned in three ways; Muon with q = 0…5 quintic steps, the exact polar factor, Jordan's steps, Polar Express."""


# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class MethodRun:
    """The measurements of one or more runs. Arrays have a column per seed and rows t = 1…T (``values``: t = 0…T).

    Args:
        problem: what was minimized.
        method: the optimizer.
        settings: learning rates, momentum, batch size and weight decay.
        values: ``f(W_t)``.
        gradients: ``‖∇f(W_{t-1})‖_*``.
        rho: descent ``⟨Z_t, O_t⟩/‖Z_t‖_*``, where ``Z_t`` is the momentum or Nesterov's look-ahead.
        gain: ``‖O_t‖_op``.
        polar_error: ``‖O_t - Polar(Z_t)‖_op`` (Kim & Oh 2026, Definition 3); meaningless for SGD-M.
        certain: inequalities for every run: ``one_step`` and ``tracking`` at every step, ``tracking_plain`` (its mean
            over the run with ``(1-β)M_t``, for plain runs), ``pathwise``, and without noise ``run`` and, with weight
            decay, ``run_gap`` (:func:`muonlab.theory.run_bound`).
        expected: bounds on the mean over seeds that apply, by name. ``…_after`` takes the largest measured polar error,
            so with noise it is a comparison, not a theorem. ``…_tracking`` is the part of a bound on ``‖∇f - N_t‖_*``.
            With noise also ``run``: each seed may violate it with probability ``failure``. For Muon with a schedule of
            learning rates, Nesterov, weight decay or heavy tails there are instead ``trajectory``, a bound on the
            weighted average, and ``trajectory_gap`` (:func:`muonlab.theory.trajectory_bound`).
    """

    problem: KnownProblem
    method: TunedMethod
    settings: RunSettings
    values: Array
    gradients: Array
    rho: Array
    gain: Array
    polar_error: Array
    certain: Mapping[str, Inequality]
    expected: Mapping[str, Inequality]

    @property
    def eta(self) -> float:
        """Largest learning rate."""
        return float(self.settings.etas.max())

    @property
    def beta(self) -> float:
        """Momentum."""
        return self.settings.beta

    @property
    def B(self) -> int:
        """Batch size."""
        return self.settings.B

    @property
    def averages(self) -> Array:
        """``(1/T) Σ_t ‖∇f(W_{t-1})‖_*`` of each seed (Kim & Oh 2026, Definition 1)."""
        return np.asarray(self.gradients.mean(axis=0))

    @property
    def seeds(self) -> int:
        """Number of runs."""
        return int(self.gradients.shape[1])

    def ratio(self, bound: str) -> float:
        """Return a bound divided by the mean of ``‖∇f‖_*`` that it bounds."""
        inequality = self.expected[bound]
        mean = float(inequality.left) if bound == "trajectory" else self.averages.mean()  # the first is weighted
        return float(inequality.right() / mean)


def run_method(
    problem: KnownProblem,
    method: TunedMethod,
    *,
    T: int,
    seeds: int = 1,
    B: int = 1,
    seed: int = 0,
    eta: float | None = None,
    beta: float | None = None,
    failure: float = 0.05,
    lr_schedule: LrSchedule = "constant",
    momentum_form: MomentumForm = "heavy_ball",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> MethodRun:
    """Run a method with the theorem's η and β on seeds ``seed … seed + seeds - 1``; return it with its inequalities.

    Args:
        problem: see :mod:`muonlab.lab.problems.definitions`.
        method: one of :data:`METHODS`, or another.
        T: number of steps.
        seeds: number of runs, all from ``W_0``; a seed's noise does not depend on the others.
        B: batch size.
        seed: the first seed.
        eta: step size before :meth:`TunedMethod.rates` makes a schedule of it; None takes the theorem's.
        beta: momentum; None takes the theorem's.
        failure: probability with which a noisy run may violate its own certificate.
        lr_schedule: one of :data:`muonlab.theory.lr_schedules.LR_SCHEDULES`.
        momentum_form: of Muon; SGD-M is always ``"heavy_ball"``.
        nesterov: whether to follow Nesterov's look-ahead.
        weight_decay: λ, decoupled.

    Example:
        >>> from muonlab.lab.problems.definitions import bowl
        >>> round(run_method(bowl(4), METHODS["muon_svd"], T=200).ratio("paper"), 2)
        1.0
    """
    T, seeds = _checks.integer("T", T, at_least=1), _checks.integer("seeds", seeds, at_least=1)
    B = _checks.integer("B", B, at_least=1)
    tuned = method.tuned(problem, B=B, T=T)
    eta, beta = tuned.eta if eta is None else float(eta), tuned.beta if beta is None else float(beta)
    form: MomentumForm = "heavy_ball" if method.kind == "sgdm" else momentum_form
    settings = RunSettings(method.rates(eta, lr_schedule, T), beta, B, form, nesterov, weight_decay)
    if settings.etas.max() * weight_decay > 1:
        raise ValueError(
            f"the learning rate times weight_decay must be at most 1, got {settings.etas.max() * weight_decay:g}: "
            f"reduce weight_decay"
        )
    generators = [torch.Generator().manual_seed(seed + i) for i in range(seeds)]
    measured = _measure(problem, method, settings, generators)
    certain = certain_inequalities(problem, measured, settings)
    expected: dict[str, Inequality] = {}
    normalised = method.prescale == "frobenius"
    if settings.is_plain and problem.tail == 2:
        if method.kind == "sgdm":
            expected = dict(expected_for_sgdm(problem, measured, B, eta, beta))
        else:
            expected = dict(expected_for_muon(problem, method.schedule, normalised, measured, B, eta, beta))
    elif method.kind == "muon" and normalised:
        expected = dict(expected_on_trajectory(problem, method.schedule, measured, settings))
    (expected if problem.sigma else certain).update(run_certificates(problem, measured, settings, failure))
    return MethodRun(
        problem=problem,
        method=method,
        settings=settings,
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
    problem: KnownProblem, method: TunedMethod, settings: RunSettings, generators: Sequence[torch.Generator]
) -> dict[str, Array]:
    """Train, and return every norm and product that appears in the proofs, by name."""
    W = torch.nn.Parameter(problem.start.repeat(len(generators), 1, 1))
    optimizer, beta = method.build([W], settings), settings.beta
    steps: list[tuple[Tensor, Tensor]] = []
    if isinstance(optimizer, Muon):
        optimizer.register_orthogonalize_hook(lambda _, Z, O: steps.append((Z, O)))
    unit = 1 - beta if settings.momentum_form == "heavy_ball" else 1.0  # times Z_t, an average of gradients
    xi, rows, values = torch.zeros_like(W), [], [problem.value(W)]
    for t, eta in enumerate(settings.etas.tolist(), start=1):
        G = problem.gradient(W)
        fresh = draw_noise(problem, generators, settings.B)
        weights, inward = torch.linalg.matrix_norm(W, 2), (G * W).sum(dim=(-2, -1))
        W.grad = G + fresh
        optimizer.param_groups[0]["lr"] = eta
        optimizer.step()
        xi = beta * xi + fresh
        Z, O = steps.pop() if steps else (_sgdm_direction(optimizer, W),) * 2
        values.append(problem.value(W))
        # what Z_t has of the noise, and 1 - β^t, or 1 - β^{t+1}: the sum of its weights
        kept = (1 - beta) * (fresh + beta * xi if settings.nesterov else xi)
        mass = -math.expm1((t + settings.nesterov) * math.log(beta)) if beta else 1.0
        N = unit * Z
        s = torch.linalg.svdvals(torch.stack([G, Z, O, G - N / mass, kept, G - N]))
        nuclear, rank = s.sum(dim=-1), s[1] > 1e-10 * s[1, :, :1]
        gain = torch.where(s[2, :, 0] > 1e-250, s[2, :, 0], 0.0)  # below, ρ has no digits left and W does not move
        rho = torch.where(gain > 0, (Z / nuclear[1, :, None, None] * O).sum(dim=(-2, -1)), 0.0)
        rows.append(
            {
                "gradient": nuclear[0],
                "gradient_F": torch.linalg.matrix_norm(G),
                "momentum": nuclear[1] * unit / mass,
                "rho": rho,
                "gain": gain,
                "polar_error": torch.where(rank, (s[2] - 1).abs(), 0.0).amax(dim=-1),
                "progress": (G * O).sum(dim=(-2, -1)),
                "error": nuclear[3],
                "noise": nuclear[4] / mass,
                "error_plain": nuclear[5],
                "noise_plain": nuclear[4],
                "weights": weights,
                "inward": inward,
            }
        )
    columns = {name: torch.stack([row[name] for row in rows]).numpy() for name in rows[0]}
    return {"values": torch.stack(values).numpy(), **columns}


def _sgdm_direction(optimizer: MomentumOptimizer, W: Tensor) -> Tensor:
    """Return what SGD-M followed in its last step: the momentum, or Nesterov's look-ahead."""
    M: Tensor = optimizer.state[W]["momentum_buffer"]
    if optimizer.param_groups[0]["nesterov"] and W.grad is not None:
        M = W.grad + float(optimizer.param_groups[0]["momentum"]) * M
    return M.clone()
