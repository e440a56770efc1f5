"""Checkpoints that a kill cannot spoil and a flipped bit cannot pass: safetensors and a manifest with their hashes.

Tensors that lie whole on each rank are one file, ``checkpoints/STEP.safetensors``, which rank 0 writes. Sharded ones
are a folder, ``checkpoints/STEP``, with a file of each rank. Either is read by any number of ranks; ``STEP.json`` says
which of the two it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muonlab.lab.distributed.ranks import ALONE, Elsewhere, Ranks
from muonlab.lab.files.disk import FULL_DISK, sha256, sync_and_rename
from muonlab.lab.files.hashed_json import read_json, write_json
from muonlab.lab.files.row_files import SavedRows

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "checkpoints"
WEIGHTS = "weights.safetensors"
"""Name of the file with the weights of a finished cell, in its folder."""
KEPT = 2
OURS = re.compile(r"\d{9}(-again)?(\.safetensors)?|\.tmp.*|.*\.part")
"""Names of what we, or safetensors on its way, put beside the manifests."""


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], ranks: Ranks = ALONE
) -> None:
    """Save under ``folder/checkpoints``, called on every rank; what fails on one of them is raised on all.

    The manifest comes last, so that half a checkpoint is none.
    """
    from muonlab.lab.distributed.sharded_tensors import is_sharded

    place, name = folder / FOLDER, f"{step:09d}"
    with together(ranks):
        if ranks.leader:
            _check_place(folder)
            place.mkdir(exist_ok=True)
            _drop_strays(place)
    if any(is_sharded(tensor) for tensor in tensors.values()):
        content = _save_shards(place, name, tensors, ranks)
    else:
        content = _save_whole(place, name, tensors, ranks)
    with together(ranks):
        if ranks.leader:
            write_json(place / f"{name}.json", {"step": step, **content, "values": dict(values)})
            there = sorted(path.stem for path in place.glob("*.json"))
            later = [stem for stem in there if stem > name]  # damaged, or this run would have gone on from them
            for stem in [*later, *[stem for stem in there if stem <= name][:-KEPT]]:
                (place / f"{stem}.json").unlink()
            _drop_strays(place)


def _save_whole(place: Path, name: str, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Any]:
    content = {}
    with together(ranks):
        if ranks.leader:
            content["sha256"] = save_tensors(place / f"{name}.safetensors", tensors)
    return content


def _save_shards(place: Path, name: str, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Any]:
    from muonlab.lab.distributed.sharded_tensors import write_shards

    part = place / f"{name}.{_agreed(ranks, secrets.token_hex(4))}.part"  # not where ranks of a killed run still write
    content: dict[str, Any] = {}
    try:
        with together(ranks):
            if ranks.leader:
                part.mkdir()
        with together(ranks):
            write_shards(part, tensors, ranks.patient)
        names = _written(part, ranks)
        with together(ranks):
            if ranks.leader:
                files = {name: sha256(part / name) for name in names}
                free = next(path for path in (place / name, place / f"{name}-again") if not path.exists())
                sync_and_rename(part, free)
                content = {"folder": free.name, "files": files}
    finally:
        if ranks.leader:
            shutil.rmtree(part, ignore_errors=True)
    return content


def _written(part: Path, ranks: Ranks) -> list[str]:
    """Return the names of the files that ranks have written, which the leader's own listing may not show yet."""
    import torch

    from muonlab.lab.distributed import sharded_tensors as sharded

    mine = torch.zeros(ranks.size, dtype=torch.int32)
    mine[ranks.rank] = int((part / sharded.name_of(ranks.rank)).exists())
    return [sharded.name_of(rank) for rank, there in enumerate(ranks.sum(mine).tolist()) if there]


def load(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks = ALONE) -> dict[str, Any] | None:
    """Fill tensors in place from the newest sound checkpoint; called on every rank, with its tensors or shards.

    Args:
        folder: of the cell.
        tensors: by the names that they were saved under; the checkpoint may hold others, too.
        ranks: who loads together; any number, whoever saved.

    Returns:
        The values that were saved, or None if there is no sound checkpoint. Damaged ones are warned of.
    """
    manifest = None
    with together(ranks):
        if ranks.leader:
            _check_place(folder)
            manifest = _newest(folder)
    manifest = _agreed(ranks, manifest)
    if manifest is None:
        return None
    with together(ranks):
        _fill(tensors, folder / FOLDER, manifest)
    values: dict[str, Any] = manifest["values"]
    return values


def _newest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the newest sound checkpoint; warn of those that are damaged."""
    for path, manifest in _manifests(folder):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if _is_sound(path, manifest):
                return {**manifest, "name": path.stem}
        _warn_of_damage(path)
    return None


def saved_rows(folder: Path) -> tuple[SavedRows, str | None]:
    """Return what the newest checkpoint says of the rows that were saved with it, and the key of its cell, if any."""
    for _, manifest in _manifests(folder):
        values = manifest["values"]
        return values["rows"], values["key"]
    return {}, None


def _manifests(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the manifests of a cell, newest first; warn of those that are damaged."""
    for path in sorted((folder / FOLDER).glob("*.json"), reverse=True):
        try:
            yield path, read_json(path)
        except (OSError, ValueError):
            _warn_of_damage(path)


