"""Whether the alignment theorem covers a run, step by step, and the bound for the run if it does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics.across_ranks import gather_from_ranks
from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.certification import not_covered_by
from muonlab.diagnostics.optimizer_matrices import matrix_slices, muon_of, named_parameters
from muonlab.diagnostics.recording.rows import RecordedRow
from muonlab.theory import RunBound, run_bound

_SAME_LENGTH = 1e-6
"""Largest relative change of a layer's share of the step that counts as rounding of the learning rates."""

STATE_KEYS = ("from_zero", "history", "layers", "momentum", "broken", "size")
"""Keys of :meth:`CoveredRun.state_dict`."""


class RecordedStep(NamedTuple):
    """Descent, gain and length η of one step of the whole network."""

    descent: float
    gain: float
    length: float


class CoveredRun:
    """The steps of a run from zero momentum, and the first reason for which the theorem does not cover it.

    The theorem covers steps of one momentum on the same matrices whose lengths keep their ratios (these define the pair
    of norms). Some conditions cannot be checked here: gradients are unbiased and not clipped, nothing else moves the
    weights, and steps are not so short that the weights round them away.

    Attributes:
        history: the covered steps.
        broken: why the theorem does not cover the run; empty while it does.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.history: list[RecordedStep] = []
        self.broken = ""
        self._before: list[float] | None = None  # squared norms of this process's part of the momenta before a step
        self._after = math.nan  # norm of all momenta after the step; set in distributed runs only
        self._from_zero: bool | None = None
        self._resumed_at: float | None = None
        self._layers: list[tuple[str, float]] = []
        self._momentum: tuple[float, str] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {
            "from_zero": self._from_zero,
            "history": [tuple(step) for step in self.history],
            "layers": self._layers,
            "momentum": self._momentum,
            "broken": self.broken,
            "size": text.plain(self._after if self._processes else self._norm(self._squares())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        history = [RecordedStep(*map(float, step)) for step in state["history"]]
        layers = [(str(name), float(share)) for name, share in state["layers"]]
        momentum = None if state["momentum"] is None else (float(state["momentum"][0]), str(state["momentum"][1]))
        from_zero = None if state["from_zero"] is None else bool(state["from_zero"])
        self._resumed_at = math.nan if state["size"] is None else float(state["size"])
        if state["size"] is None and from_zero is None:  # saved before the first step
            self._resumed_at = None
        self.history, self._layers, self._momentum, self.broken = history, layers, momentum, str(state["broken"])
        self._from_zero = from_zero

    @property
    def _processes(self) -> list[Any]:
        return muon_of(self.optimizer).grids

    def before_step(self) -> None:
        """Measure the momenta before the first step, and before the first after loading; no communication."""
        if self._before is None and (self._from_zero is None or self._resumed_at is not None):
            self._before = self._squares()

    def after_step(self) -> None:
        """Decide whether the run started from zero momentum, or from the saved one; a collective call."""
        if self._before is not None:
            size, self._before = self._norm(self._before), None
            self._from_zero = size == 0.0 if self._from_zero is None else self._from_zero
            if self._resumed_at is not None and not math.isclose(size, self._resumed_at, rel_tol=1e-6):
                self.stop("the momenta are not those that were saved: load the optimizer's state as well")
            self._resumed_at = None
        if self._processes:
            self._after = self._norm(self._squares())

    def _squares(self) -> list[float]:
        return muon_of(self.optimizer).momentum_squares()

    def _norm(self, squares: list[float]) -> float:
        """Return the sum of the norms of all momenta from the squared norms of each process's parts; collective."""
        by_rank = gather_from_ranks(muon_of(self.optimizer), [squares])
        return math.fsum(math.sqrt(math.fsum(parts)) for parts in zip(*by_rank, strict=True))

    def stop(self, reason: str) -> None:
        """Record why the theorem does not cover the run; the first reason is kept."""
        self.broken = self.broken or reason

    def add(self, number: int, rows: Sequence[RecordedRow], whole: RecordedRow) -> None:
        """Add a step from the rows of its matrices and of the whole, or record why it is not covered."""
        if self.broken:
            return
        layers = sorted((row["name"], row["length"] / whole["length"] if whole["length"] else 0.0) for row in rows)
        self._layers = self._layers or layers
        reason = self._why_not(layers, whole)
        if reason:
            self.stop(f"step {number} {reason}")
            return
        # by rounding, the measured descent may exceed the gain of exact steps, but not ‖O‖_op
        gain = max(whole["op_norm"] + whole["rounding"], abs(whole["descent"]))
        self.history.append(RecordedStep(whole["descent"], gain, whole["length"]))

    def _why_not(self, layers: Sequence[tuple[str, float]], whole: RecordedRow) -> str:
        """Return why the theorem does not cover a step; empty if it does."""
        groups = muon_of(self.optimizer).param_groups
        momenta = {(float(group["momentum"]), str(group["momentum_form"])) for group in groups}
        self._momentum = self._momentum or next(iter(momenta))
        pairs = list(zip(layers, self._layers, strict=False))
        same_names = len(layers) == len(self._layers) and all(now[0] == then[0] for now, then in pairs)
        same_shares = all(math.isclose(now[1], then[1], rel_tol=_SAME_LENGTH) for now, then in pairs)
        reasons = {
            "orthogonalized nothing": not layers,
            "orthogonalized other matrices than the steps before (gradients were missing)": not same_names,
            "had the learning rate zero, or skipped every gradient": not whole["length"],
            "was not finite": not math.isfinite(whole.get("alignment", math.nan)),
            "had groups that differ in momentum or its form": len(momenta) > 1,
            "had another momentum than the first, or in another form": momenta != {self._momentum},
            "changed the relative lengths of the layers' steps, and so the pair of norms": not same_shares,
            "sent its directions at lower precision": muon_of(self.optimizer).rounds_messages,
            "had parameters on several groups of processes": len(self._processes) > 1,
            "maximized: maximize=True": any(group["maximize"] for group in groups),
            "moved weights of half precision, which round it away": any(
                torch.finfo(p.dtype).bits < 32 for group in groups for p in group["params"]
            ),
            f"is not covered: {', '.join(not_covered_by(self.optimizer))}": bool(not_covered_by(self.optimizer)),
        }
        return next((reason for reason, applies in reasons.items() if applies), "")

    def bound(self, number: int, *, L: float, D: float, sigma: float, B: int, failure: float) -> RunBound:
        """Return the bound for all ``number`` steps; "not_applicable" with a reason if the run is not covered."""
        reasons = {
            "no step was recorded": not number,
            self.broken: bool(self.broken),
            f"{len(self.history)} of {number} steps were recorded": len(self.history) != number,
            "the momentum was not zero when recording began": not self._from_zero,
        }
        reason = next((reason for reason, applies in reasons.items() if applies), "")
        if reason or self._momentum is None:
            return RunBound(math.inf, {}, 1.0, "not_applicable", reason)
        muon = muon_of(self.optimizer)
        shapes = [
            shape for name, p, group in named_parameters(muon) for _, shape in matrix_slices(name, p.shape, group)
        ]
        bound = run_bound(
            [step.descent for step in self.history],
            [step.gain for step in self.history],
            L=L,
            D=D,
            sigma=sigma,
            r=sum(map(min, shapes)),
            B=B,
            eta=[step.length for step in self.history],
            beta=self._momentum[0],
            failure=failure,
        )
        return bound._replace(reason=f"{bound.reason}; for unbiased gradients that were not clipped")
