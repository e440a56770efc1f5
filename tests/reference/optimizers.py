"""Naive twins of the optimizers: one function each, one parameter at a time, to be read beside the paper.

A twin takes lists of weights and gradients and a dictionary of momenta, and replaces their entries by the next ones.
Everything is computed in the dtype of the weights, except singular value decompositions, which are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weights = list[Tensor]
State = dict[int, Tensor]

JORDAN = (3.4445, -4.7750, 2.0315)
"""K. Jordan's quintic, in powers of λ."""

TAYLOR = {
    1: (3 / 2, -1 / 2),
    2: (15 / 8, -5 / 4, 3 / 8),
    3: (35 / 16, -35 / 16, 21 / 16, -5 / 16),
    4: (315 / 128, -105 / 32, 189 / 64, -45 / 32, 35 / 128),
}
"""The paper's p_κ multiplied out by hand, in powers of λ; κ = 2 is printed in its appendix on the ablations of q."""


def flat(tensor: Tensor) -> Tensor:
    """Return a weight as the matrix out × rest."""
    return tensor.reshape(len(tensor), -1)


def central(s: int) -> float:
    """Return ``c_s = (2s)!/(4^s s!²)`` (Kim & Oh 2026, Definition 2)."""
    return math.factorial(2 * s) / (4**s * math.factorial(s) ** 2)


def unit(M: Tensor) -> Tensor:
    """Return ``M/‖M‖_F``, and zero for zero."""
    norm = M.norm()
    return M / norm if norm > 0 else M


def newton_schulz(M: Tensor, coefficients: tuple[float, ...], steps: int) -> Tensor:
    """Repeat ``X ← Σ_k a_k (X Xᵀ)^k X`` from ``X = M/‖M‖_F``; a tall matrix is transposed on the way."""
    if M.shape[0] > M.shape[1]:
        return newton_schulz(M.T, coefficients, steps).T
    X = unit(M)
    for _ in range(steps):
        A, power_of_A_times_X, total = X @ X.T, X, torch.zeros_like(X)
        for a in coefficients:
            total = total + a * power_of_A_times_X
            power_of_A_times_X = A @ power_of_A_times_X
        X = total
    return X


def polar(M: Tensor) -> Tensor:
    """Return ``U Vᵀ`` over the singular values above ``max(m, n)·eps·σ_max``, with the eps of float32."""
    U, sigma, Vh = torch.linalg.svd(M.double(), full_matrices=False)
    kept = sigma > max(M.shape) * 2**-23 * sigma.max()
    return (U[:, kept] @ Vh[kept]).to(M.dtype)


def rescaled(W: Tensor) -> Tensor:
    """Return ``W`` with Frobenius norm √out, and zero for zero."""
    return unit(W) * math.sqrt(len(W))


def no_scale(_: torch.Size) -> float:
    """Leave the learning rate as it is."""
    return 1.0


def original_scale(shape: torch.Size) -> float:
    """Return ``√max(1, rows/cols)`` (K. Jordan)."""
    rows, cols = shape[0], math.prod(shape[1:])
    return math.sqrt(max(1, rows / cols))


def match_rms_adamw_scale(shape: torch.Size) -> float:
    """Return ``0.2 √max(rows, cols)`` (Moonlight)."""
    rows, cols = shape[0], math.prod(shape[1:])
    return 0.2 * math.sqrt(max(rows, cols))


def spectral_scale(shape: torch.Size) -> float:
    """Return ``√(rows/cols)``."""
    rows, cols = shape[0], math.prod(shape[1:])
    return math.sqrt(rows / cols)


def algorithm_1(
    weights: Weights, grads: Weights, state: State, *, lr: float, momentum: float, q: int, kappa: int
) -> None:
    """Take a step of Muon with Newton-Schulz (Kim & Oh 2026, Algorithm 1, lines 4-10)."""
    for i, G in enumerate(map(flat, grads)):
        M = state[i] = momentum * state.get(i, torch.zeros_like(G)) + G
        X = M / max(1.0, float(M.norm()))
        for _ in range(q):
            U = torch.eye(len(X), dtype=X.dtype) - X @ X.T
            X = sum(central(s) * torch.linalg.matrix_power(U, s) for s in range(kappa + 1)) @ X
        weights[i] = weights[i] - lr * X.reshape(weights[i].shape)


def algorithm_2(weights: Weights, grads: Weights, state: State, *, lr: float, momentum: float) -> None:
    """Take a step of Muon with SVD (Kim & Oh 2026, Algorithm 2, lines 4-6)."""
    for i, G in enumerate(map(flat, grads)):
        M = state[i] = momentum * state.get(i, torch.zeros_like(G)) + G
        weights[i] = weights[i] - lr * polar(M).reshape(weights[i].shape)