def _warn_of_damage(path: Path) -> None:
    cell = path.parent.parent.name
    message = f"checkpoint {path.stem} of {cell} is damaged: resuming from the one before it, or from the start"
    warnings.warn(message, stacklevel=4)


def _is_sound(path: Path, manifest: Mapping[str, Any]) -> bool:
    data = path.parent / _data(path.stem, manifest)
    if "files" not in manifest:
        return bool(sha256(data) == manifest["sha256"])
    return bool({file.name: sha256(file) for file in data.iterdir()} == manifest["files"])


def _data(name: str, manifest: Mapping[str, Any]) -> str:
    """Return the name of the file or folder that a manifest is about, in the manifest's own folder."""
    return Path(manifest["folder"]).name if "files" in manifest else f"{name}.safetensors"


def _fill(tensors: Mapping[str, Tensor], place: Path, manifest: Mapping[str, Any]) -> None:
    from muonlab.lab.distributed import sharded_tensors as sharded

    data = place / _data(manifest["name"], manifest)
    in_shards = "files" in manifest
    found = sharded.shapes_of_shards(data) if in_shards else sharded.shapes_of_file(data)
    for name, tensor in tensors.items():  # all of them before any is changed
        if found.get(name) != tuple(tensor.shape):
            there = f"shape {list(found[name])}" if name in found else "none"
            raise ValueError(
                f"checkpoint {manifest['name']} of {place.parent.name} must have {name} of shape {list(tensor.shape)}, "
                f"got {there}: remove {FOLDER}/ of that cell to begin it anew"
            )
    if in_shards:
        sharded.read_shards(data, tensors)
    else:
        sharded.read_file(data, tensors)


@contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Do a part of the work on each rank and wait for all: if it fails on one, no rank goes on, and none hangs."""
    error: Exception | None = None
    try:
        yield
    except Exception as own:
        error = own
    ranks.barrier()  # as patient as a slow disk needs
    number = error.errno if isinstance(error, OSError) else None
    failed, *full = ranks.any(error is not None, *(number == code for code in FULL_DISK))
    if error is not None:
        raise error
    for code in (code for code, is_full in zip(FULL_DISK, full, strict=True) if is_full):
        raise OSError(code, f"{os.strerror(code)}, on another rank")
    if failed:
        raise Elsewhere("checkpoints must be saved and loaded by all ranks, got an error on another: see its words")


def _agreed(ranks: Ranks, value: Any) -> Any:
    """Return the leader's value on every rank."""
    if not ranks.leader:
        return ranks.hear("checkpoint")
    ranks.tell("checkpoint", value)
    return value


def _check_place(folder: Path) -> None:
    if (folder / FOLDER).is_symlink():
        raise ValueError(f"{FOLDER} must be a directory of its cell, got a link in {folder.name}: remove the link")


def sweep(folder: Path) -> None:
    """Remove what a kill has left half written; only for the one that holds the cell's lock."""
    _check_place(folder)
    for path in [*folder.glob("*.part"), *folder.glob(".tmp*")]:
        path.unlink()
    _drop_strays(folder / FOLDER)


def _drop_strays(place: Path) -> None:
    """Remove what is of ours and no manifest is about."""
    kept = {name for path in place.glob("*.json") for name in _names(path)}
    for path in [path for path in place.glob("*") if OURS.fullmatch(path.name) and path.name not in kept]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _names(path: Path) -> tuple[str, ...]:
    try:
        return (_data(path.stem, read_json(path)),)
    except (OSError, ValueError, KeyError, TypeError):  # damaged: what it was about may still be looked at
        return (path.stem, f"{path.stem}.safetensors")


def remove(folder: Path) -> None:
    """Remove all checkpoints of a cell that is finished."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the file that :func:`save_tensors` would write."""
    from safetensors.torch import save

    return hashlib.sha256(save({name: _plain(tensor) for name, tensor in tensors.items()})).hexdigest()


def load_weights(folder: Path, digest: str | None) -> dict[str, Tensor]:
    """Return the weights of a finished cell, which must have the hash that the cell was finished with."""
    from safetensors.torch import load

    path = folder / WEIGHTS
    if digest is None or not path.is_file():
        missing = "that is not done" if digest is None else f"without {WEIGHTS}"
        raise ValueError(
            f"weights are read from a finished cell that kept them, got {folder.name} {missing}: run the study with "
            f"--keep-weights in another --out"
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(
            f"weights must be those that the cell was finished with, got {path} damaged: remove the folder of the cell "
            f"and run the study again"
        )
    return load(content)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file as a whole or not at all; return its sha256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    part = path.with_name(path.name + ".part")
    try:
        part.touch()
        mode = part.stat().st_mode  # of this user's files; the library makes one that nobody else can read
        save_file({name: _plain(tensor) for name, tensor in tensors.items()}, part)
        part.chmod(mode)
        digest = sha256(part)
        sync_and_rename(part, path)
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
