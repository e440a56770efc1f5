"""The exact polar factor of a matrix, on its range (Kim & Oh 2026, Algorithm 2, line 5)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from muonlab import _checks
from muonlab.orthogonalize.matrices import check_matrices, compute_dtype_for, map_matrices, require_finite
from muonlab.orthogonalize.prescale import to_unit_range
from muonlab.orthogonalize.workspace import Workspace

PolarMethod = Literal["auto", "svd", "gram"]
_GRAM_FROM = 192
"""Smaller side from which, for matrices twice as long, eigenvectors of the Gram matrix cost less than an SVD."""

POLAR_METHODS: tuple[PolarMethod, ...] = ("auto", "svd", "gram")


def polar(
    M: Tensor,
    *,
    method: PolarMethod = "auto",
    rank_tol: float | None = None,
    check_finite: bool = False,
) -> Tensor:
    r"""Return ``U Vᵀ`` over the singular values above the rank tolerance (Kim & Oh 2026, Algorithm 2, line 5).

    A partial isometry on the range of ``M``: directions whose singular value is at most the tolerance are mapped to
    zero, and zero to zero (Remark 2). ``⟨M, P⟩ = ‖M‖_*``, and scaling M changes nothing (Proposition 2). The result is
    new memory, detached from any graph.

    Args:
        M: real matrix or batch of matrices, shape (…, m, n).
        method: ``"svd"``; ``"gram"``: eigenvectors of ``M Mᵀ`` in float64, for inputs of at most float32, whose
            tolerance lies above what squaring loses; ``"auto"``: the faster, unless ``rank_tol`` is given.
        rank_tol: singular values up to it count as zero; None takes ``max(m, n)·eps·σ_max`` with the eps of float32
            (float64 for float64 input).
        check_finite: raise on NaN and infinity instead of passing NaN on.

    Returns:
        The polar factors, of the shape and dtype of ``M``.

    Example:
        >>> polar(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        tensor([[0., 1.],
                [0., 0.]])
    """
    check_matrices(M)
    _checks.one_of("method", method, POLAR_METHODS)
    if rank_tol is not None:
        rank_tol = _checks.non_negative("rank_tol", rank_tol)
    if method == "gram" and (M.dtype == torch.float64 or rank_tol is not None):
        raise ValueError(
            "method 'gram' squares the matrix and so serves float32 and below with the default rank_tol only, got "
            f"{M.dtype} and rank_tol = {rank_tol}: use method 'svd' or 'auto'"
        )
    if _checks.boolean("check_finite", check_finite):
        require_finite(M)
    dtype = compute_dtype_for(M, None)
    small, large = sorted(M.shape[-2:])
    cheaper = small >= _GRAM_FROM and large >= 2 * small
    by_gram = method == "gram" or (method == "auto" and dtype == torch.float32 and rank_tol is None and cheaper)

    def write(A: Tensor, out: Tensor, _: Workspace) -> None:
        finite = torch.isfinite(A).all(-1).all(-1)[..., None, None]
        safe = torch.where(finite, A, 0.0).to(dtype)
        factor = _by_gram(safe) if by_gram else _by_svd(safe, rank_tol)
        out.copy_(torch.where(finite, factor, torch.nan))

    return map_matrices(M.detach(), dtype, write)


def _relative_tolerance(A: Tensor) -> float:
    return max(A.shape[-2:]) * torch.finfo(A.dtype).eps


def _by_svd(A: Tensor, rank_tol: float | None) -> Tensor:
    S, exponent = to_unit_range(A)
    U, sigma, Vh = torch.linalg.svd(S, full_matrices=False)
    if rank_tol is None:
        threshold = _relative_tolerance(A) * sigma[..., :1]
    else:
        threshold = torch.ldexp(torch.full_like(sigma[..., :1], rank_tol), -exponent[..., 0])
    factor: Tensor = (U * (sigma > threshold).to(A.dtype)[..., None, :]) @ Vh
    return factor


def _by_gram(A: Tensor) -> Tensor:
    """Compute ``U Vᵀ`` from the eigenvectors of ``A Aᵀ`` in float64, after an exact scaling by a power of 2.

    An eigenvalue carries an error of 1e-16·λ_max, so that the rows ``uᵢᵀA/σᵢ`` of small σ are orthonormal only to
    1e-16·(σ_max/σ)². Cubic Newton-Schulz steps on their Gram matrix square that error each.
    """
    if A.shape[-2] > A.shape[-1]:
        return _by_gram(A.mT).mT
    S = to_unit_range(A)[0].double()
    lam, U = torch.linalg.eigh(S @ S.mT)
    sigma = lam.clamp_min(0).sqrt()
    tolerance = _relative_tolerance(A)
    kept = sigma > tolerance * sigma[..., -1:]
    Vh = torch.where(kept, 1 / sigma, 0.0)[..., None] * (U.mT @ S)
    for _ in range(1 if tolerance > 1e-5 else 3):
        Vh = 1.5 * Vh - 0.5 * (Vh @ Vh.mT) @ Vh
    factor: Tensor = U @ Vh
    return factor.to(A.dtype)
