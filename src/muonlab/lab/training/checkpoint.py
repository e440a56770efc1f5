"""Checkpoints of a cell: safetensors files and a manifest with their hashes, complete or absent after a kill.

Tensors that are whole on every rank are one file, ``checkpoints/STEP.safetensors``, which rank 0 writes. Sharded
tensors are a folder, ``checkpoints/STEP``, with a file per rank. Any number of ranks can read either. The manifest
``checkpoints/STEP.json`` is written last; it has the hashes of the files and the plain values of the run.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.files.disk import sha256, sync_and_rename
from muonlab.lab.files.hashed_json import read_json, write_json
from muonlab.lab.files.row_files import SavedRows

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "checkpoints"
WEIGHTS = "weights.safetensors"
"""Name of the file with the weights of a finished cell, in its folder."""
KEPT = 2
"""Checkpoints that are kept, the newest ones."""
DATA_NAMES = re.compile(r"\d{9}(-again)?(\.safetensors)?|\.tmp.*|.*\.part")
"""Names beside the manifests that this module, or safetensors while it writes, may create."""

Manifest = dict[str, Any]

# ---------------------------------------------------------------------------------------------------------------- save


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], ranks: Ranks = ALONE
) -> None:
    """Save a checkpoint and remove old ones; called on every rank. What fails on one rank raises on all.

    Args:
        folder: of the cell.
        step: number of updates done.
        tensors: whole tensors, or this rank's shards, by name.
        values: JSON values of the run; those of rank 0 are saved.
        ranks: the ranks that save together.
    """
    from muonlab.lab.distributed.sharded_tensors import is_sharded

    place, name = folder / FOLDER, f"{step:09d}"
    sharded = any(is_sharded(tensor) for tensor in tensors.values())
    content = _save_shards(place, name, tensors, ranks) if sharded else {}
    with ranks.fail_together():
        if ranks.rank == 0:
            place.mkdir(exist_ok=True)
            if not sharded:
                content["sha256"] = save_tensors(place / f"{name}.safetensors", tensors)
            write_json(place / f"{name}.json", {"step": step, **content, "values": dict(values)})
            steps = sorted(path.stem for path in place.glob("*.json"))
            later = [stem for stem in steps if stem > name]  # damaged: otherwise this run had resumed from them
            for stem in [*later, *[stem for stem in steps if stem <= name][:-KEPT]]:
                (place / f"{stem}.json").unlink()
            _remove_strays(place)


def _save_shards(place: Path, name: str, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Any]:
    """Write a folder of shards; return its name and the hashes of its files on rank 0, nothing on the other ranks."""
    import torch

    from muonlab.lab.distributed.sharded_tensors import shard_file, write_shards

    token = ranks.broadcast("checkpoint", secrets.token_hex(4))  # ranks of a killed run may still write to their folder
    part = place / f"{name}.{token}.part"
    content: dict[str, Any] = {}
    try:
        with ranks.fail_together():
            if ranks.rank == 0:
                part.mkdir(parents=True)
        with ranks.fail_together():
            write_shards(part, tensors, ranks.long_timeout_group)
        written = torch.zeros(ranks.size, dtype=torch.int32)  # rank 0 may not see the files of others in a listing yet
        written[ranks.rank] = int((part / shard_file(ranks.rank)).exists())
        names = [shard_file(rank) for rank, exists in enumerate(ranks.sum(written).tolist()) if exists]
        with ranks.fail_together():
            if ranks.rank == 0:
                files = {name: sha256(part / name) for name in names}
                target = next(path for path in (place / name, place / f"{name}-again") if not path.exists())
                sync_and_rename(part, target)
                content = {"folder": target.name, "files": files}
    finally:
        if ranks.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
    return content


# ---------------------------------------------------------------------------------------------------------------- load


def newest(folder: Path, ranks: Ranks = ALONE) -> Manifest | None:
    """Return the manifest of the newest undamaged checkpoint on every rank, or None; warns about damaged ones."""
    manifest = None
    with ranks.fail_together():
        if ranks.rank == 0:
            manifest = _newest_undamaged(folder)
    manifest = ranks.broadcast("checkpoint", manifest)
    return None if manifest is None else dict(manifest)


def fill(tensors: Mapping[str, Tensor], folder: Path, manifest: Manifest, ranks: Ranks = ALONE) -> None:
    """Fill tensors in place from a checkpoint; called on every rank, whatever number of ranks saved it.

    Args:
        tensors: whole tensors, or this rank's shards, by the names that they were saved under.
        folder: of the cell.
        manifest: of :func:`newest`.
        ranks: the ranks that load together.
    """
    from muonlab.lab.distributed.sharded_tensors import read_file, read_shards

    with ranks.fail_together():
        read = read_shards if "files" in manifest else read_file
        read(folder / FOLDER / _data_name(f"{manifest['step']:09d}", manifest), tensors)


def saved_rows(folder: Path) -> tuple[SavedRows, str | None]:
    """Return the rows that the newest checkpoint counts, and the key of its cell; ``({}, None)`` without one."""
    for _, manifest in _manifests(folder):
        return manifest["values"]["rows"], manifest["values"]["key"]
    return {}, None


def _newest_undamaged(folder: Path) -> Manifest | None:
    for path, manifest in _manifests(folder):
        if is_undamaged(path, manifest):
            return manifest
        _warn_of_damage(path)
    return None


def _manifests(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield the manifests of a cell, newest first; warn about damaged ones."""
    for path in sorted((folder / FOLDER).glob("*.json"), reverse=True):
        try:
            manifest = read_json(path)
        except (OSError, ValueError):
            _warn_of_damage(path)
            continue
        yield path, manifest


