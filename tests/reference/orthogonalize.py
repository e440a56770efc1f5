"""Independent oracles for the orthogonalizers: an SVD in float64, and the loop that everybody writes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from muonlab.orthogonalize.prescale import spectral_bound
from muonlab.polynomials import Schedule


def scale_of(sigma: Tensor, prescale: str, M: Tensor) -> float:
    """Return α of a prescale from the singular values alone (``spectral`` promises a bound, so its own is used)."""
    if prescale == "none" or float(sigma.max()) == 0.0:
        return 1.0
    if prescale == "spectral":
        power = 2.0 ** float(torch.frexp(M.double().abs().max()).exponent)
        return float(spectral_bound(M.double() / power)) * power
    p = {"frobenius": 2, "paper": 2, "schatten4": 4, "schatten8": 8}[prescale]
    top = sigma.max()
    norm = float(top * (sigma / top).pow(p).sum() ** (1 / p))
    return max(1.0, norm) if prescale == "paper" else norm


def schedule_on_singular_values(M: Tensor, schedule: Schedule, prescale: str = "frobenius") -> Tensor:
    """Return ``U F(Σ/α) Vᵀ`` in float64: what a schedule does to a matrix, by definition."""
    U, sigma, Vh = torch.linalg.svd(M.double(), full_matrices=False)
    if sigma.numel() == 0:
        return M.double()
    values = torch.from_numpy(schedule((sigma / scale_of(sigma, prescale, M)).numpy()))
    return (U * values) @ Vh


def plain_loop(M: Tensor, schedule: Schedule) -> Tensor:
    """Run the float32 addmm loop found in most Muon packages (κ = 2), on a wide matrix."""
    X = M / (M.norm() + 1e-7)
    for p in schedule.polynomials:
        a, b, c = p.coefficients
        A = X @ X.T
        B = torch.addmm(A, A, A, beta=b, alpha=c)
        X = torch.addmm(X, B, X, beta=a)
    return X


def lipschitz(schedule: Schedule) -> float:
    """Return ``sup |F'|`` on [0, 1]: how much a schedule magnifies an error of its input.

    For the Taylor polynomials, whose F is concave, it is the slope at zero. Steps that overshoot 1 (Polar Express) are
    far steeper at their upper end.
    """
    s = np.concatenate([np.geomspace(1e-7, 1, 40_001), np.linspace(0, 1, 40_001)])
    slope = np.ones_like(s)
    for p in schedule.polynomials:
        h = 1e-6
        slope *= (p.step(s + h) - p.step(s - h)) / (2 * h)
        s = p.step(s)
    return float(np.abs(slope).max())


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def tolerance(schedule: Schedule, dtype: torch.dtype = torch.float32) -> float:
    """Return the operator-norm error that an orthogonalizer may have (ADR 4)."""
    return 4 * unit_roundoff(dtype) * max(8.0, float(schedule.slope), lipschitz(schedule))


def operator_error(O: Tensor, expected: Tensor) -> float:
    """Return ``‖O - expected‖_op`` in float64."""
    if O.numel() == 0:
        return 0.0
    return float(torch.linalg.matrix_norm(O.double() - expected, 2))
