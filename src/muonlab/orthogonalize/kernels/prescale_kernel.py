"""Two kernels for the prescale: partial norms of every matrix, then norm, scale and cast. Two reads and one write.

Every part of a matrix is measured after an exact power of two has brought its largest entry to [½, 1), so that no
square leaves the range of float32; sums are in a fixed order, so that equal input gives equal bits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

PARTS = 1024
"""Most parts that a matrix is cut into; the second kernel reads the norms of all of them."""

BLOCK = 4096
"""Entries at a time."""

OPTIONS = {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}
"""Options of the compiler."""


@triton.jit
def _exponent_of(largest):
    """Return e with ``largest·2^-e`` in [½, 1), within ±126, where both powers of two are normal numbers."""
    e = ((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 126
    return tl.minimum(e, 126)


@triton.jit
def _power_of_two(e):
    """Return ``2^e``, and ``2^-126`` for anything less."""
    return ((tl.maximum(e, -126) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _offsets(index, columns, row, column, DENSE: tl.constexpr):
    """Return where the entry with this index lies."""
    if DENSE:
        return index
    return index // columns * row + index % columns * column


@triton.jit
def measure_kernel(
    M, norms, entries, per_part, parts, columns, M_batch, M_row, M_column, DENSE: tl.constexpr, BLOCK: tl.constexpr
):
    """Store the exponent of a part's largest entry, and the sum of squares after scaling by it."""
    part, batch = tl.program_id(0) % parts, (tl.program_id(0) // parts).to(tl.int64)
    M += batch * M_batch
    first = part.to(tl.int64) * per_part
    here = tl.minimum(per_part, entries - first).to(tl.int32)
    inner = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, here, BLOCK):
        where = _offsets(first + start + inner, columns, M_row, M_column, DENSE)
        x = tl.load(M + where, mask=inner < here - start, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
    e = _exponent_of(tl.max(largest))
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, here, BLOCK):
        where = _offsets(first + start + inner, columns, M_row, M_column, DENSE)
        x = tl.load(M + where, mask=inner < here - start, other=0.0).to(tl.float32) * _power_of_two(-e)
        total += x * x  # NaN and infinity reach the sum
    norms += 2 * tl.program_id(0)
    tl.store(norms, e.to(tl.float32))
    tl.store(norms + 1, tl.sum(total))


@triton.jit
def scale_kernel(
    M, norms, out, entries, per_part, parts, columns, M_batch, M_row, M_column, out_batch,
    PAPER: tl.constexpr, DENSE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store a part of ``M/‖M‖_F``, or of ``M/max{1, ‖M‖_F}`` if PAPER; all programs of a matrix find the same norm."""
    part, batch = tl.program_id(0) % parts, (tl.program_id(0) // parts).to(tl.int64)
    norms += batch * parts * 2
    every = tl.arange(0, PARTS)
    exponents = tl.load(norms + 2 * every, mask=every < parts, other=-126.0).to(tl.int32)
    squares = tl.load(norms + 2 * every + 1, mask=every < parts, other=0.0)
    e = tl.max(exponents)
    norm = tl.sqrt_rn(tl.sum(squares * _power_of_two(2 * (exponents - e))))  # ‖M‖_F = 2^e·norm
    c = tl.where(norm == 0.0, 0.0, tl.div_rn(1.0, norm))
    c = tl.where(norm < float("inf"), c, float("nan"))  # 1/inf = 0 would hide infinity
    if PAPER:
        c = tl.where(norm * _power_of_two(e) < 1.0, _power_of_two(e), c)
    M += batch * M_batch
    out += batch * out_batch
    first = part.to(tl.int64) * per_part
    here = tl.minimum(per_part, entries - first).to(tl.int32)
    inner = tl.arange(0, BLOCK)
    for start in range(0, here, BLOCK):
        index = first + start + inner
        where = _offsets(index, columns, M_row, M_column, DENSE)
        x = tl.load(M + where, mask=inner < here - start, other=0.0).to(tl.float32) * _power_of_two(-e)
        tl.store(out + index, (x * c).to(out.dtype.element_ty), mask=inner < here - start)


def arguments(M: Tensor, norms: Tensor, out: Tensor, paper: bool) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Return the number of programs and the arguments of both kernels, by name."""
    if not out.is_contiguous():
        M, out = M.mT, out.mT  # the order of `out` in memory
    rows, columns = M.shape[-2:]
    batches = 1 if M.ndim == 2 else M.shape[0]
    per_part, parts = cut(rows * columns)
    shared = {
        "entries": rows * columns, "per_part": per_part, "parts": parts, "columns": columns,
        "M_batch": 0 if M.ndim == 2 else M.stride(0), "M_row": M.stride(-2), "M_column": M.stride(-1),
        "DENSE": M.stride()[-2:] == (columns, 1), "BLOCK": BLOCK,
    }  # fmt: skip
    scaling = {"out": out, "out_batch": rows * columns, "PAPER": paper, "PARTS": PARTS}
    return batches * parts, {"M": M, "norms": norms, **shared}, {"M": M, "norms": norms, **shared, **scaling}


def cut(entries: int) -> tuple[int, int]:
    """Return the entries of a part and the number of parts, at most PARTS."""
    per_part = -(-entries // (PARTS * BLOCK)) * BLOCK
    return per_part, -(-entries // per_part)


def launch(M: Tensor, paper: bool, norms: Tensor, out: Tensor) -> None:
    """Run both kernels on checked arguments."""
    programs, measuring, scaling = arguments(M, norms, out, paper)
    measure_kernel[(programs,)](**measuring, **OPTIONS)
    scale_kernel[(programs,)](**scaling, **OPTIONS)
