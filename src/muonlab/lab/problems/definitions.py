"""Problems whose constants L, L_F, D and σ are known exactly, so that bounds can be compared with measurements.

Every function works on float64 tensors of shape (…, m, n), so that many seeds run as one (seeds, m, n) parameter.
:func:`muonlab.lab.problems.runs.run_method` runs optimizers on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from muonlab import _checks

NoiseKind = Literal["gaussian", "signs", "two_point", "pareto"]
NOISES: tuple[NoiseKind, ...] = ("gaussian", "signs", "two_point", "pareto")
PARETO_INDEX, PARETO_MOMENT = 1.6, 1.5
"""Of the noise ``"pareto"``: its moments below 1.6 are finite, so not its variance; ``sigma`` states the 1.5th."""


@dataclass(frozen=True)
class KnownProblem:
    """A function with infimum 0, its start and its constants (Kim & Oh 2026, Assumptions 1 and 2).

    Args:
        name: for tables.
        value: ``f`` on (…, m, n), of shape (…).
        gradient: ``∇f``, of the shape of its argument.
        start: ``W_0``, one float64 matrix.
        L: smoothness constant from the operator to the nuclear norm.
        L_F: smoothness constant of the Frobenius norm, between L/r and L.
        sigma: size of one sample of the noise, ``E‖ξ‖_F^p = σ^p`` exactly, with p = :attr:`tail`: for p = 2 its
            standard deviation.
        noise: distribution of the samples, see :func:`draw_noise`.
    """

    name: str
    value: Callable[[Tensor], Tensor] = field(repr=False)
    gradient: Callable[[Tensor], Tensor] = field(repr=False)
    start: Tensor = field(repr=False)
    L: float
    L_F: float
    sigma: float = 0.0
    noise: NoiseKind = "gaussian"

    def __post_init__(self) -> None:
        if self.start.ndim != 2 or self.start.dtype != torch.float64:
            raise ValueError(
                f"start must be one float64 matrix, got shape {tuple(self.start.shape)} of {self.start.dtype}: "
                f"pass W_0 of shape (m, n); run_method(seeds=…) repeats it"
            )
        _checks.non_negative("sigma", self.sigma)
        _checks.one_of("noise", self.noise, NOISES)
        if not _checks.positive("L_F", self.L_F) <= _checks.positive("L", self.L) <= self.r * self.L_F * (1 + 1e-9):
            raise ValueError(f"L_F <= L <= r L_F always holds, got L_F = {self.L_F}, L = {self.L}, r = {self.r}")

    @property
    def r(self) -> int:
        """``min(m, n)``."""
        return min(self.start.shape)

    @property
    def D(self) -> float:
        """``f(W_0) - f*``, where ``f* = 0`` for every problem here."""
        return float(self.value(self.start))

    @property
    def tail(self) -> float:
        """p, the moment of the noise that ``sigma`` states: 2, or 1.5 for ``"pareto"``."""
        return PARETO_MOMENT if self.noise == "pareto" else 2.0

    def with_noise(self, sigma: float, noise: NoiseKind = "gaussian") -> KnownProblem:
        """Return the same problem with other noise."""
        return replace(self, sigma=float(sigma), noise=noise)


def draw_noise(problem: KnownProblem, generators: Sequence[torch.Generator], B: int) -> Tensor:
    """Return the mean of B samples of noise for each generator: (seeds, m, n), one sample with ``E‖ξ‖_F^p = σ^p``.

    ``"gaussian"``: independent normal entries. ``"signs"``: entries ±σ/√(mn), so ``‖ξ‖_F = σ`` always. ``"two_point"``:
    ±σ/√r times the first r columns of the identity (or rows), of flat spectrum: ``‖ξ‖_* = σ√r``, the largest possible.
    For these three p = 2. ``"pareto"``: the same matrices times ``x_0 U^{-1/α}`` with U uniform on (0, 1] and α = 1.6:
    ``E‖ξ‖_F^p = x_0^p α/(α-p)``, which fixes ``x_0`` by σ, and an infinite variance. It needs B = 1: for a mean of
    several samples that moment has no closed form.
    """
    m, n = problem.start.shape
    if problem.noise == "pareto" and B != 1:
        raise ValueError(
            f"the moment of pareto noise is known for one sample, got a batch of {B}: use a batch size of 1"
        )
    if problem.sigma == 0.0:
        return problem.start.new_zeros(len(generators), m, n)
    means = []
    for generator in generators:
        if problem.noise == "gaussian":
            sample = torch.randn(B, m, n, generator=generator, dtype=torch.float64) / math.sqrt(m * n)
        elif problem.noise == "signs":
            bits = torch.randint(0, 2, (B, m, n), generator=generator, dtype=torch.float64)
            sample = (2 * bits - 1) / math.sqrt(m * n)
        else:
            bits = torch.randint(0, 2, (B, 1, 1), generator=generator, dtype=torch.float64)
            sample = (2 * bits - 1) * torch.eye(m, n, dtype=torch.float64) / math.sqrt(problem.r)
            if problem.noise == "pareto":
                uniform = 1 - torch.rand(B, 1, 1, generator=generator, dtype=torch.float64)  # in (0, 1]
                least = (1 - PARETO_MOMENT / PARETO_INDEX) ** (1 / PARETO_MOMENT)
                sample = sample * least * uniform ** (-1 / PARETO_INDEX)
        means.append(sample.mean(dim=0))
    return problem.sigma * torch.stack(means)


# -------------------------------------------------------------------------------------------------------- functions


def wells(start: Tensor, height: float = 1.0) -> KnownProblem:
    """Return the nonconvex ``h Σ w²/(1+w²)``: second derivatives in [-h/2, 2h], so ``L_F = 2h`` and ``L = 2hr``."""
    h = _checks.positive("height", height)

    def value(W: Tensor) -> Tensor:
        return h * (W * W / (1 + W * W)).sum(dim=(-2, -1))

    def gradient(W: Tensor) -> Tensor:
        return 2 * h * W / (1 + W * W) ** 2

    return KnownProblem("wells", value, gradient, start, L=2 * h * min(start.shape), L_F=2 * h)


def quadratic(A: Tensor, centre: Tensor, start: Tensor) -> KnownProblem:
    """Return ``½‖A(W - W*)‖_F²``: ``‖AᵀAΔ‖_* ≤ tr(AᵀA)‖Δ‖_op``, so ``L = tr(AᵀA)``, and ``L_F = ‖A‖_op²``."""
    if start.shape[0] > start.shape[1]:
        raise ValueError(
            f"tr(AᵀA) is the least L only where W is no taller than wide, got W of shape {tuple(start.shape)}: "
            f"transpose the problem"
        )
    H = A.T @ A

    def value(W: Tensor) -> Tensor:
        return (A @ (W - centre)).square().sum(dim=(-2, -1)) / 2

    def gradient(W: Tensor) -> Tensor:
        return H @ (W - centre)

    return KnownProblem(
        "quadratic", value, gradient, start, L=float(torch.trace(H)), L_F=float(torch.linalg.matrix_norm(A, 2)) ** 2
    )


def diagonal_huber(curvatures: Tensor, slopes: Tensor, start: Tensor) -> KnownProblem:
    """Return ``Σ h_i(w_ii)``, h_i the Huber function of curvature ``c_i`` whose slope stays within ``slopes[i]``.

    ``‖∇f(W) - ∇f(V)‖_* = Σ|h_i'(w_ii) - h_i'(v_ii)| ≤ Σ c_i |w_ii - v_ii| ≤ (Σ c_i) ‖W - V‖_op``, with equality for
    small multiples of the identity: ``L = Σ c_i``, and ``L_F = max c_i``.
    """
    beyond = torch.where(slopes.isinf(), 0.0, slopes)  # an infinite slope is never reached

    def value(W: Tensor) -> Tensor:
        size = W.diagonal(dim1=-2, dim2=-1).abs()
        inner = torch.minimum(size, slopes / curvatures)  # the part of the way that curves; beyond it the slope stays
        return (curvatures * inner.square() / 2 + beyond * (size - inner)).sum(dim=-1)

    def gradient(W: Tensor) -> Tensor:
        w = W.diagonal(dim1=-2, dim2=-1)
        return torch.diag_embed((curvatures * w).clamp(-slopes, slopes))

    return KnownProblem(
        "diagonal_huber", value, gradient, start, L=float(curvatures.sum()), L_F=float(curvatures.max())
    )


# ------------------------------------------------------------------------------------------ random and scaled problems


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _orthogonal(seed: int, r: int) -> Tensor:
    Q, R = torch.linalg.qr(_normal(seed, r, r))
    signed: Tensor = Q * R.diagonal().sign()
    return signed


def random_wells(shape: tuple[int, int] = (4, 6), seed: int = 0) -> KnownProblem:
    """Return :func:`wells` from a Gaussian start."""
    return wells(_normal(seed, *shape))


def random_quadratic(shape: tuple[int, int] = (4, 6), seed: int = 0) -> KnownProblem:
    """Return :func:`quadratic` with Gaussian ``A``, centre and start."""
    m, n = shape
    return quadratic(_normal(seed, m + 1, m) / 2, _normal(seed + 1, m, n), _normal(seed + 2, m, n))


def bowl(r: int, L: float = 4.0, D: float = 1.0, seed: int = 0) -> KnownProblem:
    """Return ``(L/2r)‖W‖_F²`` on r×r, the same L and D at every r; the start is orthogonal times ``√(2D/L)``.

    There ``‖∇f‖_* = √(2LD)``, the largest value that D allows, and ``L_F = L/r``, the smallest.
    """
    return _spectral("bowl", torch.ones(r, dtype=torch.float64), L, D, seed)


def decaying(r: int, L: float = 4.0, D: float = 1.0, seed: int = 0) -> KnownProblem:
    """Return ``½⟨W, HW⟩`` on r×r, H with eigenvalues ∝ 1/k and trace L: the same L and D at every r."""
    return _spectral("decaying", 1 / torch.arange(1, r + 1, dtype=torch.float64), L, D, seed)


def ravine(r: int, L: float = 4.0, D: float = 1.0, seed: int = 0) -> KnownProblem:
    """Return ``(L/2)`` times the squared first row of W on r×r: one direction curves, so ``L_F = L``, the largest."""
    return _spectral("ravine", torch.eye(r, dtype=torch.float64)[0], L, D, seed)


def _spectral(name: str, eigenvalues: Tensor, L: float, D: float, seed: int) -> KnownProblem:
    """Return ``½⟨W, HW⟩`` with ``tr H = L``, started at ``xQ`` with Q orthogonal, where ``D = x²L/2`` for every H."""
    L, D, r = _checks.positive("L", L), _checks.positive("D", D), len(eigenvalues)
    A = (eigenvalues * L / eigenvalues.sum()).sqrt().diag()
    start = math.sqrt(2 * D / L) * _orthogonal(seed, r)
    return replace(quadratic(A, torch.zeros_like(start), start), name=name)


def scaled_wells(r: int, L: float = 4.0, D: float = 1.0) -> KnownProblem:
    """Return :func:`wells` on r×r with the same L and D at every r: height ``L/(2r)``, started at a multiple of I."""
    L, D = _checks.positive("L", L), _checks.positive("D", D)
    if 2 * D >= L:
        raise ValueError(f"the wells of one diagonal hold less than L/2, got D = {D} with L = {L}: take D < L/2")
    depth = 2 * D / L
    start = math.sqrt(depth / (1 - depth)) * torch.eye(r, dtype=torch.float64)
    return replace(wells(start, L / (2 * r)), name="scaled_wells")


def target(r: int, L: float = 4.0, D: float = 1.0, seed: int = 0) -> KnownProblem:
    """Return ``(L/2r)‖W - C‖_F²`` on r×r from ``W_0 = 0``, C orthogonal times ``√(2D/L)``: :func:`bowl`, moved.

    Weight decay λ keeps the weights within ``‖W‖_op ≤ 1/λ``, so for ``1/λ < √(2D/L)`` they cannot reach C.
    """
    moved = bowl(r, L, D, seed)
    A = math.sqrt(L / r) * torch.eye(r, dtype=torch.float64)
    return replace(quadratic(A, moved.start, torch.zeros_like(moved.start)), name="target")


def canyon(r: int, L: float = 4.0, D: float = 1.0, T: int = 200) -> KnownProblem:
    """Return one steep entry and r-1 long gentle slopes: a problem that costs gradient descent a factor √r in T steps.

    ``Σ h_i(w_ii)`` (:func:`diagonal_huber`): h_1 is quadratic with curvature ``L/2``, and the others share a curvature
    of ``L/2`` and the slope ``g = √(D L_F/((r-1)T))``. So L and D are the same at every r, and ``L_F = L/2``. With the
    step ``1/L_F`` gradient descent lowers f by ``g²/L_F = D/((r-1)T)`` per step and slope: it takes all T steps, and
    the nuclear norm stays near ``(r-1)g = √((r-1) D L_F/T)``. Muon takes the same step along each slope.

    The start puts D on the slopes in equal parts. Only ``D/(16T)`` is on entry 1, which starts at half of Muon's step
    ``√(D/(LT))``, so that it oscillates around its minimum, as it would in the end from any start.
    """
    r, T = _checks.integer("r", r, at_least=2), _checks.integer("T", T, at_least=1)
    L, D = _checks.positive("L", L), _checks.positive("D", D)
    curvature, slope = L / (2 * (r - 1)), math.sqrt(D * L / (2 * (r - 1) * T))
    depth, width = D * (1 - 1 / (16 * T)) / (r - 1), slope / curvature
    # h(w) = depth, on the slope or, if D is not enough for that, in the part that curves
    way = depth / slope + width / 2 if depth > slope * width / 2 else math.sqrt(2 * depth / curvature)
    curvatures = torch.tensor([L / 2] + [curvature] * (r - 1), dtype=torch.float64)
    slopes = torch.tensor([math.inf] + [slope] * (r - 1), dtype=torch.float64)
    start = torch.tensor([math.sqrt(D / (L * T)) / 2] + [way] * (r - 1), dtype=torch.float64).diag()
    return replace(diagonal_huber(curvatures, slopes, start), name="canyon")


FAMILIES: Mapping[str, Callable[..., KnownProblem]] = MappingProxyType(
    {"scaled_wells": scaled_wells, "bowl": bowl, "decaying": decaying, "ravine": ravine, "target": target}
)
"""Problems of any rank r with the same L and D at every r, by name; ``L_F`` falls from L (ravine) to L/r (bowl).

:func:`canyon` is not among them: it depends on the number of steps, and needs r ≥ 2."""
