"""Age of the gradients in the momentum, and noise kept, step by step.

``M_t = b_t M_{t-1} + c_t G_t`` with ``b_t = β_t``, and ``c_t = 1`` (heavy ball) or ``1 - β_t`` (EMA). What is
orthogonalized is ``Z_t = x_t G_t + y_t M_t``: the momentum itself, or Nesterov's look-ahead. Divided by the sum of its
weights, ``Z_t`` is a weighted mean of the gradients so far, and only these weights enter the theorems.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from muonlab.polynomials.base import Array

MomentumForm = Literal["heavy_ball", "ema"]
MOMENTUM_FORMS: tuple[MomentumForm, ...] = ("heavy_ball", "ema")


class MomentumTrace(NamedTuple):
    """Arrays over the steps t = 1…T, for the mean ``Ẑ_t`` of the gradients that is orthogonalized.

    Attributes:
        drift: ``(1-θ_t) a_t``; times L, a bound on the nuclear norm of ``∇_t`` minus the same mean of true gradients.
        past_noise: ``ω_t``, the root of the sum of the squared weights of past gradients.
        noise: ``ν_t``, the same with the current gradient.
    """

    drift: Array
    past_noise: Array
    noise: Array


def momentum_trace(
    moves: Array, betas: Array, *, momentum_form: MomentumForm = "ema", nesterov: bool = True, tail: float = 2.0
) -> MomentumTrace:
    r"""Return drift and kept noise of every step (docs/theory/theorem-a.md).

        S_t = b_t S_{t-1} + c_t      γ_t = b_t S_{t-1}/S_t      θ_t = x_t/(x_t + y_t S_t)
        a_t = γ_t (a_{t-1} + moves_{t-1})      n_t² = γ_t² n_{t-1}² + (1-γ_t)²
        ω_t = (1-θ_t) γ_t n_{t-1}              ν_t² = ω_t² + (1 - (1-θ_t) γ_t)²

    Args:
        moves: ``‖W_t - W_{t-1}‖_op`` of each step, or a bound on it.
        betas: β_t of each step.
        momentum_form: ``"ema"`` or ``"heavy_ball"``; they differ only while β changes.
        nesterov: whether the look-ahead is orthogonalized.
        tail: p, the power in place of 2 for noise of infinite variance (docs/theory/theorem-c.md).

    Example:
        >>> import numpy as np
        >>> trace = momentum_trace(np.ones(3), np.full(3, 0.5), nesterov=False)
        >>> trace.drift.round(3).tolist()  # the gradients are 0, 1/3 and 4/7 steps old on average
        [0.0, 0.333, 0.571]
    """
    T = len(moves)
    drift, past_noise, noise = np.zeros(T), np.zeros(T), np.zeros(T)
    mass = age = kept = 0.0  # S_{t-1}, a_{t-1} + moves_{t-1}, n_{t-1}^p
    for t, (move, beta) in enumerate(zip(moves.tolist(), betas.tolist(), strict=True)):
        fresh = 1.0 if momentum_form == "heavy_ball" else 1 - beta
        old, mass = beta * mass, beta * mass + fresh
        gamma = old / mass  # the weight of past gradients in the momentum
        theta = fresh / (fresh + beta * mass) if nesterov else 0.0
        past = (1 - theta) * gamma
        drift[t] = past * age
        past_noise[t] = past * kept ** (1 / tail)
        noise[t] = (past**tail * kept + (1 - past) ** tail) ** (1 / tail)
        age = gamma * age + move
        kept = gamma**tail * kept + (1 - gamma) ** tail
    return MomentumTrace(drift, past_noise, noise)
