"""The kernels as operators of torch, each one node of a graph: with checks and fake implementations, no derivatives."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from muonlab.orthogonalize.kernels import prescale_kernel, symmetric_kernel

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PRECISIONS = ("ieee", "tf32")

_library = torch.library.Library("muonlab", "FRAGMENT")  # Library costs 3 µs a call, torch.library.custom_op 32
_library.define(
    "symmetric_matmul(Tensor A, Tensor B, Tensor? add, Tensor? scale, float alpha, float beta, str precision, "
    "Tensor(a!) out) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "scale_to_unit_norm(Tensor M, bool paper, Tensor(a!) norms, Tensor(b!) out) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def symmetric_matmul(
    A: Tensor,
    B: Tensor,
    *,
    out: Tensor,
    add: Tensor | None = None,
    scale: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    precision: str = "ieee",
) -> Tensor:
    """Set ``out ← scale·alpha·A B + beta·add``, where the result is known to be symmetric, and return it.

    Only the tiles on and below the diagonal are computed, from the rows of A and the columns of B; what lies above is
    their mirror image, so that ``out`` equals its transpose bit by bit.

    Args:
        A: matrix (m, k) or stack (b, m, k) of any strides; float16, bfloat16 or float32.
        B: matrix (k, m) or stack (b, k, m).
        out: receives the result; no memory in common with A or B.
        add: symmetric summand, of which the lower triangle is read; may be ``out`` itself.
        scale: one float32 factor, or one per matrix, read on the device.
        alpha: factor of the product.
        beta: factor of ``add``.
        precision: ``"ieee"``, or ``"tf32"`` for float32 matrices.
    """
    torch.ops.muonlab.symmetric_matmul.default(A, B, add, scale, alpha, beta, precision, out)
    return out


def scale_to_unit_norm(M: Tensor, *, paper: bool, out: Tensor, norms: Tensor | None = None) -> Tensor:
    """Set ``out ← M/‖M‖_F`` (``M/max{1, ‖M‖_F}`` if ``paper``) for a matrix or stack, and return it.

    Zero stays zero, and a matrix with NaN or infinity becomes NaN. No entry leaves the range of float32 on the way.

    Args:
        M: matrix or stack.
        paper: whether to leave matrices of norm 1 and less.
        out: receives the result.
        norms: float32 buffer of :func:`norms_shape` for norms of parts; allocated if None.
    """
    if norms is None:
        norms = torch.empty(norms_shape(M.shape), dtype=torch.float32, device=M.device)
    torch.ops.muonlab.scale_to_unit_norm.default(M, paper, norms, out)
    return out


def norms_shape(shape: torch.Size) -> torch.Size:
    """Return the shape of the buffer for norms of parts of a matrix or stack of this shape."""
    batches = 1 if len(shape) == 2 else shape[0]
    return torch.Size((batches, prescale_kernel.cut(shape[-2] * shape[-1])[1], 2))


def _check_symmetric(
    A: Tensor, B: Tensor, add: Tensor | None, scale: Tensor | None, _alpha: float, _beta: float, precision: str,
    out: Tensor,
) -> None:  # fmt: skip
    tensors = [X for X in (A, B, add, out) if X is not None]
    _check_tensors("symmetric_matmul", tensors)
    square = (*A.shape[:-1], A.shape[-2])
    if B.shape != A.mT.shape or any(X.shape != square for X in tensors[2:]):
        raise ValueError(
            f"symmetric_matmul needs A (b, m, k), B (b, k, m), add and out (b, m, m), got "
            f"{', '.join(str(tuple(X.shape)) for X in tensors)}: transpose or expand the operand that differs"
        )
    if len({X.dtype for X in tensors}) > 1:
        raise TypeError(
            f"symmetric_matmul needs tensors of one dtype, got {', '.join(str(X.dtype) for X in tensors)}: convert them"
        )
    if scale is not None and (
        scale.dtype != torch.float32 or scale.ndim > 1 or scale.numel() not in (1, *A.shape[:-2])
    ):
        raise ValueError(
            f"scale must be float32 with one entry, or one per matrix of {tuple(A.shape)}, got {scale.dtype} of shape "
            f"{tuple(scale.shape)}: use scale.float().flatten()"
        )
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}: 'ieee' rounds as float32 does")


def _check_scaling(M: Tensor, paper: bool, norms: Tensor, out: Tensor) -> None:  # noqa: ARG001
    _check_tensors("scale_to_unit_norm", [M, out])
    if norms.shape != norms_shape(M.shape) or norms.dtype != torch.float32 or not norms.is_contiguous():
        raise ValueError(
            f"norms must be a contiguous float32 tensor of shape {tuple(norms_shape(M.shape))}, got {norms.dtype} of "
            f"shape {tuple(norms.shape)}: leave it out"
        )
    if out.shape != M.shape or not (out.is_contiguous() or out.mT.is_contiguous()):
        raise ValueError(
            f"scale_to_unit_norm needs a dense out of shape {tuple(M.shape)}, got {tuple(out.shape)} with strides "
            f"{out.stride()}: use torch.empty({tuple(M.shape)}) or its transpose"
        )


def _check_tensors(name: str, tensors: list[Tensor]) -> None:
    first = tensors[0]
    for X in tensors:
        if X.dtype not in DTYPES:
            raise TypeError(
                f"{name} computes in float16, bfloat16 and float32, got {X.dtype}: convert it, or use torch"
            )
        if X.ndim not in (2, 3) or X.device != first.device:
            raise ValueError(
                f"{name} needs matrices or stacks of them on one device, got {tuple(X.shape)} on {X.device} beside "
                f"{tuple(first.shape)} on {first.device}: use reshape(-1, *M.shape[-2:]) and to(device)"
            )
        if X.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{name} has no derivative, got a tensor that requires one: detach it, or use no_grad()")


def _symmetric_matmul(
    A: Tensor, B: Tensor, add: Tensor | None, scale: Tensor | None, alpha: float, beta: float, precision: str,
    out: Tensor,
) -> None:  # fmt: skip
    _check_symmetric(A, B, add, scale, alpha, beta, precision, out)
    if out.numel():
        with torch.cuda.device(A.device) if A.is_cuda else nullcontext():  # the launch goes to the current device
            symmetric_kernel.launch(A, B, add, scale, out, alpha, beta, precision)


def _scale_to_unit_norm(M: Tensor, paper: bool, norms: Tensor, out: Tensor) -> None:
    _check_scaling(M, paper, norms, out)
    if out.numel():
        with torch.cuda.device(M.device) if M.is_cuda else nullcontext():
            prescale_kernel.launch(M, paper, norms, out)


torch.library.register_fake("muonlab::symmetric_matmul", _check_symmetric, lib=_library)
torch.library.register_fake("muonlab::scale_to_unit_norm", _check_scaling, lib=_library)
for _key in ("CUDA", *(("CPU",) if symmetric_kernel.INTERPRETED else ())):
    _library.impl("symmetric_matmul", _symmetric_matmul, _key)
    _library.impl("scale_to_unit_norm", _scale_to_unit_norm, _key)
