"""``plan``: choose the cheapest schedule, prescale and method on this machine that meet a target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from muonlab import _checks
from muonlab._columns import aligned
from muonlab.diagnostics.optimizer_matrices import matrix_slices, muon_of
from muonlab.diagnostics.planning.calibration import Calibration, calibrate, checked_shape
from muonlab.diagnostics.planning.candidates import checked_spectrum, typical_spectra
from muonlab.diagnostics.planning.search import Basis, PlanOption, PlanSearch, PlanTarget, checked_target
from muonlab.optim import NewtonSchulz, split_params
from muonlab.orthogonalize import ACCURACIES
from muonlab.orthogonalize.matrices import FLOATING
from muonlab.orthogonalize.prescale import Prescale
from muonlab.orthogonalize.segments import Accuracy, Method
from muonlab.polynomials import Schedule
from muonlab.polynomials.base import Array

Shape = tuple[int, int]


@dataclass(frozen=True)
class PlanRow:
    """One way to orthogonalize; the fields are explained in :class:`Plan`."""

    schedule: Schedule
    prescale: Prescale
    method: Method
    accuracy: Accuracy
    alignment: float
    floor: float
    epsilon: float
    seconds: float
    flops: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; the schedule by its name."""
        return {"schedule": str(self.schedule), "steps": self.schedule.steps} | {
            field.name: getattr(self, field.name) for field in fields(PlanRow)[1:]
        }


@dataclass(frozen=True)
class Plan(PlanRow):
    """The cheapest orthogonalization that meets a target, or the best one found if none does.

    Attributes:
        shape: rows and columns.
        status: ``"met"`` or ``"not_met"``.
        reason: the target and the value reached, as a sentence.
        schedule: the step polynomials.
        prescale: ``"frobenius"``, ``"schatten4"``, ``"schatten8"`` or ``"spectral"``.
        method: ``"standard"`` or ``"gram"``.
        accuracy: ``"full"``, or ``"half"``.
        alignment: the least over the spectra, minus one unit of rounding, and 2⁻⁸ for ``"half"``.
        floor: guaranteed for every matrix of rank up to min(m, n), with the allowed rounding subtracted; for
            ``"spectral"`` that of Schatten-8, which is lower.
        epsilon: largest ``|F - 1|`` over the spectra, or guaranteed on [ell, 1] if ``ell`` is given, with the allowed
            rounding added.
        seconds: predicted for one matrix from the calibration.
        flops: operations by ``segment_flops``, mirrored products as three quarters; scaling is not counted.
        frontier: rows from cheap to good, none both slower and worse aligned than another candidate; times that differ
            by less than 3 % are one row, the better aligned.
        dtype: dtype of the products.
    """

    shape: Shape
    status: Literal["met", "not_met"]
    reason: str
    frontier: tuple[PlanRow, ...]
    dtype: torch.dtype = torch.float32

    def orthogonalizer(self) -> NewtonSchulz:
        """Return the choice as a value for ``Muon(params, orthogonalizer=…)``."""
        return NewtonSchulz(
            self.schedule,
            prescale=self.prescale,
            compute_dtype=self.dtype,
            method=self.method,
            accuracy=self.accuracy,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "status": self.status,
            "reason": self.reason,
            **super().to_dict(),
            "coefficients": [list(p.coefficients) for p in self.schedule],
            "frontier": [row.to_dict() for row in self.frontier],
        }

    def __str__(self) -> str:
        m, n = self.shape
        lines = [f"{m}x{n}, {self.status}: {self.reason}", "", *_text([self])]
        return "\n".join([*lines, "", "Frontier (seconds against typical alignment):", *_text(self.frontier)])


