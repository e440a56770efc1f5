"""Buffers that are reused for the matrices of a batch and, on a CPU, by later calls of the same thread."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

KEPT_BYTES = 32 << 20
"""Most bytes that a thread keeps per dtype; for a small matrix, allocating costs more than its products."""


class _Kept(threading.local):
    def __init__(self) -> None:
        self.by_dtype: dict[torch.dtype, Workspace] = {}


class Workspace:
    """A pool to take buffers from and give them back to."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._free: dict[torch.Size, list[Tensor]] = {}

    def take(self, shape: torch.Size) -> Tensor:
        """Return a buffer of this shape, with arbitrary contents."""
        free = self._free.get(shape)
        return free.pop() if free else torch.empty(shape, dtype=self._dtype, device=self._device)

    def give(self, *buffers: Tensor) -> None:
        """Return buffers for reuse; only row-major ones are kept, since products round differently by layout."""
        for buffer in buffers:
            kept = buffer if buffer.is_contiguous() else buffer.mT
            # is_contiguous() ignores the strides of dimensions of size 1, but products round by them
            if kept.is_contiguous() and kept.stride()[-2:] in ((1,), (kept.shape[-1], 1)):
                self._free.setdefault(kept.shape, []).append(kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all free buffers."""
        return sum(len(free) * free[0].nbytes for free in self._free.values() if free)


_kept = _Kept()


def keeps(M: Tensor) -> bool:
    """Return whether buffers are kept after a call on M: only for plain CPU tensors, outside of tracing."""
    ordinary = type(M) is Tensor and M.device.type == "cpu"
    return ordinary and not torch.is_inference_mode_enabled() and not torch.compiler.is_compiling()


def borrow(M: Tensor, dtype: torch.dtype) -> Workspace:
    """Return a workspace for one call on ``M``: the one this thread kept, or a new one.

    It is removed from the store until :func:`put_back`, so that a nested or failing call cannot corrupt it.
    """
    return (_kept.by_dtype.pop(dtype, None) if keeps(M) else None) or Workspace(dtype, M.device)


def put_back(workspace: Workspace, M: Tensor, dtype: torch.dtype) -> None:
    """Keep a workspace for this thread's next call unless it has grown large."""
    if workspace.nbytes <= KEPT_BYTES and keeps(M):
        _kept.by_dtype[dtype] = workspace


def release() -> None:
    """Free the buffers that this thread keeps."""
    _kept.by_dtype.clear()
