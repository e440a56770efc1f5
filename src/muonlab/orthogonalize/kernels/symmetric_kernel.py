"""The kernel for symmetric products: tiles on and below the diagonal are computed, those above are their mirror images.

One kernel serves ``X Xᵀ``, ``alpha·A A + beta·A`` and ``P R P = alpha·(P R) P + beta·(P R)``, since each is
``alpha·A B + beta·add`` with a symmetric result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from muonlab.orthogonalize.crossover import Gpu, gpu_of

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1``), which multiplies bfloat16 wrongly."""

BAND = 8
"""Rows of tiles that are computed together, column by column, so that the second-level cache holds their operands."""


@dataclass(frozen=True)
class Tile:
    """How a product is cut and compiled.

    Args:
        size: rows and columns of a tile of the result.
        depth: columns of A and rows of B that are loaded at a time.
        warps: groups of threads per tile.
        stages: depth of the software pipeline.
        registers: most registers of a thread, where the compiler would take more than let two tiles share a core.
    """

    size: int
    depth: int
    warps: int
    stages: int
    registers: int | None = None


_TILES = {
    ("cuda", 2): Tile(128, 64, warps=8, stages=3),
    ("cuda 9", 2): Tile(128, 64, warps=8, stages=3, registers=128),
    ("cuda", 4): Tile(64, 32, warps=8, stages=2),
    ("hip", 2): Tile(128, 64, warps=8, stages=2),
    ("hip", 4): Tile(64, 32, warps=8, stages=2),
}


def tile_for(gpu: Gpu, itemsize: int) -> Tile:
    """Return the tile for a GPU and the bytes of an entry, chosen by registers and spills (results/kernels.json)."""
    key = f"{gpu.backend} {gpu.capability[0]}", itemsize
    return _TILES[key if key in _TILES else (gpu.backend, itemsize)]


@triton.jit
def _row_of(index):
    """Return the row of an entry of a lower triangle that is numbered row by row: row r begins at ``r(r + 1)/2``."""
    row = ((tl.sqrt(8.0 * index.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    row = tl.where(row * (row + 1) // 2 > index, row - 1, row)  # the square root is rounded
    return tl.where((row + 1) * (row + 2) // 2 <= index, row + 1, row)


@triton.jit
def tile_of(index, tiles, BAND: tl.constexpr):
    """Return row and column of a tile of the lower triangle: band after band of rows, in a band column after column."""
    first = _row_of(index) // BAND * BAND  # a band begins where its first row does
    index -= first * (first + 1) // 2
    height = tl.minimum(BAND, tiles - first)
    beside = index - height * first  # columns before the band's own triangle are whole; negative within them
    row = _row_of(tl.maximum(beside, 0))
    i = tl.where(beside < 0, index % height, row)
    j = tl.where(beside < 0, index // height, first + beside - row * (row + 1) // 2)
    return first + i, j


@triton.jit
def multiply_tile(
    A, B, add, scale, out, m, k, alpha, beta, tiles,
    A_batch, A_row, A_column, B_batch, B_row, B_column,
    add_batch, add_row, add_column, out_batch, out_row, out_column, scale_batch,
    HAS_ADD: tl.constexpr, HAS_SCALE: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    SIZE: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Compute one tile of ``out = scale·alpha·A B + beta·add`` and store it twice.

    Offsets to the corner of a tile have 64 bits, those within it 32: half the registers.
    """
    per_matrix = tiles * (tiles + 1) // 2
    batch = (tl.program_id(0) // per_matrix).to(tl.int64)
    i, j = tile_of(tl.program_id(0) % per_matrix, tiles, BAND)
    top, left = (i * SIZE).to(tl.int64), (j * SIZE).to(tl.int64)
    inner, ks = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    rows, columns = inner[:, None], inner[None, :]
    row_inside, column_inside = rows < m - i * SIZE, columns < m - j * SIZE

    A += batch * A_batch + top * A_row
    B += batch * B_batch + left * B_column
    A_offsets = rows * A_row + ks[None, :] * A_column
    B_offsets = ks[:, None] * B_row + columns * B_column
    total = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for start in range(0, k, DEPTH):
        a = tl.load(A + A_offsets, mask=row_inside & (ks[None, :] < k - start), other=0.0)
        b = tl.load(B + B_offsets, mask=column_inside & (ks[:, None] < k - start), other=0.0)
        if WIDEN:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        A += DEPTH * A_column
        B += DEPTH * B_row

    if HAS_SCALE:
        alpha *= tl.load(scale + batch * scale_batch)
    total *= alpha
    inside = row_inside & column_inside
    if HAS_ADD:
        add += batch * add_batch + top * add_row + left * add_column
        total += beta * tl.load(add + rows * add_row + columns * add_column, mask=inside, other=0.0).to(tl.float32)
    C = total.to(out.dtype.element_ty)
    out += batch * out_batch
    below = out + top * out_row + left * out_column + rows * out_row + columns * out_column
    above = out + left * out_row + top * out_column + columns * out_row + rows * out_column
    if i == j:  # each entry below the diagonal, and its mirror image: equal bits even where A B is not symmetric
        tl.store(below, C, mask=inside & (rows >= columns))
        tl.store(above, C, mask=inside & (rows > columns))
    else:
        tl.store(below, C, mask=inside)
        tl.store(above, C, mask=inside)


def arguments(
    A: Tensor, B: Tensor, add: Tensor | None, scale: Tensor | None, out: Tensor, alpha: float, beta: float,
    precision: str, tile: Tile,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """Return the number of programs and the arguments of :func:`multiply_tile`, by name."""
    batches, m, k = (1, *A.shape) if A.ndim == 2 else A.shape
    tiles = -(-m // tile.size)
    strides: dict[str, int] = {}
    for name, X in (("A", A), ("B", B), ("add", out if add is None else add), ("out", out)):
        values = (0, *X.stride()) if X.ndim == 2 else X.stride()
        strides |= {f"{name}_{axis}": value for axis, value in zip(("batch", "row", "column"), values, strict=True)}
    return batches * tiles * (tiles + 1) // 2, {
        "A": A, "B": B, "add": out if add is None else add, "scale": out if scale is None else scale, "out": out,
        "m": m, "k": k, "alpha": float(alpha), "beta": float(beta), "tiles": tiles, **strides,
        "scale_batch": 0 if scale is None or scale.ndim == 0 else scale.stride(0),
        "HAS_ADD": add is not None, "HAS_SCALE": scale is not None, "PRECISION": precision, "WIDEN": INTERPRETED,
        "SIZE": tile.size, "DEPTH": tile.depth, "BAND": BAND,
    }  # fmt: skip


def options(tile: Tile) -> dict[str, Any]:
    """Return the options of the compiler."""
    limit = {} if tile.registers is None else {"maxnreg": tile.registers}
    return {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True, **limit}


def launch(
    A: Tensor, B: Tensor, add: Tensor | None, scale: Tensor | None, out: Tensor, alpha: float, beta: float,
    precision: str,
) -> None:  # fmt: skip
    """Run the kernel on checked arguments."""
    gpu = gpu_of(A.device) if A.is_cuda else Gpu("cuda", (8, 0))  # the interpreter runs on a CPU
    tile = tile_for(gpu, A.element_size())
    programs, named = arguments(A, B, add, scale, out, alpha, beta, precision, tile)
    multiply_tile[(programs,)](**named, **options(tile))
