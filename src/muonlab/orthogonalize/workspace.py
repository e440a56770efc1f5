"""Buffers that are reused for the matrices of a batch, and by later calls of the same thread or owner."""

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
        self._of_other_dtypes: dict[torch.dtype, Workspace] = {}

    def take(self, shape: torch.Size) -> Tensor:
        """Return a buffer of this shape, with arbitrary contents."""
        free = self._free.get(shape)
        return free.pop() if free else torch.empty(shape, dtype=self._dtype, device=self._device)

    def of_dtype(self, dtype: torch.dtype) -> Workspace:
        """Return the pool for another dtype that belongs to this one; itself for its own dtype."""
        if dtype == self._dtype:
            return self
        return self._of_other_dtypes.setdefault(dtype, Workspace(dtype, self._device))

    def give(self, *buffers: Tensor) -> None:
        """Return buffers for reuse; only row-major ones are kept, since products round differently by layout."""
        for buffer in buffers:
            kept = buffer if buffer.is_contiguous() else buffer.mT
            # is_contiguous() ignores the strides of dimensions of size 1, but products round by them
            if kept.is_contiguous() and (kept.ndim < 2 or kept.stride()[-2:] == (kept.shape[-1], 1)):
                self._free.setdefault(kept.shape, []).append(kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all free buffers."""
        return sum(len(free) * free[0].nbytes for free in self._free.values() if free)


class Workspaces:
    """Workspaces that an owner, such as an optimizer, keeps between calls: one for each dtype, device and CUDA stream.

    Buffers are reused in the order of a stream, so each stream has its own.

    Attributes:
        keep: whether buffers stay after :meth:`finish_stack`; else every shape of a step would hold memory to its end.
    """

    def __init__(self) -> None:
        self.keep = False
        self._kept: dict[tuple[torch.dtype, torch.device, int], Workspace] = {}

    def of(self, dtype: torch.dtype, device: torch.device) -> Workspace:
        """Return the workspace for a dtype on the current stream of a device."""
        real = device.type == "cuda" and torch.cuda.is_available()
        key = (dtype, device, torch.cuda.current_stream(device).cuda_stream if real else 0)
        return self._kept.setdefault(key, Workspace(dtype, device))

    def finish_stack(self) -> None:
        """Free all buffers that are not in use, unless they are to be kept."""
        if not self.keep:
            self._kept.clear()


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
