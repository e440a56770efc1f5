"""Scaling a matrix into the unit ball before the first step (Kim & Oh 2026, Algorithm 1, line 5, and beyond it).

Norms are taken after an exact power of two has brought the largest entry to [½, 1), so that no input overflows or
underflows on the way and scaling the input by a power of two changes no bit of the result.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from muonlab.orthogonalize.crossover import scales_here
from muonlab.orthogonalize.products import symmetric_product
from muonlab.orthogonalize.workspace import Workspace

Prescale = Literal["frobenius", "paper", "schatten4", "schatten8", "spectral", "none"]
PRESCALES: tuple[Prescale, ...] = ("frobenius", "paper", "schatten4", "schatten8", "spectral", "none")
GRAM_PRESCALES = frozenset({"schatten4", "schatten8", "spectral"})
"""Prescales that are read off the Gram matrix of the Frobenius-normalised input."""

SCHATTEN = {"frobenius": 2, "paper": 2, "none": 2, "schatten4": 4, "schatten8": 8, "spectral": 8}
"""Exponent p with ``Σ s_i^p ≥ 1`` after the prescale, which is all that the alignment floor needs; ``"paper"`` and
``"none"`` leave it to the matrix."""

_WIDE = (torch.float32, torch.float64)
_LONG_ROW = 1 << 14
_SAFE = (2.0**-20, 2.0**40)
"""Norms between which float32 squares neither overflow nor lose anything that counts."""

_TINY = 1e-30
"""Below the square of the norm of every matrix but zero, after its largest entry has been brought to 1 or near."""

_ALIGNMENT = 64
"""Products may round differently from another address; this one, torch's own, makes batches and singles agree."""


def frobenius_norm(X: Tensor) -> Tensor:
    """Return ``‖X‖_F`` of each matrix, row by row: one float32 sum over all entries would lose five digits."""
    norm: Tensor = torch.linalg.vector_norm(_row_norms(X), dim=-1)
    return norm


def _norm_of_one(X: Tensor) -> float:
    """Return the same for one matrix on a CPU as a number, in fewer calls; infinite where its square overflows."""
    rows = _row_norms(X)
    return math.sqrt(float(torch.dot(rows, rows)))


def _row_norms(X: Tensor) -> Tensor:
    accumulator = torch.float64 if max(X.shape[-2:]) > _LONG_ROW and X.device.type != "mps" else None
    norms: Tensor = torch.linalg.vector_norm(X.mT if X.stride(-2) == 1 else X, dim=-1, dtype=accumulator)
    return norms


def unit_scale(
    M: Tensor, dtype: torch.dtype, prescale: Prescale, workspace: Workspace
) -> tuple[Tensor, float | Tensor]:
    """Return S and c such that ``c·S`` is the scaled input, with δ_0 < 1 unless "none" (Kim & Oh 2026, Remark 1).

    The scale here is that of ``"frobenius"``, ``"paper"`` or ``"none"``; the others refine it in :func:`gram_scale`.
    S is ``M`` itself where its range and layout allow, so that scaling touches Gram-sized matrices only; otherwise
    it is a buffer that the caller returns to the workspace. Zero stays zero.
    """
    in_kernel = prescale != "none" and scales_here(M, dtype)
    on_accelerator = M.device.type not in ("cpu", "mps") and torch.float64 not in (M.dtype, dtype)
    if in_kernel or (on_accelerator and prescale != "none"):
        return (_scaled_by_kernel if in_kernel else _normalized)(M, prescale, workspace), 1.0
    if dtype not in _WIDE:  # unscaled products would overflow in half precision
        return _scaled_half(M, prescale, workspace), 1.0
    if M.dtype == torch.float64 and dtype != M.dtype:  # its range may not fit
        wide, exponent = to_unit_range(M)
        return _scale_of(workspace.take(M.shape).copy_(wide), exponent, prescale)
    S = _dense(M, dtype, workspace)
    if prescale == "none":
        return S, 1.0
    if S.device.type == "cpu" and S.ndim == 2:  # reading a number off a CPU costs no synchronisation
        norm = _norm_of_one(S)
        if _SAFE[0] <= norm <= _SAFE[1]:
            return S, 1 / (max(1.0, norm) if prescale == "paper" else norm)
    # a buffer and not a new tensor: the caller returns it to the workspace, which would grow
    scaled = workspace.take(S.mT.shape).mT if S.stride(-1) != 1 else workspace.take(S.shape)
    result = _scale_of(*to_unit_range(S, out=scaled), prescale)
    if S is not M:
        workspace.give(S)
    return result


