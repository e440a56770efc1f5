"""What a file has given: matrices by name, within limits that the size of the file sets, or one line of refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from muonlab.optim.base import BUFFER
from muonlab.optim.views import MatrixView, as_matrices, blocks, check_fits, check_view
from muonlab.orthogonalize.matrices import FLOATING

What = Literal["momentum", "weight", "matrix"]
SHARED = 8
"""Times the bytes of a file (or of what it expands to) that its matrices may have: entries can share memory."""
MATRICES = 100_000
"""Matrices that one file may hold."""

ADAM = "exp_avg"
ALONE = "save the optimizer alone, torch.save(optimizer.state_dict(), path)"
AGAIN = "it is damaged or nothing torch, safetensors or numpy wrote; write it again"


class FileError(ValueError):
    """A file that gives no matrices; one line that names the file, the rule, what was found and the way out."""


@dataclass(frozen=True, eq=False)
class NamedMatrix:
    """One matrix (m, n) of a file, in its own dtype; ``name`` can be printed, ``shape`` is that of the file's entry.

    ``group`` holds the plain settings of its parameter group, in Muon's terms if the optimizer is one.
    """

    name: str
    what: What
    tensor: Tensor
    shape: tuple[int, ...]
    group: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class FileMatrices:
    """What was found in a file; ``skipped`` has names of entries, each with why it is no matrix."""

    path: Path
    kind: str
    matrices: tuple[NamedMatrix, ...]
    skipped: tuple[tuple[str, str], ...]
    note: str


def printable(text: str, limit: int = 120) -> str:
    r"""Return text from a file as a terminal may show it: control characters escaped, cut in the middle if long.

    Example:
        >>> print(printable("a\x1b[31mb\n"))
        a\x1b[31mb\n
    """
    text = text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass
class Found:
    """What was taken so far, within the limits that the size of the file sets."""

    size: int
    weights: bool
    matrices: list[NamedMatrix] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    used: int = 0
    left_out: int = 0

    def sort(self, name: str, why_not: str | None, load: Callable[[], Tensor]) -> None:
        """Take a tensor outside of an optimizer's state for what its name says."""
        if ADAM in name:
            self.skip(name, f"is {ADAM} of an Adam-like optimizer")
        elif (BUFFER in name or self.weights) and why_not:
            self.skip(name, why_not)
        elif BUFFER in name or self.weights:
            self.add(name, "momentum" if BUFFER in name else "weight", load())
        else:
            self.left_out += not why_not

    def skip(self, name: str, why: str) -> None:
        """Note an entry that is no matrix."""
        self.skipped.append((printable(name), printable(why, 300)))

    def add(self, name: str, what: What, value: Tensor, group: Mapping[str, Any] | None = None) -> None:
        """Take the matrices of one entry, or note why it has none."""
        try:
            view = check_view("batch" if what == "matrix" else (group or {}).get("matrix_view", "flatten"))
            why = self.unfit(value)
            if not why:
                check_fits(view, value.shape, printable(name))
        except (TypeError, ValueError) as error:
            why = str(error)
        if why:
            self.skip(name, why)
            return
        self.used += value.numel() * value.element_size()
        if self.used > SHARED * self.size:
            raise FileError(f"must hold what its entries claim, got {self.used} bytes of them in {self.size}: {AGAIN}")
        tensor = Tensor.detach(value)  # a pickle can set attributes that hide a tensor's methods; this one has none
        for label, M in _matrices(printable(name), tensor, view):
            if len(self.matrices) == MATRICES:
                raise FileError(f"must hold at most {MATRICES} matrices, got more: split it")
            self.matrices.append(NamedMatrix(label, what, M, tuple(value.shape), group))

    def unfit(self, value: Tensor) -> str | None:
        """Return why a tensor is not read as matrices, if so."""
        if type(value) not in (Tensor, torch.nn.Parameter):
            return f"is a {type(value).__name__}, not a plain tensor: gather or convert it before saving"
        if value.layout != torch.strided or value.device.type != "cpu":
            return f"has no dense values here ({value.layout}, device {value.device}): save a dense tensor"
        return self.misfit(tuple(value.shape), value.dtype in FLOATING, value.dtype, value.element_size())

    def misfit(self, shape: tuple[int, ...], is_real: bool, dtype: object, width: int) -> str | None:
        """Return why an entry of this shape and dtype is not read as matrices, if so."""
        if len(shape) < 2:
            return f"is a vector or a number, shape {shape}, not a matrix"
        if not is_real:
            return f"is of {dtype}, not float16, bfloat16, float32 or float64: convert it before saving"
        if min(shape) < 1:
            return f"has no entries, shape {shape}"
        return None if math.prod(shape) * width <= self.size else f"claims more than its file holds, shape {shape}"


def _matrices(name: str, tensor: Tensor, view: MatrixView) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices of an entry; after its name the rows of a block, or the index in a batch."""
    parts, start = blocks(tensor, view), 0
    for block in parts:
        label = f"{name}[{start}:{start + len(block)}]" if len(parts) > 1 else name
        start += len(block)
        M = block if block.ndim == 2 else as_matrices(block, view)
        yield from [(label, M)] if M.ndim == 2 else ((f"{label}[{i}]", M[i]) for i in range(len(M)))


def require_matrices(found: Found) -> None:
    """Refuse a file without matrices and say what it has instead; of any other, say what was left out."""
    reads = f"--weights (weights=True) reads its {found.left_out} weights" if found.left_out else ""
    if found.matrices:
        found.notes += [reads] if reads else []
    elif any(ADAM in why for _, why in found.skipped):
        raise FileError(
            f"must hold momentum buffers, got none: this is the state of an Adam-like optimizer; its {ADAM} is never "
            f"orthogonalized: {reads or 'give the state of a Muon, or of SGD with momentum'}"
        )
    elif reads:
        raise FileError(f"must hold momentum buffers, got {found.left_out} weights and none: {reads}")
    elif found.skipped:
        name, why = found.skipped[0]
        more = f" and {len(found.skipped) - 1} more like it" if len(found.skipped) > 1 else ""
        raise FileError(f"must hold a matrix, got none: {name} {why}{more}")
    else:
        raise FileError(f"must hold a matrix, got no tensor or array: {ALONE}, or numpy.save(path, M)")
