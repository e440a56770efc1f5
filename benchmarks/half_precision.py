"""The error of orthogonalizing in half precision or TF32, by emulated rounding on the CPU (docs/adr/0024). Prints JSON.

A tensor core multiplies numbers of 8 or 11 digits exactly and adds them up in float32; what is stored is rounded once.
So a float32 product of rounded matrices, rounded once, is what it computes, but for the order of its float32 sums. The
steps here are written out once more, apart from muonlab's own, to choose freely which products are mirrored: the
entries above the diagonal are then copies of those below it.

    OMP_NUM_THREADS=1 python benchmarks/half_precision.py            # ten minutes
    OMP_NUM_THREADS=1 python benchmarks/half_precision.py --quick    # one small shape: a quarter of a minute
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from muonlab.diagnostics.matrix_spectra import operator_norm
from muonlab.orthogonalize.rounding import concentration_of, steepness
from muonlab.polynomials import Schedule, preset, taylor

SHAPES = [(64, 576), (512, 1536)]
SCHEDULES = {
    "polar_express": preset("polar_express").schedule(5, safety="1.01"),
    "jordan": preset("jordan").schedule(5),
    "quintic": Schedule.repeat(taylor(2), 5),
}
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "tf32": 2.0**-11, "float32": 2.0**-24}
PRODUCTS = frozenset({"X Xᵀ", "R²", "P R P", "P R", "Q P"})
"""The products among symmetric matrices; all but Q X."""

MIRRORED = {"none": frozenset[str](), "P R P": frozenset({"P R P"}), "all": PRODUCTS}
ON_CPU = frozenset({"X Xᵀ", "R²", "P R P"})
"""What muonlab mirrors on a CPU, by blocks."""


def to_tf32(A: Tensor) -> Tensor:
    """Round to the nearest number with 10 bits after the leading one, as products of float32 do with TF32."""
    return ((A.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@dataclass(frozen=True)
class TensorCore:
    """Products as a tensor core computes them.

    Args:
        dtype: a key of ``ROUNDOFF``.
        mirrored: names of the products whose upper half is copied from the lower.
        parts: into how many parts long sums are split, each rounded to half precision before they are added up in half
            precision (what ``allow_fp16_reduced_precision_reduction`` allows); 1 for float32 sums.
        blocks: whether the diagonal blocks are computed whole, as on a CPU, and only blocks beside them are copied.
    """

    dtype: str = "float16"
    mirrored: frozenset[str] = frozenset()
    parts: int = 1
    blocks: bool = False

    def read(self, A: Tensor) -> Tensor:
        """Return what a product sees of a stored matrix."""
        return to_tf32(A) if self.dtype == "tf32" else A

    def store(self, A: Tensor) -> Tensor:
        """Return a float32 matrix as it is stored."""
        return A if self.dtype in ("tf32", "float32") else A.to(getattr(torch, self.dtype)).float()

    def product(
        self, name: str, A: Tensor, B: Tensor, *, alpha: float = 1.0, beta: float = 0.0, add: Any = 0
    ) -> Tensor:
        """Return ``alpha·A B + beta·add``, rounded once, or once for each part of the sum."""
        total: Tensor | float = 0.0
        for left, right in zip(self.read(A).chunk(self.parts, -1), self.read(B).chunk(self.parts, -2), strict=True):
            part = alpha * (left @ right)
            total = part if self.parts == 1 else self.store(total + self.store(part))
        C = self.store(total + beta * add)
        if name not in self.mirrored:
            return C
        return mirror_blocks(C, A.shape[-1]) if self.blocks else torch.tril(C) + torch.tril(C, -1).mT


def mirror_blocks(C: Tensor, k: int) -> Tensor:
    """Copy blocks below the diagonal to above it, halving where the work is that of docs/adr/0003."""
    m = len(C)
    if m >= 32 and m * m * k >= 56_000_000:
        h = (m // 2 + 15) // 16 * 16
        C[:h, h:] = C[h:, :h].mT
        mirror_blocks(C[:h, :h], k)
        mirror_blocks(C[h:, h:], k)
    return C


def orthogonalize(M: Tensor, schedule: Schedule, sizes: Sequence[int], unit: TensorCore) -> Tensor:
    """Return the orthogonalized wide matrix; steps of degree five, grouped into segments of the given sizes."""
    X = unit.store(M / torch.linalg.matrix_norm(M.double()).float())
    steps = iter(schedule)
    for size in sizes:
        R = unit.product("X Xᵀ", X, X.mT)
        Q = R
        for k in range(size):
            c, b, a = next(steps).coefficients
            Z = unit.product("R²", R, R, alpha=a, beta=b, add=R)  # P = c I + Z
            if k + 1 < size:
                PR = unit.product("P R", Z, R, beta=c, add=R)
                R = unit.product("P R P", PR, Z, beta=c, add=PR)
            Q = unit.store(Z + c * torch.eye(len(Z))) if k == 0 else unit.product("Q P", Q, Z, beta=c, add=Q)
        X = unit.product("Q X", Q, X)
    return X


def spectra(r: int) -> dict[str, Tensor]:
    """Return singular values by name."""
    k = torch.arange(1, r + 1).double()
    return {
        "1/k": 1 / k,
        "log to 1e-3": torch.logspace(0, -3, r).double(),
        "log to 1e-6": torch.logspace(0, -6, r).double(),
        "half zero": (k <= r // 2).double(),
        "rank 2": torch.where(k <= 2, 10.0 ** (2 - 2 * k), 0.0).double(),
        "spike 1e-3": torch.where(k == 1, 1.0, 1e-3).double(),
    }


def matrices(m: int, n: int) -> dict[str, Tensor]:
    """Return the matrices on which errors are measured, by name."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    U, V = (torch.linalg.qr(normal(k, m).double()).Q for k in (m, n))
    made = {name: ((U * sigma) @ V.T).float() for name, sigma in spectra(m).items()}
    return {
        "gaussian": normal(m, n),
        **made,
        "constant plus noise": 1.0 + 0.1 * normal(m, n),
        "equal rows": torch.ones(m, 1) @ normal(1, n),
        "few rows": normal(m, n) * (torch.arange(m) < 8)[:, None],
    }