def _normalized(M: Tensor, prescale: Prescale, workspace: Workspace) -> Tensor:
    """Return the scaled input on an accelerator, in few launches and in memory of the workspace alone.

    Entries are brought to at most 1 first, so that no square leaves the range of float32. Zero stays zero, and a matrix
    with an infinite entry becomes NaN.
    """
    wide = workspace.of_dtype(torch.float32)
    largest, unit, norm, square = (wide.take(M[..., :1, :1].shape) for _ in range(4))
    rows = wide.take(M[..., :1].shape)
    torch.linalg.vector_norm(M, torch.inf, dim=(-2, -1), keepdim=True, dtype=torch.float32, out=largest)
    torch.reciprocal(largest.clamp_(2.0**-126, 2.0**126), out=unit)
    S = torch.mul(M, unit, out=wide.take(M.shape))
    torch.linalg.vector_norm(S, dim=-1, keepdim=True, out=rows)
    torch.linalg.vector_norm(rows, dim=-2, keepdim=True, out=norm)
    torch.mul(norm, norm, out=square).clamp_min_(_TINY)
    norm.div_(square)  # 1/norm; 0 for zero, NaN for infinity
    if prescale == "paper":
        torch.minimum(norm, largest, out=norm)  # S·largest = M
    wide.give(largest, unit, square, rows)
    if wide is workspace:
        X = S.mul_(norm)
    else:
        X = torch.mul(S, norm, out=workspace.take(M.shape))
        wide.give(S)
    wide.give(norm)
    return X


def _scale_of(S: Tensor, exponent: Tensor, prescale: Prescale) -> tuple[Tensor, float | Tensor]:
    """Return S and the scale of ``2^exponent·S``, whose entries are at most 1."""
    norm = frobenius_norm(S).to(S.dtype)[..., None, None]
    power = torch.ldexp(torch.ones_like(norm), exponent)
    c = torch.where(norm == 0, norm, 1 / norm).where(torch.isfinite(norm), torch.nan)  # 1/inf = 0 would hide infinity
    if prescale == "paper":
        c = torch.where(norm * power < 1, power, c)
    elif prescale == "none":
        c = power
    if S.device.type != "cpu" or S.ndim != 2:
        return S, c
    known = _norm_of_one(S)  # a number as above: then scaling the input by a power of two changes no bit
    return S, 1 / known if 0 < known < math.inf and not bool(c == power) else float(c)


def _dense(M: Tensor, dtype: torch.dtype, workspace: Workspace) -> Tensor:
    """Return ``M`` in the compute dtype, as it is where rows or columns lie dense from an aligned address."""
    dense = M.dtype == dtype and (M.is_contiguous() or M.mT.is_contiguous())
    if dense and (M.device.type != "cpu" or M.data_ptr() % _ALIGNMENT == 0):
        return M
    if M.stride(-2) == 1 and M.mT.is_contiguous():  # keep the layout, so that the copy rounds like the original
        return workspace.take(M.mT.shape).mT.copy_(M)
    return workspace.take(M.shape).copy_(M)


def _scaled_by_kernel(M: Tensor, prescale: Prescale, workspace: Workspace) -> Tensor:
    from muonlab.orthogonalize.kernels.operators import norms_shape, scale_to_unit_norm  # imports Triton

    X = workspace.take(M.mT.shape).mT if M.stride(-1) != 1 else workspace.take(M.shape)  # the order of M in memory
    numbers = workspace.of_dtype(torch.float32)
    norms = numbers.take(norms_shape(M.shape))
    scale_to_unit_norm(M, paper=prescale == "paper", norms=norms, out=X)
    numbers.give(norms)
    return X


def _scaled_half(M: Tensor, prescale: Prescale, workspace: Workspace) -> Tensor:
    X = workspace.take(M.shape)
    if prescale == "none":
        return X.copy_(M)
    S, c = _scale_of(*to_unit_range(_at_least_float(M)), prescale)
    return X.copy_(S.mul_(c))


