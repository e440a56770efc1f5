"""The layout of parameters on several ranks: each holds its pieces, and every matrix is orthogonalized by one owner."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab.optim.distributed.agreement import agreed_flags
from muonlab.optim.distributed.exchange import AllToAll, OwnedBlock, to_owners
from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.distributed.pipeline import DistributedPipeline
from muonlab.optim.distributed.plan import PlannedBlock, assign_owners
from muonlab.optim.layout import Observer, Piece, Pipeline
from muonlab.optim.scaling import norm_dtype, norm_of_matrices, norm_of_rows, row_norms
from muonlab.optim.views import MatrixBlock

BUCKET_BYTES_PER_RANK, MAX_BUCKET_BYTES = 1 << 25, 1 << 32
"""Bytes of whole matrices that are sent together: for each rank of the group, and in total."""


class DistributedLayout:
    """Ranks that hold parameters in shards, in replicas, or both, and share the work on them.

    Args:
        grid: which rank holds what.
        comm_dtype: dtype of messages; None for the dtype of the momenta, which gives the same bits as one process.
    """

    def __init__(self, grid: RankGrid, comm_dtype: torch.dtype | None = None) -> None:
        self.grid, self.comm_dtype = grid, comm_dtype
        self.bucket_bytes = min(BUCKET_BYTES_PER_RANK * grid.size, MAX_BUCKET_BYTES)
        self.shards, self.shard, self.replicas = grid.shards, grid.shard[grid.rank], grid.replicas
        self._owners: dict[tuple[Tensor, int], int] = {}
        self._blocks_hash = self._plan_hash = b""

    # ------------------------------------------------------------------------------------------- before a step

    def plan(self, blocks: Sequence[PlannedBlock] | None, options: str) -> None:
        """Give every block an owner, and hash what ranks must agree on: blocks, their owners and the options.

        Args:
            blocks: all blocks that a step may orthogonalize; None if nothing has changed since the step before.
            options: the options of the step, which must be equal on all ranks.
        """
        if blocks is not None:
            owners = assign_owners([0.0 if b.block.stays_local else b.cost for b in blocks], self.grid.size)
            self._owners = {(b.param, b.block_index): owner for b, owner in zip(blocks, owners, strict=True)}
            lines = (f"{b.block} {b.param.dtype} {b.description} {o}" for b, o in zip(blocks, owners, strict=True))
            self._blocks_hash = hashlib.sha256("\n".join((str(self.comm_dtype), *lines)).encode()).digest()
        self._plan_hash = hashlib.sha256(self._blocks_hash + options.encode()).digest()

    def agree(self, flags: Sequence[bool], names: Sequence[str]) -> list[bool]:
        """Return, for each parameter, whether any rank has a gradient for it; raise if the ranks' plans differ."""
        return agreed_flags(flags, names, self._plan_hash, len(self._owners), self.grid)

    def owned_matrices(self, param: Tensor, block: MatrixBlock, block_index: int) -> range:
        """Return the indices of the matrices of a block that this rank orthogonalizes."""
        count = math.prod(block.matrices[:-2])
        if not block.stays_local:
            return range(count if self._owners[param, block_index] == self.grid.rank else 0)
        per_row, first = count // block.shape[0], sum(block.sizes[: self.shard])
        return range(first * per_row, (first + block.sizes[self.shard]) * per_row)

    def owned_block(self, piece: Piece) -> OwnedBlock:
        """Return the block of a piece with its owner."""
        return OwnedBlock(piece.block, self._owners[piece.param, piece.block_index])

    # ------------------------------------------------------------------------------------------- within a step

    def max_over_ranks(self, values: Tensor) -> Tensor:
        """Return the elementwise maximum of the values over all ranks; NaN counts as infinite."""
        largest = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf)  # a maximum may ignore NaN
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.grid.group)
        return largest

    def chunk_bytes(self, device: torch.device) -> int:  # noqa: ARG002
        """Return the bytes of whole matrices that are sent together."""
        return self.bucket_bytes

    def stacks(self, device: torch.device) -> bool:  # noqa: ARG002
        """Return False: owners make the stacks from what they receive."""
        return False

    def pipeline(self, observe: Observer) -> Pipeline:
        """Return a pipeline that overlaps communication with computation."""
        return DistributedPipeline(self, observe)

    def gather(self, pieces: Sequence[Piece], tensors: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """Return the whole blocks that this rank owns, and its own part of stacks that stay local, by index."""
        blocks = [self.owned_block(piece) for piece in pieces]
        gathered = {i: tensor for i, tensor in enumerate(tensors) if blocks[i].block.stays_local}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # one exchange for each dtype
            indices = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            chunk, chunk_blocks = [tensors[i] for i in indices], [blocks[i] for i in indices]
            exchange = self.send_to_owners(chunk_blocks, chunk, chunk[0])
            gathered |= {indices[i]: whole for i, whole in self.assemble(chunk_blocks, chunk, exchange).items()}
        return gathered

    def send_to_owners(self, blocks: Sequence[OwnedBlock], tensors: Sequence[Tensor], like: Tensor) -> AllToAll | None:
        """Start sending tensors to the owners of their blocks; None where every rank has the whole."""
        if self.shards == 1:
            return None
        return AllToAll(to_owners, blocks, self.grid, lambda i, _: tensors[i], like)

    def assemble(
        self, blocks: Sequence[OwnedBlock], tensors: Sequence[Tensor], exchange: AllToAll | None
    ) -> dict[int, Tensor]:
        """Wait for an exchange, and return the whole blocks that this rank owns, by index."""
        received = exchange.wait() if exchange else {}
        grid, rank = self.grid, self.grid.rank
        same_replica = sorted((grid.shard[r], r) for r in range(grid.size) if grid.replica[r] == grid.replica[rank])
        whole = {}
        for i, (block, owner) in enumerate(blocks):
            if owner != rank or block.stays_local:
                continue
            if exchange is None:
                whole[i] = tensors[i]
                continue
            parts = [
                tensors[i] if other == rank else received[i, other].view(block.piece_shape(shard))
                for shard, other in same_replica
                if block.piece_elements(shard)
            ]
            whole[i] = torch.cat([part.to(tensors[i].dtype) for part in parts], block.dim)
        return whole

    # --------------------------------------------------------------------------------------------------------- norms

    def weight_norms(self, pieces: Sequence[Piece]) -> Sequence[Tensor]:
        """Return the norms of whole weights, with the bits that one process would compute.

        Where rows are whole on a rank, it sends the norms of its rows; other weights are sent to their owner.
        """
        norms: dict[int, Tensor] = {}
        by_rows, by_owner = [], []
        for i, piece in enumerate(pieces):
            block = piece.block
            if self.shards == 1 or block.stays_local:
                norms[i] = norm_of_matrices(piece.weight, block)
            elif block.dim == 0 and not block.batch:
                by_rows.append(i)
            else:
                by_owner.append(i)
        if by_rows:
            vectors = self._sum_over_ranks([self._own_row_norms(pieces[i]) for i in by_rows])
            norms.update(zip(by_rows, map(norm_of_rows, vectors), strict=True))
        if by_owner:
            norms.update(zip(by_owner, self._norms_from_owners([pieces[i] for i in by_owner]), strict=True))
        return [norms[i] for i in range(len(pieces))]

    def _own_row_norms(self, piece: Piece) -> Tensor:
        """Return the norms of all rows of a block: this rank's in their place, zero elsewhere."""
        own = row_norms(piece.weight, piece.block)
        rows = own.new_zeros(piece.block.matrices[0])
        if self.grid.replica[self.grid.rank] == 0:  # one replica contributes to the sum
            first = sum(piece.block.sizes[: self.shard]) * len(rows) // piece.block.shape[0]
            rows[first : first + len(own)] = own
        return rows

    def _norms_from_owners(self, pieces: Sequence[Piece]) -> Sequence[Tensor]:
        blocks = [self.owned_block(piece) for piece in pieces]
        weights = [piece.weight for piece in pieces]
        whole = self.assemble(blocks, weights, self.send_to_owners(blocks, weights, weights[0]))
        norms = []
        for i, piece in enumerate(pieces):
            block = piece.block
            if i in whole:
                norms.append(norm_of_matrices(whole[i], block))
            else:
                lead = block.shape[: len(block.shape) - block.matrix_dims]
                shape = (*lead, *[1] * block.matrix_dims) if block.batch else ()
                norms.append(piece.weight.new_zeros(shape, dtype=norm_dtype(piece.weight)))
        return [
            self._own_norms(norm, owned.block) for norm, owned in zip(self._sum_over_ranks(norms), blocks, strict=True)
        ]

    def _own_norms(self, norms: Tensor, block: MatrixBlock) -> Tensor:
        """Return those of a stack's norms that belong to this rank's piece."""
        if block.dim >= norms.ndim - block.matrix_dims:
            return norms
        return norms.narrow(block.dim, sum(block.sizes[: self.shard]), block.sizes[self.shard])

    def _sum_over_ranks(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum tensors over the ranks; all but one rank have zeros, so the sum is exact."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self.grid.group)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
