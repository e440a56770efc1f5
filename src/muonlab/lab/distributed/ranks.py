"""The processes ("ranks") that train one cell together: their collectives, and messages from rank 0 to the others."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from muonlab.lab.files.disk import FULL_DISK

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

Parallel = Literal["ddp", "fsdp", "hsdp"]
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for each process."""
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Timeout of collectives during training: a rank that does not answer for so long counts as lost."""
BARRIER_TIMEOUT = timedelta(days=7)
"""Timeout of barriers, where one rank may be decoding data; a rank that dies ends a barrier at once."""
AGREEMENT_SECONDS = 20.0
"""How long :meth:`Ranks.all_ranks_agree` waits for the other ranks."""
LOST_RANK_MESSAGES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Connection timed out",
    "Broken pipe",
    "Socket closed",
    "Timed out waiting",
    "Application timeout",
    "failed to recv",
)
"""Parts of gloo's error messages when another process has ended or does not answer."""


class LostRankError(Exception):
    """Another rank has ended, so this one cannot continue; rerun the same command to resume from the checkpoint."""


class OtherRankError(RuntimeError):
    """Another rank failed; that rank reports the cause."""


class Ranks:
    """This process among those that train a cell together; without arguments, a single process.

    Args:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process on its machine.
        parallel: how the model is distributed over the ranks; None leaves it whole.
        store: key-value store for messages between ranks.
        group: process group of all ranks, for training.
        long_timeout_group: process group of all ranks for barriers; None is ``group``.

    Attributes:
        in_sync: whether all ranks are at the same point of the program, so that a collective would not hang. The
            runner clears it while a cell is trained, and it stays cleared after an error that only this rank has.

    Example:
        >>> ALONE.rank, ALONE.any(False, True), ALONE.sum(3)
        (0, (False, True), 3)
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        parallel: Parallel | None = None,
        store: Store | None = None,
        group: ProcessGroup | None = None,
        long_timeout_group: ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.parallel: Parallel | None = parallel
        self.group = group
        self.long_timeout_group = long_timeout_group or group
        self.in_sync = True
        self._store = store
        self._message_counts: Counter[str] = Counter()  # messages published or received so far, by topic

    @property
    def is_distributed(self) -> bool:
        """Whether there is a process group, possibly of one process: torchrun started this process."""
        return self.group is not None

    def device(self, name: str) -> str:
        """Return the device of this rank: with a process group, ``cuda`` is the device of the local rank."""
        return f"cuda:{self.local_rank}" if self.is_distributed and name == "cuda" else name

    # ------------------------------------------------------------------------------------------------- collectives

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks; for a single process, the tensor itself."""
        if self.size == 1:
            return tensor
        from torch import distributed

        total = tensor.detach().clone()
        distributed.all_reduce(total, group=self.group)
        return total

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether it is set on at least one rank."""
        if self.size == 1:
            return flags
        import torch

        return tuple(bool(n) for n in self.sum(torch.tensor(flags, dtype=torch.int32)).tolist())

    def barrier(self) -> None:
        """Wait for all ranks, up to :data:`BARRIER_TIMEOUT`; a rank that dies ends the wait at once."""
        if self.size > 1:
            import torch
            from torch import distributed

            distributed.all_reduce(torch.zeros(1), group=self.long_timeout_group)  # on the CPU, for gloo

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Run a block on every rank and wait for all; if it fails on one rank, it raises on every rank.

        A full disk is raised everywhere as the same ``OSError``, any other error as :class:`OtherRankError`.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as own_error:
            error = own_error
        self.barrier()  # its timeout allows for a slow disk
        number = error.errno if isinstance(error, OSError) else None
        failed, *disk_full = self.any(error is not None, *(number == code for code in FULL_DISK))
        if error is not None:
            raise error
        for code, is_full in zip(FULL_DISK, disk_full, strict=True):
            if is_full:
                raise OSError(code, f"{os.strerror(code)}, on another rank")
        if failed:
            raise OtherRankError("all ranks must succeed, got an error on another rank: see the message of that rank")

    # ---------------------------------------------------------------------------------------------------- messages

    def publish(self, topic: str, value: Any) -> None:
        """Send a JSON value to all other ranks; only for rank 0.

        The n-th value published under a topic is the n-th that :meth:`wait_for` returns for it on each other rank.
        """
        assert self.rank == 0, "only rank 0 publishes"
        if self._store is not None and self.size > 1:
            self._store.set(self._next_key(topic), json.dumps(value))

    def wait_for(self, topic: str) -> Any:
        """Return the next value that rank 0 publishes under a topic; blocks without a timeout; not for rank 0."""
        assert self._store is not None, "wait_for() needs a process group"
        key = self._next_key(topic)
        self._wait_for_keys([key], math.inf)
        return json.loads(self._store.get(key))

    def broadcast(self, topic: str, value: Any) -> Any:
        """Return rank 0's JSON value on every rank."""
        if self.rank:
            return self.wait_for(topic)
        self.publish(topic, value)
        return value

    def all_ranks_agree(self, message: str) -> bool:
        """Return whether every rank calls this within :data:`AGREEMENT_SECONDS`, with the same message.

        Called after an error: if all ranks have the same error, they can continue together. Sets ``in_sync``.
        """
        if self.size == 1 or self._store is None:
            self.in_sync = True
            return True
        prefix = self._next_key("agreement")
        keys = [f"{prefix}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], message)
        answered = self._wait_for_keys(keys, AGREEMENT_SECONDS)
        self.in_sync = answered and all(self._store.get(key).decode() == message for key in keys)
        return self.in_sync

    def _wait_for_keys(self, keys: list[str], seconds: float) -> bool:
        """Poll until all keys exist; the store's own ``wait`` logs a warning each time it times out."""
        assert self._store is not None
        until, pause = time.monotonic() + seconds, 0.001
        while not self._store.check(keys):
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        return True

    def _next_key(self, topic: str) -> str:
        self._message_counts[topic] += 1
        return f"{topic}/{self._message_counts[topic]}"

    # ------------------------------------------------------------------------------------------------------ errors

    def report_error(self, message: str) -> None:
        """Store the message of an error that only this rank has, for rank 0 to print."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(f"error/{self.rank}", message)

    @contextmanager
    def detect_lost_ranks(self) -> Iterator[None]:
        """Turn torch's error about a rank that has ended into :class:`LostRankError`.

        On rank 0, if the other rank has reported why it ended, it is an :class:`OtherRankError` with that message.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_lost_rank(error):
                raise
            for rank, message in self._reported_errors():
                raise OtherRankError(f"all ranks must succeed, got on rank {rank} {message}") from error
            raise LostRankError(_short_message(error)) from error

    def _reported_errors(self) -> Iterator[tuple[int, str]]:
        """Yield the errors that other ranks reported; only on rank 0, which prints and which may host the store."""
        if self.rank:
            return
        with suppress(RuntimeError):
            for rank in range(self.size):
                if self._store is not None and rank != self.rank and self._store.check([f"error/{rank}"]):
                    yield rank, self._store.get(f"error/{rank}").decode()


ALONE = Ranks()
"""A single process, without a process group."""


def _is_lost_rank(error: RuntimeError) -> bool:
    from torch.distributed import DistError

    return isinstance(error, DistError) or any(part in str(error) for part in LOST_RANK_MESSAGES)


def _short_message(error: RuntimeError) -> str:
    """Return the first line of gloo's message, without the source file and the advice."""
    line = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0])
    return next((line[: line.index(part) + len(part)] for part in LOST_RANK_MESSAGES if part in line), line)


