"""The search behind a plan: candidates in order of their least cost; expensive checks only where they decide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import torch

from muonlab import _checks
from muonlab.diagnostics.planning.calibration import PRESCALES, Calibration, Segments
from muonlab.diagnostics.planning.candidates import ScaledSpectra, judge_candidates, scale_spectra, spike_bound
from muonlab.orthogonalize import as_schedule
from muonlab.orthogonalize.prescale import SCHATTEN, Prescale
from muonlab.orthogonalize.rounding import allowed_error
from muonlab.orthogonalize.segments import HALF_ACCURACY, Accuracy, Method, segment_flops
from muonlab.orthogonalize.segments import plan_segments as segments_of
from muonlab.polynomials import Schedule
from muonlab.polynomials.base import Array
from muonlab.theory import alignment_floor, schedule_error

Basis = Literal["typical", "floor"]
BASES: tuple[Basis, ...] = ("typical", "floor")
DEFAULT_ALIGNMENT = 0.95

DISTINCT = 1.03
"""Ratio of two times below which the frontier keeps only the better aligned row: predictions are not finer."""

SATURATED = 1 - 1e-6
"""Alignments above it count as equal in a frontier: they differ by the rounding of float32."""

_POWERS: dict[Prescale, float] = {"frobenius": 2, "schatten4": 4, "schatten8": 8, "spectral": math.inf}
_WAYS: tuple[tuple[Method, Accuracy], ...] = (("standard", "full"), ("gram", "full"), ("gram", "half"))
_GRID = 512
_REFUSED = 2.01
"""A little above the largest value that is not refused."""

_FLOORS_TRIED, _BOUNDS_TRIED = 12, 200


class PlanTarget(NamedTuple):
    """What a candidate has to reach: ``value`` or more as an alignment, ``value`` or less as an error."""

    kind: Literal["alignment", "epsilon"]
    value: float
    basis: Basis
    ell: float | None = None


def checked_target(alignment: float | None, epsilon: float | None, basis: Basis, ell: float | None) -> PlanTarget:
    """Return the target that was given, or the default."""
    _checks.one_of("basis", basis, BASES)
    if alignment is not None and epsilon is not None:
        given = f"target_alignment = {alignment!r} and target_epsilon = {epsilon!r}"
        raise ValueError(f"plan takes one target, got {given}: leave one out")
    guaranteed_error = epsilon is not None and basis == "floor"
    if guaranteed_error and ell is None:
        raise ValueError(
            "target_epsilon with basis='floor' is guaranteed on [ell, 1] and needs ell, got ell = None: "
            "pass the smallest singular value over the Frobenius norm, for example ell=1e-3"
        )
    if ell is not None and not guaranteed_error:
        raise ValueError(f"ell is used for target_epsilon with basis='floor' only, got ell = {ell!r}: leave it out")
    if epsilon is not None:
        ell = None if ell is None else _checks.real("ell", ell, low=0.0, high=1.0, low_open=True)
        return PlanTarget("epsilon", _checks.positive("target_epsilon", epsilon), basis, ell)
    wanted = DEFAULT_ALIGNMENT if alignment is None else alignment
    return PlanTarget(
        "alignment", _checks.real("target_alignment", wanted, low=0.0, high=1.0, low_open=True, high_open=True), basis
    )


class PlanOption(NamedTuple):
    """A schedule with everything that determines its time, and its values on the spectra, rounding included."""

    seconds: float
    schedule: Schedule
    prescale: Prescale
    method: Method
    accuracy: Accuracy
    alignment: float
    epsilon: float
    segments: Segments
    slack: float
    """Error in the operator norm allowed for rounding: it lowers ρ, and raises s, by as much at most."""


class _Candidate(NamedTuple):
    """A schedule and a prescale before the grouping of their steps; ``least`` is the time of the best grouping."""

    least: float
    schedule: Schedule
    prescale: Prescale
    alignment: float
    gain: float
    epsilon: float


@lru_cache(maxsize=8192)
def _admissible(schedule: Schedule, dtype: torch.dtype) -> bool:
    """Return whether :func:`muonlab.newton_schulz` accepts the schedule: it does not diverge within rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        F = schedule(np.linspace(0.0, 1 + torch.finfo(dtype).eps, _GRID))
    if not np.max(np.abs(F)) <= _REFUSED:
        return False  # faster than by exact ranges
    try:
        as_schedule(schedule, dtype=dtype)
    except ValueError:
        return False
    return True


