"""How far the predicted error of a Gram segment is from the measured one (ADR 9). Prints JSON; seconds on one core.

python benchmarks/segments.py
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from muonlab.orthogonalize.iteration import iterate
from muonlab.orthogonalize.segments import gram_sensitivity
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import Schedule, preset, taylor

SHAPES = [(16, 24), (64, 216), (64, 576), (128, 512), (256, 576)]
CASES = [
    ("jordan", preset("jordan").schedule(5), (5,)),
    ("jordan", preset("jordan").schedule(5), (3, 2)),
    ("polar_express, safe", preset("polar_express").schedule(5, safety="1.01"), (5,)),
    ("polar_express, safe", preset("polar_express").schedule(5, safety="1.01"), (4, 1)),
    ("polar_express, safe", preset("polar_express").schedule(5, safety="1.01"), (3, 2)),
    ("quintic", Schedule.repeat(taylor(2), 8), (8,)),
]


def spectra(r: int) -> dict[str, Tensor | None]:
    """Return singular values by name; None for a Gaussian matrix."""
    k = torch.arange(1, r + 1).double()
    return {
        "gaussian": None,
        "1/k": 1 / k,
        "1/k^2": k**-2,
        "log to 1e-4": torch.logspace(0, -4, r).double(),
        "log to 1e-9": torch.logspace(0, -9, r).double(),
        "rank 2": (k <= 2).double(),
        "half zero": (k <= r // 2).double(),
        "spike 1e-3": torch.where(k == 1, 1.0, 1e-3).double(),
        "spike 3e-4": torch.where(k == 1, 1.0, 3e-4 / r**0.5).double(),
    }


def matrix(m: int, n: int, sigma: Tensor | None) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if sigma is None:
        return torch.randn(m, n, generator=generator)
    U, V = (torch.linalg.qr(torch.randn(k, m, generator=generator).double()).Q for k in (m, n))
    return ((U * sigma) @ V.T).float()


def error(M: Tensor, schedule: Schedule, sizes: tuple[int, ...]) -> float:
    """Return the operator-norm error of a grouping against the schedule on the singular values."""
    steps = iter(schedule)
    segments = tuple(tuple(next(steps) for _ in range(size)) for size in sizes)
    O = torch.empty_like(M)
    iterate(M, O, Workspace(torch.float32, M.device), segments, "frobenius")
    U, sigma, Vh = torch.linalg.svd(M.double(), full_matrices=False)
    expected = (U * torch.from_numpy(schedule((sigma / sigma.norm()).numpy()))) @ Vh
    return float(torch.linalg.matrix_norm(O.double() - expected, 2))


def main() -> None:
    rows = []
    for name, schedule, sizes in CASES:
        steps = iter(schedule)
        sensitivity = max(gram_sensitivity(tuple(next(steps) for _ in range(size))) for size in sizes)
        measured = {
            f"{m}x{n}, {kind}": error(matrix(m, n, sigma), schedule, sizes)
            for m, n in SHAPES
            for kind, sigma in spectra(m).items()
        }
        worst = max(measured, key=lambda case: measured[case])
        predicted = sensitivity * torch.finfo(torch.float32).eps / 2
        rows.append({"schedule": f"{name} x{len(schedule)}", "segments": sizes, "predicted": predicted})
        rows[-1] |= {"measured": measured[worst], "worst": worst}
    print(json.dumps({"command": "python benchmarks/segments.py", "errors": rows}, indent=1))


if __name__ == "__main__":
    main()
