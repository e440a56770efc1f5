"""The number of Newton-Schulz steps, chosen while training from the spectra of the momenta."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim.optimizer import Optimizer

from muonlab import _checks
from muonlab.diagnostics.across_ranks import gathered
from muonlab.diagnostics.singular_values import Spectrum, respond, spectrum
from muonlab.diagnostics.watch import Seen, Watch, checked_state, muon_of
from muonlab.optim.orthogonalizer import NewtonSchulz, from_plain
from muonlab.orthogonalize import as_schedule
from muonlab.polynomials import PRESETS, Schedule

Family = Callable[[int], Schedule]
_NOW = -1
"""Stands for the steps that a group takes now, which need not be among those to choose from."""
_log = logging.getLogger(__name__)


class Change(NamedTuple):
    """A group's number of steps before and after, the least alignment of its matrices with each; was the target met?"""

    step: int
    group: int
    before: int
    after: int
    alignment_before: float
    alignment_after: float
    reached: bool


def family_of(schedule: Schedule) -> Family:
    """Return the schedules of any length of which this one is an example: a repeated polynomial, or a preset.

    Example:
        >>> from muonlab.polynomials import preset
        >>> family_of(preset("polar_express").schedule(5))(3) == preset("polar_express").schedule(3)
        True
    """
    kinds = set(schedule.polynomials)
    if len(kinds) == 1:
        (p,) = kinds
        return lambda q: Schedule.repeat(p, q)
    for entry in PRESETS.values():
        for safety in (1, entry.safety):
            if kinds and entry.schedule(schedule.steps, safety=safety) == schedule:
                return lambda q, entry=entry, safety=safety: entry.schedule(q, safety=safety)  # type: ignore[misc]
    raise ValueError(
        f"the steps must be one polynomial repeated, or a registered preset, got {schedule}: pass family=, a function "
        f"from the number of steps to a Schedule"
    )


