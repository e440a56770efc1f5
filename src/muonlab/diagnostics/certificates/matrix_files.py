"""Read matrices from files: momentum buffers in optimizer checkpoints, weights, numpy arrays. No file runs code."""

from __future__ import annotations

import math
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ
from mmap import mmap as map_file
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from muonlab import _checks, _files
from muonlab.optim.foreign import as_native
from muonlab.optim.orthogonalizer import to_plain
from muonlab.optim.saved_state import BUFFER
from muonlab.optim.views import MatrixView, check_fits, check_view, matrix_blocks, parse_view, split_tensor
from muonlab.orthogonalize.matrices import FLOATING

MatrixRole = Literal["momentum", "weight", "matrix"]

_ADAM = "exp_avg"
_OF_ADAM = f"has {_ADAM} of an Adam-like optimizer, no momentum buffer"
_SAVE_ALONE = "save the optimizer alone, torch.save(optimizer.state_dict(), path)"


class FileError(ValueError):
    """A file without usable matrices; the message is one line with the file, the rule, the value and the way out."""


@dataclass(frozen=True, eq=False)
class NamedMatrix:
    """One matrix (m, n) of a file in its own dtype, with the settings of its parameter group if the file has them."""

    name: str
    role: MatrixRole
    tensor: Tensor
    group: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class FileMatrices:
    """The matrices of a file, and the entries that are none: pairs of a name and a reason."""

    path: Path
    kind: str
    matrices: tuple[NamedMatrix, ...]
    skipped: tuple[tuple[str, str], ...]
    note: str


class _FileTensor(NamedTuple):
    name: str
    role: MatrixRole
    tensor: Tensor | str
    """The tensor, or the reason for which there is none."""
    group: Mapping[str, Any] | None = None


def printable(text: str, limit: int = 120) -> str:
    r"""Return text from a file with control characters escaped, cut in the middle if it is longer than ``limit``.

    Example:
        >>> print(printable("a\x1b[31mb\n"))
        a\x1b[31mb\n
    """
    text = text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def read_matrices(path: str | os.PathLike[str], *, weights: bool = False, max_gigabytes: float = 1.0) -> FileMatrices:
    """Read the momentum buffers of an optimizer checkpoint, or the matrices of a .npy or .npz; the content decides.

    Args:
        path: a file of ``torch.save`` (an optimizer's state, alone or anywhere in a training checkpoint), a safetensors
            file (names with ``momentum_buffer`` are momenta), a .npy or a .npz (arrays of three or more dimensions are
            stacks of matrices). Matrices may be memory-mapped: do not rewrite the file while they are in use.
        weights: also take tensors of two or more dimensions outside of optimizer states.
        max_gigabytes: most memory that the matrices may take; a small file can unpack to a large one.

    Raises:
        FileError: if the file has no matrix, cannot be read, or has larger matrices.
    """
    path = _checks.path("the file", path)
    limit = int(_checks.positive("max_gigabytes", max_gigabytes) * 1e9)
    shown, left_out = printable(str(path), 200), 0
    matrices: list[NamedMatrix] = []
    taken = 0
    skipped: list[tuple[str, str]] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch and numpy about old formats
            kind, tensors = _read(path, limit)
        for entry in tensors:
            view: MatrixView = "batch" if entry.role == "matrix" else (entry.group or {}).get("matrix_view", "flatten")
            reason = _unusable(entry, view)
            if entry.role == "weight" and not weights:
                left_out += not reason
            elif isinstance(entry.tensor, str) or reason:
                skipped.append((printable(entry.name), printable(reason, 300)))
            else:
                taken += entry.tensor.numel() * entry.tensor.element_size()
                _check_size(taken, limit)
                named = _split(printable(entry.name), entry.tensor.detach(), view)
                matrices += [NamedMatrix(name, entry.role, M, entry.group) for name, M in named]
        note = f"--weights (weights=True) reads its {left_out} weights" if left_out else ""
        if not matrices:
            raise FileError(_no_matrix(skipped, note))
    except FileError as error:
        raise FileError(f"{shown} {error}") from None
    except Exception as error:  # torch, zipfile, numpy and safetensors raise anything on damaged bytes
        message = (str(error).splitlines() or ["no message"])[0]
        got = f"{type(error).__name__} ({printable(message, 160)})"
        raise FileError(
            f"{shown} must be complete and readable, got {got}: check the path, or write it again"
        ) from None
    return FileMatrices(path, kind, tuple(matrices), tuple(skipped), note)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise FileError(
            f"must have matrices of at most {limit / 1e9:g} GB, got {size / 1e9:.3g} GB: pass --max-gigabytes "
            f"(max_gigabytes=) {math.ceil(size / 1e9)} if there is so much memory"
        )


