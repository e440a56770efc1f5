"""Parameters on several processes: each rank holds its pieces, and every matrix has one owner who works on it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab.optim.layout.agreement import agreed_flags, largest
from muonlab.optim.layout.base import Batch, Done, Job
from muonlab.optim.layout.blocks import Block, Cuts
from muonlab.optim.layout.exchange import Broadcasts, Flight, Item, from_owners, to_owners
from muonlab.optim.layout.grid import Grid, cut_by
from muonlab.optim.layout.local import orthogonalized, worked_on
from muonlab.optim.layout.plan import Agenda, assign
from muonlab.optim.layout.whole import local
from muonlab.optim.scaling import norm_dtype, norm_of_matrices, norm_of_rows, row_norms
from muonlab.optim.views import MatrixView

if TYPE_CHECKING:
    from muonlab.optim.part import Part

BUCKET, MOST = 1 << 25, 1 << 32
"""Bytes of whole matrices that travel together: for each rank of the group, and in all."""


class Distributed:
    """A group of processes that hold parameters in pieces, in copies, or both, and share the work.

    Args:
        grid: which rank holds what.
        comm_dtype: of what is sent; None is the dtype of the momenta, and keeps the bits of one process.
    """

    shares_memory = True

    def __init__(self, grid: Grid, comm_dtype: torch.dtype | None = None) -> None:
        self.grid, self.comm_dtype = grid, comm_dtype
        self.agenda = Agenda(f"{comm_dtype}")
        self._owners: dict[tuple[Tensor, int], int] = {}
        self._cuts = Cuts()

    def prepare(self, jobs: Sequence[Job] | None, options: str) -> None:
        """Give every block an owner."""
        owners = assign([0.0 if job.block.stays else job.cost for job in jobs or ()], self.grid.ranks)
        self.agenda.update(jobs, owners, options)
        if jobs is not None:
            self._owners = {(job.param, job.number): owner for job, owner in zip(jobs, owners, strict=True)}

    def share(self, param: Tensor, block: Block, index: int) -> range:
        """Return all matrices of a block that this rank owns, or those of a stack that lie here."""
        each = math.prod(block.matrices[:-2])
        if not block.stays:
            return range(each if self._owners[param, index] == self.grid.me else 0)
        first, inner = sum(block.sizes[: self._shard]), each // block.shape[0]
        return range(first * inner, (first + block.sizes[self._shard]) * inner)

    def wholes(self, parts: Sequence[Part], pieces: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """Return the whole blocks that this rank owns, and its own pieces of stacks that stay where they are."""
        items = [self._item(part) for part in parts]
        found = {i: piece for i, piece in enumerate(pieces) if items[i].block.stays}
        for dtype in dict.fromkeys(piece.dtype for piece in pieces):
            some = [i for i, piece in enumerate(pieces) if piece.dtype == dtype]
            of, alike = [items[i] for i in some], [pieces[i] for i in some]
            flight = self._gather(of, alike, alike[0])
            found |= {some[i]: whole for i, whole in self._wholes(of, alike, flight).items()}
        return found

    def copies(self, param: Tensor) -> int:  # noqa: ARG002
        """Return the number of replicas."""
        return self.grid.replicas

    def held(self, tensor: Tensor) -> Tensor:
        """Return this rank's piece; it shares the tensor's memory."""
        return local(tensor)

    def settle(self, tensor: Tensor, held: Tensor) -> None:
        """Do nothing: the memory is the same."""

    def agree(self, flags: Sequence[bool], names: Sequence[str]) -> Sequence[bool]:
        """Return, for each parameter, whether any rank has it set; copies must have it set alike."""
        return agreed_flags(flags, names, self.agenda.hash, self.agenda.count, self.grid)

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest of each value over all ranks."""
        return largest(values, self.grid)

    def blocks(self, param: Tensor, view: MatrixView) -> Sequence[Block]:
        """Return the blocks of a parameter with the pieces that its shards hold."""
        _, dim = cut_by(getattr(param, "placements", ())) or (None, 0)
        return self._cuts(param.shape, view, dim, self.grid.shards)

    def pieces(self, held: Tensor, blocks: Sequence[Block]) -> Sequence[Tensor]:
        """Return this rank's pieces of the blocks."""
        if len(blocks) == 1:
            return (held,)
        return torch.split(held, [block.piece(self._shard)[0] for block in blocks])

    def room(self, device: torch.device) -> int:  # noqa: ARG002
        """Return the bytes that travel together."""
        return min(BUCKET * self.grid.ranks, MOST)

    @property
    def _shard(self) -> int:
        return self.grid.shard[self.grid.me]

    # ------------------------------------------------------------------------------------------------- orthogonalize

    def orthogonalize(self, batches: Iterable[Batch], done: Done) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Orthogonalize bucket after bucket: while one is worked on, the next comes in and the last goes out.

        All ranks do this in the same order, so that their messages meet.
        """
        coming: deque[_Bucket] = deque()
        going: deque[_Bucket] = deque()
        for bucket in self._buckets(batches):
            coming.append(self._sent_to_owners(bucket))
            if len(coming) > 1:
                going.append(self._worked_on(coming.popleft(), done))
            if len(going) > 1:
                yield from self._landed(going.popleft())
        while coming:
            going.append(self._worked_on(coming.popleft(), done))
        while going:
            yield from self._landed(going.popleft())

    def _buckets(self, batches: Iterable[Batch]) -> Iterator[_Bucket]:
        """Yield batches together up to the bytes of a bucket, all of one dtype and device."""
        bucket: _Bucket | None = None
        for batch in batches:
            if bucket is None or not bucket.takes(batch, self.room(batch.pieces[0].device)):
                if bucket is not None:
                    yield bucket
                bucket = _Bucket([])
            bucket.batches.append(batch)
        if bucket is not None:
            yield bucket

    def _item(self, part: Part) -> Item:
        assert part.block is not None
        return Item(part.block, self._owners[part.param, part.number])

    def _gather(self, items: Sequence[Item], pieces: Sequence[Tensor], like: Tensor) -> Flight | None:
        """Send pieces to their owners; nothing where each rank has the whole."""
        if self.grid.shards == 1:
            return None
        return Flight(to_owners, items, self.grid, lambda i, _: pieces[i], like)

    def _wire(self, tensor: Tensor) -> Tensor:
        return tensor.new_empty(0, dtype=self.comm_dtype or tensor.dtype)

    def _wholes(self, items: Sequence[Item], pieces: Sequence[Tensor], flight: Flight | None) -> dict[int, Tensor]:
        """Return the blocks that this rank owns, whole, by number."""
        came = flight.land() if flight else {}
        grid, me = self.grid, self.grid.me
        near = sorted((grid.shard[a], a) for a in range(grid.ranks) if grid.replica[a] == grid.replica[me])
        wholes = {}
        for i, (block, owner) in enumerate(items):
            if owner != me or block.stays:
                continue
            if flight is None:
                wholes[i] = pieces[i]
                continue
            parts = [pieces[i] if a == me else came[i, a].view(block.piece(s)) for s, a in near if block.elements(s)]
            wholes[i] = torch.cat([part.to(pieces[i].dtype) for part in parts], block.dim)
        return wholes

    def _sent_to_owners(self, bucket: _Bucket) -> _Bucket:
        bucket.items = [self._item(part) for batch in bucket.batches for part in batch.parts]
        bucket.coming = self._gather(bucket.items, bucket.pieces, self._wire(bucket.pieces[0]))
        return bucket

    def _worked_on(self, bucket: _Bucket, done: Done) -> _Bucket:
        """Orthogonalize what this rank owns of a bucket, and send everyone their pieces."""
        wholes = self._wholes(bucket.items, bucket.pieces, bucket.coming)
        first = 0
        for batch in bucket.batches:
            numbers = range(first, first + len(batch.parts))
            first += len(batch.parts)
            if bucket.items[numbers[0]].block.stays:
                bucket.results.update(zip(numbers, worked_on(batch, done), strict=True))
                continue
            owned = [i for i in numbers if i in wholes]
            matrices = [wholes.pop(i).reshape(batch.shape) for i in owned]
            results = orthogonalized(batch.orthogonalize, matrices)
            if owned:
                done([batch.parts[i - numbers[0]] for i in owned], matrices, results)
            bucket.results.update(zip(owned, results, strict=True))
        bucket.coming = None
        like = self._wire(bucket.pieces[0])
        if self.grid.ranks > 1 and self.grid.shards == 1:
            bucket.going = Broadcasts(bucket.items, self.grid, bucket.results, like)
        elif self.grid.ranks > 1:
            cut = {i: self._cut(bucket.items[i].block, O) for i, O in bucket.results.items()}
            bucket.going = Flight(from_owners, bucket.items, self.grid, lambda i, b: cut[i][self.grid.shard[b]], like)
        return bucket

    def _cut(self, block: Block, O: Tensor) -> Sequence[Tensor]:
        return () if block.stays else torch.split(O.reshape(block.shape), list(block.sizes), block.dim)

    def _landed(self, bucket: _Bucket) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Yield the batches of a bucket with the pieces of this rank, in memory of their own."""
        came = bucket.going.land() if bucket.going else {}
        parts = iter(enumerate(bucket.items))
        for batch in bucket.batches:
            results = []
            for piece, (i, (block, owner)) in zip(batch.pieces, parts, strict=False):
                if block.stays:
                    results.append(bucket.results.pop(i))
                    continue
                if owner == self.grid.me:
                    O = self._cut(block, bucket.results.pop(i))[self._shard]
                    O = O.to(self.comm_dtype or O.dtype)  # as those see it who got it by the wire
                else:
                    O = came.get((i, owner), piece.new_empty(0))
                results.append(O.to(piece.dtype).reshape(piece.shape).contiguous())
            yield batch, results

    # --------------------------------------------------------------------------------------------------------- norms

    def norms(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Return the norms of whole weights, with the bits that one process would find.

        Rows that lie whole on a rank are summed there, and their norms travel; other pieces travel to the owner.
        """
        found: dict[int, Tensor] = {}
        by_rows, by_owner = [], []
        for i, part in enumerate(parts):
            batch, block = part.group["matrix_view"] == "batch", part.block
            assert block is not None
            if self.grid.shards == 1 or block.stays:
                found[i] = norm_of_matrices(part.weight, batch)
            elif block.dim == 0 and not batch:
                by_rows.append(i)
            else:
                by_owner.append(i)
        if by_rows:
            vectors = self._everywhere([self._rows(parts[i]) for i in by_rows])
            found.update(zip(by_rows, map(norm_of_rows, vectors), strict=True))
        if by_owner:
            found.update(zip(by_owner, self._norms_by_owners([parts[i] for i in by_owner]), strict=True))
        return [found[i] for i in range(len(parts))]

    def _rows(self, part: Part) -> Tensor:
        """Return the norms of all rows of a block: this rank's in their place, zero elsewhere."""
        block = cast(Block, part.block)
        mine = row_norms(part.weight)
        whole = mine.new_zeros(block.shape[0])
        if self.grid.replica[self.grid.me] == 0:  # once for all copies
            first = sum(block.sizes[: self._shard])
            whole[first : first + len(mine)] = mine
        return whole

    def _norms_by_owners(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        items = [self._item(part) for part in parts]
        weights = [part.weight for part in parts]
        wholes = self._wholes(items, weights, self._gather(items, weights, weights[0]))
        norms = []
        for i, part in enumerate(parts):
            batch = part.group["matrix_view"] == "batch"
            if i in wholes:
                norms.append(norm_of_matrices(wholes[i], batch))
            else:
                shape = (*items[i].block.shape[:-2], 1, 1) if batch else ()
                norms.append(part.weight.new_zeros(shape, dtype=norm_dtype(part.weight)))
        return [self._mine(norm, item.block) for norm, item in zip(self._everywhere(norms), items, strict=True)]

    def _mine(self, norms: Tensor, block: Block) -> Tensor:
        """Return those of a stack's norms that belong to this rank's piece."""
        if block.dim >= norms.ndim - 2:
            return norms
        return norms.narrow(block.dim, sum(block.sizes[: self._shard]), block.sizes[self._shard])

    def _everywhere(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Add tensors up over the ranks, where all but one have zeros: the sum is exact."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self.grid.group)
        split = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(split, tensors, strict=True)]


@dataclass
class _Bucket:
    """Batches that travel together, where they are on the way, and what became of those that this rank owns."""

    batches: list[Batch]

    def __post_init__(self) -> None:
        self.items: list[Item] = []
        self.coming: Flight | None = None
        self.going: Flight | Broadcasts | None = None
        self.results: dict[int, Tensor] = {}

    @property
    def pieces(self) -> list[Tensor]:
        return [piece for batch in self.batches for piece in batch.pieces]

    def takes(self, batch: Batch, most: int) -> bool:
        if not self.batches:
            return True
        first, new = self.batches[0].pieces[0], batch.pieces[0]
        full = sum(_nbytes(one) for one in self.batches) + _nbytes(batch) > most
        return not full and (first.dtype, first.device) == (new.dtype, new.device)


def _nbytes(batch: Batch) -> int:
    return sum(torch.Size(batch.shape).numel() for _ in batch.pieces) * batch.pieces[0].element_size()
