"""The certificate of one matrix: measure, compare with exact arithmetic, decide."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.certificate import Certificate
from muonlab.diagnostics.certificates.verdicts import decide
from muonlab.diagnostics.singular_values import (
    Response,
    Spectrum,
    alignment_of,
    by_definition,
    factor_of,
    operator_norm,
    polar_distance,
    range_residual,
    respond,
    spectrum,
    taylor_degree,
)
from muonlab.optim import NewtonSchulz
from muonlab.optim.orthogonalizer import Orthogonalizer
from muonlab.orthogonalize import polar
from muonlab.orthogonalize.matrices import compute_dtype_for
from muonlab.orthogonalize.prescale import SCHATTEN, Prescale
from muonlab.orthogonalize.rounding import allowed_error, steepness
from muonlab.polynomials import Schedule
from muonlab.theory import Alignment, alignment_floor, chi, polar_error, residual_after, schedule_error


@torch.no_grad()
def certify_matrix(
    M: Tensor,
    orthogonalizer: Orthogonalizer,
    *,
    outcome: Tensor | None = None,
    name: str = "",
    not_covered: tuple[str, ...] = (),
) -> Certificate:
    """Certify one matrix under an orthogonalizer, on its own direction or on an outcome from elsewhere."""
    M = M.detach()
    if outcome is not None:
        _check_outcome(outcome, M)
    how = orthogonalizer if isinstance(orthogonalizer, NewtonSchulz) else None
    schedule = how.schedule if how else None
    prescale: Prescale = how.prescale if how else "frobenius"
    expected = None
    if outcome is None and schedule is not None and M.numel() and bool(torch.isfinite(M).all()):
        of, expected = by_definition(M, schedule, prescale)
    else:
        of = spectrum(M, rank_tol=getattr(orthogonalizer, "rank_tol", None))
    response = respond(of, schedule, prescale) if outcome is None else _measured(M, outcome, of, prescale)
    O = orthogonalizer(M) if outcome is None else outcome.detach()
    slack = slack_of(orthogonalizer, M if outcome is None else O, foreign=outcome is not None)
    measured = alignment_of(M, O, of) if of.finite else Alignment(math.nan, math.nan, math.nan)
    bounds = _bounds(of, schedule, response.alpha)
    certificate = Certificate(
        name=name,
        shape=of.shape,
        method=text.EXACT if schedule is None else text.method(schedule, prescale),
        rank=of.rank,
        effective_rank=of.effective_rank if of.finite else math.nan,
        nuclear=of.nuclear,
        operator=of.operator,
        frobenius=of.frobenius,
        scale=response.alpha,
        lambda_min=(float(of.support[-1]) / response.alpha) ** 2 if of.rank else math.nan,
        deltas=response.deltas,
        epsilon=response.epsilon,
        chi=response.chi,
        delta_bound=bounds.delta,
        epsilon_bound=bounds.epsilon,
        chi_bound=bounds.chi,
        descent=measured.descent,
        op_norm=measured.gain,
        alignment=measured.alignment,
        largest_gain=1.0 if schedule is None else schedule_error(schedule, 0.0).s_max,
        alignment_floor=floor_of(of, schedule, prescale),
        rounding=None if expected is None else operator_norm(O.double() - expected),
        rounding_allowed=None if expected is None else slack,
        verdicts=(),
        not_covered=not_covered,
        foreign=outcome is not None,
    )
    return dataclasses.replace(certificate, verdicts=decide(certificate, of, schedule, prescale, slack))


def _check_outcome(outcome: Tensor, M: Tensor) -> None:
    if not isinstance(outcome, Tensor) or not outcome.is_floating_point():
        given = outcome.dtype if isinstance(outcome, Tensor) else type(outcome).__name__
        raise TypeError(f"outcome must be a floating-point tensor, got {given}: use torch.as_tensor(outcome).float()")
    if outcome.shape != M.shape:
        shapes = f"{tuple(outcome.shape)} for {tuple(M.shape)}"
        raise ValueError(f"outcome must have the shape of M, got {shapes}: pass what was made of M")


def slack_of(how: Orthogonalizer, given: Tensor, *, foreign: bool = False) -> float:
    """Return the rounding that a direction may carry: of its dtype, and of the one it was computed in."""
    m, n = given.shape
    if not isinstance(how, NewtonSchulz):
        of_values = 1e-12 if given.dtype == torch.float64 else 1e-8 * min(m, n)  # Gram eigenvalues near zero
        of_svd = 4 * torch.finfo(compute_dtype_for(given, None)).eps * math.sqrt(max(m, n))
        return 16 * torch.finfo(given.dtype).eps + of_svd + of_values
    of_the_reference = _of_the_reference(how, min(m, n), max(m, n))
    if foreign:
        return allowed_error(how.schedule, given.dtype, prescale=how.prescale, size=max(m, n)) + of_the_reference
    coarser = max((given.dtype, how.dtype_for(given)), key=lambda dtype: torch.finfo(dtype).eps)
    return allowed_error(how.schedule, coarser, how.accuracy, how.prescale, max(m, n)) + of_the_reference


def _of_the_reference(how: NewtonSchulz, m: int, n: int) -> float:
    """Return how far the exact steps may be off themselves: they are float64, and count where the direction is too.

    An SVD is off by some roundoffs; :func:`spectral_bound` exceeds the operator norm, by which they divide, by
    ``(n + 8m)·eps·‖X‖_F²``.
    """
    margin = (n + 8 * m) * m if how.prescale == "spectral" else 0
    return torch.finfo(torch.float64).eps * max(8.0, steepness(how.schedule)) * (16 + math.sqrt(n) + margin)


def _measured(M: Tensor, O: Tensor, of: Spectrum, prescale: Prescale) -> Response:
    """Measure on an outcome from elsewhere what :func:`respond` computes; δ_0 is that of the prescale."""
    before = respond(of, Schedule(()), prescale)
    if not (of.finite and bool(torch.isfinite(O).all())):
        return before._replace(deltas=(before.delta, math.nan), epsilon=math.nan, chi=math.nan)
    P = polar(M.double(), rank_tol=of.tolerance)
    epsilon = polar_distance(O, P)
    deltas = (before.delta, range_residual(O, P))
    return before._replace(deltas=deltas, epsilon=epsilon, chi=factor_of(epsilon))


class _Bounds(NamedTuple):
    delta: float
    epsilon: float
    chi: float


def _bounds(of: Spectrum, schedule: Schedule | None, alpha: float) -> _Bounds:
    """Return the closed bounds on δ, ε and χ (Kim & Oh 2026, Theorem 2), infinite where it does not apply."""
    if of.finite and (schedule is None or not of.rank):
        return _Bounds(0.0, 0.0, 1.0)
    kappa = None if schedule is None else taylor_degree(schedule)
    if schedule is None or kappa is None or not of.finite or of.operator > alpha * (1 + 1e-6):
        return _Bounds(math.inf, math.inf, math.inf)
    least = min(1.0, float(of.support[-1]) / alpha)
    options: dict[str, Any] = {"kappa": kappa, "q": schedule.steps, "bound": True, "sigma_min": least}
    return _Bounds(residual_after(**options), polar_error(**options), chi(**options))


def floor_of(of: Spectrum, schedule: Schedule | None, prescale: Prescale) -> float | None:
    """Return the alignment of every matrix of this shape, where the prescale allows one."""
    if not of.finite or not of.values.size:
        return None
    if schedule is None:
        return 1.0
    unscaled = prescale == "none" or (prescale == "paper" and of.frobenius < 1)
    if unscaled and (of.frobenius < 1 or of.operator > 1):
        return None
    return alignment_floor(schedule, min(of.shape), schatten=SCHATTEN[prescale])
