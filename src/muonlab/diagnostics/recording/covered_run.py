"""Check step by step whether the theorems apply to a run, and return its bound if they do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics.across_ranks import gather_from_ranks
from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.coverage import ASSUMED, not_covered_by
from muonlab.diagnostics.optimizer_matrices import matrix_slices, muon_of, parameters_of
from muonlab.diagnostics.recording.rows import SKIPPED, RecordedRow
from muonlab.diagnostics.weight_decay import decay_pull
from muonlab.optim.distributed.tensors import local_part
from muonlab.theory import RunBound, run_bound
from muonlab.theory.momentum import MomentumForm

_SAME_LENGTH = 1e-6
"""Largest relative change of a layer's share of the step that counts as rounding of the learning rates."""

_SAME_WEIGHTS = 1e-12
"""Largest relative change of the norm of the same weights, which depends on the number of threads."""

STATE_KEYS = ("from_zero", "history", "layers", "momentum_kind", "broken", "size")
"""Keys of :meth:`CoveredRun.state_dict`."""


class RecordedStep(NamedTuple):
    """Descent, gain, length η and momentum β of one step of the network, and the pull of weight decay."""

    descent: float
    gain: float
    length: float
    momentum: float
    pull: float | None


class MomentumKind(NamedTuple):
    """The form of the momentum, and whether Nesterov's look-ahead is orthogonalized: the same in the whole run."""

    form: MomentumForm
    nesterov: bool


