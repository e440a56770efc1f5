"""Ranges of polynomials on intervals, enclosed rigorously in rational arithmetic.

On ``[a, b]`` a polynomial lies between its smallest and largest Bernstein coefficients, and the first and last of them
are its values at the ends. Halving the interval until the enclosure is tight gives the range with a proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from muonlab.polynomials.base import Polynomial, Schedule, horner

BITS = 240
"""Enclosures are rounded outward to multiples of 2^-BITS, so that denominators stay short."""

RUNAWAY = 10**30
"""Size from which a schedule is taken to diverge."""

_UNBOUNDED = Fraction(10**400)
_GAP_BITS = 70
_DEEPEST = 200


def _outward(x: Fraction, up: bool) -> Fraction:
    scaled = x * 2**BITS
    return Fraction(math.ceil(scaled) if up else math.floor(scaled), 2**BITS)


def bernstein(coefficients: Sequence[Fraction], a: Fraction, b: Fraction) -> list[Fraction]:
    """Return the Bernstein coefficients on ``[a, b]`` of a polynomial in ascending powers."""
    n = len(coefficients) - 1
    shifted = list(coefficients)  # powers of (x - a), by repeated synthetic division
    for i in range(n):
        for k in range(n - 1, i - 1, -1):
            shifted[k] += a * shifted[k + 1]
    width = b - a
    scaled = [c * width**k for k, c in enumerate(shifted)]
    return [
        sum((Fraction(math.comb(j, k), math.comb(n, k)) * scaled[k] for k in range(j + 1)), Fraction(0))
        for j in range(n + 1)
    ]


def _halves(b: list[int]) -> tuple[list[int], list[int]]:
    """Split at the middle (de Casteljau), both halves multiplied by 2^degree so that they stay whole numbers."""
    n = len(b) - 1
    left, right, row = [], [], b
    for i in range(n + 1):
        left.append(row[0] << (n - i))
        right.append(row[-1] << (n - i))
        row = [x + y for x, y in pairwise(row)]
    return left, right[::-1]


def _maximum(b: list[Fraction], centre: int) -> Fraction:
    """Bound the maximum from above, within 2^-70 of its distance from ``centre`` (so tiny errors keep their digits)."""
    scale = math.lcm(*(x.denominator for x in b))
    pieces = [[x.numerator * (scale // x.denominator) for x in b]]
    attained, overshoot = max(pieces[0][0], pieces[0][-1]), False
    for _ in range(_DEEPEST):
        slack = max(abs(attained - centre * scale) >> _GAP_BITS, scale >> 2 * _GAP_BITS)
        still_open = [piece for piece in pieces if max(piece) > attained + slack]
        overshoot |= any(attained < max(piece) <= attained + slack for piece in pieces)
        if not still_open:
            return Fraction(attained + slack * overshoot, scale)
        pieces = [half for piece in still_open for half in _halves(piece)]
        scale <<= len(b) - 1
        attained = max(attained << (len(b) - 1), *(max(piece[0], piece[-1]) for piece in pieces))
    return Fraction(max(attained + slack + 1, *(max(piece) for piece in pieces)), scale)


def range_on(coefficients: Sequence[Fraction], low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """Enclose the range of a polynomial (ascending powers) on ``[low, high]``: both ends are safe, and tight."""
    if low > high:
        raise ValueError(f"an interval needs low <= high, got [{float(low)}, {float(high)}]: swap the ends")
    if low == high:
        value = horner(tuple(coefficients), low)
        return value, value
    b = bernstein(coefficients, low, high)
    return -_maximum([-x for x in b], centre=-1), _maximum(b, centre=1)


@lru_cache(maxsize=4096)
def step_range(p: Polynomial, low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """Enclose the range of one step ``s·p(s²)`` on ``[low, high]``, rounded outward to multiples of 2^-BITS."""
    a, b = range_on(p.exact_step, low, high)
    return _outward(a, up=False), _outward(b, up=True)


def schedule_range(schedule: Schedule, low: Fraction, high: Fraction = Fraction(1)) -> tuple[Fraction, Fraction]:
    """Enclose ``F_q([low, high])`` by passing the interval through the steps one after the other.

    The image of an interval under a continuous map is an interval, and images compose, so nothing is lost on the way.
    A range beyond ``RUNAWAY`` ends at once with ends that no float holds: exact digits would double with every step.
    """
    for p in schedule.polynomials:
        low, high = step_range(p, low, high)
        if max(-low, high) > RUNAWAY:
            return -_UNBOUNDED, _UNBOUNDED
    return low, high