def to_unit_range(M: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return ``M·2^-e`` and e with the largest entry in [½, 1): exact, and no norm or product leaves its range then."""
    largest = torch.maximum(M.amax((-2, -1), keepdim=True), -M.amin((-2, -1), keepdim=True))
    limit = 126 if M.dtype == torch.float32 else 1022
    exponent = _binary_exponent(largest).clamp(-limit, limit)
    return torch.mul(M, torch.ldexp(torch.ones_like(largest), -exponent), out=out), exponent


def _binary_exponent(x: Tensor) -> Tensor:
    """Return e with ``½ ≤ |x|·2^-e < 1``; torch.frexp, which older torch lacks on MPS."""
    return _exponent_from_bits(x) if x.device.type == "mps" else torch.frexp(x).exponent


def _exponent_from_bits(x: Tensor) -> Tensor:
    """Return the same for float32, read off its bits; 0 for zero and what is not finite."""
    x = x.abs()
    bits = x.view(torch.int32)
    subnormal = bits < 1 << 23
    normal = torch.where(subnormal, (x * 2.0**24).view(torch.int32), bits)
    exponent = (normal >> 23) - 126 - 24 * subnormal.to(torch.int32)
    return torch.where((bits == 0) | (bits >= 0xFF << 23), 0, exponent)


def gram_scale(
    S: Tensor, c: float | Tensor, R: Tensor, prescale: Prescale, workspace: Workspace
) -> tuple[Tensor, Tensor | None]:
    """Return ``1/α`` with ``α ≥ ‖X‖_op`` for ``X = c·S``, ``R = X Xᵀ``, ``‖X‖_F ≤ 1``; and ``R²`` where it was formed.

    The norms α are Schatten norms (Kim & Oh 2026, Definition 4), each at least the operator norm. ``schatten4``:
    ``α = ‖R‖_F^{1/2}``; ``schatten8``: ``‖R²‖_F^{1/4}``; ``spectral``: :func:`spectral_bound`.
    """
    square = None
    if prescale == "schatten4":
        alpha = frobenius_norm(_at_least_float(R)).sqrt()[..., None, None]
    elif prescale == "schatten8" and R.dtype in _WIDE:
        square = workspace.take(R.shape)
        symmetric_product(R)(square, R, R, beta=0.0, out=square)
        alpha = frobenius_norm(square).sqrt().sqrt()[..., None, None]
    elif prescale == "schatten8":  # σ⁸ leaves the range of half precision
        alpha = frobenius_norm(R.float() @ R.float()).sqrt().sqrt()[..., None, None]
    elif prescale == "spectral":
        alpha = spectral_bound(S)[..., None, None] * c * (1 + torch.finfo(R.dtype).eps)  # so is its rounded inverse
    else:
        raise AssertionError(f"prescale {prescale!r} is not read off the Gram matrix")
    return torch.where(alpha == 0, alpha, 1 / alpha).to(R.dtype), square


def _at_least_float(A: Tensor) -> Tensor:
    return A if A.dtype in _WIDE else A.float()


def wide_gram(S: Tensor) -> Tensor:
    """Return ``S Sᵀ`` in float64, a Gram-sized piece at a time, so that the copies in float64 stay small."""
    m = S.shape[-2]
    G = S.new_zeros((*S.shape[:-1], m), dtype=torch.float64)
    for chunk in torch.split(S, max(m, 64), dim=-1):
        wide = chunk.double()
        G += wide @ wide.mT
    return G


def spectral_bound(X: Tensor) -> Tensor:
    """Return an upper bound of ``‖X‖_op`` (float64, one per matrix) that never falls short of it.

    The largest eigenvalue of ``X Xᵀ`` in float64, plus bounds on the rounding of that product and of the eigenvalue.
    NaN in, NaN out; an empty matrix has norm 0.

    Example:
        >>> bool(spectral_bound(torch.diag(torch.tensor([3.0, 4.0]))) >= 4)
        True
    """
    m, n = X.shape[-2:]
    if m > n:
        return spectral_bound(X.mT)
    if m == 0:
        return X.new_zeros(X.shape[:-2], dtype=torch.float64)
    S, exponent = to_unit_range(X if X.dtype in _WIDE else X.float())
    G = wide_gram(S)
    finite = torch.isfinite(G).all(-1).all(-1)
    top = torch.linalg.eigvalsh(torch.where(finite[..., None, None], G, 0.0))[..., -1]
    trace = G.diagonal(dim1=-2, dim2=-1).sum(-1)
    slack = (n + 8 * m) * torch.finfo(torch.float64).eps * trace
    bound = torch.ldexp((top + slack).clamp_min(0).sqrt(), exponent[..., 0, 0])
    return torch.where(finite, bound, torch.nan)
