"""Matrices that orthogonalizers get wrong: every shape, rank, spectrum, scale and layout worth a test."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor


def with_spectrum(m: int, n: int, sigma: object, seed: int = 0) -> Tensor:
    """Return a random m×n matrix with the given singular values (missing ones are zero)."""
    values = torch.as_tensor(np.asarray(sigma, dtype=np.float64))
    generator = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(m, len(values), generator=generator, dtype=torch.float64)).Q
    V = torch.linalg.qr(torch.randn(n, len(values), generator=generator, dtype=torch.float64)).Q
    return ((U * values) @ V.T).float()


def gaussian(m: int, n: int, seed: int = 0) -> Tensor:
    """Return an m×n matrix of standard normal entries."""
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed))


@cache
def zoo() -> dict[str, Tensor]:
    """Return every specimen by name."""
    animals: dict[str, Tensor] = {}
    for m, n in (
        (1, 1),
        (1, 7),
        (7, 1),
        (2, 2),
        (5, 3),
        (16, 40),
        (40, 16),
        (64, 64),
        (64, 216),
        (64, 576),
        (511, 513),
    ):
        animals[f"gaussian {m}x{n}"] = gaussian(m, n, seed=m + n)
    for m, n in ((8, 8), (33, 65), (65, 33), (64, 576)):
        r = min(m, n)
        spectra: dict[str, object] = {
            "log to 1e-1": np.geomspace(1, 1e-1, r),
            "log to 1e-3": np.geomspace(1, 1e-3, r),
            "log to 1e-6": np.geomspace(1, 1e-6, r),
            "condition 1e12": np.geomspace(1, 1e-12, r),
            "1/k": 1 / np.arange(1, r + 1),
            "flat": np.ones(r),
            "one large, rest 0.03": np.r_[1.0, np.full(r - 1, 0.03)],
            "one large, rest 1e-3": np.r_[1.0, np.full(r - 1, 1e-3)],
            "half zero": np.r_[np.linspace(1, 0.1, r // 2), np.zeros(r - r // 2)],
            "rank 1": np.array([2.5]),
            "rank 2": np.array([1.0, 0.01]),
        }
        for name, sigma in spectra.items():
            animals[f"{name} {m}x{n}"] = with_spectrum(m, n, sigma, seed=m * n)
    base = gaussian(24, 40, seed=9)
    animals["zero"] = torch.zeros(5, 8)
    animals["identity"] = torch.eye(12)
    animals["2 identity"] = 2 * torch.eye(8)
    animals["permutation"] = torch.eye(10)[torch.randperm(10, generator=torch.Generator().manual_seed(1))]
    animals["repeated row"] = base[:1].expand(6, 40).clone()
    animals["x 1e30"] = base * 1e30
    animals["x 1e-30"] = base * 1e-30
    animals["x 2**100"] = base * 2.0**100
    animals["x 2**-100"] = base * 2.0**-100
    animals["denormal"] = base * 1e-40
    animals["one denormal entry"] = torch.zeros(4, 4).index_fill_(0, torch.tensor([0]), 1e-44)
    animals["rows from 1e-20 to 1e20"] = base * torch.logspace(-20, 20, 24)[:, None]
    animals["largest float"] = torch.full((3, 4), torch.finfo(torch.float32).max)
    animals["a long row"] = gaussian(1, 1_000_000, seed=7)
    animals["few long rows"] = gaussian(4, 300_000, seed=8) * torch.tensor([[1.0], [0.1], [1.0], [0.01]])
    animals["strided"] = gaussian(48, 90, seed=3)[::2, 1::3]
    animals["transposed view"] = gaussian(30, 20, seed=4).T
    animals["reversed columns"] = gaussian(20, 30, seed=5).flip(1)
    animals["unaligned"] = gaussian(1, 20 * 30 + 1, seed=6).flatten()[1:].view(20, 30)
    return animals
