"""The gap of a schedule, for bounds of nuclear norms without singular values (docs/theory/svd-free-brackets.md)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from muonlab.polynomials import Schedule
from muonlab.theory.floor import prepared_steps
from muonlab.theory.residual import require_schedule, schedule_error

_TIGHTNESS = 1e-3


@lru_cache(maxsize=256)
def bracket_gap(schedule: Schedule) -> float:
    """Return ``g = max over [0, 1] of s (1 - F(s))``, guaranteed and at most 0.1 % (or 1e-9) above it.

    For ``X`` in the unit ball of rank at most r, ``‖X‖_* ≤ ⟨X, F(X)⟩ + r g``: what a schedule leaves of a singular
    value is weighed by the value itself, so that small ones hardly count.

    Example:
        >>> from muonlab.polynomials import Schedule, preset, taylor
        >>> F = preset("polar_express").schedule(5) + Schedule.repeat(taylor(2), 2)
        >>> f"{bracket_gap(F):.1e}"
        '7.5e-05'
    """
    require_schedule(schedule)
    if math.isinf(schedule_error(schedule, 0.0).s_max):  # it diverges: there is no number to bound
        return math.inf
    steps = prepared_steps(schedule)
    edges = np.concatenate([np.zeros(1), np.geomspace(1e-9, 1.0, 4096)])
    bound = -steps.minimum(lambda s, F: -np.maximum(s * (1 - F), 0.0), edges, relative=_TIGHTNESS, absolute=1e-9)
    return bound + steps.error + 1e-15
