"""The matrices of a Muon optimizer: their names, their shapes, where they lie in a parameter, their step lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim.optimizer import Optimizer

from muonlab.optim import Muon, MuonWithAux
from muonlab.optim.distributed.tensors import whole
from muonlab.optim.options import named_params
from muonlab.optim.scaling import SCALES
from muonlab.optim.views import matrix_blocks, parse_view, split_tensor


def muon_of(optimizer: Optimizer) -> Muon:
    """Return the Muon in an optimizer: itself, or the Muon of a MuonWithAux; TypeError for any other optimizer."""
    muon = optimizer.muon if isinstance(optimizer, MuonWithAux) else optimizer
    if not isinstance(muon, Muon):
        given = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise TypeError(
            f"the optimizer must be a muonlab Muon or MuonWithAux, got {given}: Muon.torch replaces torch's own"
        )
    return muon


def parameters_of(muon: Muon) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Yield (name, parameter, group); a parameter without a name is called "group g, parameter i"."""
    for g, group in enumerate(muon.param_groups):
        for i, (name, p) in enumerate(named_params(group)):
            yield name if group.get("param_names") else f"group {g}, parameter {i}", p, group


def present_gradient(p: Tensor) -> Tensor | None:
    """Return the gradient of a parameter, gathered whole; None also for zeros, as ``set_to_none=False`` leaves them."""
    G = None if p.grad is None else whole(p.grad.detach())
    return None if G is None or not bool(G.any()) else G


class MatrixSlice(NamedTuple):
    """One matrix of a parameter: a block of its rows and, for a batch, the member of it."""

    name: str
    group: Mapping[str, Any]
    block: int
    member: int | None

    def select(self, tensor: Tensor) -> Tensor:
        """Return this matrix from a tensor of the parameter's shape."""
        view = self.group["matrix_view"]
        blocks = matrix_blocks(tensor.shape, view)
        matrices = blocks[self.block].read(split_tensor(tensor, view, blocks)[self.block])
        return matrices if self.member is None else matrices[self.member]


def matrix_slices(
    name: str, shape: Sequence[int], group: Mapping[str, Any]
) -> Iterator[tuple[MatrixSlice, tuple[int, int]]]:
    """Yield the matrices of a parameter with their shapes; blocks and members of a batch get a number in brackets."""
    blocks = matrix_blocks(shape, group["matrix_view"])
    for b, block in enumerate(blocks):
        block_name = f"{name}[{b}]" if len(blocks) > 1 else name
        *batch, m, n = block.matrices
        if not batch:
            yield MatrixSlice(block_name, group, b, None), (m, n)
        for i in range(batch[0] if batch else 0):
            yield MatrixSlice(f"{block_name}[{i}]", group, b, i), (m, n)


def step_length(group: Mapping[str, Any], rows: int, columns: int) -> float:
    """Return the factor of an orthogonalized direction of this shape: learning rate times the scale rule."""
    outputs, inputs = (columns, rows) if parse_view(group.get("matrix_view", "flatten")).transposed else (rows, columns)
    return float(group["lr"]) * SCALES[group["scale"]](outputs, inputs)