def is_undamaged(path: Path, manifest: Manifest) -> bool:
    """Return whether the files of a checkpoint have the hashes that its manifest, at ``path``, says."""
    data = path.parent / _data_name(path.stem, manifest)
    try:
        if "files" in manifest:
            return bool({file.name: sha256(file) for file in data.iterdir()} == manifest["files"])
        return bool(sha256(data) == manifest.get("sha256"))
    except (OSError, ValueError):
        return False


def _data_name(name: str, manifest: Manifest) -> str:
    """Return the name of the file or folder that belongs to a manifest."""
    return str(manifest["folder"]) if "files" in manifest else f"{name}.safetensors"


def _warn_of_damage(path: Path) -> None:
    cell = path.parent.parent.name
    message = f"checkpoint {path.stem} of {cell} is damaged: resuming from the one before it, or from the start"
    warnings.warn(message, stacklevel=4)


# -------------------------------------------------------------------------------------------------------------- remove


def remove_incomplete_files(folder: Path) -> None:
    """Remove files that a killed process left incomplete; only for the process that holds the cell's lock."""
    if (folder / FOLDER).is_symlink():
        raise ValueError(f"{FOLDER} must be a directory of its cell, got a link in {folder.name}: remove the link")
    for path in [*folder.glob("*.part"), *folder.glob(".tmp*")]:
        path.unlink()
    _remove_strays(folder / FOLDER)


def remove(folder: Path) -> None:
    """Remove all checkpoints of a finished cell."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _remove_strays(place: Path) -> None:
    """Remove data files and folders that belong to no manifest."""
    kept = {name for path in place.glob("*.json") for name in _possible_data_names(path)}
    for path in place.glob("*"):
        if DATA_NAMES.fullmatch(path.name) and path.name not in kept:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _possible_data_names(path: Path) -> tuple[str, ...]:
    try:
        return (_data_name(path.stem, read_json(path)),)
    except (OSError, ValueError):  # a damaged manifest: keep its data for inspection
        return (path.stem, f"{path.stem}.safetensors")


# ------------------------------------------------------------------------------------------------------------- weights


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file, complete or not at all; return its sha256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    part = path.with_name(path.name + ".part")
    try:
        part.touch()
        mode = part.stat().st_mode  # the user's default; safetensors would make the file private
        save_file(_plain(tensors), part)
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
        for stray in (part, *path.parent.glob(".tmp*")):
            stray.unlink(missing_ok=True)
    return digest


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the file that :func:`save_tensors` would write."""
    from safetensors.torch import save as to_bytes

    return hashlib.sha256(to_bytes(_plain(tensors))).hexdigest()


def load_weights(folder: Path, digest: str | None) -> dict[str, Tensor]:
    """Return the weights of a finished cell; raise ``ValueError`` if they were not kept or have another sha256."""
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


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors, copies of those that share memory, which safetensors does not write."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        shares = value.untyped_storage().data_ptr() in seen
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value.clone() if shares else value
    return plain
