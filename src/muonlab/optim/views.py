"""How a parameter is read as matrices, in a small language; and how shards cut these matrices.

A view is a string of up to three words:

=====================================  ===============================================================================
``flatten``                            first dimension × the rest (the default; never written with other words)
``batch``                              a stack of matrices in the last two dimensions, such as experts
``transposed``                         stored inputs × outputs, such as the ``Conv1D`` of GPT-2: scale rules exchange
                                       rows and columns
``rows(768, 768, 768)``                consecutive blocks of rows, each its own matrix; also as a tuple of sizes
``columns(768, 768, 768)``             the same along the columns
``row_heads(64)``                      consecutive blocks of 64 rows, each its own matrix
``column_heads(64)``                   the same along the columns, such as an output projection by heads
``interleaved_rows(3, 64)``            3 matrices with interleaved rows, 64 at a time
``interleaved_rows(2, 192, 256)``      the same with a size for each: 192 rows of the first, then 256 of the second
``interleaved_columns(2, 1)``          2 matrices with interleaved columns, one at a time
=====================================  ===============================================================================

At most one of the last six: ``"batch rows(512, 512)"``, ``"batch transposed interleaved_columns(2, 1)"``. Each block is
a view of the memory of the parameter, and is orthogonalized as one matrix or as one batch of matrices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from muonlab import _checks

MatrixView = str | tuple[int, ...]
"""A view in the language above, or the sizes of row blocks."""

CUTS = ("rows", "columns", "row_heads", "column_heads", "interleaved_rows", "interleaved_columns")
_WORD = re.compile(r"(\w+)(?:\(([^()]*)\))?(?: |$)")
_NUMBERS = re.compile(r" *\d+ *(, *\d+ *)*")


@dataclass(frozen=True)
class ParsedView:
    """A view by its parts.

    Args:
        batch: whether leading dimensions count matrices.
        transposed: whether rows are inputs.
        cut: one of ``CUTS``, or empty.
        numbers: the numbers of the cut.
    """

    batch: bool = False
    transposed: bool = False
    cut: str = ""
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        cut = f"{self.cut}({', '.join(map(str, self.numbers))})" if self.cut else ""
        words = ("batch" if self.batch else "", "transposed" if self.transposed else "", cut)
        return " ".join(word for word in words if word) or "flatten"

    @property
    def interleaved(self) -> bool:
        """Whether the rows or columns of the blocks are interleaved."""
        return self.cut.startswith("interleaved")

    @property
    def unit(self) -> int:
        """How many rows or columns heads and turns take: the dimension is a multiple of it."""
        return sum(self.turn) if self.interleaved else self.numbers[0]

    @property
    def turn(self) -> tuple[int, ...]:
        """How many rows or columns each interleaved block has in one turn."""
        count, *sizes = self.numbers
        return tuple(sizes) if len(sizes) > 1 else (sizes[0],) * count

    def cut_dim(self, ndim: int) -> int:
        """Return the dimension that is cut."""
        if "column" in self.cut:
            return ndim - 1
        return ndim - 2 if self.batch else 0

    def sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the size of each block along the dimension that is cut; empty without a cut."""
        if not self.cut:
            return ()
        whole = shape[self.cut_dim(len(shape))]
        if self.interleaved:
            return tuple([whole // self.unit * size for size in self.turn])
        return (self.numbers[0],) * (whole // self.numbers[0]) if "heads" in self.cut else self.numbers

    def matrices(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return how a block of this shape is read: as a matrix (m, n), or as a batch (b, m, n)."""
        return (math.prod(shape[:-2]), *shape[-2:]) if self.batch else (shape[0], math.prod(shape[1:]))


def check_view(view: object) -> str:
    """Return a view as a string, in its plain form; raise if it is not one."""
    if isinstance(view, str):
        return _plain_form(view)
    if isinstance(view, Sequence):
        sizes = tuple(_checks.integer("matrix_view size", size, at_least=1) for size in view)
        return str(ParsedView(cut="rows", numbers=sizes))
    raise TypeError(
        f"matrix_view must be a string such as 'flatten', 'batch' or 'columns(768, 768, 768)', or a tuple of row "
        f"counts, got {view!r}: for example (768, 768, 768) for a fused query, key and value"
    )


@lru_cache(maxsize=1024)
def _plain_form(view: str) -> str:
    return str(_parse_strictly(view))


def _parse_strictly(view: str) -> ParsedView:
    """Return the parts of a view that a user wrote; raise if it is not one."""
    words = _WORD.findall(view)
    names = [name for name, _ in words]
    flags = [name for name in names if name not in CUTS]
    [(cut, inside)] = [word for word in words if word[0] in CUTS][:1] or [("", "")]
    numbers = tuple(int(number) for number in inside.split(",")) if _NUMBERS.fullmatch(inside) else ()
    rule = ""
    if {*flags} - {"flatten", "batch", "transposed"} or not words or _WORD.sub("", view):
        rule = f"be made of the words flatten, batch, transposed, {', '.join(f'{cut}(…)' for cut in CUTS)}"
    elif len(names) - len(flags) > 1 or len(set(names)) < len(names) or ("flatten" in flags and len(names) > 1):
        rule = "have each word once, at most one that cuts, and 'flatten' alone"
    elif cut and (not numbers or min(numbers) < 1 or ("heads" in cut and len(numbers) != 1)):
        rule = "give sizes of 1 or more to what cuts, and one size to heads"
    elif cut.startswith("interleaved") and (numbers[0] < 2 or len(numbers) not in (2, 1 + numbers[0])):
        rule = (
            "give the number of matrices, 2 or more, and how many rows or columns at a time to what is interleaved, "
            "one size for all or one for each"
        )
    elif any(inside for name, inside in words if name not in CUTS):
        rule = "have sizes only in what cuts"
    if rule:
        raise ValueError(f"matrix_view must {rule}, got {view!r}: for example 'batch rows(512, 512)'")
    if cut.startswith("interleaved") and len(set(numbers[1:])) == 1:
        numbers = numbers[:2]
    return ParsedView("batch" in flags, "transposed" in flags, cut, numbers)


def parse_view(view: MatrixView) -> ParsedView:
    """Return the parts of a view; for one that :func:`check_view` returned, by string methods that compile."""
    return _parse(view) if torch.compiler.is_compiling() else _cached_parse(view)


def _parse(view: MatrixView) -> ParsedView:
    if not isinstance(view, str):
        return ParsedView(cut="rows", numbers=tuple(view))
    words, _, numbers = view.partition("(")
    names = words.split(" ")
    cut = names[-1] if numbers else ""
    return ParsedView(
        "batch" in names, "transposed" in names, cut, tuple([int(n) for n in numbers[:-1].split(",")]) if cut else ()
    )


_cached_parse = lru_cache(maxsize=4096)(_parse)


def check_fits(view: MatrixView, shape: Sequence[int], name: str) -> None:
    """Raise if the view does not read a parameter of this shape as matrices."""
    shape, parsed = tuple(shape), parse_view(view)
    if len(shape) < 2:
        raise ValueError(
            f"Muon takes parameters of two or more dimensions, got {name} of shape {shape}: "
            f"split_params(model) sends such parameters to an auxiliary optimizer"
        )
    if not parsed.cut:
        return
    if "column" in parsed.cut and len(shape) > 2 and not parsed.batch:
        raise ValueError(
            f"a matrix_view that cuts columns takes two dimensions, or 'batch', got {str(parsed)!r} for {name} of "
            f"shape {shape}: write 'batch {parsed}' if its last two dimensions are matrices"
        )
    whole, sizes = shape[parsed.cut_dim(len(shape))], parsed.sizes(shape)
    axis = "columns" if "column" in parsed.cut else "rows" if parsed.batch else "first dimension"
    if parsed.cut in ("rows", "columns") and sum(sizes) != whole:
        raise ValueError(
            f"the sizes of a matrix_view must add up to the {axis}, got {sizes}, sum {sum(sizes)}, for {name} "
            f"of shape {shape}: give sizes that add up to {whole}"
        )
    if parsed.cut not in ("rows", "columns") and whole % parsed.unit:
        raise ValueError(
            f"a matrix_view must divide the {axis}, got {str(parsed)!r}, which takes multiples of {parsed.unit}, for "
            f"{name} of shape {shape}: choose a divisor of {whole}"
        )
    if len(shape) > 2 and not parsed.batch and set(sizes) == {1}:
        raise ValueError(
            f"a matrix_view must cut a parameter into matrices, got {str(parsed)!r} for {name} of shape {shape}, which "
            f"would make single rows of its slices: 'batch' reads each slice as a matrix"
        )


@dataclass(frozen=True)
class MatrixBlock:
    """A block of a parameter, orthogonalized as one matrix or as one batch, and how shards cut it.

    Args:
        shape: whole shape in the dimensions of the parameter; where blocks are interleaved, with one dimension more:
            the rounds, and what the block has in each.
        matrices: shape in which it is read: a matrix (m, n), or a batch (b, m, n).
        dim: dimension along which shards cut it.
        sizes: size of each shard's piece along ``dim``; they add up to ``shape[dim]``.
        transposed: whether rows are inputs.
        interleaved: whether ``shape`` has one dimension more.
    """

    shape: tuple[int, ...]
    matrices: tuple[int, ...]
    dim: int
    sizes: tuple[int, ...]
    transposed: bool = False
    interleaved: bool = False

    @property
    def out_in(self) -> tuple[int, int]:
        """Outputs and inputs of each matrix, for scale rules."""
        m, n = self.matrices[-2:]
        return (n, m) if self.transposed else (m, n)

    @property
    def batch(self) -> bool:
        """Whether it is a batch of matrices."""
        return len(self.matrices) == 3

    @property
    def matrix_dims(self) -> int:
        """Number of trailing dimensions of ``shape`` that one matrix of a batch has; 3 if it is interleaved."""
        return 2 + self.interleaved

    @property
    def stays_local(self) -> bool:
        """Whether every shard holds whole matrices of a batch, so that nothing has to be sent."""
        return len(self.sizes) > 1 and self.batch and len(self.shape) > 2 and self.dim == 0

    def piece_shape(self, shard: int) -> tuple[int, ...]:
        """Return the shape of a shard's piece."""
        return (*self.shape[: self.dim], self.sizes[shard], *self.shape[self.dim + 1 :])

    def piece_elements(self, shard: int) -> int:
        """Return the number of elements of a shard's piece."""
        return math.prod(self.piece_shape(shard))

    def read(self, block: Tensor) -> Tensor:
        """Return a block, or a piece of it that holds whole matrices, as a matrix or as a batch, row-major."""
        *stack, m, n = self.matrices
        return (block.reshape(-1, m, n) if stack else block.reshape(m, n)).contiguous()


def matrix_blocks(shape: Sequence[int], view: MatrixView, dim: int = 0, shards: int = 1) -> Sequence[MatrixBlock]:
    """Return the blocks of a parameter that is cut into shards along a dimension.

    Example:
        >>> [block.sizes for block in matrix_blocks((6, 4), (2, 4), shards=4)]  # shards hold 2, 2, 2 and 0 rows
        [(2, 0, 0, 0), (0, 2, 2, 0)]
        >>> [block.matrices for block in matrix_blocks((8, 6, 4), "batch rows(4, 2)")]
        [(8, 4, 4), (8, 2, 4)]
    """
    if torch.compiler.is_compiling():  # a compiled step must not write to a cache
        return _matrix_blocks(shape, view, dim, shards)
    return _cached_matrix_blocks(shape, view, dim, shards)


def _matrix_blocks(shape: Sequence[int], view: MatrixView, dim: int, shards: int) -> Sequence[MatrixBlock]:
    parsed, shard_sizes = parse_view(view), chunk_sizes(shape[dim], shards)
    cut = parsed.cut_dim(len(shape))
    result, first = [], 0
    for number, size in enumerate(parsed.sizes(shape) or (shape[cut],)):
        block_shape = (*shape[:cut], size, *shape[cut + 1 :])
        matrices, block_dim, sizes = parsed.matrices(block_shape), dim, shard_sizes
        if parsed.interleaved:
            each = parsed.turn[number]
            block_shape = (*shape[:cut], size // each, each, *shape[cut + 1 :])
            block_dim = dim if dim <= cut else dim + 1
            if dim == cut:
                sizes = _whole_turns(shard_sizes, parsed)
        elif dim == cut:
            sizes = _overlaps(shard_sizes, first, first + size)
        result.append(MatrixBlock(block_shape, matrices, block_dim, sizes, parsed.transposed, parsed.interleaved))
        first += size
    return result


_cached_matrix_blocks = lru_cache(maxsize=4096)(_matrix_blocks)


def split_tensor(tensor: Tensor, view: MatrixView, blocks: Sequence[MatrixBlock], shard: int = 0) -> Sequence[Tensor]:
    """Return a shard's piece of every block of a parameter, as views of the shard's tensor."""
    parsed = parse_view(view)
    if not parsed.cut:
        return (tensor,)
    cut = parsed.cut_dim(tensor.ndim)
    sizes = [block.piece_shape(shard)[cut] for block in blocks]
    if parsed.interleaved:
        turns = tensor.view(*tensor.shape[:cut], sizes[0], parsed.unit, *tensor.shape[cut + 1 :])
        return torch.split(turns, list(parsed.turn), cut + 1)
    return torch.split(tensor, sizes, cut)


def chunk_sizes(size: int, shards: int) -> tuple[int, ...]:
    """Return how many of ``size`` rows each shard holds, as ``torch.chunk`` cuts them; the last ones may hold none.

    Example:
        >>> chunk_sizes(5, 4), chunk_sizes(2, 4)
        ((2, 2, 1, 0), (1, 1, 0, 0))
    """
    each = -(-size // shards)
    return tuple(max(0, min(each, size - shard * each)) for shard in range(shards))


def _overlaps(shard_sizes: Sequence[int], first: int, last: int) -> tuple[int, ...]:
    """Return how many of the rows from ``first`` up to ``last`` each shard holds."""
    overlaps, start = [], 0
    for size in shard_sizes:
        overlaps.append(max(0, min(last, start + size) - max(first, start)))
        start += size
    return tuple(overlaps)


def _whole_turns(shard_sizes: Sequence[int], view: ParsedView) -> tuple[int, ...]:
    """Return how many rounds of interleaved blocks each shard holds; raise if a shard cuts one."""
    turn = view.unit
    if any(size % turn for size in shard_sizes):
        raise ValueError(
            f"shards must hold whole rounds of interleaved blocks, multiples of {turn}, got shards of "
            f"{', '.join(map(str, shard_sizes))} for the matrix_view {str(view)!r}: use another number of ranks, or "
            f"read the parameter by heads or as one matrix"
        )
    return tuple(size // turn for size in shard_sizes)
