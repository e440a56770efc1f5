"""Rows of a recording: the measurements of one matrix at one step, and of all matrices together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.matrix_certification import floors_of, rounding_allowance
from muonlab.diagnostics.matrix_spectra import Response, Spectrum, inner, operator_norm, respond, spectrum
from muonlab.diagnostics.recording.brackets import POLISH, descent_bracket, nuclear_bracket
from muonlab.diagnostics.recording.step_observer import OrthogonalizedMatrix
from muonlab.optim import NewtonSchulz
from muonlab.optim.orthogonalizer import from_plain
from muonlab.orthogonalize import newton_schulz
from muonlab.orthogonalize.prescale import Prescale
from muonlab.polynomials import Schedule
from muonlab.theory import network_alignment, schedule_error
from muonlab.theory.bracket import bracket_gap

RecordedRow = dict[str, Any]
Measure = Literal["spectrum", "exact", "bracket"]
MEASURES: tuple[Measure, ...] = ("spectrum", "exact", "bracket")

GRADIENT = "minibatch, as the optimizer got it (after clipping)"
WRONG_DIRECTION = "the direction is not the one that the group's orthogonalizer computes for the matrix"
SKIPPED = "the parameter was skipped: its gradient is not finite, or makes the momentum overflow"
_STEEP = 1e-3
"""Largest gap with which the optimizer's own direction, after two more steps, is used for a bracket."""


@torch.no_grad()
def matrix_row(seen: OrthogonalizedMatrix, *, measure: Measure, gradients: bool) -> RecordedRow:
    """Measure one matrix: residuals, polar error, descent, gain, alignment, norms.

    ``"spectrum"`` computes the singular values of M and from them the result of exact steps; descent and ``‖O‖_F`` are
    measured on O and compared with it, and ``‖O‖_op`` is measured only if they disagree. ``"exact"`` always measures
    it. ``"bracket"`` gives guaranteed bounds from matrix products alone, after comparing O with a second computation.
    """
    orthogonalizer = from_plain(seen.group["orthogonalizer"])
    steps = orthogonalizer if isinstance(orthogonalizer, NewtonSchulz) else None
    schedule = steps.schedule if steps else None
    prescale: Prescale = steps.prescale if steps else "frobenius"
    slack = rounding_allowance(orthogonalizer, seen.M)
    bracketed = measure == "bracket" and schedule is not None  # there is no bracket for an exact polar factor
    row: RecordedRow = {
        "name": seen.name,
        "shape": list(seen.M.shape),
        "method": text.EXACT if schedule is None else text.method(schedule, prescale),
        "q": None if schedule is None else schedule.steps,
        "measure": "spectrum" if measure == "bracket" and not bracketed else measure,
        "length": seen.length,
    }
    if schedule is not None and bracketed:
        row |= _bracketed(seen, schedule, prescale, slack)
    else:
        sigma = spectrum(seen.M, rank_tol=getattr(orthogonalizer, "rank_tol", None))
        row |= _measured(seen, sigma, schedule, prescale, slack, always=measure == "exact")
    if gradients and seen.gradient is not None:
        row |= _gradient(seen.gradient, bracketed=measure == "bracket")
    if seen.skipped:
        row |= {"status": "not_applicable", "reason": SKIPPED}
    return row


def _measured(
    seen: OrthogonalizedMatrix,
    sigma: Spectrum,
    schedule: Schedule | None,
    prescale: Prescale,
    slack: float,
    *,
    always: bool,
) -> RecordedRow:
    expected = respond(sigma, schedule, prescale)
    descent = float(inner(seen.M, seen.O)) / sigma.nuclear if sigma.nuclear else 0.0
    size = float(torch.linalg.vector_norm(seen.O.double()))
    as_expected = _agrees(descent, size, sigma, expected, slack, exact=schedule is None)
    gain = expected.gain if as_expected and not always else operator_norm(seen.O)
    floor = floors_of(sigma, from_plain(seen.group["orthogonalizer"])).alignment
    alignment = descent / gain if gain else 0.0
    status, reason = _status(sigma.finite and not math.isnan(alignment), as_expected, not sigma.rank)
    # an exact factor is below its floor by what its rank tolerance drops, which `expected` accounts for
    if status == "holds" and schedule is not None and floor is not None and alignment < floor - slack:
        status, reason = "violated", f"alignment {alignment:.4g} is below the floor {floor:.4g}"
    return {
        "rank": sigma.rank,
        "effective_rank": sigma.effective_rank if sigma.finite else math.nan,
        "delta_0": expected.deltas[0],
        "delta": expected.delta,
        "epsilon": expected.epsilon,
        "chi": expected.chi,
        "descent": descent,
        "op_norm": gain,
        "rounding": 0.0 if always or not as_expected else slack,
        "alignment": alignment,
        "alignment_floor": floor,
        "nuclear": sigma.nuclear,
        "status": status,
        "reason": reason,
    }


