"""Rows of a recording: what is measured on one matrix at one step, and on all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.matrix import floor_of, slack_of
from muonlab.diagnostics.recording.brackets import POLISH, descent_bracket, nuclear_bracket
from muonlab.diagnostics.singular_values import Response, Spectrum, inner, operator_norm, respond, spectrum
from muonlab.diagnostics.watch import Seen
from muonlab.optim import NewtonSchulz
from muonlab.optim.orthogonalizer import from_plain
from muonlab.orthogonalize import newton_schulz
from muonlab.orthogonalize.prescale import Prescale
from muonlab.polynomials import Schedule
from muonlab.theory import network_alignment, schedule_error
from muonlab.theory.bracket import bracket_gap

Row = dict[str, Any]
Measure = Literal["spectrum", "exact", "bracket"]
MEASURES: tuple[Measure, ...] = ("spectrum", "exact", "bracket")

GRADIENT = "minibatch, as the optimizer got it (after clipping)"
WRONG_DIRECTION = "the direction is not what the group's orthogonalizer makes of the matrix"
SKIPPED = "the parameter was skipped: its gradient is not finite, or carries the momentum out of range"
_STEEP = 1e-3
"""Gap of a bracket up to which a direction of the optimizer's schedule, polished, is good enough to build it from."""


@torch.no_grad()
def matrix_row(seen: Seen, *, measure: Measure, gradients: bool) -> Row:
    """Measure one matrix: residuals, polar error, descent, gain, alignment, norms.

    ``"spectrum"`` computes the singular values of M and, by them, what exact steps give; descent and ``‖O‖_F`` are
    measured on O and compared with that, and only where they disagree is ``‖O‖_op`` measured too. ``"exact"`` always
    measures it. ``"bracket"`` gives guaranteed bounds from matrix products alone, once O is what a second computation
    gives.
    """
    how = from_plain(seen.group["orthogonalizer"])
    schedule = how.schedule if isinstance(how, NewtonSchulz) else None
    prescale: Prescale = how.prescale if isinstance(how, NewtonSchulz) else "frobenius"
    slack = slack_of(how, seen.M)
    bracketed = measure == "bracket" and schedule is not None  # an exact polar factor has no bracket of its own
    row: Row = {
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
        of = spectrum(seen.M, rank_tol=getattr(how, "rank_tol", None))
        row |= _measured(seen, of, schedule, prescale, slack, always=measure == "exact")
    if gradients and seen.gradient is not None:
        row |= _gradient(seen.gradient, bracketed=measure == "bracket")
    if seen.skipped:
        row |= {"status": "not_applicable", "reason": SKIPPED}
    return row


def _measured(
    seen: Seen, of: Spectrum, schedule: Schedule | None, prescale: Prescale, slack: float, *, always: bool
) -> Row:
    expected = respond(of, schedule, prescale)
    descent = float(inner(seen.M, seen.O)) / of.nuclear if of.nuclear else 0.0
    size = float(torch.linalg.vector_norm(seen.O.double()))
    as_expected = _agrees(descent, size, of, expected, slack, exact=schedule is None)
    gain = expected.gain if as_expected and not always else operator_norm(seen.O)
    floor = floor_of(of, schedule, prescale)
    alignment = descent / gain if gain else 0.0
    # an exact factor falls short of its floor by what its rank tolerance drops, which `expected` knows
    status, reason = _status(of, alignment, None if schedule is None else floor, slack, as_expected)
    return {
        "rank": of.rank,
        "effective_rank": of.effective_rank if of.finite else math.nan,
        "delta_0": expected.deltas[0],
        "delta": expected.delta,
        "epsilon": expected.epsilon,
        "chi": expected.chi,
        "descent": descent,
        "op_norm": gain,
        "rounding": 0.0 if always or not as_expected else slack,
        "alignment": alignment,
        "alignment_floor": floor,
        "nuclear": of.nuclear,
        "status": status,
        "reason": reason,
    }


def _agrees(descent: float, size: float, of: Spectrum, expected: Response, slack: float, *, exact: bool) -> bool:
    """Tell whether a direction has the descent and the Frobenius norm of exact steps, up to its rounding."""
    if not of.finite or math.isnan(descent + size):
        return False
    near = abs(descent - expected.descent) <= slack
    # the exact polar factor depends on which tiny singular values count: its size may differ by one of them
    return near and (exact or abs(size - expected.frobenius) <= slack * math.sqrt(max(1, min(of.shape))))


def _status(of: Spectrum, alignment: float, floor: float | None, slack: float, as_expected: bool) -> tuple[str, str]:
    if not of.finite or math.isnan(alignment):
        return "not_applicable", "NaN or infinity in the matrix or its direction"
    if not as_expected:
        return "violated", WRONG_DIRECTION
    if not of.rank:
        return "not_applicable", "the matrix is zero"
    if floor is not None and alignment < floor - slack:
        return "violated", f"alignment {alignment:.4g} is below the floor {floor:.4g}"
    return "holds", "alignment theorem"


def _bracketed(seen: Seen, schedule: Schedule, prescale: Prescale, slack: float) -> Row:
    """Bound instead of measuring: nuclear norm and gain from above, descent and alignment from below."""
    M = seen.M if seen.M.dtype == torch.float64 else seen.M.float()
    again = newton_schulz(M, schedule, prescale=prescale)  # to compare with, and free of the rounding of O
    steep = prescale == "frobenius" and _steep(schedule)
    nuclear = nuclear_bracket(M, outcome=again, schedule=schedule) if steep else nuclear_bracket(M)
    descent = float(descent_bracket(seen.M, seen.O, nuclear).lower)
    off = float(torch.linalg.vector_norm(seen.O.double() - again.double()))
    wrong = off > 2 * slack * math.sqrt(max(1, min(seen.M.shape)))  # both may be off by the slack
    gain = schedule_error(schedule, 0.0).s_max + slack
    if wrong or prescale == "none":  # nothing keeps the values in the unit ball: the Frobenius norm bounds them
        gain = float(torch.linalg.vector_norm(seen.O.double()))
    zero = float(nuclear.upper) == 0.0
    alignment = 0.0 if zero or gain == 0.0 else descent / gain
    if math.isnan(off + alignment):
        status, reason = "not_applicable", "NaN or infinity in the matrix or its direction"
    elif wrong:
        status, reason = "violated", WRONG_DIRECTION
    elif zero:
        status, reason = "not_applicable", "the matrix is zero"
    else:
        status, reason = "holds", "descent and alignment are lower bounds, norms are upper bounds"
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


def _gradient(gradient: Tensor, *, bracketed: bool) -> Row:
    if bracketed:
        low, high = nuclear_bracket(gradient)
        norms: Row = {"gradient_nuclear": float(high), "gradient_nuclear_lower": float(low)}
    else:
        norms = {"gradient_nuclear": spectrum(gradient).nuclear}
    return {**norms, "gradient": GRADIENT}


def whole_row(rows: Sequence[Row]) -> Row:
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
