"""Guaranteed bounds of ``‖M‖_*``, and so of the descent, from matrix products alone (docs/theory/svd-free-brackets.md).

For devices on which eigenvalues are slow. The bounds hold in floating point too: each is widened by the rounding of the
products.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from muonlab.diagnostics.matrix_spectra import inner
from muonlab.orthogonalize import newton_schulz
from muonlab.orthogonalize.matrices import check_matrices
from muonlab.orthogonalize.prescale import to_unit_range
from muonlab.orthogonalize.rounding import allowed_error
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import schedule_error
from muonlab.theory.bracket import bracket_gap

_ROUNDING = 1e-6
"""Bound on the relative rounding of float32 norms and of products in float64."""

POLISH = Schedule.repeat(taylor(2), 2)
"""Two Taylor steps after a steep schedule close the gap to 7e-5 of a singular value."""

BRACKET_SCHEDULE = preset("polar_express").schedule(5, safety=preset("polar_express").safety) + POLISH


class Bracket(NamedTuple):
    """Lower and upper bounds in float64, one pair for each matrix of a batch; NaN for what is not finite."""

    lower: Tensor
    upper: Tensor


@torch.no_grad()
def nuclear_bracket(
    M: Tensor, *, outcome: Tensor | None = None, schedule: Schedule | None = None, error: float | None = None
) -> Bracket:
    """Bracket ``‖M‖_*`` by the product with a nearly orthogonal ``C = F_C(M/‖M‖_F)``.

    Without an outcome the relative error of both bounds is at most ``8e-5·r + 0.001·max(2, √n)`` for sides r ≤ n; the
    first term is reached by spectra of rank one, the second covers the largest possible rounding.

    Args:
        M: matrix or batch (…, m, n).
        outcome: ``F(M/‖M‖_F)`` where a schedule F has been applied already (an optimizer's direction): then two more
            steps are enough if F is steep (Jordan's, Polar Express).
        schedule: F; without an outcome, the schedule to use instead of Polar Express and two Taylor steps.
        error: distance of the outcome from exact steps in the operator norm; None for what full accuracy in its dtype
            allows.

    Example:
        >>> low, high = nuclear_bracket(torch.diag(torch.tensor([3.0, 4.0])))
        >>> 6.5 < low < 7 < high < 7.01
        tensor(True)
    """
    check_matrices(M)
    if outcome is None and error is not None:
        raise ValueError(f"error is that of an outcome, got error = {error} without one: pass outcome= too")
    if outcome is not None and outcome.shape != M.shape:
        shapes = f"{tuple(outcome.shape)} for {tuple(M.shape)}"
        raise ValueError(f"outcome must have the shape of M, got {shapes}: pass the direction computed from M")
    if not M.numel():
        zero = M.new_zeros(M.shape[:-2], dtype=torch.float64)
        return Bracket(zero, zero.clone())
    X, exponent = to_unit_range(M if M.dtype == torch.float64 else M.float())
    size = max(M.shape[-2:])
    if outcome is None:
        F = BRACKET_SCHEDULE if schedule is None else schedule
        C = newton_schulz(X, F)
        error = allowed_error(F, X.dtype, size=size, device=X.device)
    elif schedule is None:
        raise ValueError("an outcome needs its schedule, got None: pass the one that made it")
    else:
        F = schedule + POLISH
        C = newton_schulz(outcome.to(X.dtype), POLISH, prescale="none")
        where: dict[str, Any] = {"size": size, "device": X.device}
        inherited = allowed_error(schedule, outcome.dtype, **where) if error is None else error
        error = float(POLISH.slope) * inherited + allowed_error(POLISH, X.dtype, **where)
    product = inner(X, C)
    alpha = torch.linalg.vector_norm(X.double(), dim=(-2, -1))
    lower = product / (schedule_error(F, 0.0).s_max + error) * (1 - _ROUNDING)
    whole = product + alpha * min(M.shape[-2:]) * bracket_gap(F)
    # half precision magnified by a steep schedule can leave no finite bound
    upper = whole / (1 - error) * (1 + _ROUNDING) if error < 1 else torch.where(alpha == 0, alpha, alpha + math.inf)
    scale = torch.ldexp(torch.ones_like(upper), exponent[..., 0, 0])
    return Bracket(lower.clamp_min(0) * scale, upper * scale)


def descent_bracket(M: Tensor, O: Tensor, nuclear: Bracket) -> Bracket:
    """Bracket the descent ``ρ = ⟨M, O⟩/‖M‖_*`` of a direction that descends; 0 where M is zero."""
    product = inner(M, O)
    zero = nuclear.upper == 0
    return Bracket(*(torch.where(zero, 0.0, product / norm) for norm in (nuclear.upper, nuclear.lower)))