class CoveredRun:
    """Collects the steps of a run and the first reason why the theorem does not apply.

    Theorems A to C cover steps from zero momentum on the same matrices whose lengths keep their ratios (these define
    the pair of norms); learning rate, momentum, weight decay and the number of Newton-Schulz steps may change, the form
    of the momentum may not. A change of the weights between two steps is noticed; the conditions in
    ``coverage.ASSUMED`` cannot be checked here, nor whether steps are so short that the weights round them away.

    Attributes:
        history: the covered steps.
        broken: why the theorem does not cover the run; empty while it does.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._muon = muon_of(optimizer)
        self.history: list[RecordedStep] = []
        self.broken = ""
        self._before: list[float] | None = None  # squared norms of this process's part of the momenta before a step
        self._after = math.nan  # norm of all momenta after the step; set in distributed runs only
        self._from_zero: bool | None = None
        self._resumed_at: float | None = None
        self._layers: list[tuple[str, float]] = []
        self._momentum_kind: MomentumKind | None = None
        self._weights: dict[Tensor, Tensor] = {}  # before the step, where they decay
        self._left: list[float] | None = None  # norms of this process's part of the weights after the last step
        self._moved = False  # whether they were others before the step
        self._pull: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {
            "from_zero": self._from_zero,
            "history": [tuple(step) for step in self.history],
            "layers": self._layers,
            "momentum_kind": None if self._momentum_kind is None else tuple(self._momentum_kind),
            "broken": self.broken,
            "size": text.plain(self._after if self._muon.grids else self._norm(self._muon.momentum_squares())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        kind, size = state["momentum_kind"], state["size"]
        self.history = [RecordedStep(*step) for step in state["history"]]
        self._layers = [(name, share) for name, share in state["layers"]]
        self._momentum_kind = None if kind is None else MomentumKind(*kind)
        self._from_zero, self.broken, self._left = state["from_zero"], state["broken"], None
        before_first_step = size is None and self._from_zero is None
        self._resumed_at = None if before_first_step else math.nan if size is None else size

    def before_step(self) -> None:
        """Compare the weights with those after the last step, and measure the momenta before the first.

        No communication.
        """
        if self._left is not None and not self.broken:
            pairs = zip(self._weight_norms(), self._left, strict=False)  # a group may have been added
            self._moved = not all(math.isclose(now, then, rel_tol=_SAME_WEIGHTS) for now, then in pairs)
        if self._before is None and (self._from_zero is None or self._resumed_at is not None):
            self._before = self._muon.momentum_squares()

    def keep_weights(self) -> None:
        """Copy the weights that decay in the step to come; no communication."""
        groups = [group for group in self._muon.param_groups if group["weight_decay"] and not self.broken]
        self._weights = {p: p.detach().clone() for group in groups for p in group["params"]}

    def after_step(self) -> None:
        """Measure the pull of weight decay, and stop the run if something else moved the weights or set the momenta.

        It is a collective call.
        """
        if not self.broken:
            if any(gather_from_ranks(self._muon, [self._moved])):
                self.stop(f"something else changed the weights before step {len(self.history) + 1}")
            self._left, self._moved = self._weight_norms(), False
        self._pull = None if self.broken else decay_pull(self._muon, self._weights)
        self._weights = {}
        if self._before is not None:
            size, self._before = self._norm(self._before), None
            self._from_zero = size == 0.0 if self._from_zero is None else self._from_zero
            if self._resumed_at is not None and not math.isclose(size, self._resumed_at, rel_tol=1e-6):
                self.stop("the momenta are not those that were saved: load the optimizer's state as well")
            self._resumed_at = None
        if self._muon.grids:
            self._after = self._norm(self._muon.momentum_squares())

    def _weight_norms(self) -> list[float]:
        """Return the norm of this process's part of each parameter."""
        parts = (local_part(p.detach()) for group in self._muon.param_groups for p in group["params"])
        return [float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts]

    def _norm(self, squares: list[float]) -> float:
        """Return the sum of the norms of all momenta from the squared norms of each process's parts; collective."""
        by_rank = gather_from_ranks(self._muon, [squares])
        return math.fsum(math.sqrt(math.fsum(parts)) for parts in zip(*by_rank, strict=True))

    def stop(self, reason: str) -> None:
        """Record why the theorem does not cover the run; the first reason is kept."""
        self.broken = self.broken or reason

    def add(self, number: int, rows: Sequence[RecordedRow], whole: RecordedRow) -> None:
        """Add a step from the rows of its matrices and of the whole, or record why it is not covered."""
        if self.broken:
            return
        layers = sorted((row["name"], row["length"] / whole["length"] if whole["length"] else 0.0) for row in rows)
        if not any(share for _, share in self._layers) and (whole["length"] or not self._layers):
            known = [name for name, _ in self._layers]  # steps of learning rate zero define no ratios yet
            self._layers = layers if not known or known == [name for name, _ in layers] else self._layers
        reason = self._why_not(layers, rows, whole)
        if reason:
            self.stop(f"step {number} {reason}")
            return
        momentum = float(self._muon.param_groups[0]["momentum"])
        if not whole["length"]:  # no weight moves, but the momentum is updated
            self.history.append(RecordedStep(0.0, 0.0, 0.0, momentum, None if self._pull is None else 0.0))
            return
        # by rounding, the measured descent may exceed the gain of exact steps, but not ‖O‖_op
        gain = max(whole["op_norm"] + whole["rounding"], abs(whole["descent"]))
        self.history.append(RecordedStep(whole["descent"], gain, whole["length"], momentum, self._pull))

    def _why_not(self, layers: Sequence[tuple[str, float]], rows: Sequence[RecordedRow], whole: RecordedRow) -> str:
        """Return why the theorem does not cover a step; empty if it does."""
        groups = self._muon.param_groups
        kinds = {MomentumKind(group["momentum_form"], bool(group["nesterov"])) for group in groups}
        self._momentum_kind = self._momentum_kind or next(iter(kinds))
        pairs = list(zip(layers, self._layers, strict=False))
        same_names = len(layers) == len(self._layers) and all(now[0] == then[0] for now, then in pairs)
        same_shares = all(math.isclose(now[1], then[1], rel_tol=_SAME_LENGTH) for now, then in pairs)
        uncovered = not_covered_by(self.optimizer)
        reasons = {
            f"is not covered: {'; '.join(uncovered)}": bool(uncovered),
            "orthogonalized nothing": not layers,
            "orthogonalized other matrices than the steps before (gradients were missing)": not same_names,
            "skipped a gradient that was not finite": any(row["reason"] == SKIPPED for row in rows),
            "was not finite": not all(math.isfinite(row["alignment"]) for row in rows),
            "had momentum in another form than the first": kinds != {self._momentum_kind},
            "changed the relative lengths of the layers' steps, and so the pair of norms": whole["length"] > 0
            and not same_shares,
            "had parameters on several groups of processes": len(self._muon.grids) > 1,
        }
        return next((reason for reason, applies in reasons.items() if applies), "")

    def bound(self, number: int, *, L: float, D: float, sigma: float, B: int, failure: float, tail: float) -> RunBound:
        """Return the bound for all ``number`` steps; "not_applicable" with a reason if the run is not covered."""
        reasons = {
            "no step was recorded": not number,
            self.broken: bool(self.broken),
            f"{len(self.history)} of {number} steps were recorded": len(self.history) != number,
            "the momentum was not zero when recording began": not self._from_zero,
        }
        reason = next((reason for reason, applies in reasons.items() if applies), "")
        if reason or self._momentum_kind is None:
            return RunBound(math.inf, {}, 1.0, "not_applicable", reason)
        parameters = parameters_of(self._muon)
        shapes = [shape for name, p, group in parameters for _, shape in matrix_slices(name, p.shape, group)]
        bound = run_bound(
            [step.descent for step in self.history],
            [step.gain for step in self.history],
            L=L,
            D=D,
            sigma=sigma,
            r=sum(map(min, shapes)),
            B=B,
            eta=[step.length for step in self.history],
            beta=[step.momentum for step in self.history],
            failure=failure,
            momentum_form=self._momentum_kind.form,
            nesterov=self._momentum_kind.nesterov,
            pull=[step.pull or 0.0 for step in self.history] if any(step.pull for step in self.history) else None,
            tail=tail,
        )
        given = f"L = {L:g}, D = {D:g} and sigma = {sigma:g} are true of this run"
        assumed = (f"{given} (if they are estimates, so is the bound)", *ASSUMED)
        return bound._replace(reason=f"{bound.reason}. Assumed: {'; '.join(assumed)}")