@dataclass(frozen=True)
class ModelPlan:
    """A plan for each shape among the matrices of a network that Muon optimizes, with the number of such matrices."""

    plans: tuple[tuple[Plan, int], ...]

    @property
    def seconds(self) -> float:
        """Predicted seconds of all orthogonalizations of one step, one matrix after the other."""
        return math.fsum(count * plan.seconds for plan, count in self.plans)

    @property
    def status(self) -> Literal["met", "not_met"]:
        """``"met"`` if every shape meets the target, else "not_met"."""
        return "met" if all(plan.status == "met" for plan, _ in self.plans) else "not_met"

    def apply(self, optimizer: Optimizer) -> None:
        """Set the orthogonalizer planned for its shape in each group of a Muon or MuonWithAux.

        Each group must have one shape: use ``split_params(model, by="shape")``.
        """
        planned = {plan.shape: plan.orthogonalizer() for plan, _ in self.plans}
        muon, chosen = muon_of(optimizer), []
        for g, group in enumerate(muon.param_groups):
            parts = [part for p in group["params"] for part in matrix_slices("", p.shape, group)]
            shapes = {shape for _, shape in parts}
            if len(shapes) != 1 or not shapes <= set(planned):
                raise ValueError(
                    f"a plan is for one shape of the network it was made for, got group {g} with {sorted(shapes)}: "
                    f"make the groups by split_params(model, by='shape')"
                )
            chosen.append(planned[shapes.pop()])
        for group, orthogonalizer in zip(muon.param_groups, chosen, strict=True):
            group["orthogonalizer"] = orthogonalizer.plain()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        plans = [{"count": count, **plan.to_dict()} for plan, count in self.plans]
        return {"status": self.status, "seconds": self.seconds, "plans": plans}

    def __str__(self) -> str:
        header = [f"{sum(count for _, count in self.plans)} matrices, {self.seconds:.4g} s a step, {self.status}", ""]
        marks = [f"{count} of {plan.shape[0]}x{plan.shape[1]}" for plan, count in self.plans]
        return "\n".join([*header, *_text([plan for plan, _ in self.plans], marks)])


def _text(rows: Sequence[PlanRow], marks: Sequence[str] = ()) -> list[str]:
    """Align rows in columns."""
    header = ["schedule", "prescale", "method", "accuracy", "alignment", "floor", "epsilon", "ms", "Gflop"]
    cells = [header]
    for r in rows:
        numbers = (f"{r.alignment:.4f}", f"{r.floor:.4f}", f"{r.epsilon:.2g}", f"{r.seconds * 1e3:.4g}")
        cells.append([str(r.schedule), r.prescale, r.method, r.accuracy, *numbers, f"{r.flops / 1e9:.3g}"])
    if marks:
        cells = [[mark, *line] for mark, line in zip(("matrices", *marks), cells, strict=True)]
    return aligned(cells)


class PlanOptions(TypedDict, total=False):
    """The keyword arguments of :func:`plan` besides the shape or network."""

    target_alignment: float | None
    target_epsilon: float | None
    basis: Basis
    ell: float | None
    spectrum: object
    accuracy: Accuracy | None
    dtype: torch.dtype
    device: torch.device | str
    calibration: Calibration | None
    recalibrate: bool


