"""Where parameters live, and what a step needs to know about that: ``Layout``, and the layout of one process.

Momentum, decay and update act entry by entry on what a process holds. Everything that needs more than those entries
goes through a :class:`Layout`: :class:`LocalLayout` here, ``DistributedLayout`` in ``optim/distributed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from muonlab import _checks
from muonlab.optim.orthogonalizer import Plain, from_plain, step_function
from muonlab.optim.scaling import norm_of_matrices
from muonlab.optim.stack import MatrixStack
from muonlab.optim.views import MatrixBlock, MatrixView, matrix_blocks
from muonlab.orthogonalize.workspace import Workspaces

COMM_DTYPES = (None, torch.bfloat16, torch.float32, torch.float64)
"""Not float16: momenta overflow and underflow in it."""

CPU_CHUNK_BYTES = 1 << 21
"""Bytes of weights updated together on a CPU: they stay in its cache from momentum to update."""
DEVICE_CHUNK_BYTES = 1 << 27
"""Bytes of weights updated together on an accelerator: few launches, and a step needs a few times this memory."""


class GroupedParam(NamedTuple):
    """A parameter of an optimizer with its group, name, momentum and layout."""

    group: dict[str, Any]
    name: str
    param: Tensor
    momentum: Tensor
    layout: Layout


class Piece(NamedTuple):
    """What this process holds of a parameter, or of one block of it: plain tensors that share its memory."""

    param: Tensor
    group: dict[str, Any]
    name: str
    layout: Layout
    weight: Tensor
    grad: Tensor
    momentum: Tensor
    finite: Tensor | None = None
    """Whether the gradient is finite and keeps the momentum finite, on its device; None where no option needs it."""
    block: MatrixBlock = MatrixBlock((), (), 0, ())
    """The block of the parameter; empty for optimizers that do not orthogonalize."""
    block_index: int = 0


class Batch(NamedTuple):
    """Pieces of equal shape, dtype, device and orthogonalizer, with the directions that are orthogonalized together.

    On an accelerator m×n and n×m count as equal. The directions may be the momenta themselves, so they are read only.
    """

    pieces: Sequence[Piece]
    directions: Sequence[Tensor]
    stack: MatrixStack | None = None
    """The memory of the directions, where a step wrote them to a stack."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of each whole block: (m, n), or (b, m, n); on an accelerator m and n may be exchanged in some."""
        return self.pieces[0].block.matrices


FinishedBatches = Sequence[tuple[Batch, Sequence[Tensor]]]
"""Batches whose orthogonalization has finished, with the part of each result that this process holds."""

Observer = Callable[[Sequence[Piece], Sequence[Tensor], Sequence[Tensor]], None]
"""Called on the process that orthogonalizes, with the pieces, the whole matrices and the results."""


class Pipeline(Protocol):
    """Orthogonalizes the batches of one step; a distributed one sends and receives others in the meantime."""

    def orthogonalize(self, batch: Batch) -> FinishedBatches:
        """Take a batch and return the batches that have finished: this one, or earlier ones, or none."""
        ...

    def finish(self) -> FinishedBatches:
        """Return the batches that are left."""
        ...


