"""Singular values of a matrix, and how a schedule changes them (Kim & Oh 2026, Definitions 3 and 4).

A Newton-Schulz schedule keeps the singular vectors and maps the values σ_i to ``F_q(σ_i/α)`` (Lemmas 9 and 10), so
that residual, polar error, descent, gain and alignment of its result all follow from the values alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from muonlab import _checks
from muonlab.orthogonalize.matrices import check_matrices
from muonlab.orthogonalize.prescale import PRESCALES, Prescale, to_unit_range, wide_gram
from muonlab.polynomials import Schedule, taylor
from muonlab.polynomials.base import Array
from muonlab.theory import Alignment, chi, polar_error, residual_after

SpectrumMethod = Literal["auto", "svd", "gram"]
SPECTRUM_METHODS: tuple[SpectrumMethod, ...] = ("auto", "svd", "gram")


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular values of one matrix.

    Args:
        values: singular values, largest first, one for each of min(m, n); NaN where the matrix is not finite.
        shape: (m, n).
        tolerance: values up to it count as zero.
    """

    values: Array = field(repr=False)
    shape: tuple[int, int]
    tolerance: float

    @property
    def finite(self) -> bool:
        """Whether the matrix and its norms are finite."""
        return math.isfinite(self.nuclear)

    @cached_property
    def support(self) -> Array:
        """The values above the tolerance, those of the range of the matrix (Kim & Oh 2026, Remark 2)."""
        return self.values[self.values > self.tolerance]

    @property
    def rank(self) -> int:
        """The number of singular values above the tolerance."""
        return int(self.support.size)

    @property
    def nuclear(self) -> float:
        """``‖M‖_*``, the sum."""
        with np.errstate(over="ignore"):
            return float(np.sum(self.values))

    @property
    def operator(self) -> float:
        """``‖M‖_op``, the largest."""
        return float(self.values[0]) if self.values.size else 0.0

    @property
    def frobenius(self) -> float:
        """``‖M‖_F``, the root of the sum of squares."""
        return self.schatten(2)

    def schatten(self, p: int) -> float:
        """Return the Schatten norm ``(Σ σ^p)^{1/p}`` (Kim & Oh 2026, Definition 4) without overflow."""
        top = self.operator
        return top * float(np.sum((self.values / top) ** p)) ** (1 / p) if top else 0.0

    @property
    def effective_rank(self) -> float:
        """``exp`` of the entropy of ``σ/Σσ``, an effective number of directions, from 1 to the rank."""
        if not self.rank:
            return 0.0
        share = self.support / np.sum(self.support)
        return float(np.exp(-np.sum(share * np.log(share))))

    def scale(self, prescale: Prescale) -> float:
        """Return the divisor α of a prescale; 1 for a zero matrix."""
        _checks.one_of("prescale", prescale, PRESCALES)
        if prescale == "none" or not self.operator:
            return 1.0
        if prescale == "spectral":
            return self.operator
        norm = self.schatten({"schatten4": 4, "schatten8": 8}.get(prescale, 2))
        return max(1.0, norm) if prescale == "paper" else norm


def spectra(M: Tensor, *, method: SpectrumMethod = "auto", rank_tol: float | None = None) -> tuple[Spectrum, ...]:
    """Return the spectrum of each matrix of a batch (…, m, n), in float64.

    Args:
        M: a matrix or a batch of them.
        method: ``"svd"``; ``"gram"``: eigenvalues of ``M Mᵀ`` in float64, several times faster, whose error of about
            1e-8·σ_max lies below the rank tolerance of float32; ``"auto"``: Gram for float32 and below, else SVD.
        rank_tol: values up to it count as zero; None takes ``max(m, n)·eps·σ_max`` with the eps of float32 (float64 for
            float64 input), as :func:`muonlab.polar` does.

    Example:
        >>> (one,) = spectra(torch.diag(torch.tensor([3.0, 4.0])))
        >>> one.nuclear, one.operator, one.frobenius, one.rank
        (7.0, 4.0, 5.0, 2)
    """
    check_matrices(M)
    if M.is_meta:
        raise ValueError("a spectrum needs the entries of a matrix, got one on the meta device: load its values first")
    _checks.one_of("method", method, SPECTRUM_METHODS)
    if method == "gram" and M.dtype == torch.float64:
        raise ValueError("method 'gram' squares the matrix and is for float32 and below, got float64: use 'svd'")
    m, n = M.shape[-2:]
    stack = M.detach().reshape(math.prod(M.shape[:-2]), m, n)  # -1 is ambiguous for an empty one
    by_svd = method == "svd" or M.dtype == torch.float64
    eps = torch.finfo(torch.float64 if M.dtype == torch.float64 else torch.float32).eps
    values = singular_values(stack, by_svd=by_svd).cpu().numpy()
    result = []
    for row in values:
        top = float(row[0]) if row.size else 0.0
        tolerance = max(m, n) * eps * top if rank_tol is None else _checks.non_negative("rank_tol", rank_tol)
        result.append(Spectrum(row, (m, n), tolerance))
    return tuple(result)


