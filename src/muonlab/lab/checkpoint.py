"""Checkpoints that a kill cannot spoil and a flipped bit cannot pass: safetensors and a manifest with its hash."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "checkpoints"
KEPT = 2


class Checkpoint(NamedTuple):
    """Tensors and plain values as they were saved, and the names of newer ones that were damaged."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]
    damaged: tuple[str, ...]


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Save under ``folder/checkpoints``; the manifest comes last, so that half a checkpoint is none."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    name = f"{step:09d}"
    digest = save_tensors(place / f"{name}.safetensors", tensors)
    manifest = {"step": step, "sha256": digest, "values": dict(values)}
    write(place / f"{name}.json", (json.dumps(manifest, allow_nan=False) + "\n").encode())
    for old in sorted(place.glob("*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load(folder: Path, device: str = "cpu") -> Checkpoint | None:
    """Return the newest sound checkpoint, or None if there is none."""
    from safetensors.torch import load_file

    damaged: list[str] = []
    for path in sorted((folder / FOLDER).glob("*.json"), reverse=True):
        tensors = path.with_suffix(".safetensors")
        try:
            manifest = json.loads(path.read_bytes())
            if sha256(tensors) == manifest["sha256"]:
                return Checkpoint(load_file(tensors, device=device), manifest["values"], tuple(damaged))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        damaged.append(path.stem)
    return None


def remove(folder: Path) -> None:
    """Remove all checkpoints of a cell that is finished."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file as a whole or not at all; return its sha256."""
    from safetensors.torch import save_file

    part = path.with_name(path.name + ".part")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, part)
        digest = sha256(part)
        _settle(part, path)
    finally:
        part.unlink(missing_ok=True)
    return digest


def write(path: Path, content: bytes) -> None:
    """Write a small file as a whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        _settle(part, path)
    finally:
        part.unlink(missing_ok=True)


def _settle(part: Path, path: Path) -> None:
    """Bring a file to the disk, give it its name, and bring the name to the disk."""
    for place, flags in ((part, os.O_RDWR), (path.parent, os.O_RDONLY)):
        handle = os.open(place, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if place is part:
            part.replace(path)


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
