"""Matrices in files that nobody vouches for: momenta in optimizer checkpoints, weights, arrays of numpy.

Nothing in a file is executed, nothing is written, and what a header claims is allocated only where the file can hold
it. A pickle is looked through before torch reads it: torch's own list of what may be called is safe, but some calls on
it (``bytearray(10**12)``), and tuples nested a million deep, end the process.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import warnings
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch

from muonlab.diagnostics.certificates.checkpoints import look_through, read_torch
from muonlab.diagnostics.certificates.entries import (
    AGAIN,
    ALONE,
    FileError,
    FileMatrices,
    Found,
    printable,
    require_matrices,
)

INFLATED = 2**30
"""Bytes to which the compressed members of a .npz may expand in all."""
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files of torch.save began before they were zip archives
_KINDS = "give a file of torch.save, a .safetensors, a .npy or a .npz"


def read_matrices(path: str | os.PathLike[str], *, weights: bool = False) -> FileMatrices:
    """Read momentum buffers off an optimizer checkpoint, or matrices off a .npy or .npz; the content says which.

    Args:
        path: a file of ``torch.save`` (an optimizer's state, alone or anywhere in a training checkpoint), a safetensors
            file (names with ``momentum_buffer`` are momenta), a .npy or a .npz (arrays of three or more dimensions are
            stacks of matrices). Do not rewrite it while its matrices are in use: they may map it.
        weights: take tensors of two or more dimensions outside of optimizers' states, too.

    Raises:
        FileError: for every file that gives no matrix, in one line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old storages and headers: nothing that a reader of tables can use
            file = Path(path)
            size, head = _opened(file)
            found = Found(size, weights)
            kind = _read(file, head, found)
            require_matrices(found)
    except FileError as error:
        raise FileError(f"{printable(str(path), 200)} {error}") from None
    except Exception as error:  # there is no list of what libraries raise on hostile bytes
        got = f"{type(error).__name__} ({printable((str(error).splitlines() or ['no reason'])[0], 160)})"
        raise FileError(f"{printable(str(path), 200)} must be whole and readable, got {got}: {AGAIN}") from None
    return FileMatrices(file, kind, tuple(found.matrices), tuple(found.skipped), "; ".join(dict.fromkeys(found.notes)))


def _opened(file: Path) -> tuple[int, bytes]:
    """Return the size and the first bytes of a regular file; a pipe or a device could go on for ever."""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "directory" if stat.S_ISDIR(mode) else "pipe, socket or device"
            raise FileError(f"must be a regular file, got a {kind}: give the path of one file")
        with file.open("rb") as stream:
            head, size = stream.read(512), os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise FileError(f"must be a file that can be read, got {error.strerror}: check path and permissions") from None
    if not head:
        raise FileError(f"must hold matrices, got an empty file: {_KINDS}")
    return size, head


def _read(file: Path, head: bytes, found: Found) -> str:
    """Read a file as what its first bytes say, and return its kind."""
    if file.suffix == ".safetensors" or (head[8:9] == b"{" and int.from_bytes(head[:8], "little") < found.size):
        return _read_safetensors(file, found)
    with file.open("rb") as stream:
        if head.startswith(b"\x93NUMPY"):
            _read_array(stream, found.size, file.stem, found)
            return "npy"
        if head.startswith(b"PK\x03\x04"):
            return _read_zip(file, stream, found)
        if head.startswith(_LEGACY):
            for _ in range(5):  # a magic number, a version, the machine, the object, the keys of its storages
                look_through(stream)
            return read_torch(file, found, mmap=False)
    what = "bytes that are none of these"
    if head[257:262] == b"ustar":
        what = "a tar archive, torch's format of 2016, which cannot be read safely"
    elif head.startswith(b"\x80"):
        what = "a pickle that torch.save did not write and that could run anything"
    raise FileError(f"must be a file of torch, safetensors or numpy, got {what}: {_KINDS}")


def _read_zip(file: Path, stream: IO[bytes], found: Found) -> str:
    """Read an archive of torch or numpy; its names are shown and compared, and never used as paths."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        names = [member.filename.lower() for member in members]  # torch's reader does not tell case
        if len(set(names)) < len(names) or sum(member.compress_size for member in members) > found.size:
            raise FileError(f"must hold every member once, got doubled or overlapping ones: {AGAIN}")
        pickles = [member for member in members if member.filename.lower().endswith("/data.pkl")]
        packed = [member.file_size for member in members if member.compress_type != zipfile.ZIP_STORED]
        if not pickles:
            if sum(packed) > INFLATED:
                raise FileError(f"must expand to at most {INFLATED} bytes, got {sum(packed)}: write it by numpy.savez")
            found.size += sum(packed)
            for member in members:
                if not member.filename.endswith(".npy"):
                    found.skip(member.filename, "is a member of an archive that is neither torch's nor numpy's")
                    continue
                with archive.open(member) as part:
                    _read_array(part, member.file_size, member.filename.removesuffix(".npy"), found)
            return "npz"
        stream.seek(-22, os.SEEK_END)
        if len(pickles) > 1 or packed or stream.read(4) != b"PK\x05\x06":  # else two readers could see two archives
            raise FileError(f"must be an archive as torch.save writes it, got one that was made otherwise: {ALONE}")
        stream.seek(pickles[0].header_offset)
        stream.seek(sum(struct.unpack("<26x2H", stream.read(30))), os.SEEK_CUR)
        look_through(stream.read(pickles[0].file_size))  # archive.read wants the checksums that torch can leave out
    return read_torch(file, found, mmap=True)


def _read_array(stream: IO[bytes], size: int, name: str, found: Found) -> None:
    """Take an array of numpy if its header claims just what follows; pickled objects are not even looked at."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        found.skip(name, f"has a header of version {version}, not 1 or 2: save a plain array by numpy.save")
        return
    shape, in_columns, dtype = readers[version](stream)
    claimed = stream.tell() + math.prod(shape) * dtype.itemsize
    wide = np.dtype(np.float64 if dtype.kind in "iu" else dtype.newbyteorder("="))
    why = found.misfit(shape, dtype.kind in "iuf" and wide.itemsize <= 8, dtype, dtype.itemsize)
    if why or claimed != size:
        found.skip(name, why or f"claims {claimed} bytes where the file has {size}: {AGAIN}")
        return
    if dtype.kind in "iu":
        found.notes.append("integers were read as float64")
    flat = np.frombuffer(stream.read(size), dtype)
    array = flat.reshape(shape, order="F" if in_columns else "C").astype(wide)
    found.add(name, "matrix", torch.from_numpy(array))


def _read_safetensors(file: Path, found: Found) -> str:
    try:
        from safetensors import safe_open
    except ImportError:
        raise FileError("needs the safetensors package, got none: pip install muonlab[lab]") from None
    widths = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
    with safe_open(file, framework="pt", device="cpu") as tensors:
        for name in tensors.keys():  # noqa: SIM118  it is no dictionary
            part = tensors.get_slice(name)
            shape, dtype = tuple(part.get_shape()), str(part.get_dtype())
            why = found.misfit(shape, dtype in widths, dtype, widths.get(dtype, 0))
            found.sort(name, why, lambda name=name: tensors.get_tensor(name))  # type: ignore[misc]
    return "safetensors"