class PlanSearch:
    """All candidates for one calibration, judged on the spectra.

    Args:
        calibration: seconds, and the shape.
        spectra: singular values of each spectrum to judge on.
        target: the alignment or the error to reach.
        accuracies: which accuracies to try.
        dtype: dtype of the products.
    """

    def __init__(
        self,
        calibration: Calibration,
        spectra: list[Array],
        target: PlanTarget,
        accuracies: Sequence[Accuracy],
        dtype: torch.dtype,
    ) -> None:
        self._calibration, self._target, self._dtype = calibration, target, dtype
        self._m, self._n = sorted(calibration.shape)
        self._rounding = torch.finfo(dtype).eps
        self._ways = [way for way in _WAYS if way[1] in accuracies or way[0] == "standard"]
        start = scale_spectra(spectra, tuple(_POWERS[prescale] for prescale in PRESCALES))
        if target.ell is not None:
            start = _with_interval(start, target.ell)
        self._candidates = sorted(self._judge(start, len(spectra)), key=lambda candidate: candidate.least)

    def _judge(self, start: ScaledSpectra, spectra: int) -> Iterator[_Candidate]:
        parts = self._calibration.parts
        further = min(parts["step"], parts["joined_step"])
        for schedule, alignment, gain, epsilon in judge_candidates(start):
            degrees = sum(parts.get(f"degree_{p.kappa}", 0.0) for p in schedule)
            for i, prescale in enumerate(PRESCALES if schedule.steps else PRESCALES[:1]):
                rows = slice(i * spectra, (i + 1) * spectra)
                least = parts[prescale] + (schedule.steps - 1) * further + degrees - max(0.0, parts["degree_1"])
                worst = int(np.argmin(alignment[rows])) + rows.start
                error = epsilon[-1] if self._target.ell is not None else epsilon[rows].max()
                least = least if schedule.steps else parts["nothing"]
                yield _Candidate(least, schedule, prescale, float(alignment[worst]), float(gain[worst]), float(error))

    def cheapest(self) -> PlanOption | None:
        """Return the cheapest option that reaches the target, the better aligned of equal ones; None if none does."""
        best: PlanOption | None = None
        for candidate in self._candidates:
            if best is not None and candidate.least > best.seconds:
                break
            if not self._near(candidate.alignment, candidate.epsilon) or not self._possible(candidate):
                continue
            for option in self._options(candidate):
                better = best is None or (option.seconds, -option.alignment) < (best.seconds, -best.alignment)
                if better and self._near(option.alignment, option.epsilon) and self._reaches(option):
                    best = option
        return best

    def _near(self, alignment: float, epsilon: float) -> bool:
        """Return whether the values on the spectra reach the target; a guaranteed value is never better."""
        value = self._target.value
        return alignment >= value if self._target.kind == "alignment" else epsilon <= value

    def _possible(self, candidate: _Candidate) -> bool:
        """Return whether the floor can reach the target, by adversarial matrices; cheaper than the floor itself."""
        if self._target.basis == "typical" or self._target.kind == "epsilon":
            return True
        return spike_bound(candidate.schedule, self._m, _POWERS[candidate.prescale]) >= self._target.value

    def _reaches(self, option: PlanOption) -> bool:
        if not _admissible(option.schedule, self._dtype):
            return False
        if self._target.kind == "epsilon":
            return self.epsilon(option) <= self._target.value
        return self._target.basis == "typical" or self.floor(option) >= self._target.value

    def best(self) -> PlanOption:
        """Return the option nearest to the target at any cost, the cheaper of equal ones."""
        by_alignment = self._target.kind == "alignment"
        ranked = sorted(
            self._candidates, key=lambda candidate: -candidate.alignment if by_alignment else candidate.epsilon
        )
        allowed = (candidate for candidate in ranked if _admissible(candidate.schedule, self._dtype))
        if not by_alignment:
            near = [self._fastest(candidate) for candidate in islice(allowed, _BOUNDS_TRIED)]
            return min(near, key=lambda option: (self.epsilon(option), option.seconds))
        if self._target.basis == "typical":
            return self._fastest(next(allowed))

        def rounding_less_bound(candidate: _Candidate) -> float:
            rounding = allowed_error(candidate.schedule, self._dtype, prescale=candidate.prescale, size=self._n)
            return 2 * rounding - spike_bound(candidate.schedule, self._m, _POWERS[candidate.prescale])

        promising = sorted(islice(allowed, _BOUNDS_TRIED), key=rounding_less_bound)[:_FLOORS_TRIED]
        tried = [self._fastest(candidate) for candidate in promising]
        return max(tried, key=lambda option: (self.floor(option), -option.seconds))

    def _fastest(self, candidate: _Candidate) -> PlanOption:
        return min(self._options(candidate), key=lambda option: (option.slack, option.seconds))

    def frontier(self, choice: PlanOption) -> list[PlanOption]:
        """Return the options that no other beats in time and alignment, fastest first; thinned, but with the choice."""
        front: list[PlanOption] = []
        for candidate in self._candidates:
            if _beaten(front, candidate.least, candidate.alignment):
                continue
            for option in self._options(candidate):
                if not _beaten(front, option.seconds, option.alignment) and _admissible(option.schedule, self._dtype):
                    front = [o for o in front if not _beaten([option], o.seconds, o.alignment)] + [option]
        kept: list[PlanOption] = []
        for option in sorted(front, key=lambda option: -option.seconds):
            if not kept or option == choice or option.seconds * DISTINCT < kept[-1].seconds:
                kept.append(option)
        return kept[::-1]

    def meeting(self, within: float) -> list[PlanOption]:
        """Return every option that reaches the target in at most ``within`` predicted seconds."""
        near = (c for c in self._candidates if c.least <= within and self._near(c.alignment, c.epsilon))
        options = (option for candidate in near if self._possible(candidate) for option in self._options(candidate))
        return [o for o in options if o.seconds <= within and self._near(o.alignment, o.epsilon) and self._reaches(o)]

    def _options(self, candidate: _Candidate) -> Iterator[PlanOption]:
        seen: set[Segments] = set()
        for method, accuracy in self._ways:
            segments = segments_of(candidate.schedule, self._m, self._n, self._dtype, method, accuracy)
            if segments in seen:
                continue  # the same products under another name
            seen.add(segments)
            slack = self._rounding + (HALF_ACCURACY if accuracy == "half" else 0.0)
            lowered = (candidate.alignment * candidate.gain - slack) / (candidate.gain + slack)
            seconds = self._calibration.predict(segments, candidate.prescale)
            yield PlanOption(
                seconds, candidate.schedule, candidate.prescale, method, accuracy, lowered, candidate.epsilon + slack,
                segments, slack,
            )  # fmt: skip

    def floor(self, option: PlanOption) -> float:
        """Return the alignment guaranteed for every matrix of the shape.

        With the operator norm ``Σ s_i⁸ ≥ 1``, up to rounding, so the floor of Schatten-8 holds there too.
        """
        floor = alignment_floor(option.schedule, self._m, schatten=SCHATTEN[option.prescale])
        share = self._allowed(option) / schedule_error(option.schedule, 0.0).s_max
        return max(0.0, (floor - share) / (1 + share))

    def epsilon(self, option: PlanOption) -> float:
        """Return the error on the spectra, or guaranteed on the target's interval; with the allowed rounding added."""
        if self._target.ell is None:
            return option.epsilon - option.slack + self._allowed(option)
        return schedule_error(option.schedule, self._target.ell).epsilon + self._allowed(option)

    def _allowed(self, option: PlanOption) -> float:
        return allowed_error(option.schedule, self._dtype, option.accuracy, option.prescale, self._n)

    def flops(self, option: PlanOption) -> float:
        """Return the operations of the steps, mirrored products counted as three quarters."""
        return segment_flops(option.segments, self._m, self._n)


def _with_interval(start: ScaledSpectra, ell: float) -> ScaledSpectra:
    """Add the interval [ell, 1], on a grid, as one more row."""
    width = max(start.values.shape[1], _GRID)
    values, weights = (np.pad(a, ((0, 1), (0, width - a.shape[1]))) for a in start)
    values[-1, :_GRID] = np.geomspace(ell, 1.0, _GRID)
    weights[-1, :_GRID] = 1.0
    return ScaledSpectra(values, weights)


def _beaten(front: Sequence[PlanOption], seconds: float, alignment: float) -> bool:
    """Return whether one of ``front`` is at least as fast and as well aligned."""
    alignment = min(alignment, SATURATED)
    return any(o.seconds <= seconds and min(o.alignment, SATURATED) >= alignment for o in front)
