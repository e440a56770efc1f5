"""Hooks that observe what a step orthogonalizes; without any, a step does no extra work."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from muonlab.optim.layout import Piece

OrthogonalizeHook = Callable[[tuple[Tensor, ...], Tensor, Tensor], None]


class OrthogonalizeHooks(OrderedDict[int, OrthogonalizeHook]):
    """Registered hooks by handle id, and what they may ask for during a step.

    Attributes:
        gradients: whole gradients of what this process orthogonalizes, by parameter and index of the block.
        finite: by parameter, the flag that decides whether ``nonfinite="skip"`` skips it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradients: dict[tuple[Tensor, int], Tensor] = {}
        self.finite: dict[Tensor, Tensor] = {}
        self._count = 0
        self._want_gradients: set[int] = set()

    def add(self, hook: OrthogonalizeHook, *, gradients: bool) -> RemovableHandle:
        """Register a hook and return the handle that removes it."""
        handle = RemovableHandle(self)
        self[handle.id] = hook
        if gradients:
            self._want_gradients.add(handle.id)
        return handle

    @property
    def want_gradients(self) -> bool:
        """Whether a hook asked for gradients."""
        return any(number in self._want_gradients for number in self)

    @property
    def signature(self) -> tuple[int, bool]:
        """What must be equal on all processes."""
        return len(self), self.want_gradients

    def begin_step(self, pieces: Sequence[Piece]) -> None:
        """Start counting matrices; keep which parameters are finite."""
        self._count = 0
        if not torch.compiler.is_compiling():
            self.finite = {piece.param: piece.finite for piece in pieces if piece.finite is not None}

    def add_gradients(self, pieces: Sequence[Piece], gradients: Mapping[int, Tensor]) -> None:
        """Keep whole gradients, given by index of their piece, until the end of the step."""
        self.gradients.update({(pieces[i].param, pieces[i].block_index): grad for i, grad in gradients.items()})

    def show(self, pieces: Sequence[Piece], matrices: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Count the matrices, and call each hook with copies of its own."""
        sizes = [math.prod(M.shape[:-2]) for M in matrices]
        self._count += sum(sizes)
        if not self or not sum(sizes):
            return
        m, n = matrices[0].shape[-2:]
        params = tuple(piece.param for piece, size in zip(pieces, sizes, strict=True) for _ in range(size))
        for hook in list(self.values()):
            hook(params, *(torch.cat([A.reshape(-1, m, n) for A in stack]) for stack in (matrices, results)))

    def end_step(self) -> int:
        """Forget what hooks may ask for, and return how many matrices were orthogonalized."""
        self.gradients.clear()
        self.finite = {}
        return self._count
