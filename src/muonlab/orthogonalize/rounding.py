"""How far rounding may move an orthogonalized matrix from the exact result (docs/adr/0004, 0009 and 0024)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from muonlab.orthogonalize.arithmetic import product_roundoff
from muonlab.orthogonalize.prescale import GRAM_PRESCALES, Prescale, to_unit_range
from muonlab.orthogonalize.segments import HALF_ACCURACY, Accuracy, slope_along
from muonlab.polynomials import Schedule

_CROWDED = 8.0
"""Gram space rounds a matrix with many singular values at 1 up to 5.2 times beyond the rule (results/rounding.json)."""

MOST_CONCENTRATED = 2.0
"""Concentration of a matrix with a single entry that is not zero; under Frobenius, no matrix has a larger one."""


@lru_cache(maxsize=4096)
def steepness(schedule: Schedule) -> float:
    """Return ``sup |F'|`` on [0, 1]: how much a schedule magnifies an error of its input.

    For Taylor steps, whose F is concave, it is the slope at zero; steps that overshoot 1 are steeper near 1.
    """
    s = np.concatenate([np.zeros(1), np.geomspace(1e-7, 0.5, 8_001), 1 - np.geomspace(0.5, 1e-9, 8_001), np.ones(1)])
    return float(np.max(np.abs(slope_along(schedule.polynomials, s)[1])))


def allowed_error(
    schedule: Schedule,
    dtype: torch.dtype = torch.float32,
    accuracy: Accuracy = "full",
    prescale: Prescale = "frobenius",
    size: int = 1,
    *,
    device: torch.device | str = "cpu",
    concentration: float = MOST_CONCENTRATED,
) -> float:
    """Return the error in the operator norm that ``newton_schulz`` keeps within, where products have roundoff u.

    Rules with a margin, found by measurement (docs/adr/0004 and 0024), not a proof about every matrix:

    - float32 and float64: ``4u·max(8, sup|F'|)``. With ``size``, the longer side of a matrix, it also holds where rows
      are equal or proportional (a constant input), so that the rounding of sums adds up: ``√size/2`` times as much.
    - half precision and TF32, whose sums are those of float32: ``2u·max(16, c·sup|F'|)`` with the ``concentration`` c
      of the matrix, by default that of the worst. Twice as much where torch lets cuBLAS add up parts of long sums in
      half precision (``torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction``, on by default).

    Eight times as much for prescales that may bring many singular values to 1 at once; accuracy "half" adds what it
    lets Gram space lose.
    """
    u = product_roundoff(dtype, device)
    if sums_in_float32(dtype, device):
        parts = 2.0 if adds_parts_in_half(dtype, device) else 1.0
        usual = parts * 2 * u * max(16.0, concentration * steepness(schedule))
    else:
        usual = 4 * u * max(8.0, steepness(schedule)) * max(1.0, math.sqrt(size) / 2)
    usual += HALF_ACCURACY if accuracy == "half" else 0.0
    return (_CROWDED if prescale in GRAM_PRESCALES else 1.0) * usual


def adds_parts_in_half(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Return whether torch is set to let a CUDA device split a long sum and add up its parts in half precision."""
    if torch.device(device).type != "cuda":
        return False
    settings = torch.backends.cuda.matmul
    if dtype == torch.float16:
        return bool(settings.allow_fp16_reduced_precision_reduction)
    return dtype == torch.bfloat16 and bool(settings.allow_bf16_reduced_precision_reduction)


def sums_in_float32(dtype: torch.dtype, device: torch.device | str = "cpu") -> bool:
    """Return whether products read fewer digits than they sum: half precision, and float32 with TF32 on."""
    return product_roundoff(dtype, device) > 2.0**-24


def concentration_of(M: Tensor, prescale: Prescale = "frobenius") -> float:
    """Return the longest row plus the longest column of a matrix, after its prescale.

    It tells how far rounding can move a matrix in one direction: errors of its entries are nearly independent, so the
    norm of all of them is about that of the longest row and column, times the roundoff. It is ``1/√m + 1/√n`` where all
    entries are alike and 2 for a single entry; :data:`MOST_CONCENTRATED` for prescales that are read off the Gram
    matrix, for zero, and where an entry is not finite.
    """
    if prescale in GRAM_PRESCALES or not M.numel():
        return MOST_CONCENTRATED
    X, exponent = to_unit_range(M if M.dtype == torch.float64 else M.float())  # so that no square leaves its range
    rows, columns = (torch.linalg.vector_norm(X, dim=dim) for dim in (-1, -2))
    norm = float(torch.linalg.vector_norm(rows))
    if not 0 < norm < math.inf:
        return MOST_CONCENTRATED
    unit = math.ldexp(1.0, -int(exponent))  # an entry of 1, after the power of two
    scale = {"frobenius": norm, "paper": max(norm, unit), "none": unit}[prescale]
    return float(rows.max() + columns.max()) / scale
