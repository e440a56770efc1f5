"""Decide which statements hold for a certified matrix, are violated, or do not apply, and why.

An inequality that is checked on a computed direction is relaxed by the rounding that its precision allows.
"""

from __future__ import annotations

import numpy as np

from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.certificate import Certificate, Verdict
from muonlab.diagnostics.matrix_spectra import Spectrum, taylor_degree
from muonlab.polynomials import Schedule

_EXACT_DIGITS = 1e-12
"""Rounding of the float64 formulas themselves."""

_UNIT_BALL = 1 + 1e-6
"""Operator norms up to it count as 1."""


def decide(
    c: Certificate, sigma: Spectrum, schedule: Schedule | None, prescale: str, slack: float
) -> tuple[Verdict, ...]:
    """Decide every statement about a matrix.

    Args:
        c: the measured numbers.
        sigma: the spectrum of the matrix.
        schedule: the steps; None for the exact polar factor.
        prescale: the prescale of the steps.
        slack: allowed rounding of the direction in the operator norm.
    """
    if not sigma.finite or c.alignment != c.alignment:
        return (_not_applicable(text.ALIGNMENT_THEOREM, "NaN or infinity in the matrix or its direction"),)
    if not sigma.rank:
        return (_not_applicable(text.ALIGNMENT_THEOREM, "the matrix is zero: there is no direction"),)
    first = _alignment_theorem(c, slack)
    if schedule is None:
        above = sigma.values > 2 * sigma.tolerance  # above any rank tolerance
        kept = float(np.sum(sigma.values[above])) / sigma.nuclear
        held = c.alignment >= kept - slack
        reason = f"alignment {c.alignment:.6g} is {'that' if held else 'not that'} of a polar factor"
        return first, _holds_if(text.THEOREM_4, held, reason)
    return (first, _theorem_2(c, schedule, slack), _floor(c, sigma, prescale, slack), *_rounding(c))


def _not_applicable(statement: str, reason: str) -> Verdict:
    return Verdict(statement, "not_applicable", reason)


def _holds_if(statement: str, held: bool, reason: str) -> Verdict:
    return Verdict(statement, "holds" if held else "violated", reason)


def _alignment_theorem(c: Certificate, slack: float) -> Verdict:
    if c.alignment > 1 + slack:
        return _holds_if(text.ALIGNMENT_THEOREM, False, f"alignment {c.alignment:.6g} exceeds 1, against Hölder")
    if c.alignment <= 0:
        return _not_applicable(text.ALIGNMENT_THEOREM, f"alignment {c.alignment:.4g}: the direction need not descend")
    return _holds_if(text.ALIGNMENT_THEOREM, True, f"factor {c.factor:.4g} at alignment {c.alignment:.4g}")


def _theorem_2(c: Certificate, schedule: Schedule, slack: float) -> Verdict:
    if taylor_degree(schedule) is None:
        return _not_applicable(text.THEOREM_2, _not_taylor(schedule))
    largest = c.operator / c.scale
    if largest > _UNIT_BALL:
        return _not_applicable(text.THEOREM_2, f"the operator norm is {largest:.4g} after the prescale, above 1")
    allowance = slack if c.rounding is None else _EXACT_DIGITS  # exact steps have no rounding, an outcome has
    held = c.delta <= c.delta_bound + 2 * allowance and c.epsilon <= c.epsilon_bound + allowance
    relation = "is within" if held else "exceeds"
    return _holds_if(text.THEOREM_2, held, f"χ = {c.chi:.4g} {relation} the bound {c.chi_bound:.4g}")


def _not_taylor(schedule: Schedule) -> str:
    other = [p for p in schedule.polynomials if taylor_degree(Schedule((p,))) is None]
    if not other:
        return "it is stated for steps of one degree"
    at_one = other[0](1.0)
    return f"p(1) = {at_one:.4g}, not 1" if abs(at_one - 1) > 5e-5 else f"{other[0]} is not a Taylor polynomial"


def _floor(c: Certificate, sigma: Spectrum, prescale: str, slack: float) -> Verdict:
    if c.alignment_floor is None:
        norms = f"norm {sigma.frobenius:.3g} and operator norm {sigma.operator:.3g}"
        reason = f"prescale {prescale!r} leaves {norms} unchanged"
        return _not_applicable(text.FLOOR, reason)
    held = c.alignment >= c.alignment_floor - slack
    relation = "at least" if held else "below"
    reason = f"alignment {c.alignment:.4g} is {relation} {c.alignment_floor:.4g}, the least at rank {min(c.shape)}"
    return _holds_if(text.FLOOR, held, reason)


def _rounding(c: Certificate) -> tuple[Verdict, ...]:
    if c.rounding is None or c.rounding_allowed is None:
        return ()
    largest = c.operator / c.scale
    if largest > _UNIT_BALL:
        reason = f"the operator norm is {largest:.4g} after the prescale: rounding is known up to 1"
        return (_not_applicable(text.LEMMAS_9_AND_10, reason),)
    held = c.rounding <= c.rounding_allowed
    allowed = f"{'within' if held else 'beyond'} the {c.rounding_allowed:.2g} of its precision"
    return (_holds_if(text.LEMMAS_9_AND_10, held, f"the direction is {c.rounding:.2g} from exact steps, {allowed}"),)
