"""The search behind a plan: candidates by their least cost, dear computations only where they decide."""

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
from muonlab.diagnostics.planning.candidates import Start, judged, spike_bound, start_of
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
"""Ratio of two times below which the frontier shows the better aligned of two rows alone: no prediction is finer."""

SATURATED = 1 - 1e-6
"""Alignment beyond which more counts for nothing in a frontier: the rounding of float32 is no smaller."""

_POWERS: dict[Prescale, float] = {"frobenius": 2, "schatten4": 4, "schatten8": 8, "spectral": math.inf}
_WAYS: tuple[tuple[Method, Accuracy], ...] = (("standard", "full"), ("gram", "full"), ("gram", "half"))
_GRID = 512
_REFUSED = 2.01
"""A little above the largest value that is not refused."""

_FLOORS_TRIED, _BOUNDS_TRIED = 12, 200


class Target(NamedTuple):
    """What a candidate has to reach: ``value`` or more as an alignment, ``value`` or less as an error."""

    kind: Literal["alignment", "epsilon"]
    value: float
    basis: Basis
    ell: float | None = None


def checked_target(alignment: float | None, epsilon: float | None, basis: Basis, ell: float | None) -> Target:
    """Return the one target that was given, or the default."""
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
        return Target("epsilon", _checks.positive("target_epsilon", epsilon), basis, ell)
    wanted = DEFAULT_ALIGNMENT if alignment is None else alignment
    return Target(
        "alignment", _checks.real("target_alignment", wanted, low=0.0, high=1.0, low_open=True, high_open=True), basis
    )


class Option(NamedTuple):
    """A schedule with all that decides its time, and its values on the spectra with the rounding allowed it."""

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


class _Entry(NamedTuple):
    """A schedule and a prescale before their grouping is known; ``least`` is the time of the best grouping there is."""

    least: float
    order: int
    schedule: Schedule
    prescale: Prescale
    alignment: float
    gain: float
    epsilon: float


@lru_cache(maxsize=8192)
def _admissible(schedule: Schedule, dtype: torch.dtype) -> bool:
    """Tell whether :func:`muonlab.newton_schulz` takes the schedule, or it diverges where rounding may lead."""
    with np.errstate(over="ignore", invalid="ignore"):
        F = schedule(np.linspace(0.0, 1 + torch.finfo(dtype).eps, _GRID))
    if not np.max(np.abs(F)) <= _REFUSED:
        return False  # sooner than by exact ranges
    try:
        as_schedule(schedule, dtype=dtype)
    except ValueError:
        return False
    return True


