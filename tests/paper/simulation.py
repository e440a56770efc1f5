"""Problems with known constants, naive runs on them, and oracles: what the tests of the paper's statements share.

Everything here is plain numpy and follows the paper's algorithms line by line; only the directions come from muonlab.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from muonlab import newton_schulz
from muonlab.polynomials import Polynomial, Schedule

Matrix = NDArray[np.float64]
Direction = Callable[[Matrix], Matrix]
Noise = Callable[[np.random.Generator, Matrix], Matrix]

torch.set_num_threads(1)


# --------------------------------------------------------------------------------------------------- matrices


def singular(M: Matrix) -> Matrix:
    """Singular values, largest first."""
    return np.linalg.svd(M, compute_uv=False)


def nuclear(M: Matrix) -> float:
    """Sum of the singular values."""
    return float(np.sum(singular(M)))


def operator(M: Matrix) -> float:
    """Largest singular value."""
    return float(singular(M)[0])


def frobenius(M: Matrix) -> float:
    """Root of the sum of squares."""
    return float(np.linalg.norm(M))


def svd_polar(M: Matrix, cutoff: float = 1e-12) -> Matrix:
    """``U Vᵀ`` over the singular values above ``cutoff·σ_max``, of one matrix or of each in a stack."""
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    return (U * (s > cutoff * np.maximum(s[..., :1], 1e-300))[..., None, :]) @ Vt


def range_projector(M: Matrix, cutoff: float = 1e-10) -> Matrix:
    """Orthogonal projector onto the column space of M."""
    U, s, _ = np.linalg.svd(M, full_matrices=False)
    kept = U[:, s > cutoff * max(s[0], 1e-300)]
    return kept @ kept.T


def orthogonal(rng: np.random.Generator, n: int) -> Matrix:
    """Haar-distributed orthogonal matrix."""
    Q, R = np.linalg.qr(rng.standard_normal((n, n)))
    return Q * np.sign(np.diag(R))


def with_spectrum(rng: np.random.Generator, values: object, m: int, n: int) -> Matrix:
    """m×n matrix with these singular values (at most min(m, n) of them) and random singular vectors."""
    s = np.asarray(values, dtype=np.float64)
    return (orthogonal(rng, m)[:, : s.size] * s) @ orthogonal(rng, n)[: s.size]


def by_newton_schulz(polynomial: Polynomial | Schedule, steps: int | None = None, prescale: str = "paper") -> Direction:
    """Algorithm 1, lines 5-9, as muonlab computes them in float64."""

    def direction(M: Matrix) -> Matrix:
        return newton_schulz(torch.from_numpy(M), polynomial, steps=steps, prescale=prescale).numpy()

    return direction


def observed_residual(M: Matrix, X: Matrix) -> float:
    """Definition 3: ``‖Π - X Xᵀ‖_op`` with the projector Π onto range(M)."""
    return operator(range_projector(M) - X @ X.T)


def observed_error(M: Matrix, X: Matrix) -> float:
    """Definition 3: ``‖X - Polar(M)‖_op``."""
    return operator(X - svd_polar(M))


# --------------------------------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Objective:
    """A function with its gradient, its infimum 0, and its smoothness constants.

    ``L`` is from the operator to the nuclear norm (Assumption 1), ``L_F`` from the Frobenius norm to itself.
    """

    value: Callable[[Matrix], float]
    gradient: Callable[[Matrix], Matrix]
    L: float
    L_F: float


def bowl(r: int, curvature: float = 1.0) -> Objective:
    """``(c/2)‖W‖_F²`` with min(m, n) = r: ``‖cΔ‖_* ≤ c·r‖Δ‖_op``, with equality for orthogonal Δ."""
    return Objective(
        lambda W: curvature / 2 * float(np.sum(W * W)), lambda W: curvature * W, L=curvature * r, L_F=curvature
    )


def quadratic(A: Matrix, centre: Matrix) -> Objective:
    """``½‖A(W - W*)‖_F²``: ``‖AᵀAΔ‖_* ≤ ‖AᵀA‖_*‖Δ‖_op = tr(AᵀA)‖Δ‖_op``, with equality for orthogonal Δ."""
    H = A.T @ A
    return Objective(
        lambda W: float(np.sum((A @ (W - centre)) ** 2)) / 2,
        lambda W: H @ (W - centre),
        L=float(np.trace(H)),
        L_F=operator(H),
    )


def wells(r: int) -> Objective:
    """Nonconvex ``Σ w²/(1+w²)``: second derivatives lie in [-1/2, 2], so ``L_F = 2`` and ``L = 2r``."""
    return Objective(
        lambda W: float(np.sum(W * W / (1 + W * W))), lambda W: 2 * W / (1 + W * W) ** 2, L=2.0 * r, L_F=2.0
    )


def huber(r: int, width: float) -> Objective:
    """Entrywise Huber function of slope 1 beyond ``width``: second derivatives at most 1/width, so ``L = r/width``."""
    return Objective(
        lambda W: float(np.sum(np.where(np.abs(W) < width, W * W / (2 * width), np.abs(W) - width / 2))),
        lambda W: np.clip(W / width, -1.0, 1.0),
        L=r / width,
        L_F=1 / width,
    )


def gaussian(sigma: float, B: int = 1) -> Noise:
    """Mean of B samples of Gaussian noise with ``E‖ξ‖_F² = σ²`` each."""

    def draw(rng: np.random.Generator, G: Matrix) -> Matrix:
        return rng.standard_normal((B, *G.shape)).mean(axis=0) * sigma / np.sqrt(G.size)

    return draw


class Adversary:
    """The worst noise for sign-like methods: the momentum of a gradient ``g·I`` is (just below) 0 or ``2g/(1-β)·I``.

    From either value the other is drawn with probability (1-β)/2, which makes the noise unbiased, of variance
    ``σ² = r g² (1+β)/(1-β)`` exactly, and the step wrong half of the time: progress stops although no term but the
    noise of the bound is large. So ``‖∇f‖_* = r g = σ√r·√((1-β)/(1+β))`` persists.
    """

    def __init__(self, beta: float) -> None:
        self.beta, self.momentum, self.sigma = beta, 0.0, 0.0

    def __call__(self, rng: np.random.Generator, G: Matrix) -> Matrix:
        g, r = float(G[0, 0]), len(G)
        mean, high, low = self.beta * self.momentum + g, 2 * g / (1 - self.beta), -1e-9 * g
        p = min(max((mean - low) / (high - low), 0.0), 1.0)
        self.sigma = max(self.sigma, abs(high - low) * np.sqrt(p * (1 - p) * r))
        self.momentum = high if rng.random() < p else low
        return (self.momentum - mean) * np.eye(r)


# ------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run:
    """What one run leaves: f(W_0)…f(W_T), and for t = 1…T the norms that the theorems speak of.

    ``Ẑ_t`` is the weighted mean of the gradients that is orthogonalized. ``noise`` is the nuclear norm of its noise,
    ``past_noise`` that of the noise of past gradients in it, ``tracking`` is ``‖∇_t - Ẑ_t‖_*``, ``weights`` is
    ``‖W_{t-1}‖_op`` and ``inward`` is ``⟨∇_t, W_{t-1}⟩``.
    """

    values: Matrix
    gradients: Matrix
    rho: Matrix
    gain: Matrix
    noise: Matrix
    past_noise: Matrix
    tracking: Matrix
    weights: Matrix
    inward: Matrix
    momenta: tuple[Matrix, ...]

    @property
    def stationarity(self) -> float:
        """``(1/T) Σ_t ‖∇f(W_{t-1})‖_*`` (Definition 1)."""
        return float(np.mean(self.gradients))

    def decrease(self) -> float:
        """``f(W_0) - f(W_T)``."""
        return float(self.values[0] - self.values[-1])


def run(
    objective: Objective,
    W: Matrix,
    direction: Direction | Sequence[Direction],
    *,
    eta: float | Matrix,
    beta: float | Matrix,
    T: int,
    noise: Noise | None = None,
    seed: int = 0,
    momentum_form: str = "heavy_ball",
    nesterov: bool = False,
    decay: float = 0.0,
) -> Run:
    """Algorithms 1-3: ``M ← βM + G(W_{t-1})``, ``W ← W - η·direction(M)`` (the identity gives SGD with momentum).

    Learning rate, momentum and direction may change from step to step; with an average of gradients in place of their
    sum, Nesterov's look-ahead and decoupled weight decay as :class:`muonlab.Muon` has them.
    """
    rng = np.random.default_rng(seed)
    etas, betas = (np.broadcast_to(np.asarray(x, dtype=np.float64), (T,)) for x in (eta, beta))
    directions = [direction] * T if callable(direction) else direction
    M, xi, weight = np.zeros_like(W), np.zeros_like(W), 0.0
    values, rows, momenta = [objective.value(W)], [], []
    for eta_t, beta_t, orthogonalize in zip(etas, betas, directions, strict=True):
        G = objective.gradient(W)
        fresh = np.zeros_like(W) if noise is None else noise(rng, G)
        new = 1.0 if momentum_form == "heavy_ball" else 1 - beta_t
        past_xi, old = beta_t * xi, beta_t * weight
        M, xi, weight = beta_t * M + new * (G + fresh), past_xi + new * fresh, old + new
        x, y = (new, beta_t) if nesterov else (0.0, 1.0)
        Z, mass = x * (G + fresh) + y * M, x + y * weight
        step = orthogonalize(Z)
        size = nuclear(Z)
        rows.append(
            {
                "gradients": nuclear(G),
                "rho": float(np.sum(Z * step)) / size if size else 0.0,
                "gain": operator(step),
                "noise": nuclear(x * fresh + y * xi) / mass if noise is not None else 0.0,
                "past_noise": nuclear(y * past_xi) / mass if noise is not None else 0.0,
                "tracking": nuclear(G - Z / mass),
                "weights": operator(W),
                "inward": float(np.sum(G * W)),
            }
        )
        momenta.append(M.copy())
        W = (1 - eta_t * decay) * W - eta_t * step
        values.append(objective.value(W))
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Run(np.array(values), **columns, momenta=tuple(momenta))


def trained(
    build: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    objective: Objective,
    W: Matrix,
    *,
    T: int,
    noise: Noise | None = None,
    seed: int = 0,
) -> tuple[Matrix, Matrix]:
    """Train one float64 weight with a real optimizer on the gradients of :func:`run`: values and gradient norms."""
    rng = np.random.default_rng(seed)
    weight = torch.nn.Parameter(torch.from_numpy(W.copy()))
    optimizer = build([weight])
    values, gradients = [objective.value(W)], []
    for _ in range(T):
        G = objective.gradient(weight.detach().numpy())
        gradients.append(nuclear(G))
        weight.grad = torch.from_numpy(G + (0.0 if noise is None else noise(rng, G)))
        optimizer.step()
        values.append(objective.value(weight.detach().numpy()))
    return np.array(values), np.array(gradients)


def sgdm(
    objective: Objective,
    W: Matrix,
    *,
    eta: float,
    beta: float,
    T: int,
    noise: Noise | None = None,
    seed: int = 0,
) -> Run:
    """Algorithm 3 with the gradient at ``W_{t-1}``."""
    return run(objective, W, lambda M: M, eta=eta, beta=beta, T=T, noise=noise, seed=seed)


def mean_stationarity(runs: list[Run]) -> float:
    """Average over seeds of Definition 1's left-hand side."""
    return float(np.mean([one.stationarity for one in runs]))


def rescaled(terms: Mapping[str, float], **factors: float) -> float:
    """Sum of a bound's named terms, some multiplied by a factor: the bound with wrong constants."""
    unknown = set(factors) - set(terms)
    if unknown:
        raise KeyError(f"no such term: {sorted(unknown)}")
    return float(sum(factors.get(name, 1.0) * value for name, value in terms.items()))
