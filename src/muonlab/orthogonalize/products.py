"""Matrix products that use symmetry, and polynomials of a symmetric matrix with the fewest products.

Everything works on a matrix or on a stack of them, in place on buffers that the caller owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from muonlab.orthogonalize.arithmetic import TF32_ROUNDOFF, product_roundoff
from muonlab.orthogonalize.crossover import multiplies_here
from muonlab.orthogonalize.matrices import HALF
from muonlab.orthogonalize.workspace import Workspace
from muonlab.theory.cost import block_size

_PIECE = 1 << 13
"""Columns that one product sums over when there are more than twice as many."""

Factor = float | Tensor
"""A factor: a number, or a tensor where reading the number would force a host-device synchronization."""

_SPLIT_WORK = 56_000_000
"""Multiply-adds from which halving a symmetric product pays on a CPU (smaller blocks run below full speed)."""


class Product(Protocol):
    """The call that every product goes through: ``out ← alpha·A B + beta·add`` (the form of :func:`torch.addmm`)."""

    def __call__(
        self, add: Tensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Tensor
    ) -> Tensor:
        """Write the product into ``out``; ``add`` is ignored if ``beta`` is 0."""
        ...


def plain_product(ndim: int) -> Product:
    """Return the product for matrices (``ndim=2``) or stacks of them."""
    return cast(Product, torch.addmm if ndim == 2 else torch.baddbmm)


def symmetric_product(R: Tensor) -> Product:
    """Return the product ``A B`` to use for matrices of R's shape where B and the result are symmetric."""
    if multiplies_here(R):
        return kernel_product
    return mirrored_product if _splits(R.shape[-1], R.shape[-1], R) else plain_product(R.ndim)


def commuting_product(R: Tensor) -> Product:
    """Return the product ``A B`` to use where A and B commute but for rounding, so that the result is nearly symmetric.

    The kernel mirrors it too: with some products mirrored and others whole, errors are larger than with all of either
    kind (docs/adr/0024).
    """
    return kernel_product if multiplies_here(R) else plain_product(R.ndim)


def multiply(A: Tensor, B: Tensor, *, scale: Factor = 1.0, out: Tensor) -> Tensor:
    """Set ``out ← scale·A B``, for matrices or stacks."""
    if isinstance(scale, Tensor):
        return multiply(A, B, out=out).mul_(scale)
    return plain_product(out.ndim)(out, A, B, beta=0.0, alpha=scale, out=out)


def gram(X: Tensor, *, scale: Factor = 1.0, out: Tensor) -> Tensor:
    """Set ``out ← scale·X Xᵀ``, long rows piece by piece: one float32 sum over a million columns loses digits."""
    in_kernel = multiplies_here(X)
    if X.shape[-1] > 2 * _PIECE and not (in_kernel and X.dtype in HALF):  # the kernel sums half precision in float32
        part = torch.empty_like(out)
        wide = out.dtype if out.dtype == torch.float64 else torch.float32  # half precision would round every sum
        total = out.zero_() if wide == out.dtype else torch.zeros_like(out, dtype=wide)
        for piece in torch.split(X, _PIECE, dim=-1):
            total.add_(gram(piece, out=part))
        total.mul_(scale)
        return total if total is out else out.copy_(total)
    if in_kernel:
        factor = scale if isinstance(scale, Tensor) else None
        return _kernel(X, X.mT, scale=factor, alpha=1.0 if isinstance(scale, Tensor) else scale, out=out)
    if not _splits(X.shape[-2], X.shape[-1], X):
        return multiply(X, X.mT, scale=scale, out=out)
    if isinstance(scale, Tensor):
        return gram(X, out=out).mul_(scale)
    return _mirrored(out, X, X.mT, beta=0.0, alpha=scale, out=out)


def _splits(m: int, k: int, A: Tensor) -> bool:
    return m >= 32 and m * m * k >= _SPLIT_WORK and A.device.type == "cpu"


def mirrored_product(
    add: Tensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Tensor
) -> Tensor:
    """Set ``out ← alpha·A B + beta·add`` for symmetric B, where the result is known to be symmetric."""
    return _mirrored(add, A, B.mT, beta=beta, alpha=alpha, out=out)  # rows of B lie together in memory, columns do not