class Search:
    """All candidates for one calibration, judged on the spectra.

    Args:
        calibration: seconds, and the shape.
        spectra: singular values of each spectrum that is to be served.
        target: what has to be reached.
        accuracies: which to use.
        dtype: what is computed in.
    """

    def __init__(
        self,
        calibration: Calibration,
        spectra: list[Array],
        target: Target,
        accuracies: Sequence[Accuracy],
        dtype: torch.dtype,
    ) -> None:
        self._calibration, self._target, self._dtype = calibration, target, dtype
        self._m, self._n = sorted(calibration.shape)
        self._rounding = torch.finfo(dtype).eps
        self._ways = [way for way in _WAYS if way[1] in accuracies or way[0] == "standard"]
        start = start_of(spectra, tuple(_POWERS[prescale] for prescale in PRESCALES))
        if target.ell is not None:
            start = _with_interval(start, target.ell)
        self._entries = sorted(self._judge(start, len(spectra)), key=lambda entry: (entry.least, entry.order))

    def _judge(self, start: Start, spectra: int) -> Iterator[_Entry]:
        parts = self._calibration.parts
        further = min(parts["step"], parts["joined_step"])
        for order, (schedule, alignment, gain, epsilon) in enumerate(judged(start)):
            degrees = sum(parts.get(f"degree_{p.kappa}", 0.0) for p in schedule)
            for i, prescale in enumerate(PRESCALES if schedule.steps else PRESCALES[:1]):
                rows = slice(i * spectra, (i + 1) * spectra)
                least = parts[prescale] + (schedule.steps - 1) * further + degrees - max(0.0, parts["degree_1"])
                worst = int(np.argmin(alignment[rows])) + rows.start
                error = epsilon[-1] if self._target.ell is not None else epsilon[rows].max()
                least = least if schedule.steps else parts["nothing"]
                yield _Entry(
                    least, order, schedule, prescale, float(alignment[worst]), float(gain[worst]), float(error)
                )

    def cheapest(self) -> Option | None:
        """Return the cheapest candidate that reaches the target, of equals the better aligned; None without any."""
        best: Option | None = None
        for entry in self._entries:
            if best is not None and entry.least > best.seconds:
                break
            if not self._near(entry.alignment, entry.epsilon) or not self._possible(entry):
                continue
            for option in self._options(entry):
                better = best is None or (option.seconds, -option.alignment) < (best.seconds, -best.alignment)
                if better and self._near(option.alignment, option.epsilon) and self._reaches(option):
                    best = option
        return best

    def _near(self, alignment: float, epsilon: float) -> bool:
        """Tell whether values on spectra allow the target; a guarantee is never above them."""
        value = self._target.value
        return alignment >= value if self._target.kind == "alignment" else epsilon <= value

    def _possible(self, entry: _Entry) -> bool:
        """Tell whether matrices made to break it leave the floor that is wanted possible; cheaper than the floor."""
        if self._target.basis == "typical" or self._target.kind == "epsilon":
            return True
        return spike_bound(entry.schedule, self._m, _POWERS[entry.prescale]) >= self._target.value

    def _reaches(self, option: Option) -> bool:
        if self._target.kind == "epsilon":
            return _admissible(option.schedule, self._dtype) and self.epsilon(option) <= self._target.value
        if self._target.basis == "typical":
            return _admissible(option.schedule, self._dtype)
        return _admissible(option.schedule, self._dtype) and self.floor(option) >= self._target.value

    def best(self) -> Option:
        """Return the candidate that comes nearest to the target, whatever it costs; the cheaper of equals."""
        by_alignment = self._target.kind == "alignment"
        ranked = sorted(self._entries, key=lambda entry: -entry.alignment if by_alignment else entry.epsilon)
        allowed = (entry for entry in ranked if _admissible(entry.schedule, self._dtype))
        if not by_alignment:
            near = [self._fastest(entry) for entry in islice(allowed, _BOUNDS_TRIED)]
            return min(near, key=lambda option: (self.epsilon(option), option.seconds))
        if self._target.basis == "typical":
            return self._fastest(next(allowed))
        bounds = []
        for rank, entry in enumerate(islice(allowed, _BOUNDS_TRIED)):
            rounding = allowed_error(entry.schedule, self._dtype, prescale=entry.prescale, size=self._n)
            bounds.append((2 * rounding - spike_bound(entry.schedule, self._m, _POWERS[entry.prescale]), rank, entry))
        tried = [self._fastest(entry) for _, _, entry in sorted(bounds)[:_FLOORS_TRIED]]
        return max(tried, key=lambda option: (self.floor(option), -option.seconds))

    def _fastest(self, entry: _Entry) -> Option:
        return min(self._options(entry), key=lambda option: (option.slack, option.seconds))

    def frontier(self, choice: Option) -> list[Option]:
        """Return the options that no other beats in time and alignment, the fastest first; thinned, the choice kept."""
        front: list[Option] = []
        for entry in self._entries:
            if _beaten(front, entry.least, entry.alignment):
                continue
            for option in self._options(entry):
                if not _beaten(front, option.seconds, option.alignment) and _admissible(option.schedule, self._dtype):
                    front = [o for o in front if not _beaten([option], o.seconds, o.alignment)] + [option]
        kept: list[Option] = []
        for option in sorted(front, key=lambda option: -option.seconds):
            if not kept or option == choice or option.seconds * DISTINCT < kept[-1].seconds:
                kept.append(option)
        return kept[::-1]

    def meeting(self, within: float) -> list[Option]:
        """Return every option that reaches the target in at most ``within`` seconds, as predicted."""
        near = (e for e in self._entries if e.least <= within and self._near(e.alignment, e.epsilon))
        options = (option for entry in near if self._possible(entry) for option in self._options(entry))
        return [o for o in options if o.seconds <= within and self._near(o.alignment, o.epsilon) and self._reaches(o)]

    def _options(self, entry: _Entry) -> Iterator[Option]:
        seen: set[Segments] = set()
        for method, accuracy in self._ways:
            segments = segments_of(entry.schedule, self._m, self._n, self._dtype, method, accuracy)
            if segments in seen:
                continue  # the same products: a further name for it would only add its slack
            seen.add(segments)
            slack = self._rounding + (HALF_ACCURACY if accuracy == "half" else 0.0)
            lowered = (entry.alignment * entry.gain - slack) / (entry.gain + slack)
            yield Option(
                self._calibration.predict(segments, entry.prescale), entry.schedule, entry.prescale, method, accuracy,
                lowered, entry.epsilon + slack, segments, slack,
            )  # fmt: skip

    def floor(self, option: Option) -> float:
        """Return the alignment guaranteed for every matrix of the shape.

        With the operator norm ``Σ s_i⁸ ≥ 1``, up to rounding, so what holds for Schatten-8 holds there too.
        """
        floor = alignment_floor(option.schedule, self._m, schatten=SCHATTEN[option.prescale])
        share = self._allowed(option) / schedule_error(option.schedule, 0.0).s_max
        return max(0.0, (floor - share) / (1 + share))

    def epsilon(self, option: Option) -> float:
        """Return the error on the spectra, or guaranteed on the target's interval; with all rounding allowed for."""
        if self._target.ell is None:
            return option.epsilon - option.slack + self._allowed(option)
        return schedule_error(option.schedule, self._target.ell).epsilon + self._allowed(option)

    def _allowed(self, option: Option) -> float:
        return allowed_error(option.schedule, self._dtype, option.accuracy, option.prescale, self._n)

    def flops(self, option: Option) -> float:
        """Return the operations of the steps, mirrored products counted as three quarters."""
        return segment_flops(option.segments, self._m, self._n)


def _with_interval(start: Start, ell: float) -> Start:
    """Add the interval [ell, 1], on a grid, as one more row."""
    width = max(start.values.shape[1], _GRID)
    values, weights = (np.pad(a, ((0, 1), (0, width - a.shape[1]))) for a in start)
    values[-1, :_GRID] = np.geomspace(ell, 1.0, _GRID)
    weights[-1, :_GRID] = 1.0
    return Start(values, weights)


def _beaten(front: Sequence[Option], seconds: float, alignment: float) -> bool:
    """Tell whether one of ``front`` is at least as fast and as well aligned."""
    alignment = min(alignment, SATURATED)
    return any(o.seconds <= seconds and min(o.alignment, SATURATED) >= alignment for o in front)
