"""What an orthogonalization costs: the paper's counts and ratio (Lemma 11), and the true counts of the methods here."""

from __future__ import annotations

from typing import Literal

from muonlab import _checks

FlopMethod = Literal["standard", "gram", "horner", "svd", "svd_full"]
_METHODS: tuple[FlopMethod, ...] = ("standard", "gram", "horner", "svd", "svd_full")


def block_size(kappa: int) -> int:
    """Return the Paterson-Stockmeyer block size with the fewest products for degree κ.

    In a tie the one that holds the fewest matrices: 2, then the smaller.
    """
    kappa = _checks.integer("kappa", kappa, at_least=1)
    return min(range(1, kappa + 1), key=lambda s: (_products_with(kappa, s), s != 2, s))


def _products_with(kappa: int, s: int) -> int:
    return (s - 1) + (-(-kappa // s) - 1)  # powers U²…Uˢ, then one product per further block


def products(kappa: int) -> int:
    """Return the number of m×m products that evaluate a polynomial of degree κ in a matrix.

    Example:
        >>> [products(k) for k in (1, 2, 3, 4, 5, 6, 9)]
        [0, 1, 2, 2, 3, 3, 4]
    """
    return _products_with(kappa, block_size(kappa))


def gram_products(kappa: int, q: int) -> int:
    """Return the m×m products of q steps in Gram space: p(R), then Q·p and R·p·p where still needed."""
    q = _checks.integer("q", q, at_least=0)
    return q * products(kappa) + (q - 1) + 2 * (q - 1) if q else 0


def flops(m: int, n: int, method: FlopMethod = "standard", kappa: int = 2, q: int = 3) -> int:
    r"""Return the floating-point operations to orthogonalize an m×n matrix, symmetry not counted.

    Args:
        m: rows; tall matrices are transposed first.
        n: columns.
        method: ``"standard"``: q steps on X as implemented here, ``q(4m²n + 2m³·products(κ))``;
            ``"gram"``: the same steps on ``X Xᵀ`` without a restart, ``4m²n + 2m³·gram_products(κ, q)``;
            ``"horner"``: the paper's count ``2q(κ+1)m²n`` (Kim & Oh 2026, Lemma 11);
            ``"svd"``: the paper's ``4m²n + 8m³``, which is Σ and V only; ``"svd_full"``: both factors and their
            product, ``8m²n + 20m³``.
        kappa: degree of the polynomial.
        q: number of steps.

    Example:
        >>> flops(768, 3072, "gram", q=5) / flops(768, 3072, "standard", q=5)
        0.5555555555555556
    """
    m, n = sorted((_checks.integer("m", m, at_least=0), _checks.integer("n", n, at_least=0)))
    kappa, q = _checks.integer("kappa", kappa, at_least=1), _checks.integer("q", q, at_least=0)
    _checks.one_of("method", method, _METHODS)
    if method == "svd":
        return 4 * m * m * n + 8 * m**3
    if method == "svd_full":
        return 8 * m * m * n + 20 * m**3
    if method == "horner":
        return 2 * q * (kappa + 1) * m * m * n
    if method == "standard":
        return q * (4 * m * m * n + 2 * m**3 * products(kappa))
    return 4 * m * m * n + 2 * m**3 * gram_products(kappa, q) if q else 0


def wall_clock_ratio(
    m: int, n: int, *, kappa: int = 2, q: int = 3, gemm_throughput: float, svd_throughput: float
) -> float:
    """Return the predicted time of an SVD over that of q steps (Kim & Oh 2026, Lemma 11).

    The algebraic factor ``(2 + 4m/n)/(q(κ+1))`` spans 0.22 to 1.5 for q in {2, 3}, κ in {1, 2}; both throughputs
    (operations per second) are to be measured, see ``muonlab doctor``.

    Example:
        >>> wall_clock_ratio(64, 64, kappa=1, q=3, gemm_throughput=8e10, svd_throughput=1e10)
        8.0
    """
    m, n = _checks.integer("m", m, at_least=1), _checks.integer("n", n, at_least=1)
    factor = flops(m, n, "svd") / flops(m, n, "horner", kappa, _checks.integer("q", q, at_least=1))
    gemm = _checks.positive("gemm_throughput", gemm_throughput)
    return factor * gemm / _checks.positive("svd_throughput", svd_throughput)
