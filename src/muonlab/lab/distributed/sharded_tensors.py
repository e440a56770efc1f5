"""Sharded tensors on disk: one safetensors file per rank, written and read with torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from muonlab.lab.files.disk import FULL_DISK

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor; works with builds of torch that lack ``torch.distributed``."""
    return hasattr(tensor, "device_mesh")


def shard_file(rank: int) -> str:
    """Return the name of the file that a rank writes; a rank without data writes none."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup | None) -> None:
    """Write this rank's shards into a folder; a collective of the group that fails on all ranks or on none.

    Plain tensors and replicas, which several ranks have, are written by the lowest of these ranks.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Planner(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return super().transform_object(write_item, object).contiguous()  # safetensors requires it

    with _unwrapped_errors():
        save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
            planner=Planner(dedup_save_to_lowest_rank=True),
            process_group=group,
        )


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, or this rank's shards of them, from a folder that any number of ranks wrote.

    Each rank reads what it needs; there is no communication, and nothing is unpickled.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings(), _unwrapped_errors():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


@contextmanager
def _unwrapped_errors() -> Iterator[None]:
    """Raise the cause of a ``CheckpointException``; the full disk of any rank comes first."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        full = [cause for cause in causes if isinstance(cause, OSError) and cause.errno in FULL_DISK]
        raise [*full, *causes][0] from error


@torch.no_grad()
def read_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, or this rank's shards of them, from one safetensors file of whole tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name, tensor in tensors.items():
            saved = file.get_slice(name)
            if tuple(saved.get_shape()) != tuple(tensor.shape):
                raise ValueError(f"{name} must have shape {list(tensor.shape)}, got {saved.get_shape()} in {path}")
            if not is_sharded(tensor):
                tensor.copy_(file.get_tensor(name))
                continue
            for chunk in tensor.__create_chunk_list__():  # type: ignore[attr-defined]
                if 0 not in chunk.sizes:
                    ends = zip(chunk.offsets, chunk.sizes, strict=True)
                    part = saved[tuple(slice(start, start + size) for start, size in ends)]
                    tensor.to_local().copy_(part)  # type: ignore[attr-defined]
