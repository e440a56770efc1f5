"""Tensors in shards: written by all ranks with torch.distributed.checkpoint, one safetensors file each, read by any."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from muonlab.lab.files.disk import FULL_DISK

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.api import CheckpointException


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether a tensor lies on a mesh of devices; plain ones need no build of torch with ``distributed``."""
    return hasattr(tensor, "device_mesh")


def name_of(rank: int) -> str:
    """Return the name of the file that a rank writes, if it has anything to write."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup | None) -> None:
    """Write this rank's shards of a folder that all ranks of a group write together; it fails on all, or on none.

    What several ranks have, plain tensors and replicas, is written by the lowest of them.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Planner(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return super().transform_object(write_item, object).contiguous()  # safetensors takes no other

    try:
        save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
            planner=Planner(dedup_save_to_lowest_rank=True),
            process_group=group,
        )
    except CheckpointException as error:
        _raise_cause(error)


def shapes_of_shards(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the whole tensors that the files of a folder make up."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found: Mapping[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(tensor.size) for name, tensor in found.items()}


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, or this rank's shards of them, from a folder that any number of ranks wrote.

    Each rank reads for itself the headers and what it needs: nothing goes between ranks, and nothing is unpickled.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            _raise_cause(error)


def _raise_cause(error: CheckpointException) -> NoReturn:
    """Raise what went wrong on a rank; a full disk of any of them comes first."""
    causes = [cause for cause, _ in error.failures.values()]
    full = [cause for cause in causes if isinstance(cause, OSError) and cause.errno in FULL_DISK]
    raise [*full, *causes][0] from error


def shapes_of_file(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in one safetensors file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - it is no dict


@torch.no_grad()
def read_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, or this rank's shards of them, from a safetensors file of whole tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name, tensor in tensors.items():
            if not is_sharded(tensor):
                tensor.copy_(file.get_tensor(name))
                continue
            for chunk in tensor.__create_chunk_list__():  # type: ignore[attr-defined]
                if 0 not in chunk.sizes:
                    ends = zip(chunk.offsets, chunk.sizes, strict=True)
                    part = file.get_slice(name)[tuple(slice(start, start + size) for start, size in ends)]
                    tensor.to_local().copy_(part)  # type: ignore[attr-defined]