def kernel_product(add: Tensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Tensor) -> Tensor:
    """Set ``out ← alpha·A B + beta·add`` like :func:`mirrored_product`, in the kernel for GPUs."""
    return _kernel(A, B.mT, add=add if beta else None, beta=beta, alpha=alpha, out=out)


def _kernel(
    A: Tensor, B: Tensor, *, add: Tensor | None = None, scale: Tensor | None = None, beta: float = 0.0, alpha: float,
    out: Tensor,
) -> Tensor:  # fmt: skip
    from muonlab.orthogonalize.kernels.operators import symmetric_matmul  # imports Triton

    if scale is not None:
        scale = scale.float().flatten()
    tf32 = A.dtype == torch.float32 and product_roundoff(A.dtype, A.device) == TF32_ROUNDOFF
    precision = "tf32" if tf32 else "ieee"
    return symmetric_matmul(A, B, add=add, scale=scale, alpha=alpha, beta=beta, precision=precision, out=out)


def _mirrored(add: Tensor, A: Tensor, B: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Tensor) -> Tensor:
    """Multiply the blocks on and below the diagonal, halving again where that pays, and mirror the upper block."""
    m, k = A.shape[-2:]
    h = (m // 2 + 15) // 16 * 16
    first, second = slice(None, h), slice(h, None)
    for i, j in ((first, first), (second, first), (second, second)):
        left, right, block = A[..., i, :], B[..., j], out[..., i, j]
        product = _mirrored if i is j and _splits(left.shape[-2], k, A) else plain_product(out.ndim)
        product(add[..., i, j], left, right, beta=beta, alpha=alpha, out=block)
    out[..., first, second] = out[..., second, first].mT
    return out


def add_identity(A: Tensor, c: float = 1.0) -> Tensor:
    """Add ``c·I`` in place."""
    A.diagonal(dim1=-2, dim2=-1).add_(c)
    return A


def without_constant(
    coefficients: Sequence[float],
    V: Tensor,
    product: Product,
    workspace: Workspace,
    *,
    out: Tensor,
    square: Tensor | None = None,
    consume: bool = False,
) -> None:
    """Set ``out ← Σ_{k≥1} c_k V^k`` for a symmetric V by Paterson and Stockmeyer's scheme, with the fewest products.

    Args:
        coefficients: ``c_0 … c_κ`` with κ ≥ 1; ``c_0`` is not used: callers handle ``c_0 I`` themselves.
        V: symmetric matrix or stack.
        product: the product to use.
        workspace: pool of buffers for intermediate results.
        out: receives the result.
        square: ``V²`` if already known; its buffer is returned to the workspace.
        consume: whether V may be overwritten, which saves a buffer.
    """
    c, kappa = coefficients, len(coefficients) - 1
    powers = [V] if square is None else [V, square]  # V, V², …, Vˢ
    s = max(block_size(kappa), len(powers))
    while len(powers) < s:
        power = workspace.take(V.shape)
        powers.append(product(power, powers[-1], V, beta=0.0, out=power))
    top = (-(-kappa // s) - 1) * s  # the top block holds c[top] … c[κ], at most s + 1 terms
    Z: Tensor | None = None
    for first in range(top - s, -1, -s):  # Z + c[·] I ← Vˢ (Z + c[first + s] I) + c[first] I + c[first + 1] V + …
        low = _combination(c[first : first + s], powers, out if first == 0 else workspace.take(V.shape))
        if Z is None:
            last_use = consume and first == 0 and s > 1
            Z = _combination(c[top:], powers, V if last_use else workspace.take(V.shape))
        add_identity(Z, c[first + s])
        product(low, powers[s - 1], Z, out=low)
        workspace.give(*(() if Z is V else (Z,)))
        Z = low
    if Z is None:
        _combination(c, powers, out)
    workspace.give(*powers[1:])


def _combination(c: Sequence[float], powers: Sequence[Tensor], out: Tensor) -> Tensor:
    """Set ``out ← c_1 V + c_2 V² + …``."""
    if len(c) == 1:
        return out.zero_()
    torch.mul(powers[0], c[1], out=out)
    for coefficient, power in zip(c[2:], powers[1:], strict=False):
        out.add_(power, alpha=coefficient)
    return out