@overload
def plan(shape: Sequence[int], **options: Unpack[PlanOptions]) -> Plan: ...
@overload
def plan(shape: nn.Module, **options: Unpack[PlanOptions]) -> ModelPlan: ...
def plan(
    shape: Sequence[int] | nn.Module,
    *,
    target_alignment: float | None = None,
    target_epsilon: float | None = None,
    basis: Basis = "typical",
    ell: float | None = None,
    spectrum: object = None,
    accuracy: Accuracy | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    calibration: Calibration | None = None,
    recalibrate: bool = False,
) -> Plan | ModelPlan:
    r"""Find the cheapest schedule, prescale and method that reach an alignment or a polar error.

    Seconds come from a short calibration of this machine at this shape, cached in a file (see :func:`calibrate`). Make
    a plan once and fix it in the training program: nothing in this library chooses by timings during training, because
    ranks and resumed runs would diverge. The same calibration always gives the same plan.

    Args:
        shape: rows and columns of the matrix; or a network, for one plan for each matrix shape that
            ``split_params(network)`` gives to Muon.
        target_alignment: least alignment ρ/s, in (0, 1); 0.95 if neither target is given.
        target_epsilon: largest polar error ``max |F - 1|``.
        basis: ``"typical"``: reached on every spectrum of ``typical_spectra``, or on ``spectrum``; ``"floor"``:
            guaranteed for every matrix of this shape, or for ``target_epsilon`` on [ell, 1].
        ell: smallest singular value over the Frobenius norm, ``σ_min/‖M‖_F`` (other prescales divide by less); for
            ``target_epsilon`` with basis ``"floor"`` only, and required there.
        spectrum: your singular values (any scale), or a matrix, instead of the typical spectra.
        accuracy: ``"full"`` or ``"half"`` only; None tries both.
        dtype: dtype of the products.
        device: device of the products.
        calibration: measured seconds to use; None calls :func:`calibrate`.
        recalibrate: measure again even if a cached calibration exists.

    Returns:
        A :class:`Plan`; for a network a :class:`ModelPlan`. With ``status="not_met"`` it is the best candidate.

    Example:
        >>> found = plan((16, 32), target_alignment=0.9)
        >>> found.status, found.alignment >= 0.9, found.schedule.steps > 0
        ('met', True, True)
    """
    target = checked_target(target_alignment, target_epsilon, basis, ell)
    if accuracy is not None:
        _checks.one_of("accuracy", accuracy, ACCURACIES)
    if dtype not in FLOATING:
        raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype!r}: float32 is the usual one")
    if isinstance(shape, nn.Module):
        for name, value in (("spectrum", spectrum), ("calibration", calibration)):
            if value is not None:
                raise ValueError(f"{name} belongs to one shape, got one together with a network: plan each shape alone")
        plans = []
        for each, count in _matrix_shapes(shape).items():
            timed = calibrate(each, dtype=dtype, device=device, recalibrate=recalibrate)
            plans.append((_plan(timed, target, None, accuracy=accuracy, dtype=dtype), count))
        return ModelPlan(tuple(plans))
    size = checked_shape(shape)
    sigma = checked_spectrum(spectrum, size)
    if calibration is None:
        calibration = calibrate(size, dtype=dtype, device=device, recalibrate=recalibrate)
    elif not isinstance(calibration, Calibration):
        raise TypeError(f"calibration must be a Calibration, got {calibration!r}: leave it out to measure one")
    elif calibration.shape != size:
        raise ValueError(f"calibration must be of shape {size}, got one of {calibration.shape}: calibrate that shape")
    return _plan(calibration, target, sigma, accuracy=accuracy, dtype=dtype)


def _matrix_shapes(model: nn.Module) -> dict[Shape, int]:
    """Count the matrices of each shape that Muon optimizes, with fused and stacked ones separated; largest first."""
    counts: Counter[Shape] = Counter()
    for group in split_params(model).matrices:
        counts.update(shape for name, p in group["params"] for _, shape in matrix_slices(name, p.shape, group))
    if not counts:
        raise ValueError("model must have a matrix for Muon, got none: print(split_params(model).table) says why")
    return dict(sorted(counts.items(), key=lambda item: (-item[0][0] * item[0][1], item[0])))


def _plan(
    calibration: Calibration, target: PlanTarget, sigma: Array | None, *, accuracy: Accuracy | None, dtype: torch.dtype
) -> Plan:
    m, n = calibration.shape
    spectra = list(typical_spectra(m, n).values()) if sigma is None else [sigma]
    search = PlanSearch(calibration, spectra, target, (accuracy,) if accuracy else ACCURACIES, dtype)
    choice = search.cheapest()
    met = choice is not None
    choice = choice or search.best()
    row = _row(search, choice)
    values = {"alignment": row.floor if target.basis == "floor" else row.alignment, "epsilon": row.epsilon}
    where = f"where σ_min is at least {target.ell:g} ‖M‖_F" if target.ell else f"for every {m}x{n} matrix"
    where = where if target.basis == "floor" else "on the typical spectra" if sigma is None else "on the spectrum given"
    asked = f"{target.kind} {'at least' if target.kind == 'alignment' else 'at most'} {target.value:.10g} {where}"
    reached = f"{values[target.kind]:.10g}"
    reason = f"{asked}: {'the cheapest candidate has' if met else 'no candidate reaches it, the best has'} {reached}"
    frontier = tuple(_row(search, option) for option in search.frontier(choice))
    status: Literal["met", "not_met"] = "met" if met else "not_met"
    return Plan(**vars(row), shape=(m, n), status=status, reason=reason, frontier=frontier, dtype=dtype)


def _row(search: PlanSearch, option: PlanOption) -> PlanRow:
    return PlanRow(
        option.schedule, option.prescale, option.method, option.accuracy, option.alignment,
        search.floor(option), search.epsilon(option), option.seconds, search.flops(option),
    )  # fmt: skip
