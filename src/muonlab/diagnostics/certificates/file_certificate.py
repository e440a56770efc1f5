"""The certificate of the matrices in a file: an optimizer's checkpoint, weights, or arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from muonlab.diagnostics.certificates.certification import MatrixToCertify, certify_matrices
from muonlab.diagnostics.certificates.coverage import uncovered_options
from muonlab.diagnostics.certificates.matrix_files import FileError, FileMatrices, NamedMatrix, printable, read_matrices
from muonlab.diagnostics.certificates.network_certificate import NetworkCertificate
from muonlab.diagnostics.optimizer_matrices import step_length
from muonlab.optim import NewtonSchulz
from muonlab.optim.orthogonalizer import Orthogonalizer, from_plain
from muonlab.optim.scaling import SCALES
from muonlab.orthogonalize.iteration import DEFAULT_POLYNOMIAL
from muonlab.orthogonalize.prescale import Prescale

_PLURALS = {"momentum": "momentum buffers", "weight": "weights", "matrix": "matrices"}


@dataclass(frozen=True)
class FileCertificate:
    """The certificate of all matrices of a file, the file, and a note on what was assumed or left out."""

    certificate: NetworkCertificate
    file: FileMatrices
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        skipped = [{"name": name, "why": reason} for name, reason in self.file.skipped]
        about = {"file": str(self.file.path), "kind": self.file.kind, "note": self.note, "skipped": skipped}
        return about | self.certificate.to_dict()

    def __str__(self) -> str:
        lines = [f"{printable(self.file.path.name)}: {self.file.kind}, {len(self.file.matrices)} matrices"]
        lines += [self.note] if self.note else []
        skipped = self.file.skipped
        if skipped:
            first = ", ".join(name for name, _ in skipped[:3])
            more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
            lines.append(f"Left out: {first}{more} ({skipped[0][1]})")
        return "\n".join([*lines, "", str(self.certificate)])


def certify_file(
    path: str | os.PathLike[str],
    *,
    weights: bool = False,
    polynomial: str | None = None,
    steps: int | None = None,
    prescale: Prescale | None = None,
    max_gigabytes: float = 1.0,
    progress: Callable[[int, int], object] | None = None,
) -> FileCertificate:
    """Certify the momenta in a checkpoint under the orthogonalizers of its groups, or any matrices under a given one.

    Args:
        path: a file of torch.save, a .safetensors, a .npy or a .npz; nothing in it is executed.
        weights: certify weights, too; the theorems are about momenta, and the table says so.
        polynomial: name of a preset to use instead of the orthogonalizers of the groups; five quintic steps if the
            file has none.
        steps: number of steps.
        prescale: how matrices are brought into the unit ball.
        max_gigabytes: most memory that the matrices may take; a small file can unpack to a large one.
        progress: called with the number of certified matrices and of all.

    Raises:
        FileError: if the file has no matrix, or its groups have settings that Muon does not accept.
    """
    file = read_matrices(path, weights=weights, max_gigabytes=max_gigabytes)
    overridden = polynomial is not None or steps is not None or prescale is not None
    default = DEFAULT_POLYNOMIAL if polynomial is None else polynomial
    orthogonalizer = NewtonSchulz(default, steps=steps, prescale=prescale or "frobenius", compute_dtype=None)
    only_weights = all(matrix.role == "weight" for matrix in file.matrices)
    try:
        matrices = [_to_certify(m, orthogonalizer, overridden, only_weights) for m in file.matrices]
    except FileError as error:
        raise FileError(f"{printable(str(path), 200)} {error}") from None
    moving = [m.role for m, entry in zip(file.matrices, matrices, strict=True) if entry.step]
    what = " and ".join(dict.fromkeys(_PLURALS[role] for role in moving or [m.role for m in file.matrices]))
    certificate = certify_matrices(matrices, what=what, not_covered=_not_covered(file), progress=progress)
    note = "; ".join(filter(None, [file.note, "" if overridden else _assumption(file)]))
    return FileCertificate(certificate, file, note)


def _to_certify(
    matrix: NamedMatrix, orthogonalizer: Orthogonalizer, overridden: bool, only_weights: bool
) -> MatrixToCertify:
    """Return a matrix with the step length of its group, and its orthogonalizer unless the caller gave another."""
    group = matrix.group
    if matrix.role == "weight":  # beside momenta, weights do not count in the network's alignment
        counts = float(only_weights)
        return MatrixToCertify(f"{matrix.name} (weight)", matrix.tensor, orthogonalizer, counts, counts)
    if not group or "orthogonalizer" not in group:
        return MatrixToCertify(matrix.name, matrix.tensor, orthogonalizer)
    m, n = matrix.tensor.shape
    has_length = "lr" in group and "scale" in group
    length = _checked_length(group, m, n) if has_length else 1.0
    unit_length = step_length({**group, "lr": 1.0}, m, n) if has_length else 1.0
    used = orthogonalizer if overridden else from_plain(group["orthogonalizer"])
    return MatrixToCertify(matrix.name, matrix.tensor, used, length, unit_length, tuple(uncovered_options(group)))


def _checked_length(group: Mapping[str, Any], m: int, n: int) -> float:
    try:
        length = step_length(group, m, n)
    except (LookupError, TypeError, ValueError):
        length = math.nan
    if not 0 <= length < math.inf:
        got = printable(f"lr = {group['lr']!r} and scale = {group['scale']!r}", 160)
        rule = f"must hold a finite lr of at least 0 and one of the scales {', '.join(SCALES)}"
        raise FileError(f"{rule}, got {got}: save the state of a Muon again")
    return length


def _not_covered(file: FileMatrices) -> tuple[str, ...]:
    """Return what the optimizer of the file does that the theorems do not cover, each once."""
    groups = [matrix.group for matrix in file.matrices if matrix.group]
    parts = [option for group in groups for option in uncovered_options(group)]
    needs = {"nesterov": "Nesterov's look-ahead needs the gradients", "weight_decay": "weight decay needs the weights"}
    parts += [need for option, need in needs.items() if any(group.get(option) for group in groups)]
    auxiliary = sum("Adam-like" in reason for _, reason in file.skipped)
    if auxiliary:
        parts.append(f"{auxiliary} auxiliary parameters (Adam-like)")
    if any(matrix.role == "weight" for matrix in file.matrices):
        parts.append("weights: the theorems are about momenta")
    return tuple(dict.fromkeys(parts))


def _assumption(file: FileMatrices) -> str:
    """Return a note that the orthogonalizer is our default where the file names none."""
    without = sum("orthogonalizer" not in (matrix.group or {}) for matrix in file.matrices)
    which = "" if without == len(file.matrices) else f" for {without} of {len(file.matrices)} matrices"
    note = f"the file names no orthogonalizer{which}: five quintic steps assumed, --polynomial changes that"
    return note if without else ""
