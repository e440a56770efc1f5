"""Observe the steps of a Muon from outside: each matrix as it is orthogonalized, and which matrices were not."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from muonlab import _checks
from muonlab.diagnostics.across_ranks import gather_from_ranks
from muonlab.diagnostics.optimizer_matrices import MatrixSlice, matrix_slices, muon_of, parameters_of, step_length
from muonlab.optim.views import matrix_blocks


class OrthogonalizedMatrix(NamedTuple):
    """A matrix at the moment of its step.

    ``M`` was orthogonalized to ``O``; ``gradient`` is the same part of ``p.grad``, as the optimizer received it;
    ``length`` is the learning rate times the scale rule, by which O will be multiplied. It is 0 if the parameter is
    ``skipped`` because of ``nonfinite="skip"``: neither its weight nor its momentum changes then.
    """

    name: str
    group: Mapping[str, Any]
    M: Tensor
    O: Tensor
    gradient: Tensor | None
    length: float
    skipped: bool = False


def require_keys(state: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError if a saved state lacks one of the keys."""
    missing = [key for key in keys if key not in state]
    if missing:
        raise ValueError(f"a saved state must have {', '.join(keys)}, got none of {', '.join(missing)}: save it again")


def is_compiled() -> bool:
    """Return whether the caller is being compiled, or was called by a compiled function."""
    if torch.compiler.is_compiling():
        return True
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and "_dynamo" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class StepObserver:
    """Call ``on_matrix`` for each matrix of every ``every``-th step, the first included, and ``on_end`` after the step.

    Between the observed steps the optimizer has no hook on its matrices and no overhead.

    Args:
        optimizer: a Muon, or a MuonWithAux whose Muon is observed.
        every: observe every so many steps.
        on_matrix: called with each matrix of an observed step, before the weights change.
        on_end: called when the step is done, with its number and the names of the matrices that no process
            orthogonalized.
        on_start: called when an observed step starts; again if that step failed and is repeated.
        gradients: pass the gradients to ``on_matrix``.

    Attributes:
        step: steps taken since observation started.
        passed_over: names of the matrices that had a gradient and were not orthogonalized in the last observed step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        on_matrix: Callable[[OrthogonalizedMatrix], None],
        on_end: Callable[[int, list[str]], None],
        on_start: Callable[[], None] | None = None,
        *,
        gradients: bool = True,
    ) -> None:
        self.muon = muon_of(optimizer)
        self.every = _checks.integer("every", every, at_least=1)
        self.step = 0
        self.passed_over: list[str] = []
        self._on_matrix, self._on_end, self._on_start = on_matrix, on_end, on_start
        self._closed = self._inside_on_end = False
        self._hook: RemovableHandle | None = None
        self._gradients = gradients
        self._pending: dict[tuple[Tensor, tuple[int, int]], deque[MatrixSlice]] | None = None
        self._handles = [
            self.muon.register_step_pre_hook(self._before_step),
            self.muon.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Remove the hooks; called from ``on_end`` it disables them, and the next call removes them."""
        self._closed = True
        self._unhook()
        while self._handles and not self._inside_on_end:
            self._handles.pop().remove()

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_step(self, *_: Any) -> None:
        if is_compiled():
            raise RuntimeError(
                "recording needs an uncompiled step, got one under torch.compile, which would compile the "
                "measurements: call the plain optimizer.step, and compile the model alone"
            )
        self._unhook()  # left by a step that failed half-way
        if self._closed or self.step % self.every:
            return
        if self._on_start is not None:
            self._on_start()
        self._pending = None
        self._hook = self.muon.register_orthogonalize_hook(self._observe, gradients=self._gradients)

    def _expected(self) -> dict[tuple[Tensor, tuple[int, int]], deque[MatrixSlice]]:
        """Return the matrices of this process that are still to come; known once the step has assigned them."""
        if self._pending is None:
            self._pending = defaultdict(deque)
            for name, p, group in parameters_of(self.muon):
                for part, shape in matrix_slices(name, p.shape, group) if p.numel() else ():
                    if (part.member or 0) in self.muon.owned_matrices(p, part.block):
                        self._pending[p, shape].append(part)
        return self._pending

    def _observe(self, params: tuple[Tensor, ...], M: Tensor, O: Tensor) -> None:
        shape = (M.shape[-2], M.shape[-1])
        for p, A, B in zip(params, M, O, strict=True):
            part = self._expected()[p, shape].popleft()
            gradient = self._gradient(p, part)
            skipped = self.muon.skipped(p)
            length = 0.0 if skipped else step_length(part.group, *shape)
            self._on_matrix(OrthogonalizedMatrix(part.name, part.group, A, B, gradient, length, skipped))

    def _gradient(self, p: Tensor, part: MatrixSlice) -> Tensor | None:
        block = self.muon.whole_gradient(p, part.block) if self._gradients else None
        if block is None:
            return None
        matrices = matrix_blocks(p.shape, part.group["matrix_view"])[part.block].read(block)
        first = self.muon.owned_matrices(p, part.block).start
        return matrices if part.member is None else matrices[part.member - first]

    def _after_step(self, *_: Any) -> None:
        if self._closed:
            return
        self.step += 1
        if self._hook is None:
            return
        self._unhook()
        left = [(p.grad is not None, part.name) for (p, _), queue in self._expected().items() for part in queue]
        left = [(bool(had_gradient), str(name)) for had_gradient, name in gather_from_ranks(self.muon, left)]
        self.passed_over = list(dict.fromkeys(name for had_gradient, name in left if had_gradient))
        self._inside_on_end = True
        try:
            self._on_end(self.step, list(dict.fromkeys(name for _, name in left)))
        finally:
            self._inside_on_end = False