def algorithm_3(weights: Weights, grads: Weights, state: State, *, lr: float, momentum: float) -> None:
    """Take a step of SGD with momentum (Kim & Oh 2026, Algorithm 3, lines 4-5)."""
    for i, G in enumerate(grads):
        M = state[i] = momentum * state.get(i, torch.zeros_like(G)) + G
        weights[i] = weights[i] - lr * M


def experiments(
    weights: Weights,
    grads: Weights,
    state: State,
    *,
    lr: float,
    momentum: float,
    q: int = 3,
    kappa: int = 2,
    svd: bool = False,
) -> None:
    """Take a step as the paper's experiments do (Kim & Oh 2026, appendix on the ablations of q)."""
    for i, G in enumerate(map(flat, grads)):
        M = state[i] = momentum * state.get(i, torch.zeros_like(G)) + G
        O = polar(unit(M)) if svd else newton_schulz(M, TAYLOR[kappa], q)
        weights[i] = rescaled(weights[i]) - lr * O.reshape(weights[i].shape)


def airbench(
    weights: Weights,
    grads: Weights,
    state: State,
    *,
    lr: float = 0.24,
    momentum: float = 0.6,
    nesterov: bool = True,
    ns_steps: int = 3,
) -> None:
    """Take a step of cifar10-airbench's Muon."""
    for i, g in enumerate(map(flat, grads)):
        M = state[i] = momentum * state.get(i, torch.zeros_like(g)) + g
        O = newton_schulz(g + momentum * M if nesterov else M, JORDAN, ns_steps)
        weights[i] = rescaled(weights[i]) - lr * O.reshape(weights[i].shape)


def keller_jordan(
    weights: Weights,
    grads: Weights,
    state: State,
    *,
    lr: float = 0.02,
    weight_decay: float = 0.0,
    momentum: float = 0.95,
    nesterov: bool = True,
) -> None:
    """Take a step of KellerJordan/Muon, with the scale of the matrix that is orthogonalized (theirs: of the kernel)."""
    for i, g in enumerate(map(flat, grads)):
        M = state.get(i, torch.zeros_like(g))
        M = state[i] = M + (1 - momentum) * (g - M)
        O = newton_schulz((1 - momentum) * g + momentum * M if nesterov else M, JORDAN, 5)
        rows, cols = g.shape
        O = math.sqrt(max(1, rows / cols)) * O
        weights[i] = (1 - lr * weight_decay) * weights[i] - lr * O.reshape(weights[i].shape)


def torch_muon(
    weights: Weights,
    grads: Weights,
    state: State,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = JORDAN,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
) -> None:
    """Take a step of torch.optim.Muon, in the dtype of the weights where torch forces bfloat16."""
    for i, g in enumerate(map(flat, grads)):
        M = state.get(i, torch.zeros_like(g))
        M = state[i] = M + (1 - momentum) * (g - M)
        O = newton_schulz((1 - momentum) * g + momentum * M if nesterov else M, ns_coefficients, ns_steps)
        rows, cols = g.shape
        ratio = {
            "match_rms_adamw": 0.2 * math.sqrt(max(rows, cols)),
            "spectral_unclamped": math.sqrt(rows / cols),
        }.get(adjust_lr_fn or "", math.sqrt(max(1, rows / cols)))
        weights[i] = (1 - lr * weight_decay) * weights[i] - lr * ratio * O.reshape(weights[i].shape)


def moonlight(
    weights: Weights,
    grads: Weights,
    state: State,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
) -> None:
    """Take a step of Moonlight's Muon."""
    for i, g in enumerate(map(flat, grads)):
        M = state[i] = momentum * state.get(i, torch.zeros_like(g)) + g
        O = newton_schulz(g + momentum * M if nesterov else M, JORDAN, ns_steps)
        rows, cols = g.shape
        O = 0.2 * math.sqrt(max(rows, cols)) * O
        weights[i] = (1 - lr * weight_decay) * weights[i] - lr * O.reshape(weights[i].shape)


def muon_step(
    weights: Weights,
    grads: Weights,
    state: State,
    *,
    orthogonalize: Callable[[Tensor], Tensor],
    lr: float,
    momentum: float,
    momentum_form: str,
    nesterov: bool = False,
    scale: Callable[[torch.Size], float] = no_scale,
    renormalize: str | None = None,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    """Take a step of Muon with every option named: rescale, decay, update, rescale."""
    for i, gradient in enumerate(map(flat, grads)):
        g = -gradient if maximize else gradient
        M = state.get(i, torch.zeros_like(g))
        share = {"heavy_ball": 1.0, "ema": 1 - momentum}[momentum_form]
        M = state[i] = momentum * M + share * g
        O = orthogonalize(share * g + momentum * M if nesterov else M).reshape(weights[i].shape)
        W = rescaled(weights[i]) if renormalize == "before" else weights[i]
        W = (1 - lr * weight_decay) * W
        W = W - lr * scale(W.shape) * O
        weights[i] = rescaled(W) if renormalize == "after" else W
