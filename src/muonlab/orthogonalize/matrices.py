"""Shared by all orthogonalizers: check the input, choose the dtype, iterate over a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from muonlab.orthogonalize.workspace import Workspace, Workspaces, borrow, put_back

HALF = (torch.float16, torch.bfloat16)
FLOATING = (*HALF, torch.float32, torch.float64)


def check_matrices(M: Tensor) -> Tensor:
    """Return ``M`` if it is a dense real matrix or a batch of such."""
    if not isinstance(M, Tensor):
        raise TypeError(f"M must be a torch.Tensor, got {type(M).__name__}: use torch.as_tensor(M)")
    if M.layout != torch.strided:
        raise TypeError(f"M must be dense, got layout {M.layout}: use M.to_dense()")
    if M.dtype not in FLOATING:
        way_out = "orthogonalize real matrices only" if M.is_complex() else "use M.float()"
        raise TypeError(f"M must be float16, bfloat16, float32 or float64, got {M.dtype}: {way_out}")
    if M.ndim < 2:
        raise ValueError(
            f"M must have at least two dimensions (…, m, n), got shape {tuple(M.shape)}: reshape it to a matrix"
        )
    return M


def compute_dtype_for(M: Tensor, compute_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype to compute in: as asked, else float32 for half precision and the input's own otherwise."""
    if compute_dtype is None:
        return torch.float32 if M.dtype in HALF else M.dtype
    if compute_dtype not in FLOATING:
        raise TypeError(
            f"compute_dtype must be float16, bfloat16, float32, float64 or None, got {compute_dtype!r}: "
            f"None keeps float32 and float64"
        )
    return compute_dtype


def require_finite(M: Tensor) -> None:
    """Raise if any entry is NaN or infinite (forces a host-device synchronization)."""
    if M.is_meta:
        raise ValueError("check_finite needs the entries of M, got one on the meta device: pass check_finite=False")
    bad = ~torch.isfinite(M)
    if bad.any():
        raise ValueError(
            f"M must be finite (check_finite=True), got {int(bad.sum())} NaN or infinite of {M.numel()} entries: "
            f"clean the input, or pass check_finite=False to let NaN through"
        )


Write = Callable[[Tensor, Tensor, Workspace], None]
"""Writes the orthogonalized first argument into the second, with buffers from the third."""


def map_matrices(M: Tensor, dtype: torch.dtype, write: Write) -> Tensor:
    """Return a new tensor of M's shape and dtype that ``write(M_i, out_i, workspace)`` fills.

    On a CPU the matrices are computed one by one, each in aligned buffers, so that a matrix gets the same bits alone
    and in a batch. Elsewhere the whole stack is one call. ``out_i`` has the compute dtype and contiguous memory.
    """
    if torch.amp.is_autocast_available(M.device.type) and torch.is_autocast_enabled(M.device.type):
        with torch.autocast(M.device.type, enabled=False):  # compute in the requested dtype, whatever autocast says
            return map_matrices(M, dtype, write)
    result = torch.empty(M.shape, dtype=M.dtype, device=M.device)
    if not M.numel():
        return result
    workspace = borrow(M, dtype)
    one_call = M.ndim == 2 or M.device.type != "cpu"
    if one_call and M.ndim <= 3 and M.dtype == dtype:
        write(M, result, workspace)
    else:
        stack, results = M.reshape(-1, *M.shape[-2:]), result.view(-1, *M.shape[-2:])
        inputs, outputs = ([stack], [results]) if one_call else (stack.unbind(), results.unbind())
        target = workspace.take(inputs[0].shape)
        for A, out in zip(inputs, outputs, strict=True):
            write(A, target, workspace)
            out.copy_(target)
        workspace.give(target)
    put_back(workspace, M, dtype)
    return result


def map_stack(M: Tensor, dtype: torch.dtype, write: Write, out: Tensor, workspaces: Workspaces) -> None:
    """Let ``write`` fill ``out``, of M's shape and dtype, for a stack of matrices on an accelerator.

    All buffers come from ``workspaces``, so that nothing is allocated from the second call on.
    """
    if torch.amp.is_autocast_available(M.device.type) and torch.is_autocast_enabled(M.device.type):
        with torch.autocast(M.device.type, enabled=False):
            return map_stack(M, dtype, write, out, workspaces)
    workspace = workspaces.of(dtype, M.device)
    if M.dtype == dtype:
        return write(M, out, workspace)
    target = workspace.take(M.shape)
    write(M, target, workspace)
    out.copy_(target)
    workspace.give(target)
    return None