class AutoSteps:
    """Give each parameter group the fewest steps with which all its matrices reach an alignment.

    Used like a learning-rate scheduler: call :meth:`step` after each ``optimizer.step()``. Every ``every``-th step the
    singular values of the momenta are taken (the first step is one); what each number of steps would make of them
    follows exactly, and the smallest that meets the target is set in the group. ``split_params(model, by="shape")``
    makes a group for every shape, so that each gets its own number. Nothing is timed: a run can be repeated exactly.
    On several processes each must have one; they choose alike, by the least alignment on any of them.

    Args:
        optimizer: a Muon or MuonWithAux.
        target_alignment: what every matrix of a group has to reach, in (0, 1).
        every: distance of the steps at which spectra are taken.
        min_steps: fewest steps to choose.
        max_steps: most steps to choose; where even these miss the target, the number with the best alignment is taken.
        family: the schedule of each length; None takes it from the groups (see :func:`family_of`).

    Attributes:
        changes: every change made, in order; each is also logged.

    Example:
        >>> import torch
        >>> from muonlab import Muon, NewtonSchulz
        >>> from muonlab.polynomials import taylor
        >>> W = torch.nn.Parameter(torch.eye(3))
        >>> opt = Muon([W], orthogonalizer=NewtonSchulz(taylor(2), steps=5))
        >>> auto = AutoSteps(opt, target_alignment=0.9)
        >>> W.square().sum().backward(); opt.step(); auto.step()
        >>> auto.steps  # a multiple of the identity is aligned from the start
        [1]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        target_alignment: float = 0.95,
        every: int = 200,
        *,
        min_steps: int = 1,
        max_steps: int = 8,
        family: Family | None = None,
    ) -> None:
        self.target_alignment = _checks.real(
            "target_alignment", target_alignment, low=0.0, high=1.0, low_open=True, high_open=True
        )
        self.min_steps = _checks.integer("min_steps", min_steps, at_least=0)
        self.max_steps = _checks.integer("max_steps", max_steps, at_least=self.min_steps)
        self.changes: list[Change] = []
        self._family = family
        self._spectra: dict[int, list[Spectrum]] = {}
        self._planned: list[Change] = []
        adjustable = [how for how in map(_orthogonalizer, muon_of(optimizer).param_groups) if how is not None]
        if not adjustable:
            raise ValueError("AutoSteps needs a group with Newton-Schulz steps, got exact polar factors only")
        if family is None:
            for how in adjustable:
                family_of(how.schedule)
        self._watch = Watch(optimizer, every, self._see, self._after, gradients=False)

    @property
    def steps(self) -> list[int | None]:
        """The number of steps of each group; None for an exact polar factor."""
        found = map(_orthogonalizer, self._watch.muon.param_groups)
        return [how.schedule.steps if how is not None else None for how in found]

    def close(self) -> None:
        """Take the hooks off the optimizer; the groups keep their numbers."""
        self._watch.close()

    def step(self) -> None:
        """Set the numbers of steps that the last spectra ask for; call it after each ``optimizer.step()``."""
        planned, self._planned = self._planned, []
        for change in planned:
            self._set(change)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values; the numbers of steps that were set are in the optimizer's own state."""
        return {
            "step": self._watch.step,
            "changes": [tuple(change) for change in self.changes],
            "planned": [tuple(change) for change in self._planned],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another one stopped."""
        step = _checks.integer("step", checked_state(state, "step", "changes", "planned")["step"], at_least=0)
        self.changes, self._planned = ([Change(*change) for change in state[key]] for key in ("changes", "planned"))
        self._watch.step = step

    # ----------------------------------------------------------------------------------------------------- planning

    def _see(self, seen: Seen) -> None:
        g = next(i for i, group in enumerate(self._watch.muon.param_groups) if group is seen.group)
        of = spectrum(seen.M)
        if of.finite and of.rank:
            self._spectra.setdefault(g, []).append(of)

    def _after(self, step: int, missing: list[str]) -> None:  # noqa: ARG002
        found, self._spectra = self._spectra, {}
        worst: dict[int, dict[int, float]] = {}
        seen = (self._reached(g, spectra) for g, spectra in sorted(found.items()))
        for g, pairs in gathered(self._watch.muon, [(g, list(reached.items())) for g, reached in seen]):
            least = worst.setdefault(g, {})
            least.update((q, min(alignment, least.get(q, alignment))) for q, alignment in pairs)
        changes = [self._plan(g, reached) for g, reached in sorted(worst.items()) if reached]
        self._planned = [change for change in changes if change is not None]

    def _reached(self, g: int, found: list[Spectrum]) -> tuple[int, dict[int, float]]:
        """Return the least alignment that each number of steps gives the spectra of a group on this process."""
        how = _orthogonalizer(self._watch.muon.param_groups[g])
        if how is None:
            return g, {}
        schedules = {**self._choices(how), _NOW: how.schedule}
        return g, {q: worst_alignment(found, schedule, how) for q, schedule in schedules.items()}

    def _plan(self, g: int, reached: dict[int, float]) -> Change | None:
        """Return the change that the least alignments in a group ask for, if any."""
        how = _orthogonalizer(self._watch.muon.param_groups[g])
        assert how is not None
        now, before = how.schedule.steps, reached.pop(_NOW)
        enough = [q for q, alignment in reached.items() if alignment >= self.target_alignment]
        q = enough[0] if enough else max(reached, key=lambda q: (reached[q], -q))
        return None if q == now else Change(self._watch.step, g, now, q, before, reached[q], bool(enough))

    def _set(self, change: Change) -> None:
        group = self._watch.muon.param_groups[change.group]
        how = _orthogonalizer(group)
        if how is None:  # replaced by hand meanwhile
            return
        options: dict[str, Any] = {"prescale": how.prescale, "compute_dtype": how.compute_dtype}
        options |= {"method": how.method, "accuracy": how.accuracy}
        group["orthogonalizer"] = NewtonSchulz(self._choices(how)[change.after], **options).plain()
        self.changes.append(change)
        _log.info("step %d: group %d from %d to %d steps (alignment %.3f to %.3f)", *change[:6])

    def _choices(self, how: NewtonSchulz) -> dict[int, Schedule]:
        """Return the schedules to choose from, fewest steps first; those that would diverge are left out."""
        family = self._family or family_of(how.schedule)
        choices = {}
        for q in range(self.min_steps, self.max_steps + 1):
            try:
                choices[q] = as_schedule(family(q))
            except ValueError:
                continue
        return choices or {how.schedule.steps: how.schedule}


def worst_alignment(found: list[Spectrum], schedule: Schedule, how: NewtonSchulz) -> float:
    """Return the least alignment that a schedule gives these spectra."""
    return min(respond(of, schedule, how.prescale).alignment for of in found)


def _orthogonalizer(group: dict[str, Any]) -> NewtonSchulz | None:
    how = from_plain(group["orthogonalizer"])
    return how if isinstance(how, NewtonSchulz) else None
