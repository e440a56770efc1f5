"""The matrices of a batch on an accelerator in one tensor, so that one launch serves all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from muonlab.orthogonalize.workspace import Workspaces

OrthogonalizeInto = Callable[[Tensor, Tensor, Workspaces], None]
"""Orthogonalizes a stack into a tensor of its shape, with buffers from the workspaces."""


class MatrixStack:
    """Memory for matrices of shapes m×n and n×m, or batches of b of them, which are orthogonalized as one m×n stack.

    Wide matrices lie in the stack itself. Tall ones have a tensor of their own, which is transposed into the stack and
    back by one launch each.

    Args:
        shapes: shape of each matrix (m, n) or of each batch (b, m, n); equal but for the order of m and n.
        like: tensor whose dtype and device the matrices have.
        workspaces: buffers; they go back there by :meth:`release`.

    Attributes:
        slots: for each shape, the part of the memory to write its matrices to.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], like: Tensor, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._workspace = workspaces.of(like.dtype, like.device)
        self._shapes = shapes
        m, n = sorted(shapes[0][-2:])
        self._counts = [math.prod(shape[:-2]) for shape in shapes]
        tall = [shape[-2] > shape[-1] for shape in shapes]
        self._is_tall = tall
        self._wide_count = sum(count for count, t in zip(self._counts, tall, strict=True) if not t)
        self._stack_shape = torch.Size((sum(self._counts), m, n))
        self._tall_shape = torch.Size((sum(self._counts) - self._wide_count, n, m))
        self._taken: list[Tensor] = []
        self._scalars: list[Tensor] = []
        self._stack, self._tall = self._take(self._stack_shape), self._take(self._tall_shape)
        self.slots = self._parts(self._stack, self._tall)

    def orthogonalize(self, orthogonalize_into: OrthogonalizeInto) -> Sequence[Tensor]:
        """Return the results in the shapes and the order of the slots; the slots keep their values."""
        if self._tall.numel():
            self._stack[self._wide_count :].copy_(self._tall.mT)
        results, tall = self._take(self._stack_shape), self._take(self._tall_shape)
        if results.numel():
            orthogonalize_into(self._stack, results, self._workspaces)
        if tall.numel():
            tall.copy_(results[self._wide_count :].mT)
        return self._parts(results, tall)

    def scalar(self, dtype: torch.dtype) -> Tensor:
        """Return a tensor of no dimensions, for a learning rate on the device."""
        buffer = self._workspace.of_dtype(dtype).take(torch.Size(()))
        self._scalars.append(buffer)
        return buffer

    def release(self) -> None:
        """Return all memory to the workspaces; slots and results must not be used afterwards."""
        self._workspace.give(*self._taken)
        for buffer in self._scalars:
            self._workspace.of_dtype(buffer.dtype).give(buffer)
        self._taken.clear()
        self._scalars.clear()

    def _take(self, shape: torch.Size) -> Tensor:
        buffer = self._workspace.take(shape)
        self._taken.append(buffer)
        return buffer

    def _parts(self, stack: Tensor, tall: Tensor) -> list[Tensor]:
        parts, used = [], {False: 0, True: 0}
        for shape, count, is_tall in zip(self._shapes, self._counts, self._is_tall, strict=True):
            first = used[is_tall]
            parts.append((tall if is_tall else stack)[first : first + count].view(shape))
            used[is_tall] += count
        return parts
