"""Newton-Schulz here against the plain float32 loop, throughput against the machine's own, and time to an alignment.

Both sides run in one process with interleaved repetitions; only ratios mean anything on a shared machine. Prints JSON.

    python benchmarks/orthogonalize.py            # about five minutes on two cores
    python benchmarks/orthogonalize.py --quick    # fewer repetitions, smaller frontier
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from muonlab import newton_schulz, polar
from muonlab.orthogonalize.hardware import diagnose
from muonlab.orthogonalize.prescale import Prescale
from muonlab.orthogonalize.segments import plan_segments
from muonlab.polynomials import Schedule, polar_express, preset, taylor
from muonlab.theory.cost import products

SHAPES = {(768, 3072): 1.9, (768, 2304): 1.6, (768, 768): 0.97, (256, 2304): 2.5, (64, 576): 1.5}
"""Shapes of GPT-2 and CifarNet weights with the speed-up over the plain loop that muonlab holds itself to."""

SCHEDULE = Schedule.repeat(taylor(2), 5)
FAMILIES: dict[str, Callable[[int], Schedule]] = {
    **{f"taylor{k}": (lambda q, k=k: Schedule.repeat(taylor(k), q)) for k in (1, 2, 3, 4)},
    "jordan": lambda q: preset("jordan").schedule(q),
    "polar_express": lambda q: preset("polar_express").schedule(q),
    "polar_express ell=1e-2": lambda q: polar_express(1e-2, 2, q),
    "polar_express ell=1e-4, safe": lambda q: polar_express(1e-4, 2, q).with_safety("1.01"),
}
PRESCALES: tuple[Prescale, ...] = ("frobenius", "schatten4", "schatten8", "spectral")
MOST_STEPS = 24


def plain_loop(M: torch.Tensor) -> torch.Tensor:
    """Run the loop of most Muon packages: five quintic steps by addmm in float32."""
    a, b, c = taylor(2).coefficients
    X = M / (M.norm() + 1e-7)
    for _ in range(5):
        A = X @ X.T
        B = torch.addmm(A, A, A, beta=b, alpha=c)
        X = torch.addmm(X, B, X, beta=a)
    return X


def interleaved(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    for _ in range(2):
        for run in functions.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, run in functions.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def half_counted_flops(m: int, n: int) -> int:
    """Count the operations that `auto` needs when a symmetric result costs half a product."""
    total = 0
    for segment in plan_segments(SCHEDULE, m, n, torch.float32, "auto"):
        inner = sum(products(p.kappa) for p in segment) + 3 * (len(segment) - 1)
        total += m * m * n + inner * m**3 + 2 * m * m * n  # X Xᵀ, products among symmetric matrices, Q X
    return total


def speed(pairs: int) -> list[dict[str, object]]:
    rows = []
    square = torch.randn(1024, 1024)
    product = torch.empty_like(square)
    for (m, n), target in SHAPES.items():
        M = torch.randn(m, n, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(newton_schulz(M), plain_loop(M), atol=2e-4, rtol=0)
        gemm = interleaved({"gemm": lambda: torch.mm(square, square, out=product)}, 15)["gemm"]
        pair = {"plain": lambda M=M: plain_loop(M), "auto": lambda M=M: newton_schulz(M)}
        times = interleaved(pair, pairs * (10 if m <= 64 else 1))
        ratios = [p / a for p, a in zip(times["plain"], times["auto"], strict=True)]
        seconds = statistics.median(times["auto"])
        peak = 2 * 1024**3 / statistics.median(gemm)
        rows.append(
            {
                "shape": [m, n],
                "plain_ms": statistics.median(times["plain"]) * 1e3,
                "auto_ms": seconds * 1e3,
                "speedup": statistics.median(ratios),
                "speedup_quartiles": [float(q) for q in np.quantile(ratios, [0.25, 0.75])],
                "target": target,
                "pairs": len(ratios),
                "segments": [len(s) for s in plan_segments(SCHEDULE, m, n, torch.float32, "auto")],
                "of_gemm_peak_symmetric_as_half": half_counted_flops(m, n) / seconds / peak,
                "gemm_peak_gflops": peak / 1e9,
            }
        )
    return rows


def spectra(m: int, n: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    gaussian = torch.randn(m, n, generator=generator)
    return {"gaussian": gaussian, "decaying 1/k": torch.randn(m, n, generator=generator) / torch.arange(1, n + 1)}


def alignment(schedule: Schedule, sigma: np.ndarray, prescale: Prescale) -> float:
    p = {"frobenius": 2, "schatten4": 4, "schatten8": 8}.get(prescale)
    alpha = np.sum(sigma**p) ** (1 / p) if p else sigma.max()
    values = schedule(sigma / alpha)
    return float(values @ sigma / sigma.sum() / np.abs(values).max())


def frontier(shapes: list[tuple[int, int]], repeats: int, target: float = 0.99) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for m, n in shapes:
        for spectrum, M in spectra(m, n).items():
            sigma = torch.linalg.svdvals(M.double()).numpy()
            for family, schedule_of in FAMILIES.items():
                for prescale in PRESCALES:
                    reached = (q for q in range(MOST_STEPS + 1) if alignment(schedule_of(q), sigma, prescale) >= target)
                    q = next(reached, None)
                    row: dict[str, object] = {"shape": [m, n], "spectrum": spectrum, "schedule": family}
                    row |= {"prescale": prescale, "steps": q}
                    if q is not None:
                        schedule = schedule_of(q)
                        run = lambda M=M, s=schedule, p=prescale: newton_schulz(M, s, prescale=p)  # noqa: E731
                        times = interleaved({"ns": run}, repeats)["ns"]
                        row |= {"alignment": alignment(schedule, sigma, prescale), "ms": statistics.median(times) * 1e3}
                    rows.append(row)
            for method in ("svd", "gram"):
                times = interleaved({"polar": lambda M=M, method=method: polar(M, method=method)}, max(2, repeats // 2))
                row = {"shape": [m, n], "spectrum": spectrum, "schedule": f"exact polar ({method})", "prescale": "none"}
                rows.append(row | {"steps": 0, "alignment": 1.0, "ms": statistics.median(times["polar"]) * 1e3})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and one small shape in the frontier")
    quick = parser.parse_args().quick
    torch.ones(7_000_000)  # lets the allocator settle, as any training process has done
    report = {
        "command": "python benchmarks/orthogonalize.py" + (" --quick" if quick else ""),
        "machine": diagnose(),
        "speed": speed(pairs=5 if quick else 31),
        "time_to_alignment_0.99": frontier([(64, 576)] if quick else [(256, 2304), (768, 768)], 3 if quick else 5),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
