"""Whether a device computes what it should: products, orthogonalized matrices and steps, against float64 on the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from muonlab.optim.muon import Muon
from muonlab.optim.orthogonalizer import DEFAULT_SCHEDULE, NewtonSchulz
from muonlab.orthogonalize import newton_schulz
from muonlab.orthogonalize.arithmetic import product_roundoff
from muonlab.orthogonalize.products import gram, symmetric_product
from muonlab.orthogonalize.rounding import allowed_error, concentration_of

Row = dict[str, Any]
"""What was checked, its error (None if it is not finite), the largest error allowed, and ``ok``."""

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


SHAPES = ((2, 64, 72), (1, 128, 64), (3, 33, 70))
"""Stacks whose products are checked, on any device."""

KERNEL_SHAPES = ((4, 1024, 1040), (1, 2048, 2064))
"""Stacks that the kernels for GPUs multiply in half precision (``crossover.py``)."""


def check_device(device: torch.device) -> list[Row]:
    """Return a row for each kind of computation and dtype, with the worst of its cases."""
    dtypes = [dtype for dtype in DTYPES if not (device.type == "mps" and dtype == torch.float64)]
    rows = [worst(row) for dtype in dtypes for row in (products(device, dtype), orthogonalized(device, dtype))]
    if device.type != "cpu":
        rows.append(same_steps(device))
    if device.type == "cuda":
        rows.append(captured_steps(device))
    return rows


def worst(rows: list[Row]) -> Row:
    """Return the row whose error is largest beside what is allowed."""
    return max(rows, key=lambda row: math.inf if row["error"] is None else row["error"] / row["allowed"])


def _row(what: str, dtype: torch.dtype, error: float, allowed: float) -> Row:
    name = str(dtype).removeprefix("torch.")
    finite = error if math.isfinite(error) else None
    return {"what": what, "dtype": name, "error": finite, "allowed": allowed, "ok": error <= allowed}


def products(device: torch.device, dtype: torch.dtype) -> list[Row]:
    """Check ``X Xᵀ`` and ``a·R² + b·R`` entry by entry; the error is given in units of the rounding bound.

    The bound is that of one rounding of the result and of sums in float32:
    ``u|C| + 2K·2⁻²⁴ |A||B|``, plus the spacing of the smallest numbers of the dtype, plus ``2u |A||B|`` where TF32
    rounds what it reads.
    """
    generator = torch.Generator().manual_seed(0)
    rows = []
    for shape in (*SHAPES, *(KERNEL_SHAPES if device.type == "cuda" else ())):
        X = (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(dtype)
        R = X.double() @ X.double().mT
        R = (R / R.norm(dim=(-2, -1), keepdim=True)).to(dtype)
        here, R_here = X.to(device), R.to(device)
        square = R_here.new_empty(R.shape)
        symmetric_product(R_here)(R_here, R_here, R_here, beta=-1.5, alpha=0.5, out=square)
        cases = (
            (gram(here, out=here.new_empty(R.shape)), X.double(), X.double().mT, 1.0, 0.0, R.double()),
            (square, R.double(), R.double(), 0.5, -1.5, R.double()),
        )
        for result, A, B, alpha, beta, add in cases:
            exact = alpha * (A @ B) + beta * add
            sums = abs(alpha) * (A.abs() @ B.abs()) + abs(beta) * add.abs()
            wide = torch.finfo(dtype).eps if dtype == torch.float64 else 2.0**-24
            info = torch.finfo(dtype)
            reading = product_roundoff(dtype, device) if product_roundoff(dtype, device) > info.eps else 0.0
            bound = info.eps / 2 * exact.abs() + 2 * (A.shape[-1] * wide + reading) * sums + info.tiny * info.eps
            error = float(((result.cpu().double() - exact).abs() / bound).max())
            rows.append(_row("products", dtype, error, 1.0))
    return rows


def spectra(rank: int) -> dict[str, Tensor]:
    """Return singular values of the test matrices, in float64."""
    k = torch.arange(1, rank + 1, dtype=torch.float64)
    return {
        "flat": torch.ones(rank, dtype=torch.float64),
        "1/k": 1 / k,
        "logarithmic to 1e-4": torch.logspace(0, -4, rank, dtype=torch.float64),
        "half zero": (k <= rank / 2).double(),
        "rank 2": (k <= 2).double(),
    }


def orthogonalized(device: torch.device, dtype: torch.dtype) -> list[Row]:
    """Check Muon's default schedule on matrices of known singular values; the error is an operator norm."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for m, n in ((48, 96), (96, 48), (64, 64)):
        rank = min(m, n)
        for s in spectra(rank).values():
            U, V = (
                torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64))[0] for size in (m, n)
            )
            M = (U * s) @ V.mT
            M = M if dtype == torch.float64 else M.float()
            exact = newton_schulz(M.double(), DEFAULT_SCHEDULE)
            O = newton_schulz(M.to(device)[None], DEFAULT_SCHEDULE, compute_dtype=dtype, accuracy="half")[0]
            error = float(torch.linalg.matrix_norm(O.cpu().double() - exact, ord=2))
            c = concentration_of(M)
            allowed = allowed_error(DEFAULT_SCHEDULE, dtype, "half", size=max(m, n), device=device, concentration=c)
            # the rule for bfloat16 may exceed 1, which is the error of the zero matrix
            rows.append(_row("orthogonalized matrices", dtype, error, min(allowed, 0.9)))
    return rows


def _trained(device: torch.device, steps: int, **options: Any) -> tuple[Muon, list[torch.nn.Parameter]]:
    """Return an optimizer after some steps on fixed gradients, and its weights."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((32, 48), (48, 32), (32, 48), (16, 3, 3, 3))
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
    optimizer = Muon(params, torch.tensor(0.02, device=device), weight_decay=0.1, **options)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(device)
    for _ in range(steps):
        optimizer.step()
    return optimizer, params


def _apart(ours: list[torch.nn.Parameter], theirs: list[torch.nn.Parameter]) -> float:
    return max(float((a.detach().cpu() - b.detach().cpu()).abs().max()) for a, b in zip(ours, theirs, strict=True))


def same_steps(device: torch.device) -> Row:
    """Compare three steps of Muon in float32 on the device and on the CPU."""
    options = {"orthogonalizer": NewtonSchulz(compute_dtype=torch.float32)}
    _, here = _trained(device, 3, **options)
    _, there = _trained(torch.device("cpu"), 3, **options)
    return _row("three steps, beside the CPU", torch.float32, _apart(here, there), 1e-3)


def captured_steps(device: torch.device) -> Row:
    """Compare steps that a CUDA graph repeats with the same steps without one."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):  # buffers belong to a stream
        optimizer, params = _trained(device, 3, capturable=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # recorded, not run
            optimizer.step()
        for _ in range(3):
            graph.replay()
    torch.cuda.synchronize(device)
    _, expected = _trained(device, 6, capturable=True)
    return _row("six steps, three of them in a CUDA graph", torch.float32, _apart(params, expected), 1e-6)
