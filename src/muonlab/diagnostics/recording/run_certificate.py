"""Whether the alignment theorem speaks of a run, step by step, and the certificate of the run if it does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics.across_ranks import gathered
from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.certification import uncovered
from muonlab.diagnostics.recording.rows import Row
from muonlab.diagnostics.watch import members, muon_of, places
from muonlab.theory import RunBound, run_bound

_SAME_LENGTH = 1e-6
"""Relative change of a layer's share of the step up to which it counts as rounding of the learning rates."""


KEYS = ("from_zero", "history", "layers", "momentum", "broken", "size")
"""Of a saved state."""


class Step(NamedTuple):
    """What the certificate needs of a step: descent, gain and length η of the whole."""

    descent: float
    gain: float
    length: float


class CoveredRun:
    """The steps of a run from zero momentum, and the first reason for which the theorem ceased to cover it.

    It covers steps of one momentum on the same matrices, whose lengths keep their ratios (they make the pair of norms).
    What cannot be seen from here is the caller's to know: that gradients are unbiased and not clipped, that nothing
    else moves the weights, and that steps are not so short that the weights round them away.

    Attributes:
        history: the steps.
        broken: why there is no certificate any more; empty while there is.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.history: list[Step] = []
        self.broken = ""
        self._before: list[float] | None = None  # this process's share of the momenta before a step
        self._after = math.nan  # the size of the momenta after it, where only all processes together know it
        self._from_zero: bool | None = None
        self._resumed_at: float | None = None
        self._layers: list[tuple[str, float]] = []
        self._momentum: tuple[float, str] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "from_zero": self._from_zero,
            "history": [tuple(step) for step in self.history],
            "layers": self._layers,
            "momentum": self._momentum,
            "broken": self.broken,
            "size": text.plain(self._after if self._processes else self._size(self._shares())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one stopped."""
        history = [Step(*map(float, step)) for step in state["history"]]
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

    def begin(self) -> None:
        """Look at the momenta before a first step, or one after loading; this process alone, as others may not."""
        if self._before is None and (self._from_zero is None or self._resumed_at is not None):
            self._before = self._shares()

    def settle(self) -> None:
        """Say, now that all processes have taken the step, whether it began from zero, or from what was saved."""
        if self._before is not None:
            size, self._before = self._size(self._before), None
            self._from_zero = size == 0.0 if self._from_zero is None else self._from_zero
            if self._resumed_at is not None and not math.isclose(size, self._resumed_at, rel_tol=1e-6):
                self.end("the momenta are not those that were saved: load the optimizer's state as well")
            self._resumed_at = None
        if self._processes:
            self._after = self._size(self._shares())

    def _shares(self) -> list[float]:
        return muon_of(self.optimizer).momentum_squares()

    def _size(self, shares: list[float]) -> float:
        """Return a number that tells momenta apart, the sum of their norms, from what each process holds of them."""
        everyones = gathered(muon_of(self.optimizer), [shares])
        return math.fsum(math.sqrt(math.fsum(squares)) for squares in zip(*everyones, strict=True))

    def end(self, reason: str) -> None:
        """Note that the theorem does not cover the run from here on."""
        self.broken = self.broken or reason

    def add(self, number: int, rows: Sequence[Row], whole: Row) -> None:
        """Add a step by the rows of its matrices and of the whole, or note why it ends the cover."""
        if self.broken:
            return
        layers = sorted((row["name"], row["length"] / whole["length"] if whole["length"] else 0.0) for row in rows)
        self._layers = self._layers or layers
        reason = self._why_not(layers, whole)
        if reason:
            self.end(f"step {number} {reason}")
            return
        # what is measured of the descent may exceed the gain of exact steps by rounding, ‖O‖_op itself it may not
        gain = max(whole["op_norm"] + whole["rounding"], abs(whole["descent"]))
        self.history.append(Step(whole["descent"], gain, whole["length"]))

    def _why_not(self, layers: Sequence[tuple[str, float]], whole: Row) -> str:
        """Return why the theorem does not speak of a step; empty if it does."""
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
            "sent its directions with fewer digits than they have": muon_of(self.optimizer).rounds_messages,
            "had parameters on several groups of processes": len(self._processes) > 1,
            "climbed: maximize": any(group["maximize"] for group in groups),
            "moved weights of half precision, which round it away": any(
                torch.finfo(p.dtype).bits < 32 for group in groups for p in group["params"]
            ),
            f"is not covered: {', '.join(uncovered(self.optimizer))}": bool(uncovered(self.optimizer)),
        }
        return next((reason for reason, applies in reasons.items() if applies), "")

    def bound(self, number: int, *, L: float, D: float, sigma: float, B: int, failure: float) -> RunBound:
        """Return the certificate of all ``number`` steps, or the reason for which there is none."""
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
        shapes = [shape for name, p, group in members(muon) for _, shape in places(name, p.shape, group)]
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