def started_by_torchrun() -> bool:
    """Return whether the variables that torchrun sets are there."""
    return all(name in os.environ for name in VARIABLES)


@contextmanager
def process_group(parallel: Parallel | None = None, *, device: str = "cpu") -> Iterator[Ranks]:
    """Join the process group that torchrun's variables describe, and leave it at the end.

    Args:
        parallel: how models are distributed; None is ``"ddp"`` if there are several processes.
        device: ``"cuda"`` gives each process the device of its local rank.
    """
    if os.environ["MASTER_PORT"] == "0":  # the ranks would wait for each other without end
        raise ValueError("torchrun must name a port, got --master-port 0: use --standalone, which finds a free one")
    import torch
    from torch import distributed
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpus = device.partition(":")[0] == "cuda"
    if on_gpus:
        if local_size > torch.cuda.device_count():
            raise ValueError(
                f"each rank needs its own GPU, got {local_size} ranks for {torch.cuda.device_count()}: start fewer, "
                f"or use --device cpu"
            )
        torch.cuda.set_device(local_rank)
    try:
        store, rank, size = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"ranks must find each other by {', '.join(VARIABLES)}, got {cause}: start them with torchrun --standalone"
        ) from error
    ranks = Ranks(
        rank,
        size,
        local_rank=local_rank,
        parallel=parallel or ("ddp" if size > 1 else None),
        store=PrefixStore("muonlab", store),
        group=distributed.group.WORLD,
        long_timeout_group=distributed.new_group(backend="gloo", timeout=BARRIER_TIMEOUT),
    )
    with ranks.detect_lost_ranks():
        yield ranks
        if ranks.in_sync:  # else another rank may have ended, or wait for a message that is not sent
            ranks.barrier()  # rank 0 may host the store from which the others read its last message
            distributed.destroy_process_group()
