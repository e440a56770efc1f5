"""A cell of the study wall-clock: predicted and measured time of an SVD and of Newton-Schulz steps on one shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muonlab import _checks
from muonlab.lab.cell_context import CellContext, Stopped
from muonlab.lab.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

GEMM_SHAPE = (1024, 1024)
SVD_SHAPE = (256, 1024)
"""Shapes on which the two throughputs are measured, as in ``muonlab doctor``; predictions are for other shapes."""


@dataclass(frozen=True)
class CostSpec(Settings):
    """One shape; ``seed`` is for its Gaussian matrix.

    Args:
        m: rows.
        n: columns.
        q: Newton-Schulz steps.
        kappa: degree of the polynomial.
        repeats: timings of each method; medians are reported.
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
                f"m and n must not be a shape on which throughputs are measured, got {self.m}×{self.n}: choose other "
                f"sizes, as the prediction would be compared with its own measurement"
            )


def measure_costs(spec: CostSpec, context: CellContext) -> dict[str, float | int | str | None]:
    """Time every method on one matrix, and compare SVD over steps with the lemma (Kim & Oh 2026, Lemma 11).

    ``svd``: :func:`muonlab.polar` by a thin SVD, as in the optimizer; ``horner``: the steps as the paper counts them, κ
    products with X in each; ``ours``: :func:`muonlab.newton_schulz`; ``polar``: :func:`muonlab.polar` with its default
    method. Each has a row with the median, least and most seconds. Both throughputs of the prediction are measured on
    other shapes. Rows ``frontier`` are what :func:`muonlab.diagnostics.plan` finds for the shape on this machine.

    Every number from timings is there twice: ``x`` by the wall clock and ``cpu_x`` by the CPU clock, of the same
    repetitions. ``seconds``, ``cpu_seconds`` and ``other_seconds`` of the summary are for the whole measurement
    (:class:`muonlab.lab.training.clock.Clock`).
    """
    import torch

    from muonlab.diagnostics import plan
    from muonlab.lab.training.clock import Clock
    from muonlab.orthogonalize.hardware import gemm_throughput, svd_throughput

    context.begin({})
    context.progress(0, spec.repeats)
    clock = Clock(torch.device(spec.device))
    clock.start()
    gemm = gemm_throughput(GEMM_SHAPE[0], device=spec.device, repeats=spec.repeats)
    svd = svd_throughput(*SVD_SHAPE, device=spec.device, repeats=min(spec.repeats, 5))
    wall, cpu = _interleaved(_methods(spec), spec, context)
    clock.stop()
    about = {"event": "cost", "m": spec.m, "n": spec.n, "q": spec.q, "kappa": spec.kappa, "repeats": spec.repeats}
    for name in wall:
        context.write(
            {**about, "method": name, **_median_and_range(wall[name]), **_on_cpu(_median_and_range(cpu[name]))}
        )
    for option in plan((spec.m, spec.n), device=spec.device).frontier:
        context.write({"event": "frontier", "m": spec.m, "n": spec.n, **option.to_dict()})
    cpu_rates = [rate.flops_per_second * rate.seconds / rate.cpu_seconds for rate in (gemm, svd)]
    return {
        **clock.reading(),
        "gemm_shape": "×".join(map(str, GEMM_SHAPE)),
        "svd_shape": "×".join(map(str, SVD_SHAPE)),
        **_compared(spec, wall, gemm.flops_per_second, svd.flops_per_second),
        **_on_cpu(_compared(spec, cpu, *cpu_rates)),
    }


def _median_and_range(times: list[float]) -> dict[str, float]:
    return {"seconds": statistics.median(times), "least": min(times), "most": max(times)}


def _on_cpu(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return numbers under the names for the CPU clock."""
    return {f"cpu_{name}": value for name, value in numbers.items()}


def _compared(spec: CostSpec, times: Mapping[str, list[float]], gemm: float, svd: float) -> dict[str, float]:
    """Compare the lemma with the times of one clock.

    Args:
        spec: of the cell.
        times: seconds of every repetition, by method.
        gemm: flops per second of matrix products, by the same clock.
        svd: flops per second of SVDs.
    """
    from muonlab.theory import wall_clock_ratio

    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    predicted = wall_clock_ratio(spec.m, spec.n, kappa=spec.kappa, q=spec.q, gemm_throughput=gemm, svd_throughput=svd)
    return {
        "gemm_flops_per_second": gemm,
        "svd_flops_per_second": svd,
        **{f"{name}_seconds": value for name, value in median.items()},
        "predicted_ratio": predicted,
        "measured_ratio": median["svd"] / median["horner"],
        "measured_over_predicted": median["svd"] / median["horner"] / predicted,
        "ratio_to_ours": median["svd"] / median["ours"],
    }


def _methods(spec: CostSpec) -> Mapping[str, Callable[[], Tensor]]:
    """Return the methods to time, all on the same Gaussian matrix."""
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


def _interleaved(
    methods: Mapping[str, Callable[[], Tensor]], spec: CostSpec, context: CellContext
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Time the methods in turn, so that a change of the machine's speed affects all of them.

    Returns:
        Wall seconds and CPU seconds of every repetition, by method.
    """
    import torch

    from muonlab.orthogonalize.hardware import wait

    device = torch.device(spec.device)
    for run in methods.values():
        run()
    wall: dict[str, list[float]] = {name: [] for name in methods}
    cpu: dict[str, list[float]] = {name: [] for name in methods}
    for done in range(spec.repeats):
        if context.stopping:
            raise Stopped
        for name, run in methods.items():
            wait(device)
            start, cpu_start = time.perf_counter(), time.process_time()
            run()
            wait(device)
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - cpu_start)
        context.progress(done + 1, spec.repeats)
    return wall, cpu


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
