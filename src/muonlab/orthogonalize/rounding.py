"""How far rounding may move an orthogonalized matrix from the exact result (docs/adr/0004 and 0009)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from muonlab.orthogonalize.prescale import GRAM_PRESCALES, Prescale
from muonlab.orthogonalize.segments import HALF_ACCURACY, Accuracy, slope_along
from muonlab.polynomials import Schedule

_CROWDED = 8.0
"""Gram space rounds a matrix with many singular values at 1 up to 5.2 times beyond the rule (results/rounding.json)."""


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
) -> float:
    """Return the error in the operator norm that ``newton_schulz`` keeps within: ``4u·max(8, sup|F'|)``.

    With ``size``, the longer side of a matrix, it also holds where rows are equal or proportional (a constant input),
    so that rounding adds up: ``√size/2`` times as much. Eight times as much for prescales that may bring many singular
    values to 1 at once; accuracy "half" adds what it lets Gram space lose. A rule with a margin, found by measurement
    (docs/adr/0004), not a proof about every matrix.
    """
    unit_roundoff = torch.finfo(dtype).eps / 2
    usual = 4 * unit_roundoff * max(8.0, steepness(schedule)) * max(1.0, math.sqrt(size) / 2)
    usual += HALF_ACCURACY if accuracy == "half" else 0.0
    return (_CROWDED if prescale in GRAM_PRESCALES else 1.0) * usual
