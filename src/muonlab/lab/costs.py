"""A cell of the wall-clock lemma: seconds of an SVD and of Newton-Schulz steps on one shape, predicted and measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from muonlab import _checks
from muonlab.lab.desk import Desk, Stopped
from muonlab.lab.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

GEMM_SHAPE = (1024, 1024)
SVD_SHAPE = (256, 1024)
"""Where the two throughputs are measured, as ``muonlab doctor`` does; shapes that are predicted are others."""


@dataclass(frozen=True)
class CostSpec(Settings):
    """One shape; ``seed`` is that of the Gaussian matrix.

    Args:
        m: rows.
        n: columns.
        q: Newton-Schulz steps.
        kappa: degree of the polynomial.
        repeats: of every method, one after the other; medians are reported.
    """

    m: int = 64
    n: int = 216
    q: int = 3
    kappa: int = 2
    repeats: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("m", "n", "q", "kappa", "repeats"):
            _checks.integer(name, getattr(self, name), at_least=1)
        shape = (min(self.m, self.n), max(self.m, self.n))
        if shape in (GEMM_SHAPE, SVD_SHAPE):
            raise ValueError(
                f"m and n must be another shape than the throughputs are measured on, got {self.m}×{self.n}: the "
                f"prediction would measure itself, choose other sizes"
            )


def check(spec: CostSpec, _: int | None = None) -> None:
    """Refuse a device that this machine does not have, before any cell is run."""
    from muonlab.lab.parts import check_device

    check_device(spec.device)


def measure(spec: CostSpec, desk: Desk) -> dict[str, float | int | str | None]:
    """Time every method on one matrix, and compare SVD over steps with the lemma (Kim & Oh 2026, Lemma 11).

    ``svd``: :func:`muonlab.polar` by a thin SVD, as the optimizer does it; ``horner``: the paper's form of the steps, κ
    products with X in each; ``ours``: :func:`muonlab.newton_schulz`; ``polar``: :func:`muonlab.polar` by whichever way
    is faster. A row for each has the median, least and most seconds. Both throughputs of the prediction are measured on
    other shapes. Rows ``frontier`` have what :func:`muonlab.diagnostics.plan` found for the shape on this machine.
    """
    from muonlab.orthogonalize.hardware import gemm_throughput, svd_throughput
    from muonlab.theory import wall_clock_ratio

    desk.begin({})
    desk.progress(0, spec.repeats)
    gemm = gemm_throughput(GEMM_SHAPE[0], device=spec.device, repeats=spec.repeats).flops_per_second
    svd = svd_throughput(*SVD_SHAPE, device=spec.device, repeats=min(spec.repeats, 5)).flops_per_second
    seconds = _interleaved(_methods(spec), spec, desk)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    about = {"event": "cost", "m": spec.m, "n": spec.n, "q": spec.q, "kappa": spec.kappa, "repeats": spec.repeats}
    for name, times in seconds.items():
        desk.write({**about, "method": name, "seconds": median[name], "least": min(times), "most": max(times)})
    for way in _frontier(spec):
        desk.write({"event": "frontier", "m": spec.m, "n": spec.n, **way})
    predicted = wall_clock_ratio(spec.m, spec.n, kappa=spec.kappa, q=spec.q, gemm_throughput=gemm, svd_throughput=svd)
    return {
        "gemm_flops_per_second": gemm,
        "svd_flops_per_second": svd,
        "gemm_shape": "×".join(map(str, GEMM_SHAPE)),
        "svd_shape": "×".join(map(str, SVD_SHAPE)),
        **{f"{name}_seconds": value for name, value in median.items()},
        "predicted_ratio": predicted,
        "measured_ratio": median["svd"] / median["horner"],
        "measured_over_predicted": median["svd"] / median["horner"] / predicted,
        "ratio_to_ours": median["svd"] / median["ours"],
    }


def _frontier(spec: CostSpec) -> list[dict[str, Any]]:
    """Return the planner's ways to orthogonalize such a matrix, from cheap to good."""
    from muonlab.diagnostics import plan

    return [asdict(row) for row in plan((spec.m, spec.n), device=spec.device).frontier]


def _methods(spec: CostSpec) -> Mapping[str, Callable[[], Tensor]]:
    """Return what is timed, all on the same Gaussian matrix."""
    import torch

    from muonlab.orthogonalize import newton_schulz, polar
    from muonlab.polynomials import taylor

    generator = torch.Generator().manual_seed(spec.seed)
    M = torch.randn(spec.m, spec.n, generator=generator).to(spec.device)
    p = taylor(spec.kappa)
    return {
        "svd": lambda: polar(M, method="svd"),
        "horner": lambda: horner_steps(M, p.coefficients, spec.q),
        "ours": lambda: newton_schulz(M, p, steps=spec.q),
        "polar": lambda: polar(M),
    }


def _interleaved(methods: Mapping[str, Callable[[], Tensor]], spec: CostSpec, desk: Desk) -> dict[str, list[float]]:
    """Time the methods in turn, so that a machine that slows down slows all of them."""
    import torch

    from muonlab.orthogonalize.hardware import wait

    device = torch.device(spec.device)
    for run in methods.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for done in range(spec.repeats):
        if desk.stopping:
            raise Stopped
        for name, run in methods.items():
            wait(device)
            start = time.perf_counter()
            run()
            wait(device)
            seconds[name].append(time.perf_counter() - start)
        desk.progress(done + 1, spec.repeats)
    return seconds


def horner_steps(M: Tensor, coefficients: tuple[float, ...], q: int) -> Tensor:
    """Apply q steps as the lemma counts them: ``A = XXᵀ``, then one product ``AY`` for each power (Horner's rule).

    Args:
        M: one matrix.
        coefficients: of the polynomial, in ascending powers of λ.
        q: number of steps.
    """
    import torch

    tall = M.shape[0] > M.shape[1]
    X: Tensor = (M.mT if tall else M) / torch.linalg.matrix_norm(M)
    for _ in range(q):
        A = X @ X.mT
        Y = coefficients[-1] * X
        for c in reversed(coefficients[:-1]):
            Y = torch.addmm(X, A, Y, beta=c)
        X = Y
    return X.mT if tall else X