def spectrum(M: Tensor, *, method: SpectrumMethod = "auto", rank_tol: float | None = None) -> Spectrum:
    """Return the spectrum of one matrix (m, n); see :func:`spectra`.

    Example:
        >>> sigma = spectrum(torch.diag(torch.tensor([3.0, 4.0])))
        >>> sigma.rank, sigma.finite
        (2, True)
    """
    check_matrices(M)
    if M.ndim != 2:
        raise ValueError(f"spectrum takes one matrix (m, n), got shape {tuple(M.shape)}: use spectra for a batch")
    return spectra(M, method=method, rank_tol=rank_tol)[0]


@torch.no_grad()
def singular_values(stack: Tensor, *, by_svd: bool) -> Tensor:
    """Return the singular values (b, r) of a stack (b, m, n) in float64, largest first, at any scale."""
    b, m, n = stack.shape
    if not stack.numel():
        return torch.zeros(b, min(m, n), dtype=torch.float64)
    S, exponent = to_unit_range(stack if stack.dtype == torch.float64 else stack.float())
    finite = torch.isfinite(S).all(-1).all(-1)
    S = torch.where(finite[:, None, None], S, 0.0)
    if by_svd:
        values = torch.linalg.svdvals(S.double())
    else:
        values = torch.linalg.eigvalsh(wide_gram(S.mT if m > n else S)).clamp_min(0).sqrt().flip(-1)
    return torch.where(finite[:, None], torch.ldexp(values, exponent[..., 0]), torch.nan)


class Response(NamedTuple):
    """Errors, descent and gain of an orthogonalizer on a spectrum, in exact arithmetic.

    ``deltas`` are the residuals δ_0 … δ_q on the range of the matrix, ``epsilon`` is ``‖O - Polar(M)‖_op``,
    ``chi`` is ``1/(1 - ε)``, ``frobenius`` is ``‖O‖_F``.
    """

    alpha: float
    deltas: tuple[float, ...]
    epsilon: float
    chi: float
    descent: float
    gain: float
    frobenius: float

    @property
    def delta(self) -> float:
        """The residual δ_q after the last step."""
        return self.deltas[-1]

    @property
    def alignment(self) -> float:
        """``ρ/s``; 0 for a zero matrix."""
        return self.descent / self.gain if self.gain else 0.0


def factor_of(epsilon: float) -> float:
    """Return ``χ = 1/(1 - ε)``, infinite from ε = 1 on (Kim & Oh 2026, Corollary 1)."""
    return 1 / (1 - epsilon) if epsilon < 1 else math.inf


def taylor_degree(schedule: Schedule) -> int | None:
    """Return κ if every step is the Taylor polynomial p_κ (1 for no step), else None (Kim & Oh 2026, Definition 2)."""
    degrees = {p.kappa for p in schedule.polynomials}
    if not degrees:
        return 1
    kappa = degrees.pop()
    return kappa if not degrees and all(p == taylor(kappa) for p in schedule.polynomials) else None


def respond(sigma: Spectrum, schedule: Schedule | None, prescale: Prescale = "frobenius") -> Response:
    """Return errors, descent and gain of a schedule on a spectrum; None stands for the exact polar factor.

    For Taylor steps δ and ε come from the recursion on the smallest singular value (Kim & Oh 2026, Lemmas 1 and 2),
    which keeps the digits of residuals far below rounding; for any other schedule they are largest values over the
    spectrum.

    Example:
        >>> from muonlab.polynomials import Schedule, taylor
        >>> sigma = spectrum(torch.diag(torch.tensor([3.0, 4.0])))
        >>> round(respond(sigma, Schedule.repeat(taylor(2), 1)).alignment, 3)
        0.957
    """
    if not sigma.finite:
        return Response(math.nan, (math.nan,), *(math.nan,) * 5)
    alpha = sigma.scale("frobenius" if schedule is None else prescale)
    if not sigma.rank:
        steps = 1 if schedule is None else schedule.steps
        return Response(alpha, (0.0,) * (steps + 1), 0.0, 1.0, 0.0, 0.0, 0.0)
    s = sigma.values / alpha
    scaled = sigma.support / alpha
    least = min(1.0, float(scaled[-1]))
    if schedule is None:
        F = (sigma.values > sigma.tolerance).astype(np.float64)
        deltas: tuple[float, ...] = (residual_after(q=0, sigma_min=least), 0.0)
        epsilon, factor = 0.0, 1.0
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # without a prescale the steps may diverge
            F = schedule(s)
            deltas, epsilon, factor = _errors(schedule, scaled, least)
    descent = float(np.sum(sigma.values * F)) / sigma.nuclear
    return Response(alpha, deltas, epsilon, factor, descent, float(np.max(np.abs(F))), float(np.linalg.norm(F)))


