"""``Recorder``: certificates of every matrix of a Muon optimizer during training, which stays the same bit for bit."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from torch.optim.optimizer import Optimizer

from muonlab import _checks
from muonlab.diagnostics.across_ranks import gather_from_ranks
from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.optimizer_matrices import matrix_slices, muon_of, parameters_of
from muonlab.diagnostics.recording.covered_run import STATE_KEYS, CoveredRun
from muonlab.diagnostics.recording.row_file import RowFile
from muonlab.diagnostics.recording.rows import MEASURES, Measure, RecordedRow, matrix_row, whole_row
from muonlab.diagnostics.recording.step_observer import OrthogonalizedMatrix, StepObserver, require_keys
from muonlab.orthogonalize.hardware import wait
from muonlab.theory import RunBound


class Recorder:
    """Record δ, ε, χ, ρ, s and alignment of every matrix at every ``every``-th step, without changing the training.

    The symbols are explained in docs/guides/reading-a-certificate.md.

    Each recorded step gives a row per matrix (``event: "matrix"``), one for the network (``"whole"``), and, if matrices
    were not orthogonalized, one with their names (``"missing"``: no gradient, or a Muon optimizer that is inactive).
    Recording needs an uncompiled ``step``; a compiled one is refused. In distributed training every process needs a
    recorder; each matrix is measured by the rank that orthogonalizes it, and all ranks get all rows.

    Args:
        optimizer: a Muon or MuonWithAux.
        every: record the first step and then every ``every``-th step; :meth:`certificate` needs 1.
        to: a file for JSON lines (appended to; if the disk is full, a warning ends it and training continues), or a
            function to call with each row.
        keep: whether the rows are also kept in ``rows``; False for long trainings with ``to``.
        measure: how matrices are measured (details: ``recording.rows.matrix_row``).
            ``"spectrum"``: from the singular values of M; the norm of O is measured only if O disagrees with them.
            ``"exact"``: the same, and the norm of O is always measured.
            ``"bracket"``: guaranteed bounds from matrix products alone.
        gradients: also record the nuclear norm of ``p.grad``.

    Attributes:
        rows: all rows, unless ``keep`` is False.
        last: the rows of the last recorded step.
        run: the steps that the theorems cover (with ``every=1``).
        seconds: wall-clock time spent on recording, to be subtracted from the time of training.
        cpu_seconds: processor time spent on recording, all threads of the process.

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
        to: str | os.PathLike[str] | Callable[[RecordedRow], object] | None = None,
        keep: bool = True,
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
        self.rows: list[RecordedRow] = []
        self.last: list[RecordedRow] = []
        self.run = CoveredRun(optimizer)
        self.seconds = self.cpu_seconds = 0.0
        self._current: list[RecordedRow] = []
        self._half_done = False
        self._start_step = 0
        self._warned = False
        self._keep = keep
        self._file = RowFile(to) if isinstance(to, (str, os.PathLike)) else None
        self._call = to if callable(to) else None
        self._observer = StepObserver(
            optimizer, every, self._on_matrix, self._on_end, self._on_start, gradients=gradients
        )
        self._load_hook = optimizer.register_load_state_dict_post_hook(self._on_load)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self.step == self._start_step:
            warnings.warn(
                "nothing was recorded: the optimizer took no step; is this the optimizer that trains the model?",
                stacklevel=2,
            )

    def close(self) -> None:
        """Remove the hooks from the optimizer and close the file."""
        self._observer.close()
        self._load_hook.remove()
        self._close_file()

    @property
    def step(self) -> int:
        """Steps of the optimizer since recording started."""
        return self._observer.step

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the recording in plain values."""
        return {"step": self.step, **self.run.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state; load the optimizer's state first, then the recorder's."""
        require_keys(state, "step", *STATE_KEYS)
        step = _checks.integer("step", state["step"], at_least=0)
        self.run.load_state_dict(state)
        self._observer.step = self._start_step = step

    # ---------------------------------------------------------------------------------------------------- recording

    def _on_start(self) -> None:
        if self._half_done:  # its momenta were updated already
            self.run.stop(f"a step failed half-way after step {self.step}")
        self._current, self._half_done = [], False
        self.run.before_step()
        if self._observer.every == 1:
            self.run.keep_weights()

    def _on_matrix(self, seen: OrthogonalizedMatrix) -> None:
        self._half_done = True
        wait(seen.M.device)
        with self._timed():
            row = matrix_row(seen, measure=self.measure, gradients=self.gradients)
            self._current.append({"event": "matrix", "step": self.step + 1, **row, "lr": float(seen.group["lr"])})

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start, cpu_start = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - start
        self.cpu_seconds += time.process_time() - cpu_start

    def _on_end(self, step: int, missing: list[str]) -> None:
        with self._timed():
            self._finish(step, missing)

    def _finish(self, step: int, missing: list[str]) -> None:
        rows, self._current, self._half_done = self._from_all_ranks(self._current), [], False
        whole = whole_row(rows)
        if self._observer.every == 1:
            self.run.after_step()
            self.run.add(step, rows, whole)
        rows.append({"event": "whole", "step": step, **whole})
        if missing:
            reason = _missing_reason(missing, self._observer.passed_over, whole)
            rows.append({"event": "missing", "step": step, "names": missing, "reason": reason})
            if not whole["matrices"] and not self._warned:
                self._warned = True
                warnings.warn(f"step {step} orthogonalized nothing: {reason}", stacklevel=2)
        self.last = [text.plain(row) for row in rows]
        self._write_to_file()
        if self._call is not None:
            for row in self.last:
                self._call(row)
        if self._keep:
            self.rows += self.last

    def _write_to_file(self) -> None:
        """Write the last rows; on a full disk warn and write no more: the weights have moved, a step must not fail."""
        if self._file is None:
            return
        try:
            self._file.write(self.last)
        except OSError as error:
            path = self._file.path
            self._close_file()
            self._file = None
            warnings.warn(
                f"recording to {path} ended at step {self.step}, the file could not be written ({error.strerror}): "
                f"the training goes on without it",
                stacklevel=2,
            )

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _from_all_ranks(self, rows: list[RecordedRow]) -> list[RecordedRow]:
        """Return the rows of all ranks, each matrix once, in the same order on every rank."""
        muon = self._observer.muon
        if not muon.grids:
            return rows
        by_name = {row["name"]: row for row in gather_from_ranks(muon, rows)}
        names = [part.name for name, p, group in parameters_of(muon) for part, _ in matrix_slices(name, p.shape, group)]
        return [by_name[name] for name in names if name in by_name]

    def _on_load(self, _: Optimizer) -> None:
        if self.step != self._start_step:
            self.run.stop(
                "the optimizer's state was loaded during the run: load the optimizer's state first, then the recorder's"
            )

    # ----------------------------------------------------------------------------------------------- the certificate

    def certificate(
        self, *, L: float, D: float, sigma: float = 0.0, B: int = 1, failure: float = 0.05, tail: float = 2.0
    ) -> RunBound:
        """Return a RunBound on the weighted average of the gradient norms of this run (Theorems A to C, for one run).

        Covered are both forms of momentum, Nesterov's look-ahead, weight decay, and any schedule of the learning rate,
        the momentum and the number of steps. Its reason names what is assumed, because the recorder cannot check it:
        gradients are unbiased (batches drawn independently, not in shuffled epochs) and not clipped, updates are not
        masked, and parameters outside of the optimizer do not change. With ``measure="bracket"`` the bound is valid
        too, and slightly larger.

        Args:
            L: smoothness constant for the pair of norms of :class:`NetworkCertificate`.
            D: ``f(W_0) - f*``, or ``f(W_0) - f(W_T)`` if f(W_T) is known.
            sigma: bound on one sample's standard deviation, ``(Σ_l c_l² σ_l²)^{1/2}`` for several matrices (c_l: length
                of a matrix's step over the longest); with ``tail < 2`` see :func:`muonlab.theory.run_bound`.
            B: batch size.
            failure: allowed probability that the noise exceeds its term in the bound.
            tail: p in (1, 2], the moment of the noise that is finite.

        Returns:
            A :class:`muonlab.theory.RunBound` with status "applies", or "not_applicable" with a reason if the run is
            not covered or the bound is negative, which shows that an assumption or ``D`` is wrong. With weight decay
            its ``gap`` bounds the Frank-Wolfe gap, also where there is no bound on the gradient norms.
        """
        if self._observer.every != 1:
            reason = f"every = {self._observer.every}: the per-run bound needs every step, pass every=1"
            return RunBound(float("inf"), {}, 1.0, "not_applicable", reason)
        return self.run.bound(self.step, L=L, D=D, sigma=sigma, B=B, failure=failure, tail=tail)


def _missing_reason(missing: list[str], passed_over: list[str], whole: RecordedRow) -> str:
    if passed_over:
        return f"{len(passed_over)} matrices had a gradient and were not orthogonalized: is the step compiled?"
    if whole["matrices"]:
        return f"{len(missing)} matrices had no gradient"
    return "no parameter of this Muon had a gradient; is the model training with it?"
