"""Checkpoints that a kill cannot spoil and a flipped bit cannot pass: safetensors and a manifest with its hash."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from muonlab.lab.disk import settle, sha256, write

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "checkpoints"
KEPT = 2


class Checkpoint(NamedTuple):
    """Tensors and plain values as they were saved."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Save under ``folder/checkpoints``; the manifest comes last, so that half a checkpoint is none."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    name = f"{step:09d}"
    digest = save_tensors(place / f"{name}.safetensors", tensors)
    manifest = {"step": step, "sha256": digest, "values": dict(values), "values_sha256": _hash(values)}
    write(place / f"{name}.json", (json.dumps(manifest, allow_nan=False) + "\n").encode())
    there = sorted(path.stem for path in place.glob("*.json"))
    later = [stem for stem in there if stem > name]  # damaged, or this run would have gone on from them
    for stem in [*later, *[stem for stem in there if stem <= name][:-KEPT]]:
        for suffix in (".json", ".safetensors"):
            (place / f"{stem}{suffix}").unlink(missing_ok=True)


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> Checkpoint | None:
    """Return the newest sound checkpoint, or None if there is none; warn of those that are damaged."""
    from safetensors.torch import load_file

    for path in sorted((folder / FOLDER).glob("*.json"), reverse=True):
        tensors = path.with_suffix(".safetensors")
        try:
            manifest = json.loads(path.read_bytes())
            whole = manifest["values_sha256"] == _hash(manifest["values"])
            if whole and sha256(tensors) == manifest["sha256"]:
                return Checkpoint(load_file(tensors), manifest["values"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        said = f"checkpoint {path.stem} of {folder.name} is damaged: going on from the one before it, or from the start"
        warnings.warn(said, stacklevel=2)
    return None


def sweep(folder: Path) -> None:
    """Remove what a kill has left half written; only for the one that holds the cell's lock."""
    place = folder / FOLDER
    if place.is_symlink():
        raise ValueError(f"{FOLDER} must be a directory of its cell, got a link in {folder.name}: remove the link")
    for path in [*folder.glob("*.part"), *place.glob("*.part"), *folder.glob(".tmp*"), *place.glob(".tmp*")]:
        path.unlink()
    for path in place.glob("*.safetensors"):
        if not path.with_suffix(".json").exists():
            path.unlink()


def remove(folder: Path) -> None:
    """Remove all checkpoints of a cell that is finished."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file as a whole or not at all; return its sha256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    part = path.with_name(path.name + ".part")
    try:
        part.touch()
        mode = part.stat().st_mode  # of this user's files; the library makes one that nobody else can read
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, part)
        part.chmod(mode)
        digest = sha256(part)
        settle(part, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code), str(path)) from error
    finally:
        for left in (part, *path.parent.glob(".tmp*")):
            left.unlink(missing_ok=True)
    return digest