def _agrees(descent: float, size: float, sigma: Spectrum, expected: Response, slack: float, *, exact: bool) -> bool:
    """Return whether a direction has the descent and the Frobenius norm of exact steps, up to rounding."""
    if not sigma.finite or math.isnan(descent + size):
        return False
    near = abs(descent - expected.descent) <= slack
    # the exact polar factor depends on which tiny singular values count: its size may differ by one of them
    return near and (exact or abs(size - expected.frobenius) <= slack * math.sqrt(max(1, min(sigma.shape))))


def _status(finite: bool, as_expected: bool, zero: bool, held: str = "alignment theorem") -> tuple[str, str]:
    if not finite:
        return "not_applicable", "NaN or infinity in the matrix or its direction"
    if not as_expected:
        return "violated", WRONG_DIRECTION
    return ("not_applicable", "the matrix is zero") if zero else ("holds", held)


def _bracketed(seen: OrthogonalizedMatrix, schedule: Schedule, prescale: Prescale, slack: float) -> RecordedRow:
    """Bound instead of measuring: nuclear norm and gain from above, descent and alignment from below."""
    M = seen.M if seen.M.dtype == torch.float64 else seen.M.float()
    again = newton_schulz(M, schedule, prescale=prescale)  # to compare with, and without the rounding of O
    steep = prescale == "frobenius" and _steep(schedule)
    nuclear = nuclear_bracket(M, outcome=again, schedule=schedule) if steep else nuclear_bracket(M)
    descent = float(descent_bracket(seen.M, seen.O, nuclear).lower)
    off = float(torch.linalg.vector_norm(seen.O.double() - again.double()))
    wrong = off > 2 * slack * math.sqrt(max(1, min(seen.M.shape)))  # both may be off by the slack
    gain = schedule_error(schedule, 0.0).s_max + slack
    if wrong or prescale == "none":  # values may leave the unit ball: the Frobenius norm bounds them
        gain = float(torch.linalg.vector_norm(seen.O.double()))
    zero = float(nuclear.upper) == 0.0
    alignment = 0.0 if zero or gain == 0.0 else descent / gain
    held = "descent and alignment are lower bounds, norms are upper bounds"
    status, reason = _status(not math.isnan(off + alignment), not wrong, zero, held)
    return {
        "descent": 0.0 if zero else descent,
        "op_norm": 0.0 if zero and not wrong else gain,
        "rounding": 0.0,
        "alignment": alignment,
        "nuclear": float(nuclear.upper),
        "nuclear_lower": float(nuclear.lower),
        "status": status,
        "reason": reason,
    }


@lru_cache(maxsize=256)
def _steep(schedule: Schedule) -> bool:
    return bracket_gap(schedule + POLISH) <= _STEEP


def _gradient(gradient: Tensor, *, bracketed: bool) -> RecordedRow:
    if bracketed:
        low, high = nuclear_bracket(gradient)
        norms: RecordedRow = {"gradient_nuclear": float(high), "gradient_nuclear_lower": float(low)}
    else:
        norms = {"gradient_nuclear": spectrum(gradient).nuclear}
    return {**norms, "gradient": GRADIENT}


def whole_row(rows: Sequence[RecordedRow]) -> RecordedRow:
    """Combine the matrices of a step that move under the dual pair of the network (:class:`NetworkCertificate`)."""
    moving = [row for row in rows if row["length"] > 0]
    longest = max((row["length"] for row in moving), default=0.0)
    if not moving:
        return {"matrices": len(rows), "length": longest, "status": "not_applicable", "reason": "nothing moved"}
    shares = [(row["length"] / longest, row) for row in moving]
    finite = all(math.isfinite(row[name]) for row in moving for name in ("alignment", "nuclear", "op_norm"))
    descent = gain = alignment = math.nan
    if finite:
        descent, gain, alignment = network_alignment(
            [row["descent"] * row["nuclear"] for row in moving],
            [row["nuclear"] for row in moving],
            [row["op_norm"] for row in moving],
            [c for c, _ in shares],
        )
    statuses = {row["status"] for row in rows}
    gradients = [c * row["gradient_nuclear"] for c, row in shares if "gradient_nuclear" in row]
    return {
        "matrices": len(rows),
        "length": longest,
        "descent": descent,
        "op_norm": gain,
        "rounding": max(row["rounding"] for row in moving),
        "alignment": alignment,
        "nuclear": math.fsum(c * row["nuclear"] for c, row in shares) if finite else math.nan,
        "gradient_nuclear": math.fsum(gradients) if len(gradients) == len(moving) else None,
        "status": "violated" if "violated" in statuses else "holds" if alignment > 0 else "not_applicable",
        "reason": f"{sum(row['status'] == 'holds' for row in rows)} of {len(rows)} matrices hold",
    }
