"""The recorder: what the proof says about every matrix of a Muon while it trains, without changing a bit of it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from torch.optim.optimizer import Optimizer

from muonlab import _checks
from muonlab.diagnostics.across_ranks import gathered
from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.recording.row_file import RowFile
from muonlab.diagnostics.recording.rows import MEASURES, Measure, Row, matrix_row, whole_row
from muonlab.diagnostics.recording.run_certificate import KEYS, CoveredRun
from muonlab.diagnostics.watch import Seen, Watch, checked_state, members, muon_of, places
from muonlab.orthogonalize.hardware import wait
from muonlab.theory import RunBound


class Recorder:
    """Record δ, ε, χ, ρ, s and alignment of every matrix at every ``every``-th step; training keeps its bits.

    A row per matrix (``event: "matrix"``), one for all (``"whole"``), and one that names what was not orthogonalized
    (``"missing"``: no gradient, or a Muon that is not running). Recording needs an ordinary, uncompiled ``step``. On
    several processes each must have a recorder; every matrix is measured by its owner, and all of them get all rows.

    Args:
        optimizer: a Muon or MuonWithAux.
        every: distance of recorded steps; the first step is one. 1 makes :meth:`certificate` possible.
        to: a file for JSON lines (appended to), or a function to call with each row; None keeps them in ``rows``.
        measure: ``"spectrum"``, ``"exact"`` or ``"bracket"``, see ``recording.rows.matrix_row``.
        gradients: also record the nuclear norm of ``p.grad``.

    Attributes:
        rows: the rows, if they go nowhere else.
        last: the rows of the last recorded step.
        run: the steps so far as the theorem sees them (with ``every=1``).
        seconds: that recording has taken, for a clock of the training alone.
        cpu_seconds: the same on the processor's clock, all threads of the process.

    Example:
        >>> import torch
        >>> from muonlab import Muon
        >>> W = torch.nn.Parameter(torch.eye(3))
        >>> with Recorder(Muon.paper([W], lr=0.1, momentum=0.9), every=1) as rec:
        ...     for _ in range(3):
        ...         rec.optimizer.zero_grad(); W.square().sum().backward(); _ = rec.optimizer.step()
        >>> [row["event"] for row in rec.rows[:2]], round(rec.rows[0]["alignment"], 3)
        (['matrix', 'whole'], 1.0)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int = 50,
        *,
        to: str | os.PathLike[str] | Callable[[Row], object] | None = None,
        measure: Measure = "spectrum",
        gradients: bool = True,
    ) -> None:
        muon_of(optimizer)
        _checks.integer("every", every, at_least=1)
        if to is not None and not callable(to) and not isinstance(to, (str, os.PathLike)):
            raise TypeError(
                f"to must be a path, a function or None, got {to!r} of type {type(to).__name__}: pass the path of a "
                f"file, or a function that takes a row"
            )
        self.optimizer = optimizer
        self.measure: Measure = _checks.one_of("measure", measure, MEASURES)
        self.gradients = gradients
        self.rows: list[Row] = []
        self.last: list[Row] = []
        self.run = CoveredRun(optimizer)
        self.seconds = self.cpu_seconds = 0.0
        self._current: list[Row] = []
        self._half_done = False
        self._began_at = 0
        self._warned = False
        self._file = RowFile(to) if isinstance(to, (str, os.PathLike)) else None
        self._call = to if callable(to) else None
        self._watch = Watch(optimizer, every, self._see, self._after, self._before, gradients=gradients)
        self._on_load = optimizer.register_load_state_dict_post_hook(self._loaded)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self.step == self._began_at:
            warnings.warn("nothing was recorded: the optimizer took no step; is it the one that trains?", stacklevel=2)

    def close(self) -> None:
        """Take the hooks off the optimizer and close the file."""
        self._watch.close()
        self._on_load.remove()
        if self._file is not None:
            self._file.close()

    @property
    def step(self) -> int:
        """Steps that the optimizer has taken since recording began."""
        return self._watch.step

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed recording needs: plain values."""
        return {"step": self.step, **self.run.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another recorder stopped; load the optimizer's state as well."""
        step = _checks.integer("step", checked_state(state, "step")["step"], at_least=0)
        self.run.load_state_dict(checked_state(state, *KEYS))
        self._watch.step = self._began_at = step

    # ---------------------------------------------------------------------------------------------------- recording

    def _before(self) -> None:
        if self._half_done:  # its momenta have moved on already
            self.run.end(f"a step failed half-way after step {self.step}")
        self._current, self._half_done = [], False
        self.run.begin()

    def _see(self, seen: Seen) -> None:
        self._half_done = True
        wait(seen.M.device)
        with self._timed():
            row = matrix_row(seen, measure=self.measure, gradients=self.gradients)
            self._current.append({"event": "matrix", "step": self.step + 1, **row, "lr": float(seen.group["lr"])})

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - began
        self.cpu_seconds += time.process_time() - cpu_began

    def _after(self, step: int, missing: list[str]) -> None:
        with self._timed():
            self._finish(step, missing)

    def _finish(self, step: int, missing: list[str]) -> None:
        rows, self._current, self._half_done = self._everyones(self._current), [], False
        whole = whole_row(rows)
        if self._watch.every == 1:
            self.run.settle()
            self.run.add(step, rows, whole)
        rows.append({"event": "whole", "step": step, **whole})
        if missing:
            reason = _why(missing, self._watch.passed_over, whole)
            rows.append({"event": "missing", "step": step, "names": missing, "reason": reason})
            if not whole["matrices"] and not self._warned:
                self._warned = True
                warnings.warn(f"step {step} orthogonalized nothing: {reason}", stacklevel=2)
        self.last = [text.plain(row) for row in rows]
        if self._file is not None:
            self._file.write(self.last)
        elif self._call is not None:
            for row in self.last:
                self._call(row)
        else:
            self.rows += self.last

    def _everyones(self, rows: list[Row]) -> list[Row]:
        """Return the rows of all ranks, each matrix once; every rank then writes, and knows, the same."""
        muon = self._watch.muon
        if not muon.grids:
            return rows
        found = {row["name"]: row for row in gathered(muon, rows)}
        names = [place.name for name, p, group in members(muon) for place, _ in places(name, p.shape, group)]
        return [found[name] for name in names if name in found]

    def _loaded(self, _: Optimizer) -> None:
        if self.step != self._began_at:
            self.run.end("the optimizer's state was loaded during the run: load the recorder's after it")

    # ----------------------------------------------------------------------------------------------- the certificate

    def certificate(self, *, L: float, D: float, sigma: float = 0.0, B: int = 1, failure: float = 0.05) -> RunBound:
        """Bound the weighted average of the gradient norms of this very run (alignment theorem, per run).

        It stands on what cannot be seen from here: gradients are unbiased and not clipped, nothing else moves the
        weights. ``measure="bracket"`` serves too, at a slightly larger bound: it needs a lower ρ and an upper s only.

        Args:
            L: smoothness constant for the pair of norms of :class:`NetworkCertificate`.
            D: ``f(W_0) - f*``, or ``f(W_0) - f(W_T)`` where that is known.
            sigma: bound on one sample's standard deviation.
            B: batch size.
            failure: probability with which the noise part may fail.

        Returns:
            A :class:`muonlab.theory.RunBound`; "not_applicable" with its reason where the run is not covered.
        """
        if self._watch.every != 1:
            reason = f"every = {self._watch.every}: the per-run bound needs every step, pass every=1"
            return RunBound(float("inf"), {}, 1.0, "not_applicable", reason)
        return self.run.bound(self.step, L=L, D=D, sigma=sigma, B=B, failure=failure)


def _why(missing: list[str], passed_over: list[str], whole: Row) -> str:
    if passed_over:
        return f"{len(passed_over)} matrices had a gradient and were not orthogonalized: is the step compiled?"
    if whole["matrices"]:
        return f"{len(missing)} matrices had no gradient"
    return "no parameter of this Muon had a gradient; is the model training with it?"
