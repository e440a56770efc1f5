"""The orthogonalizations of one step over several ranks, in buckets: communication overlaps with computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from muonlab.optim.distributed.exchange import AllToAll, Broadcasts, OwnedBlock, from_owners
from muonlab.optim.layout import (
    Batch,
    FinishedBatches,
    Observer,
    observe_by_shape,
    orthogonalize_batch,
    orthogonalize_matrices,
)
from muonlab.optim.views import MatrixBlock

if TYPE_CHECKING:
    from muonlab.optim.distributed.layout import DistributedLayout


class DistributedPipeline:
    """Sends a bucket to its owners while the one before is orthogonalized and the one before that is sent back.

    Every rank does this in the same order, so that their messages match.

    Args:
        layout: the layout of the parameters.
        observe: called on the owner of a batch after it is orthogonalized.
    """

    def __init__(self, layout: DistributedLayout, observe: Observer) -> None:
        self._layout, self._observe = layout, observe
        self._filling: Bucket | None = None
        self._incoming: deque[Bucket] = deque()
        self._outgoing: deque[Bucket] = deque()

    def orthogonalize(self, batch: Batch) -> FinishedBatches:
        """Add a batch to the bucket; where it is full, start sending it and return the batches that have finished."""
        if self._filling is not None and self._filling.accepts(batch, self._layout.bucket_bytes):
            self._filling.batches.append(batch)
            return []
        full, self._filling = self._filling, Bucket([batch])
        return [] if full is None else self._advance(full)

    def finish(self) -> FinishedBatches:
        """Send the last bucket, and return all batches that are left."""
        finished = [] if self._filling is None else list(self._advance(self._filling))
        self._filling = None
        while self._incoming:
            self._outgoing.append(self._orthogonalize_owned(self._incoming.popleft()))
        while self._outgoing:
            finished += self._receive(self._outgoing.popleft())
        return finished

    def _advance(self, bucket: Bucket) -> FinishedBatches:
        """Send a bucket to its owners, orthogonalize the one before it, receive the one before that."""
        self._incoming.append(self._send_to_owners(bucket))
        if len(self._incoming) > 1:
            self._outgoing.append(self._orthogonalize_owned(self._incoming.popleft()))
        return self._receive(self._outgoing.popleft()) if len(self._outgoing) > 1 else []

    def _send_to_owners(self, bucket: Bucket) -> Bucket:
        bucket.blocks = [self._layout.owned_block(piece) for batch in bucket.batches for piece in batch.pieces]
        bucket.gathering = self._layout.send_to_owners(bucket.blocks, bucket.directions, self._message_like(bucket))
        return bucket

    def _orthogonalize_owned(self, bucket: Bucket) -> Bucket:
        """Orthogonalize what this rank owns of a bucket, and start sending the results back."""
        grid = self._layout.grid
        whole = self._layout.assemble(bucket.blocks, bucket.directions, bucket.gathering)
        first = 0
        for batch in bucket.batches:
            indices = range(first, first + len(batch.pieces))
            first += len(batch.pieces)
            if bucket.blocks[indices[0]].block.stays_local:
                bucket.results.update(zip(indices, orthogonalize_batch(batch, self._observe), strict=True))
                continue
            owned = [i for i in indices if i in whole]
            matrices = [bucket.blocks[i].block.read(whole.pop(i)) for i in owned]
            results = orthogonalize_matrices(batch.pieces[0].group["orthogonalizer"], matrices)
            observe_by_shape(self._observe, [batch.pieces[i - indices[0]] for i in owned], matrices, results)
            bucket.results.update(zip(owned, results, strict=True))
        bucket.gathering = None
        like = self._message_like(bucket)
        if grid.size > 1 and grid.shards == 1:
            bucket.returning = Broadcasts(bucket.blocks, grid, bucket.results, like)
        elif grid.size > 1:
            cut = {i: _cut_into_shards(bucket.blocks[i].block, O) for i, O in bucket.results.items()}
            bucket.returning = AllToAll(
                from_owners, bucket.blocks, grid, lambda i, rank: cut[i][grid.shard[rank]], like
            )
        return bucket

    def _receive(self, bucket: Bucket) -> FinishedBatches:
        """Return the batches of a bucket with this rank's pieces of the results, in new memory."""
        grid, comm_dtype = self._layout.grid, self._layout.comm_dtype
        received = bucket.returning.wait() if bucket.returning else {}
        finished = []
        index = 0
        for batch in bucket.batches:
            results = []
            for direction in batch.directions:
                block, owner = bucket.blocks[index]
                if block.stays_local:
                    results.append(bucket.results.pop(index))
                else:
                    if owner == grid.rank:
                        O = _cut_into_shards(block, bucket.results.pop(index))[self._layout.shard]
                        O = O.to(comm_dtype or O.dtype)  # round exactly like the ranks that received it
                    else:
                        O = received.get((index, owner), direction.new_empty(0))
                    results.append(O.to(direction.dtype).reshape(direction.shape).contiguous())
                index += 1
            finished.append((batch, results))
        return finished

    def _message_like(self, bucket: Bucket) -> Tensor:
        first = bucket.directions[0]
        return first.new_empty(0, dtype=self._layout.comm_dtype or first.dtype)


def _cut_into_shards(block: MatrixBlock, O: Tensor) -> Sequence[Tensor]:
    return () if block.stays_local else torch.split(O.reshape(block.shape), list(block.sizes), block.dim)


@dataclass
class Bucket:
    """Batches that are sent together, their exchanges, and the results of the blocks that this rank owns."""

    batches: list[Batch]
    blocks: list[OwnedBlock] = field(default_factory=list)
    gathering: AllToAll | None = None
    returning: AllToAll | Broadcasts | None = None
    results: dict[int, Tensor] = field(default_factory=dict)

    @property
    def directions(self) -> list[Tensor]:
        """What this rank holds of each block."""
        return [direction for batch in self.batches for direction in batch.directions]

    def accepts(self, batch: Batch, budget: int) -> bool:
        """Return whether a batch has the dtype and device of the bucket and fits its bytes."""
        first, new = self.batches[0].directions[0], batch.directions[0]
        fits = sum(_whole_bytes(member) for member in self.batches) + _whole_bytes(batch) <= budget
        return fits and (first.dtype, first.device) == (new.dtype, new.device)


def _whole_bytes(batch: Batch) -> int:
    return torch.Size(batch.shape).numel() * len(batch.pieces) * batch.directions[0].element_size()