class Layout(Protocol):
    """What a step needs of the processes that hold a parameter.

    Attributes:
        shards: number of pieces into which a parameter is cut.
        shard: index of this process's piece.
        replicas: number of processes that hold the same piece.
    """

    shards: int
    shard: int
    replicas: int

    def max_over_ranks(self, values: Tensor) -> Tensor:
        """Return the elementwise maximum of the values over all processes."""
        ...

    def weight_norms(self, pieces: Sequence[Piece]) -> Sequence[Tensor]:
        """Return the norms of whole weights, one per matrix of a batch.

        Each is in a shape that broadcasts to the local piece.
        """
        ...

    def chunk_bytes(self, device: torch.device) -> int:
        """Return how many bytes of whole matrices to orthogonalize together."""
        ...

    def stacks(self, device: torch.device) -> bool:
        """Return whether a step writes the directions of a batch to one stack."""
        ...

    def pipeline(self, observe: Observer) -> Pipeline:
        """Return the pipeline of one step."""
        ...

    def gather(self, pieces: Sequence[Piece], tensors: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """Return whole blocks by index, for the pieces that this process orthogonalizes.

        ``tensors`` has one tensor for each piece.
        """
        ...

    def owned_matrices(self, param: Tensor, block: MatrixBlock, block_index: int) -> range:
        """Return the indices of the matrices of a block that this process orthogonalizes."""
        ...


def param_blocks(param: Tensor, view: MatrixView, layout: Layout) -> Sequence[MatrixBlock]:
    """Return the blocks of a parameter, cut as its layout shards it."""
    dim = next((p.dim for p in getattr(param, "placements", ()) if p.is_shard()), 0)
    return matrix_blocks(param.shape, view, dim, layout.shards)


class LocalLayout:
    """One process holds the parameter and orthogonalizes it."""

    shards, shard, replicas = 1, 0, 1

    def max_over_ranks(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values

    def weight_norms(self, pieces: Sequence[Piece]) -> Sequence[Tensor]:
        """Return the norms of the weights."""
        return [norm_of_matrices(piece.weight, piece.block) for piece in pieces]

    def chunk_bytes(self, device: torch.device) -> int:
        """Return what stays in the cache of a CPU from momentum to update; on an accelerator, much more."""
        return CPU_CHUNK_BYTES if device.type == "cpu" else DEVICE_CHUNK_BYTES

    def stacks(self, device: torch.device) -> bool:
        """Return whether it is an accelerator; a compiled step allocates its own memory."""
        return device.type != "cpu" and not torch.compiler.is_compiling()

    def pipeline(self, observe: Observer) -> Pipeline:
        """Return a pipeline that orthogonalizes each batch at once."""
        return LocalPipeline(observe)

    def gather(self, pieces: Sequence[Piece], tensors: Sequence[Tensor]) -> Mapping[int, Tensor]:  # noqa: ARG002
        """Return the tensors, which are whole."""
        return dict(enumerate(tensors))

    def owned_matrices(self, param: Tensor, block: MatrixBlock, block_index: int) -> range:  # noqa: ARG002
        """Return the indices of all matrices of the block."""
        return range(math.prod(block.matrices[:-2]))


class LocalPipeline:
    """Orthogonalizes each batch as it comes."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe

    def orthogonalize(self, batch: Batch) -> FinishedBatches:
        """Return the batch with its results."""
        return [(batch, orthogonalize_batch(batch, self._observe))]

    def finish(self) -> FinishedBatches:
        """Return nothing: no batch is left."""
        return []


def orthogonalize_batch(batch: Batch, observe: Observer) -> Sequence[Tensor]:
    """Orthogonalize a batch whose directions are whole matrices, or stacks of them."""
    plain = batch.pieces[0].group["orthogonalizer"]
    if batch.stack is not None:
        matrices: Sequence[Tensor] = batch.stack.slots
        results = batch.stack.orthogonalize(from_plain(plain).into)
    else:
        matrices = [piece.block.read(Z) for piece, Z in zip(batch.pieces, batch.directions, strict=True)]
        results = orthogonalize_matrices(plain, matrices)
    if matrices[0].device.type == "cpu":  # all of one shape
        observe(batch.pieces, matrices, results)
    else:
        observe_by_shape(observe, batch.pieces, matrices, results)
    return results


def orthogonalize_matrices(plain: Plain, matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Orthogonalize matrices of one shape: as one stack on an accelerator, one by one on a CPU.

    On a CPU a stack is no faster, and its matrices would first have to be copied into one tensor; the bits are the same
    either way.
    """
    if not matrices:
        return []
    orthogonalize = step_function(plain)
    if matrices[0].device.type == "cpu":
        return [orthogonalize(M) for M in matrices]
    if torch.compiler.is_compiling():
        return orthogonalize(torch.stack(list(matrices))).unbind()
    stack = MatrixStack([tuple(M.shape) for M in matrices], matrices[0], Workspaces())
    torch._foreach_copy_(stack.slots, list(matrices))
    return stack.orthogonalize(from_plain(plain).into)


def observe_by_shape(
    observe: Observer, pieces: Sequence[Piece], matrices: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Call an observer once for each shape of the matrices of a batch."""
    for shape in dict.fromkeys(M.shape[-2:] for M in matrices):
        of_shape = [i for i, M in enumerate(matrices) if M.shape[-2:] == shape]
        observe(*([items[i] for i in of_shape] for items in (pieces, matrices, results)))  # type: ignore[arg-type]


class Layouts:
    """The layouts of an optimizer's parameters, one for each group of processes.

    Args:
        options: names of the options of a parameter group, which must be equal on all processes.
        process_group: processes that hold replicas of every plain parameter and share the work on them; None: every
            process orthogonalizes all of its matrices.
        comm_dtype: dtype in which matrices are sent; None sends them unchanged.
        entrywise: whether the optimizer acts entry by entry, so that any sharding is accepted.
    """

    def __init__(
        self,
        options: Sequence[str],
        process_group: Any = None,
        comm_dtype: torch.dtype | None = None,
        *,
        entrywise: bool = False,
    ) -> None:
        _checks.one_of("comm_dtype", comm_dtype, COMM_DTYPES)
        self.options, self.comm_dtype, self.entrywise = tuple(options), comm_dtype, entrywise
        self.for_plain_tensors: Layout = LOCAL  # layout of parameters that are not DTensors
        self._layouts: dict[Any, Layout] = {}
        self._plan: Any = None
        if process_group is not None:
            from muonlab.optim.distributed.grid import RankGrid
            from muonlab.optim.distributed.layout import DistributedLayout

            if not hasattr(process_group, "size") or isinstance(process_group, Tensor):
                raise TypeError(
                    f"process_group must be a process group of torch.distributed or None, got {process_group!r}: pass "
                    f"torch.distributed.group.WORLD after init_process_group"
                )
            self.for_plain_tensors = DistributedLayout(RankGrid.replicated(process_group), comm_dtype)

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments of a copy in another process: all but the process group, which cannot be pickled."""
        return {"options": self.options, "comm_dtype": self.comm_dtype, "entrywise": self.entrywise}

    def layout_of(self, param: Any, name: str) -> Layout:
        """Return the layout of a parameter, read from its type and placements; raise if it is not supported."""
        if not hasattr(param, "device_mesh"):
            return self.for_plain_tensors
        key = (param.device_mesh, tuple(param.placements))
        if key not in self._layouts:
            from muonlab.optim.distributed.grid import RankGrid, sharded_dims
            from muonlab.optim.distributed.layout import DistributedLayout

            mesh_dim, _ = sharded_dims(param, name, entrywise=self.entrywise)
            # one layout for all parameters of the same ranks, whichever dimension of the tensor is sharded
            shared = (param.device_mesh, mesh_dim)
            if shared not in self._layouts:
                grid = RankGrid.from_mesh(param.device_mesh, mesh_dim)
                self._layouts[shared] = DistributedLayout(grid, self.comm_dtype)
            self._layouts[key] = self._layouts[shared]
        return self._layouts[key]

    def agree_on_gradients(
        self, params: Sequence[GroupedParam], hook_signature: Sequence[object] = ()
    ) -> Sequence[bool]:
        """Return, for each parameter, whether any process that shares it has a gradient for it.

        On several processes this also shares out the work of the step and checks that all of them plan the same step.
        Without ``process_group``, each process decides about plain parameters alone.

        Args:
            params: all parameters of the optimizer.
            hook_signature: describes the hooks of the step, which must be equal on all processes.

        Raises:
            ValueError: if replicas differ in which gradients they have (``distributed/agreement.py``), or processes
                plan different steps.
        """
        layouts = list(dict.fromkeys((self.for_plain_tensors, *(p.layout for p in params))))
        if all(isinstance(layout, LocalLayout) for layout in layouts):
            return [p.param.grad is not None for p in params]
        if self._plan is None:
            from muonlab.optim.distributed.plan import StepPlan

            self._plan = StepPlan(self.options)
        return self._plan.agree(layouts, params, hook_signature)  # type: ignore[no-any-return]


LOCAL = LocalLayout()