GROUPED = tuple(MIRRORED)
CASES: dict[str, dict[str, dict[tuple[int, ...], tuple[str, ...]]]] = {
    "bfloat16": {
        "polar_express": {(1, 1, 1, 1, 1): ("none",), (1, 1, 1, 2): GROUPED},
        "jordan": {(1, 1, 1, 1, 1): ("none",), (2, 2, 1): GROUPED},
        "quintic": {(1, 1, 1, 1, 1): ("none",), (3, 2): GROUPED},
    },
    "float16": {
        "polar_express": {(1, 1, 1, 1, 1): ("none",), (1, 2, 2): GROUPED, (2, 3): GROUPED},
        "jordan": {(1, 1, 1, 1, 1): ("none",), (2, 2, 1): GROUPED, (2, 3): GROUPED},
        "quintic": {(1, 1, 1, 1, 1): ("none",), (4, 1): GROUPED, (5,): GROUPED},
    },
    "tf32": {"polar_express": {(1, 1, 1, 1, 1): ("none",), (1, 2, 2): ("none",), (4, 1): ("none",)}},
}
"""For each dtype and schedule: the groupings of steps and the mirrored products, including those that muonlab plans."""
ON_CPU_OR_NOT = {"none": frozenset[str](), "as on a CPU": ON_CPU, "all": PRODUCTS}
IN_FLOAT32: list[tuple[str, tuple[int, ...], dict[str, frozenset[str]]]] = [
    ("polar_express", (4, 1), {**ON_CPU_OR_NOT, **{name: frozenset({name}) for name in sorted(PRODUCTS)}}),
    ("jordan", (5,), ON_CPU_OR_NOT),
    ("quintic", (5,), ON_CPU_OR_NOT),
]
"""Segments of accuracy "half" with what is mirrored, by blocks, as on a CPU, and entry by entry."""

