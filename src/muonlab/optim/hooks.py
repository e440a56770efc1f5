"""Hooks that see what a step orthogonalizes; a step without any pays nothing."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from muonlab.optim.part import Part

OrthogonalizeHook = Callable[[tuple[Tensor, ...], Tensor, Tensor], None]


class OrthogonalizeHooks(OrderedDict[int, OrthogonalizeHook]):
    """Hooks by number, and the gradients for those that asked for them.

    Attributes:
        gradients: whole, of what this process orthogonalizes, by parameter and number of the block; within a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradients: dict[tuple[Tensor, int], Tensor] = {}
        self._asked: set[int] = set()

    def add(self, hook: OrthogonalizeHook, *, gradients: bool) -> RemovableHandle:
        """Add a hook; the handle takes it away."""
        handle = RemovableHandle(self)
        self[handle.id] = hook
        if gradients:
            self._asked.add(handle.id)
        return handle

    @property
    def want_gradients(self) -> bool:
        """Whether a hook asked for gradients."""
        return any(number in self._asked for number in self)

    def show(self, parts: Sequence[Part], matrices: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Call each hook with stacks of its own to write into."""
        sizes = [math.prod(M.shape[:-2]) for M in matrices]
        if not self or not sum(sizes):
            return
        m, n = matrices[0].shape[-2:]
        params = tuple(part.param for part, size in zip(parts, sizes, strict=True) for _ in range(size))
        for hook in list(self.values()):
            hook(params, *(torch.cat([A.reshape(-1, m, n) for A in all_of]) for all_of in (matrices, results)))