def _errors(schedule: Schedule, scaled: Array, least: float) -> tuple[tuple[float, ...], float, float]:
    """Return δ_0 … δ_q, ε_q and χ_q."""
    kappa = taylor_degree(schedule)
    if kappa is not None and scaled[0] <= 1 + 1e-9:
        taylor_deltas = tuple(residual_after(kappa=kappa, q=j, sigma_min=least) for j in range(schedule.steps + 1))
        after: dict[str, Any] = {"kappa": kappa, "q": schedule.steps, "sigma_min": least}
        return taylor_deltas, polar_error(**after), chi(**after)
    F, deltas = scaled, [float(np.max(np.abs(1 - scaled * scaled)))]
    for p in schedule.polynomials:
        F = p.step(F)
        deltas.append(float(np.max(np.abs(1 - F * F))))
    epsilon = float(np.max(np.abs(F - 1)))
    return tuple(deltas), epsilon, factor_of(epsilon)


# -------------------------------------------------------------------------------------------- measured on matrices


@torch.no_grad()
def inner(M: Tensor, O: Tensor) -> Tensor:
    """Return ``⟨M_i, O_i⟩`` of each pair of a batch in float64."""
    size = max(1, (1 << 18) // max(1, M.shape[-1]))  # rows at a time, to keep the copies in float64 small
    pieces = zip(torch.split(M, size, dim=-2), torch.split(O, size, dim=-2), strict=True)
    rows = [torch.einsum("...n,...n->...", a.double(), b.double()) for a, b in pieces]
    return torch.cat(rows, dim=-1).sum(-1)


def operator_norm(O: Tensor) -> float:
    """Return ``‖O‖_op`` of one matrix in float64 (a Gram matrix keeps all digits of the largest); NaN if not finite."""
    values = singular_values(O[None], by_svd=False)
    return float(values[0, 0]) if values.numel() else 0.0


def alignment_of(M: Tensor, O: Tensor, sigma: Spectrum | None = None) -> Alignment:
    """Measure descent ``⟨M, O⟩/‖M‖_*``, gain ``‖O‖_op`` and their quotient for any O; all zero where M is.

    Args:
        M: the matrix (m, n).
        O: the direction, of the same shape.
        sigma: the spectrum of M, if it is known.

    Example:
        >>> alignment_of(torch.eye(3), 2 * torch.eye(3)).alignment
        1.0
    """
    if M.shape != O.shape or M.ndim != 2:
        raise ValueError(f"M and O must be matrices of one shape, got {tuple(M.shape)} and {tuple(O.shape)}")
    sigma = spectrum(M) if sigma is None else sigma
    gain = operator_norm(O)
    if not sigma.nuclear or not gain:
        return Alignment(0.0, gain if sigma.nuclear else 0.0, 0.0)
    descent = float(inner(M, O)) / sigma.nuclear
    return Alignment(descent, gain, descent / gain)


@torch.no_grad()
def by_definition(M: Tensor, schedule: Schedule, prescale: Prescale) -> tuple[Spectrum, Tensor]:
    """Return the spectrum of one finite matrix and ``U F(Σ/α) Vᵀ`` in float64: the result of exact steps.

    For float32 and below by eigenvectors of ``M Mᵀ``: ``F(s)/s`` is a polynomial of ``s²``, and no
    small singular value is divided by.
    """
    m, n = M.shape
    if m > n:
        sigma, O = by_definition(M.mT, schedule, prescale)
        return Spectrum(sigma.values, (m, n), sigma.tolerance), O.mT
    S, exponent = to_unit_range(M if M.dtype == torch.float64 else M.float())
    eps = torch.finfo(S.dtype).eps
    if M.dtype == torch.float64:
        U, scaled, Vh = torch.linalg.svd(S, full_matrices=False)
    else:
        lam, U = (x.flip(-1) for x in torch.linalg.eigh(wide_gram(S)))
        scaled, Vh = lam.clamp_min(0).sqrt(), None
    values = torch.ldexp(scaled, exponent[..., 0]).cpu().numpy()
    sigma = Spectrum(values, (m, n), n * eps * float(values[0]) if values.size else 0.0)
    alpha = sigma.scale(prescale)
    s = values / alpha
    with np.errstate(over="ignore", invalid="ignore"):
        F = schedule(s)
    if Vh is not None:
        return sigma, (U * torch.from_numpy(F).to(U.device)) @ Vh
    ratio = np.where(s > 1e-150, F / np.maximum(s, 1e-150), float(schedule.slope))
    Q = (U * torch.from_numpy(ratio).to(U.device)) @ U.mT
    return sigma, (Q @ S.double()) * (2.0 ** float(exponent) / alpha)


def range_residual(O: Tensor, P: Tensor) -> float:
    """Return ``δ = ‖Π - O Oᵀ‖_op`` with the projector ``Π = P Pᵀ`` onto the range of M (Kim & Oh 2026, Definition 3).

    ``P`` is the polar factor of M; on tall matrices the smaller ``Oᵀ O`` is used, which has the same eigenvalues.
    """
    A, Q = (O.mT, P.mT) if O.shape[-2] > O.shape[-1] else (O, P)
    difference = wide_gram(Q) - wide_gram(A)
    return float(torch.linalg.eigvalsh(difference).abs().max()) if difference.numel() else 0.0
