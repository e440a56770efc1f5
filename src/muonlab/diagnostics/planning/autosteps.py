"""``AutoSteps``: adapt the number of Newton-Schulz steps during training to the spectra of the momenta."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from muonlab import _checks
from muonlab.diagnostics.across_ranks import gather_from_ranks
from muonlab.diagnostics.certificates.matrix_certification import exact_floor, rounding_allowance
from muonlab.diagnostics.matrix_spectra import Spectrum, respond, spectrum
from muonlab.diagnostics.optimizer_matrices import matrix_slices, muon_of, parameters_of
from muonlab.diagnostics.recording.step_observer import OrthogonalizedMatrix, StepObserver, require_keys
from muonlab.optim.distributed.tensors import local_part
from muonlab.optim.orthogonalizer import NewtonSchulz, Orthogonalizer, Plain, from_plain, to_plain
from muonlab.orthogonalize import as_schedule
from muonlab.orthogonalize.matrices import compute_dtype_for
from muonlab.orthogonalize.prescale import SCHATTEN
from muonlab.polynomials import PRESETS, Schedule
from muonlab.theory import descent_floor, schedule_error

ScheduleFamily = Callable[[int], Schedule]
_CURRENT = -1
"""Key of the current schedule of a group, which may be outside of the range to choose from."""
_log = logging.getLogger(__name__)


class StepsChange(NamedTuple):
    """Steps of a group before and after, the least alignment of its matrices with each, and if the target is met."""

    step: int
    group: int
    before: int
    after: int
    alignment_before: float
    alignment_after: float
    reached: bool


class StepsGuarantee(NamedTuple):
    """What every step reaches, whatever number of steps is chosen: constants ρ and s of Theorem A.

    Without a guarantee ``descent`` is 0 and ``gain`` infinite.
    """

    descent: float
    gain: float
    reason: str


def family_of(schedule: Schedule) -> ScheduleFamily:
    """Return the function from a number of steps to a schedule of this kind: a repeated polynomial, or a preset.

    Example:
        >>> from muonlab.polynomials import preset
        >>> family_of(preset("polar_express").schedule(5))(3) == preset("polar_express").schedule(3)
        True
    """
    polynomials = set(schedule.polynomials)
    if len(polynomials) == 1:
        (p,) = polynomials
        return lambda q: Schedule.repeat(p, q)
    for preset in PRESETS.values():
        for safety in (1, preset.safety):
            if polynomials and preset.schedule(schedule.steps, safety=safety) == schedule:
                return lambda q, preset=preset, safety=safety: preset.schedule(q, safety=safety)  # type: ignore[misc]
    raise ValueError(
        f"the steps must be one polynomial repeated, or a registered preset, got {schedule}: pass family=, a function "
        f"from the number of steps to a Schedule"
    )


class AutoSteps:
    """Give each parameter group the fewest steps with which all its matrices reach an alignment.

    Used like a learning-rate scheduler: call :meth:`step` after each ``optimizer.step()``. At the first and every
    ``every``-th step the singular values of the momenta are computed; the alignment for each number of steps follows
    exactly, and the smallest number that meets the target is set in the group. ``split_params(model, by="shape")``
    makes a group for every shape, which then has its own number. Nothing is timed, so runs are reproducible. In
    distributed training every process needs an AutoSteps; all ranks choose the same, by the least alignment on any.

    Args:
        optimizer: a Muon or MuonWithAux.
        target_alignment: the alignment that every matrix of a group has to reach, in (0, 1).
        every: compute spectra at the first step and every so many after it.
        min_steps: fewest steps to choose.
        max_steps: most steps to choose; if none meets the target, the number with the best alignment is taken.
        family: function from a number of steps to a schedule; None takes that of the groups (``autosteps.family_of``).

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
        family: ScheduleFamily | None = None,
    ) -> None:
        self.target_alignment = _checks.real(
            "target_alignment", target_alignment, low=0.0, high=1.0, low_open=True, high_open=True
        )
        self.min_steps = _checks.integer("min_steps", min_steps, at_least=0)
        self.max_steps = _checks.integer("max_steps", max_steps, at_least=self.min_steps)
        self.changes: list[StepsChange] = []
        self._family = family
        self._spectra: dict[int, list[Spectrum]] = {}
        self._planned: list[StepsChange] = []
        self._used: dict[int, dict[Plain, None]] = {}  # group → what it has been orthogonalized by, in order
        adjustable = [steps for steps in map(_newton_schulz, muon_of(optimizer).param_groups) if steps is not None]
        if not adjustable:
            raise ValueError("AutoSteps needs a group with Newton-Schulz steps, got exact polar factors only")
        if family is None:
            for steps in adjustable:
                family_of(steps.schedule)
        self._observer = StepObserver(optimizer, every, self._on_matrix, self._on_end, gradients=False)

    @property
    def steps(self) -> list[int | None]:
        """The number of steps of each group; None for an exact polar factor."""
        orthogonalizers = map(_newton_schulz, self._observer.muon.param_groups)
        return [None if steps is None else steps.schedule.steps for steps in orthogonalizers]

    def guarantee(self) -> StepsGuarantee:
        """Return the least descent floor and the largest gain over all numbers of steps that were or may be used.

        They hold for every matrix and at every step that was followed by :meth:`step`, rounding included, so they may
        be the constants of :func:`muonlab.theory.trajectory_bound`. The target alignment may not: it is met at
        the observed steps, and nothing is guaranteed in between.
        """
        descents, gains, counts = [], [], set()
        for name, p, group in parameters_of(self._observer.muon):
            g = next(i for i, other in enumerate(self._observer.muon.param_groups) if other is group)
            shapes = {shape for _, shape in matrix_slices(name, p.shape, group)} if p.numel() else set()
            for orthogonalizer in self._orthogonalizers(g) if shapes else ():
                if isinstance(orthogonalizer, NewtonSchulz):
                    counts.add(orthogonalizer.schedule.steps)
                for shape in shapes:
                    like = local_part(p).new_empty(()).expand(shape)
                    descent, gain, why = _guaranteed(orthogonalizer, like)
                    if why:
                        return StepsGuarantee(0.0, math.inf, why)
                    descents.append(descent)
                    gains.append(gain)
        if not descents:
            return StepsGuarantee(0.0, math.inf, "the optimizer has no matrix")
        between = f"{min(counts)} to {max(counts)} steps" if counts else "exact polar factors"
        return StepsGuarantee(min(descents), max(gains), f"least floor and largest gain over {between}")

    def _orthogonalizers(self, g: int) -> set[Orthogonalizer]:
        """Return what a group has been or may be orthogonalized by: its present choices, and all that was used."""
        now = from_plain(self._observer.muon.param_groups[g]["orthogonalizer"])
        found = {now, *(from_plain(plain) for plain in self._used.get(g, ()))}
        if isinstance(now, NewtonSchulz):
            found |= {replace(now, polynomial=schedule) for schedule in self._choices(now).values()}
        return found

    def _note_used(self) -> None:
        """Remember the orthogonalizers of the last step."""
        for g, group in enumerate(self._observer.muon.param_groups):
            self._used.setdefault(g, {})[group["orthogonalizer"]] = None

    def close(self) -> None:
        """Remove the hooks from the optimizer; the groups keep their numbers of steps."""
        self._observer.close()

    def step(self) -> None:
        """Apply the changes planned from the last spectra; call it after each ``optimizer.step()``."""
        self._note_used()
        planned, self._planned = self._planned, []
        for change in planned:
            self._set(change)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values; the numbers of steps are in the optimizer's state."""
        return {
            "step": self._observer.step,
            "changes": [tuple(change) for change in self.changes],
            "planned": [tuple(change) for change in self._planned],
            "used": [list(used) for used in self._used.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state; the optimizer's state must be loaded as well."""
        require_keys(state, "step", "changes", "planned", "used")
        step = _checks.integer("step", state["step"], at_least=0)
        self.changes, self._planned = (
            [StepsChange(*change) for change in state[key]] for key in ("changes", "planned")
        )
        self._used = {g: {to_plain(plain): None for plain in used} for g, used in enumerate(state["used"])}
        self._observer.step = step

    # ----------------------------------------------------------------------------------------------------- planning

    def _on_matrix(self, seen: OrthogonalizedMatrix) -> None:
        g = next(i for i, group in enumerate(self._observer.muon.param_groups) if group is seen.group)
        sigma = spectrum(seen.M)
        if sigma.finite and sigma.rank:
            self._spectra.setdefault(g, []).append(sigma)

    def _on_end(self, step: int, missing: list[str]) -> None:  # noqa: ARG002
        spectra_by_group, self._spectra = self._spectra, {}
        on_rank = [(g, self._reached(g, spectra)) for g, spectra in sorted(spectra_by_group.items())]
        worst: dict[int, dict[int, float]] = {}
        for g, pairs in gather_from_ranks(self._observer.muon, [(g, list(reached.items())) for g, reached in on_rank]):
            least = worst.setdefault(g, {})
            least.update((q, min(alignment, least.get(q, alignment))) for q, alignment in pairs)
        changes = [self._plan(g, reached) for g, reached in sorted(worst.items()) if reached]
        self._planned = [change for change in changes if change is not None]

    def _reached(self, g: int, spectra: list[Spectrum]) -> dict[int, float]:
        """Return the least alignment on the spectra of a group on this process, by number of steps."""
        steps = _newton_schulz(self._observer.muon.param_groups[g])
        if steps is None:
            return {}
        schedules = {**self._choices(steps), _CURRENT: steps.schedule}
        return {
            q: min(respond(sigma, schedule, steps.prescale).alignment for sigma in spectra)
            for q, schedule in schedules.items()
        }

    def _plan(self, g: int, reached: dict[int, float]) -> StepsChange | None:
        """Return the change to the fewest steps that reach the target, if any."""
        steps = _newton_schulz(self._observer.muon.param_groups[g])
        assert steps is not None
        now, before = steps.schedule.steps, reached.pop(_CURRENT)
        enough = [q for q, alignment in reached.items() if alignment >= self.target_alignment]
        q = enough[0] if enough else max(reached, key=lambda q: (reached[q], -q))
        return None if q == now else StepsChange(self._observer.step, g, now, q, before, reached[q], bool(enough))

    def _set(self, change: StepsChange) -> None:
        group = self._observer.muon.param_groups[change.group]
        steps = _newton_schulz(group)
        if steps is None:  # the user has replaced it since
            return
        group["orthogonalizer"] = replace(steps, polynomial=self._choices(steps)[change.after]).plain()
        self.changes.append(change)
        _log.info("step %d: group %d from %d to %d steps (alignment %.3f to %.3f)", *change[:6])

    def _choices(self, steps: NewtonSchulz) -> dict[int, Schedule]:
        """Return the schedules to choose from, fewest steps first, without those that diverge."""
        family = self._family or family_of(steps.schedule)
        choices = {}
        for q in range(self.min_steps, self.max_steps + 1):
            try:
                choices[q] = as_schedule(family(q))
            except ValueError:
                continue
        return choices or {steps.schedule.steps: steps.schedule}


def _newton_schulz(group: dict[str, Any]) -> NewtonSchulz | None:
    """Return the orthogonalizer of a group; None for an exact polar factor."""
    orthogonalizer = from_plain(group["orthogonalizer"])
    return orthogonalizer if isinstance(orthogonalizer, NewtonSchulz) else None


def _guaranteed(orthogonalizer: Orthogonalizer, like: Tensor) -> tuple[float, float, str]:
    """Return descent and gain for every matrix of this shape, dtype and device, and why there are none ("" if so)."""
    rounding, r = rounding_allowance(orthogonalizer, like, any_matrix=True), min(like.shape)
    if isinstance(orthogonalizer, NewtonSchulz):
        schedule, prescale = orthogonalizer.schedule, orthogonalizer.prescale
        if prescale in ("none", "paper"):
            return 0.0, math.inf, f"prescale {prescale!r} leaves small matrices unchanged: their descent has no floor"
        descent, gain = descent_floor(schedule, r, schatten=SCHATTEN[prescale]), schedule_error(schedule, 0.0).s_max
    elif getattr(orthogonalizer, "rank_tol", None):
        return 0.0, math.inf, "a rank_tol drops small matrices as a whole: there is no floor for them"
    else:
        relative = max(like.shape) * torch.finfo(compute_dtype_for(like, None)).eps  # the rank tolerance of polar
        descent, gain = exact_floor(r, relative), 1.0
    if descent <= rounding:
        where = f"{tuple(like.shape)} in {str(like.dtype).removeprefix('torch.')}"
        return 0.0, math.inf, f"rounding of {where} may be as large as the floor {descent:.3g} of {orthogonalizer!r}"
    return descent - rounding, gain + rounding, ""
