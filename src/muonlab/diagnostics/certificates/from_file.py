"""The certificate of the matrices in a file: an optimizer's checkpoint, weights, or arrays."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from muonlab.diagnostics.certificates.certification import Entry, certify_entries, not_covered_by
from muonlab.diagnostics.certificates.entries import AGAIN, FileError, FileMatrices, NamedMatrix, printable
from muonlab.diagnostics.certificates.files import read_matrices
from muonlab.diagnostics.certificates.network import NetworkCertificate
from muonlab.diagnostics.watch import step_length
from muonlab.optim import NewtonSchulz
from muonlab.optim.orthogonalizer import Orthogonalizer, from_plain, to_plain
from muonlab.optim.scaling import SCALES
from muonlab.orthogonalize.iteration import DEFAULT_POLYNOMIAL
from muonlab.orthogonalize.prescale import Prescale


def certify_file(
    path: str | os.PathLike[str],
    *,
    weights: bool = False,
    polynomial: str | None = None,
    steps: int | None = None,
    prescale: Prescale | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[NetworkCertificate, FileMatrices]:
    """Certify the momenta in a checkpoint as its own groups orthogonalize them, or any matrices as asked.

    Args:
        path: a file of torch.save, a .safetensors, a .npy or a .npz; nothing in it is executed.
        weights: certify weights, too; no theorem speaks of them, the table says so.
        polynomial: a preset's name in place of what the groups say; five quintic steps where they say nothing.
        steps: number of steps.
        prescale: how matrices are brought into the unit ball.
        progress: called with the number of matrices done and of all.

    Raises:
        FileError: for a file that gives no matrix, or whose groups have settings that no Muon writes, in one line.
    """
    found = read_matrices(path, weights=weights)
    asked = polynomial is not None or steps is not None or prescale is not None
    given = DEFAULT_POLYNOMIAL if polynomial is None else polynomial
    how = NewtonSchulz(given, steps=steps, prescale=prescale or "frobenius", compute_dtype=None)
    try:
        entries = [_entry(matrix, how, asked) for matrix in found.matrices]
    except FileError as error:
        raise FileError(f"{printable(str(path), 200)} {error}") from None
    if not asked:
        found = dataclasses.replace(found, note="; ".join(filter(None, [found.note, _assumed(found)])))
    if any(matrix.what != "weight" for matrix in found.matrices):  # beside momenta, weights are no part of the whole
        pairs = zip(found.matrices, entries, strict=True)
        entries = [entry._replace(step=0.0) if matrix.what == "weight" else entry for matrix, entry in pairs]
    words = [word for matrix in found.matrices if matrix.group for word in not_covered_by(matrix.group)]
    auxiliary = sum("Adam-like" in why for _, why in found.skipped)
    if auxiliary:
        words.append(f"{auxiliary} auxiliary parameters (Adam-like)")
    if any(matrix.what == "weight" for matrix in found.matrices):
        words.append("weights: the theorems speak of momenta")
    kinds = {"momentum": "momentum buffers", "weight": "weights", "matrix": "matrices"}
    moving = [matrix for matrix, entry in zip(found.matrices, entries, strict=True) if entry.step] or found.matrices
    what = " and ".join(dict.fromkeys(kinds[matrix.what] for matrix in moving))
    return certify_entries(entries, what=what, not_covered=tuple(dict.fromkeys(words)), progress=progress), found


def _entry(matrix: NamedMatrix, how: Orthogonalizer, asked: bool) -> Entry:
    """Return a matrix with the step length of its group, and its orthogonalizer unless another was asked for."""
    group = matrix.group
    name = f"{matrix.name} (weight)" if matrix.what == "weight" else matrix.name
    if not group or "orthogonalizer" not in group:
        return Entry(name, matrix.tensor, how)
    m, n = matrix.tensor.shape
    length = _length(group, m, n) if "lr" in group and "scale" in group else 1.0
    how = how if asked else from_plain(to_plain(group["orthogonalizer"]))
    return Entry(name, matrix.tensor, how, length, tuple(not_covered_by(group)))


def _length(group: Mapping[str, Any], m: int, n: int) -> float:
    """Return the length of a step, or refuse what a file gives as learning rate and scale."""
    lr, scale = group["lr"], group["scale"]
    if isinstance(lr, (int, float)) and isinstance(scale, str) and scale in SCALES:
        length = step_length(group, m, n)
        if math.isfinite(length) and lr >= 0:
            return length
    got = printable(f"lr = {lr!r} and scale = {scale!r}", 160)
    rule = f"must hold a finite lr of at least 0 and one of the scales {', '.join(SCALES)}"
    raise FileError(f"{rule}, got {got}: {AGAIN}")


def _assumed(found: FileMatrices) -> str:
    """Say that the orthogonalizer is ours where the file names none."""
    without = sum("orthogonalizer" not in (matrix.group or {}) for matrix in found.matrices)
    which = "" if without == len(found.matrices) else f" for {without} of {len(found.matrices)} matrices"
    words = f"the file names no orthogonalizer{which}: five quintic steps assumed, --polynomial changes that"
    return words if without else ""


def report(certificate: NetworkCertificate, found: FileMatrices) -> dict[str, Any]:
    """Return certificate and file as plain values."""
    skipped = [{"name": name, "why": why} for name, why in found.skipped]
    return {"file": str(found.path), "kind": found.kind, "note": found.note, "skipped": skipped} | certificate.to_dict()


def written(certificate: NetworkCertificate, found: FileMatrices) -> str:
    """Return certificate and file as a table for people."""
    title = f"{printable(found.path.name)}: {found.kind}, {len(found.matrices)} matrices"
    lines = [title, *([found.note] if found.note else [])]
    if found.skipped:
        first = ", ".join(name for name, _ in found.skipped[:3])
        more = f" and {len(found.skipped) - 3} more" if len(found.skipped) > 3 else ""
        lines.append(f"Left out: {first}{more} ({found.skipped[0][1]})")
    return "\n".join([*lines, "", str(certificate)])
