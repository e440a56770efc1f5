"""This process among those that train one cell together: who it is, sums and flags of all, words from the leader."""

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

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

Parallel = Literal["ddp", "fsdp", "hsdp"]
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process by its environment."""
COLLECTIVE = timedelta(minutes=10)
"""How long ranks that compute wait for each other: a rank that hangs is taken for lost."""
PATIENT = timedelta(days=7)
"""How long they wait at a barrier, where one of them may be decoding data; a rank that dies ends it at once."""
AGREEING = 20.0
"""Seconds that a rank waits for the others to fail like itself."""
LOST = (
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
"""Words of gloo's errors when another process is gone or silent."""


class LostRank(Exception):  # noqa: N818 - not a failure of the work: what was saved is kept
    """Another rank is gone, so that this one cannot go on; the same command goes on from the last checkpoint."""


class Elsewhere(RuntimeError):  # noqa: N818 - not this rank's error
    """Another rank has an error of its own, and says what it is."""


class Ranks:
    """One of the processes that train a cell together; without arguments, the only one.

    Args:
        rank: its number, from 0.
        size: how many there are.
        local_rank: its number on its machine.
        parallel: how the model is spread over them; None leaves it as it is.
        store: where the leader's words are put.
        group: of all of them, for what is computed.
        patient: a group of all of them that may wait for long; None is ``group``.

    Example:
        >>> ALONE.leader, ALONE.any(False, True), ALONE.sum(3)
        (True, (False, True), 3)
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
        patient: ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.parallel: Parallel | None = parallel
        self.group = group
        self.patient = patient or group
        self._store = store
        self.together = True  # not while a cell is worked on, and not after an error that only this rank has
        self._words: Counter[str] = Counter()  # told or heard so far, by name

    @property
    def leader(self) -> bool:
        """Whether it is the one that plans, and writes the run directory."""
        return self.rank == 0

    @property
    def joined(self) -> bool:
        """Whether there is a group: torchrun started it, alone or with others."""
        return self.group is not None

    def device(self, name: str) -> str:
        """Return the device that a name means here: under torchrun ``cuda`` is that of the local rank."""
        return f"cuda:{self.local_rank}" if self.joined and name == "cuda" else name

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks of a tensor that each has of the same shape; alone, the tensor itself."""
        if self.size == 1:
            return tensor
        from torch import distributed

        total = tensor.detach().clone()
        distributed.all_reduce(total, group=self.group)
        return total

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether it is set on some rank."""
        if self.size == 1:
            return flags
        import torch

        return tuple(bool(n) for n in self.sum(torch.tensor(flags, dtype=torch.int32)).tolist())

    def barrier(self) -> None:
        """Wait until all are here, however long one of them takes; a rank that dies ends the wait at once."""
        if self.size > 1:
            import torch
            from torch import distributed

            distributed.all_reduce(torch.zeros(1), group=self.patient)  # on the CPU, whatever the models are on

    def tell(self, name: str, value: Any) -> None:
        """Say something to all others, as JSON; only for the leader.

        The n-th word told under a name is the n-th that each other rank hears under it.
        """
        assert self.leader, "only the leader tells"
        if self._store is not None and self.size > 1:
            self._store.set(self._next(name), json.dumps(value))

    def hear(self, name: str) -> Any:
        """Wait for the leader's next word under a name, however long it takes; not for the leader itself."""
        assert self._store is not None, "one who is alone hears nothing"
        key = self._next(name)
        self._await([key], math.inf)
        return json.loads(self._store.get(key))

    def alike(self, words: str) -> bool:
        """Return whether every rank comes here within seconds, and with the same words.

        Asked after an error: where all have the same, they can go on with something else together.
        """
        if self.size == 1 or self._store is None:
            self.together = True
            return True
        here = self._next("alike")
        keys = [f"{here}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], words)
        self.together = self._await(keys, AGREEING) and all(self._store.get(key).decode() == words for key in keys)
        return self.together

    def _await(self, keys: list[str], seconds: float) -> bool:
        """Wait until all keys are there; the store's own wait would write a warning whenever it looks up."""
        assert self._store is not None
        until, pause = time.monotonic() + seconds, 0.001
        while not self._store.check(keys):
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        return True

    def _next(self, name: str) -> str:
        self._words[name] += 1
        return f"{name}/{self._words[name]}"

    @contextmanager
    def minding(self) -> Iterator[None]:
        """Turn what torch says when another rank is gone into :class:`LostRank`."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_lost(error):
                raise
            for rank, words in self._complaints():
                raise Elsewhere(f"every rank must be able to work, got on rank {rank} {words}") from error
            raise LostRank(_in_short(error)) from error

    def complain(self, words: str) -> None:
        """Leave word of an error that only this rank has, for those who will miss it."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(f"complaint/{self.rank}", words)

    def _complaints(self) -> Iterator[tuple[int, str]]:
        """Yield what others have left word of; to the leader, who speaks, and with whom the store may be gone."""
        if not self.leader:
            return
        with suppress(RuntimeError):
            for rank in range(self.size):
                if self._store is not None and rank != self.rank and self._store.check([f"complaint/{rank}"]):
                    yield rank, self._store.get(f"complaint/{rank}").decode()


ALONE = Ranks()
"""One process that nobody started together with others."""


def _is_lost(error: RuntimeError) -> bool:
    from torch.distributed import DistError

    return isinstance(error, DistError) or any(words in str(error) for words in LOST)


def _in_short(error: RuntimeError) -> str:
    """Return what happened, without the file in which gloo noticed it and its advice."""
    line = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0])
    return next((line[: line.index(words) + len(words)] for words in LOST if words in line), line)


def launched() -> bool:
    """Return whether torchrun, or whoever sets the same variables, started this process."""
    return all(name in os.environ for name in VARIABLES)


@contextmanager
def joined(parallel: Parallel | None = None, *, device: str = "cpu") -> Iterator[Ranks]:
    """Join the other processes that torchrun started, and leave them at the end.

    Args:
        parallel: how models are spread; None is ``"ddp"`` where there are several processes.
        device: ``"cuda"`` gives each process the device of its local rank.
    """
    if os.environ["MASTER_PORT"] == "0":  # its ranks would wait for each other for ever
        raise ValueError("torchrun must name a port, got --master-port 0: use --standalone, which finds a free one")
    import torch
    from torch import distributed
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpus = device.partition(":")[0] == "cuda"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if on_gpus and here > torch.cuda.device_count():
        raise ValueError(
            f"every rank must have a GPU of its own, got {here} ranks for {torch.cuda.device_count()}: start fewer, or "
            f"use --device cpu"
        )
    if on_gpus:
        torch.cuda.set_device(local)
    try:
        store, rank, size = next(rendezvous("env://", timeout=COLLECTIVE))
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE)
    except (RuntimeError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"ranks must find each other by {', '.join(VARIABLES)}, got {said}: start them with torchrun --standalone"
        ) from error
    ranks = Ranks(
        rank,
        size,
        local_rank=local,
        parallel=parallel or ("ddp" if size > 1 else None),
        store=PrefixStore("muonlab", store),
        group=distributed.group.WORLD,
        patient=distributed.new_group(backend="gloo", timeout=PATIENT),
    )
    with ranks.minding():
        yield ranks
        if ranks.together:  # else others may be gone, or wait for something that will not come
            ranks.barrier()  # the leader may hold the store from which the others hear its last word
            distributed.destroy_process_group()
