"""``certify_matrix``: measure one matrix and its direction, compare with exact arithmetic, decide every statement."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.certificate import Certificate
from muonlab.diagnostics.certificates.verdicts import decide
from muonlab.diagnostics.matrix_spectra import (
    Response,
    Spectrum,
    alignment_of,
    by_definition,
    factor_of,
    operator_norm,
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
from muonlab.orthogonalize.rounding import allowed_error, concentration_of, steepness, sums_in_float32
from muonlab.polynomials import Schedule
from muonlab.theory import Alignment, alignment_floor, chi, polar_error, residual_after, schedule_error
from muonlab.theory.floor import has_taylor_steps, taylor_floor


@torch.no_grad()
def certify_matrix(
    M: Tensor,
    orthogonalizer: Orthogonalizer,
    *,
    outcome: Tensor | None = None,
    name: str = "",
    not_covered: tuple[str, ...] = (),
) -> Certificate:
    """Certify one matrix (m, n) under an orthogonalizer: on its own direction, or on an outcome of other code."""
    M = M.detach()
    if outcome is not None:
        _check_outcome(outcome, M)
    steps = orthogonalizer if isinstance(orthogonalizer, NewtonSchulz) else None
    schedule = steps.schedule if steps else None
    prescale: Prescale = steps.prescale if steps else "frobenius"
    expected = None
    if outcome is None and schedule is not None and M.numel() and bool(torch.isfinite(M).all()):
        sigma, expected = by_definition(M, schedule, prescale)
    else:
        sigma = spectrum(M, rank_tol=getattr(orthogonalizer, "rank_tol", None))
    response = respond(sigma, schedule, prescale) if outcome is None else _measured(M, outcome, sigma, prescale)
    O = orthogonalizer(M) if outcome is None else outcome.detach()
    slack = rounding_allowance(orthogonalizer, M if outcome is None else O, foreign=outcome is not None)
    measured = alignment_of(M, O, sigma) if sigma.finite else Alignment(math.nan, math.nan, math.nan)
    delta_bound, epsilon_bound, chi_bound = _bounds(sigma, schedule, response.alpha)
    floors = floors_of(sigma, orthogonalizer)
    certificate = Certificate(
        name=name,
        shape=sigma.shape,
        method=text.EXACT if schedule is None else text.method(schedule, prescale),
        rank=sigma.rank,
        effective_rank=sigma.effective_rank if sigma.finite else math.nan,
        nuclear=sigma.nuclear,
        operator=sigma.operator,
        frobenius=sigma.frobenius,
        scale=response.alpha,
        lambda_min=(float(sigma.support[-1]) / response.alpha) ** 2 if sigma.rank else math.nan,
        deltas=response.deltas,
        epsilon=response.epsilon,
        chi=response.chi,
        delta_bound=delta_bound,
        epsilon_bound=epsilon_bound,
        chi_bound=chi_bound,
        descent=measured.descent,
        op_norm=measured.gain,
        alignment=measured.alignment,
        largest_gain=1.0 if schedule is None else schedule_error(schedule, 0.0).s_max,
        alignment_floor=floors.alignment,
        descent_floor=floors.descent,
        rounding=None if expected is None else operator_norm(O.double() - expected),
        rounding_allowed=None if expected is None else slack,
        verdicts=(),
        not_covered=not_covered,
        foreign=outcome is not None,
    )
    return dataclasses.replace(certificate, verdicts=decide(certificate, sigma, schedule, prescale, slack))


def _check_outcome(outcome: Tensor, M: Tensor) -> None:
    if not isinstance(outcome, Tensor) or not outcome.is_floating_point():
        given = outcome.dtype if isinstance(outcome, Tensor) else type(outcome).__name__
        raise TypeError(f"outcome must be a floating-point tensor, got {given}: use torch.as_tensor(outcome).float()")
    if outcome.shape != M.shape:
        shapes = f"{tuple(outcome.shape)} for {tuple(M.shape)}"
        raise ValueError(f"outcome must have the shape of M, got {shapes}: pass the direction computed from M")


def rounding_allowance(
    orthogonalizer: Orthogonalizer, given: Tensor, *, foreign: bool = False, any_matrix: bool = False
) -> float:
    """Return how far rounding may move a direction in the operator norm.

    Args:
        orthogonalizer: the orthogonalizer that computes the direction.
        given: the matrix; for a foreign direction, that direction.
        foreign: whether other code computed the direction.
        any_matrix: whether to return what holds for every matrix of this shape, dtype and device; half precision is
            allowed less error on a matrix whose entries are alike.
    """
    m, n = given.shape
    if not isinstance(orthogonalizer, NewtonSchulz):
        eigenvalues = 1e-12 if given.dtype == torch.float64 else 1e-8 * min(m, n)  # of a Gram matrix, near zero
        svd = 4 * torch.finfo(compute_dtype_for(given, None)).eps * math.sqrt(max(m, n))
        return 16 * torch.finfo(given.dtype).eps + svd + eigenvalues
    schedule, prescale = orthogonalizer.schedule, orthogonalizer.prescale
    reference = _reference_error(orthogonalizer, min(m, n), max(m, n))
    if foreign:
        return allowed_error(schedule, given.dtype, prescale=prescale, size=max(m, n)) + reference
    computed = orthogonalizer.dtype_for(given)
    where: dict[str, Any] = {"device": given.device}
    if sums_in_float32(computed, given.device) and not any_matrix:
        where["concentration"] = concentration_of(given, prescale)
    error = allowed_error(schedule, computed, orthogonalizer.accuracy, prescale, max(m, n), **where) + reference
    stored = torch.finfo(given.dtype)
    if stored.eps > torch.finfo(computed).eps:  # the result is rounded: ‖ΔO‖_op ≤ ‖ΔO‖_F ≤ u ‖O‖_F + √(mn)·(tiniest)/2
        size = math.sqrt(min(m, n)) * (schedule_error(schedule, 0.0).s_max + error)
        error += stored.eps / 2 * (size + math.sqrt(m * n) * stored.smallest_normal)
    return error


def _reference_error(orthogonalizer: NewtonSchulz, m: int, n: int) -> float:
    """Return the error of the exact steps themselves, which are computed in float64; it matters for float64 input.

    An SVD is off by some roundoffs; :func:`spectral_bound` exceeds the operator norm, by which they divide, by
    ``(n + 8m)·eps·‖X‖_F²``.
    """
    margin = (n + 8 * m) * m if orthogonalizer.prescale == "spectral" else 0
    return torch.finfo(torch.float64).eps * max(8.0, steepness(orthogonalizer.schedule)) * (16 + math.sqrt(n) + margin)


def _measured(M: Tensor, O: Tensor, sigma: Spectrum, prescale: Prescale) -> Response:
    """Measure on an outcome of other code what :func:`respond` computes; δ_0 is that of the prescale."""
    before = respond(sigma, Schedule(()), prescale)
    if not (sigma.finite and bool(torch.isfinite(O).all())):
        return before._replace(deltas=(before.delta, math.nan), epsilon=math.nan, chi=math.nan)
    P = polar(M.double(), rank_tol=sigma.tolerance)
    epsilon = operator_norm(O.double() - P.double())
    deltas = (before.delta, range_residual(O, P))
    return before._replace(deltas=deltas, epsilon=epsilon, chi=factor_of(epsilon))


def _bounds(sigma: Spectrum, schedule: Schedule | None, alpha: float) -> tuple[float, float, float]:
    """Return the closed bounds on δ, ε and χ (Kim & Oh 2026, Theorem 2), infinite where it does not apply."""
    if sigma.finite and (schedule is None or not sigma.rank):
        return 0.0, 0.0, 1.0
    kappa = None if schedule is None else taylor_degree(schedule)
    if schedule is None or kappa is None or not sigma.finite or sigma.operator > alpha * (1 + 1e-6):
        return math.inf, math.inf, math.inf
    least = min(1.0, float(sigma.support[-1]) / alpha)
    options: dict[str, Any] = {"kappa": kappa, "q": schedule.steps, "bound": True, "sigma_min": least}
    return residual_after(**options), polar_error(**options), chi(**options)


class Floors(NamedTuple):
    """The alignment and the descent that every matrix of a shape reaches; None where none is guaranteed."""

    alignment: float | None
    descent: float | None


def floors_of(sigma: Spectrum, orthogonalizer: Orthogonalizer) -> Floors:
    """Return what every matrix of this shape reaches, in exact arithmetic.

    The alignment of an exact polar factor is 1 on the singular values above its rank tolerance; its descent counts the
    others too. A tolerance that was given does not shrink with the matrix, so it leaves no floor.
    """
    r = sigma.values.size
    if not sigma.finite or not r:
        return Floors(None, None)
    if not isinstance(orthogonalizer, NewtonSchulz):
        if getattr(orthogonalizer, "rank_tol", None):
            return Floors(None, None)
        relative = sigma.tolerance / sigma.operator if sigma.operator else 0.0
        return Floors(1.0, exact_floor(r, relative))
    schedule, prescale = orthogonalizer.schedule, orthogonalizer.prescale
    unscaled = prescale == "none" or (prescale == "paper" and sigma.frobenius < 1)
    if unscaled and sigma.operator > 1:
        return Floors(None, None)
    if unscaled and sigma.frobenius < 1:  # the direction of a small matrix is small: its descent has no floor
        return Floors(taylor_floor(r) if has_taylor_steps(schedule) else None, None)
    floor = alignment_floor(schedule, r, schatten=SCHATTEN[prescale])
    return Floors(floor, floor * schedule_error(schedule, 0.0).s_max)


def exact_floor(r: int, relative: float) -> float:
    """Return the least descent of a polar factor that drops singular values up to ``relative·σ_max``.

    At least one of r is kept, and the others add at most ``(r - 1)·relative·σ_max`` to the nuclear norm.
    """
    return 1 / (1 + (r - 1) * relative)