FEW = ("gaussian", "rank 2", "constant plus noise")

LARGE = ("gaussian", "1/k", "log to 1e-6", "half zero", "rank 2", "constant plus noise")
"""Matrices of the large shape."""


class Measured:
    """Matrices of one shape with their exact results, on which errors are measured."""

    def __init__(self, m: int, n: int) -> None:
        self.matrices = {name: M for name, M in matrices(m, n).items() if m < 512 or name in LARGE}
        svd = {name: torch.linalg.svd(M.double(), full_matrices=False) for name, M in self.matrices.items()}
        self.exact = {
            (name, schedule): (U * torch.from_numpy(F((sigma / sigma.norm()).numpy()))) @ Vh
            for name, (U, sigma, Vh) in svd.items()
            for schedule, F in SCHEDULES.items()
        }

    def errors(
        self, schedule: str, sizes: Sequence[int], unit: TensorCore, only: Sequence[str] = ()
    ) -> dict[str, float]:
        """Return the error of each matrix in the operator norm, or of those named."""
        return {
            name: operator_norm(
                orthogonalize(M, SCHEDULES[schedule], sizes, unit).double() - self.exact[name, schedule]
            )
            for name, M in self.matrices.items()
            if not only or name in only
        }

    def row(self, schedule: str, sizes: Sequence[int], unit: TensorCore) -> dict[str, Any]:
        """Return the errors, and the largest over ``u·max(16, c·sup|F'|)``, half of what ``allowed_error`` allows."""
        errors = self.errors(schedule, sizes, unit)
        steep, u = steepness(SCHEDULES[schedule]), ROUNDOFF[unit.dtype]
        shares = [errors[name] / (u * max(16.0, steep * concentration_of(M))) for name, M in self.matrices.items()]
        numbers = three_digits(errors)
        return {"largest": max(numbers.values()), "of_the_rule": round(max(shares), 2), **numbers}


def three_digits(errors: Mapping[str, float]) -> dict[str, float]:
    """Return errors as they are printed."""
    return {name: float(f"{error:.3g}") for name, error in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small shape")
    quick = parser.parse_args().quick
    report: dict[str, Any] = {"command": "OMP_NUM_THREADS=1 python benchmarks/half_precision.py"}
    for m, n in SHAPES[: 1 if quick else None]:
        measured = Measured(m, n)
        rows = []
        for dtype, by_schedule in CASES.items():
            for schedule, by_sizes in by_schedule.items():
                for sizes, choices in by_sizes.items():
                    for mirrored in choices:
                        row = measured.row(schedule, sizes, TensorCore(dtype, MIRRORED[mirrored]))
                        rows.append(
                            {"dtype": dtype, "schedule": schedule, "segments": sizes, "mirrored": mirrored, **row}
                        )
        split = [
            {"dtype": dtype, "parts": parts, **measured.row("polar_express", (1,) * 5, TensorCore(dtype, parts=parts))}
            for dtype in ("bfloat16", "float16")
            for parts in (4, 16)
        ]
        report[f"{m}x{n}"] = {"errors": rows, "sums in half precision": split}
        if not quick and m >= 512:  # smaller products are not halved
            report["float32, accuracy half"] = [
                {
                    "schedule": schedule,
                    "segments": sizes,
                    "mirrored": name,
                    "by": "blocks" if blocks else "entries",
                    **three_digits(measured.errors(schedule, sizes, TensorCore("float32", names, blocks=blocks), FEW)),
                }
                for schedule, sizes, choices in IN_FLOAT32
                for name, names in choices.items()
                for blocks in ((True, False) if schedule == "polar_express" else (True,))
            ]
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