def _read(file: Path, limit: int) -> tuple[str, Iterable[_FileTensor]]:
    """Return the kind of a file by its first bytes, and its tensors, none of them larger than ``limit`` in bytes."""
    if file.exists() and not file.is_file():
        raise FileError("must be a regular file, got a directory, pipe or device: give the path of one file")
    with os.fdopen(_files.open_regular(file, follow_link=True), "rb") as stream:
        head = stream.read(16)
    if file.suffix == ".safetensors" or head[8:9] == b"{":
        return "safetensors", _read_safetensors(file, limit)
    if head.startswith(b"\x93NUMPY"):
        return "npy", [_array(file.stem, np.load(file, mmap_mode="r", allow_pickle=False), limit)]
    if head.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(file) as archive:
            is_torch = any(name.endswith("/data.pkl") for name in archive.namelist())
            packed = [info.file_size for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
        if is_torch:
            _check_size(sum(packed), limit)  # torch.save does not compress
        return _read_torch(file, mmap=True) if is_torch else ("npz", _read_npz(file, limit))
    if head.startswith(b"\x80"):
        return _read_torch(file, mmap=False)  # the format of torch.save before 1.6
    got = "another format" if head else "an empty file"
    way_out = "give a file of torch.save, a .safetensors, a .npy or a .npz"
    raise FileError(f"must be a file of torch, safetensors or numpy, got {got}: {way_out}")


def _read_npz(file: Path, limit: int) -> Iterator[_FileTensor]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            try:
                with archive.open(info) as stream:
                    short = np.lib.format.read_magic(stream) == (1, 0)
                    header = np.lib.format.read_array_header_1_0 if short else np.lib.format.read_array_header_2_0
                    shape, _, dtype = header(stream)
                _check_size(math.prod(shape) * max(dtype.itemsize, 8 if dtype.kind in "iu" else 0), limit)
                with archive.open(info) as stream:
                    array = np.lib.format.read_array(stream, allow_pickle=False)
            except FileError:
                raise
            except ValueError as error:  # an array of objects, which would need pickle
                yield _FileTensor(name, "matrix", f"cannot be read: {error}")
            else:
                yield _array(name, array, limit)


def _array(name: str, array: object, limit: int) -> _FileTensor:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        return _FileTensor(name, "matrix", f"is of dtype {getattr(array, 'dtype', None)}, not real numbers")
    dtype = np.dtype(np.float64) if array.dtype.kind in "iu" else array.dtype.newbyteorder("=")
    _check_size(array.size * dtype.itemsize, limit)
    return _FileTensor(name, "matrix", torch.from_numpy(array.astype(dtype, order="C")))


def _read_safetensors(file: Path, limit: int) -> Iterator[_FileTensor]:
    try:
        from safetensors import safe_open
    except ImportError:
        raise FileError("needs the safetensors package, got none: pip install muonlab[lab]") from None
    with safe_open(file, framework="pt", device="cpu") as tensors:
        for name in tensors.keys():  # noqa: SIM118  not a dictionary
            about = tensors.get_slice(name)
            bits = re.search(r"\d+", about.get_dtype())
            _check_size(math.prod(about.get_shape()) * (int(bits[0]) if bits else 8) // 8, limit)
            yield _by_name(name, tensors.get_tensor(name))


def _by_name(name: str, tensor: Tensor) -> _FileTensor:
    """Return a tensor outside of an optimizer's state with the role that its name says."""
    if _ADAM in name:
        return _FileTensor(name, "momentum", _OF_ADAM)
    return _FileTensor(name, "momentum" if BUFFER in name else "weight", tensor)


def _read_torch(file: Path, *, mmap: bool) -> tuple[str, list[_FileTensor]]:
    """Return the momenta of all optimizer states in a file of torch.save, and its other tensors."""
    with file.open("rb") as stream, map_file(stream.fileno(), 0, access=ACCESS_READ) as bytes_of_file:
        if bytes_of_file.find(b"bytearray") >= 0:  # torch would make one of any size that the file names
            raise FileError(f"must hold tensors and plain values only, got a bytearray: {_SAVE_ALONE}")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:  # the message of torch suggests weights_only=False
        refused = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.\w+)", str(error))
        got = refused[1] if refused else printable(str(error).splitlines()[-1], 160)
        gather = "gather it by get_optimizer_state_dict with full_state_dict=True"
        way_out = gather if "distributed" in got else _SAVE_ALONE
        raise FileError(f"must hold tensors and plain values only, got {got}, which is not loaded: {way_out}") from None
    found = list(_walk(content, (), set()))
    optimizers = {path: value for path, value in found if not isinstance(value, Tensor)}
    tensors: list[_FileTensor] = []
    for path, state_dict in optimizers.items():
        tensors += _read_optimizer(f"{path}: " if len(optimizers) > 1 else "", state_dict)
    tensors += [_by_name(path, value) for path, value in found if isinstance(value, Tensor)]
    return "torch optimizer state" if list(optimizers) == [""] else "torch checkpoint", tensors


def _walk(value: object, path: tuple[str, ...], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield every optimizer state, and every tensor outside of them, with its path in nested dictionaries and lists.

    A container that is in several places is read once: a few of them can hold each other a million times.
    """
    if isinstance(value, Tensor) or (isinstance(value, dict) and {"state", "param_groups"} <= value.keys()):
        yield ".".join(path), value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(item, (*path, str(key)), seen)


def _read_optimizer(prefix: str, state_dict: Mapping[str, Any]) -> Iterator[_FileTensor]:
    """Yield the momentum of each parameter, by its name if the groups have names."""
    for g, group in enumerate(state_dict["param_groups"]):
        settings, keys = _settings(group), group["params"]
        for i, (key, given) in enumerate(zip(keys, group.get("param_names") or keys, strict=True)):
            name = prefix + (given if isinstance(given, str) else f"group {g}, parameter {i}")
            state = state_dict["state"].get(key, {})
            absent = _OF_ADAM if _ADAM in state else "has no momentum buffer: save after a step with momentum > 0"
            buffer = state.get(BUFFER)
            yield _FileTensor(name, "momentum", absent if buffer is None else buffer, settings)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group; those of a Muon as in muonlab, with the orthogonalizer in plain form."""
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    options |= {key: value.item() for key, value in options.items() if isinstance(value, Tensor) and value.numel() == 1}
    try:
        native = as_native(options)
        return {key: to_plain(value) if key == "orthogonalizer" else value for key, value in native.items()}
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        if "orthogonalizer" not in group and "ns_coefficients" not in group:  # another optimizer's
            return options
        got = printable(repr(error), 160)
        raise FileError(f"must hold an orthogonalizer that Muon accepts, got {got}: {_SAVE_ALONE}") from None


def _unusable(entry: _FileTensor, view: MatrixView) -> str:
    """Return why an entry of a file is not read as matrices; empty if it is."""
    tensor = entry.tensor
    if isinstance(tensor, str):
        return tensor
    shape = tuple(tensor.shape)
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return f"has no dense values ({tensor.layout}, device {tensor.device}): save a dense tensor"
    if len(shape) < 2 or not tensor.numel():
        return f"is not a matrix, shape {shape}"
    if tensor.dtype not in FLOATING:
        return f"is of {tensor.dtype}, not float16, bfloat16, float32 or float64: convert it before saving"
    try:
        check_fits(check_view(view), shape, printable(entry.name))
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _split(name: str, tensor: Tensor, view: MatrixView) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices of a tensor; their names end with the rows of the block, or the index in the batch."""
    blocks, start = matrix_blocks(tensor.shape, view), 0
    rows = parse_view(view).cut == "rows"
    for i, (block, part) in enumerate(zip(blocks, split_tensor(tensor, view, blocks), strict=True)):
        end = start + block.matrices[-2]
        label = f"{name}[{f'{start}:{end}' if rows else i}]" if len(blocks) > 1 else name
        start = end
        M = part if part.ndim == 2 else block.read(part)
        yield from [(label, M)] if M.ndim == 2 else ((f"{label}[{i}]", M[i]) for i in range(len(M)))


def _no_matrix(skipped: list[tuple[str, str]], note: str) -> str:
    """Return the message for a file without matrices: what it has instead."""
    if any(reason == _OF_ADAM for _, reason in skipped):
        got = f"the state of an Adam-like optimizer, whose {_ADAM} is not orthogonalized"
        return f"must hold momentum buffers, got {got}: {note or 'give the state of a Muon, or of SGD with momentum'}"
    if note:
        return f"must hold momentum buffers, got weights only: {note}"
    if skipped:
        name, reason = skipped[0]
        return f"must hold a matrix, got none in {len(skipped)} entries: the first, {name}, {reason}"
    return f"must hold a matrix, got no tensor or array: {_SAVE_ALONE}, or numpy.save(path, M)"
