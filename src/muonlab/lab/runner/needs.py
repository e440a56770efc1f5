"""What the cells of a study need of the machine, checked before the first one: packages, disk and memory."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from muonlab.lab.own.datasets import OwnDataset
from muonlab.lab.own.models import OwnModel
from muonlab.lab.spec import Spec

if TYPE_CHECKING:
    from muonlab.lab.runner.planning import PlannedCell, StudyRequest

FLOAT = 4
"""Bytes of a number in float32."""
IN_MEMORY = 3
"""Numbers in memory for each parameter, at least: the weight, its gradient, its momentum."""
ON_DISK = 4
"""Numbers on the disk for each parameter of a running cell: weight and momentum in each of two checkpoints."""


def check_needs(request: StudyRequest, cells: Sequence[PlannedCell]) -> None:
    """Raise ``ValueError`` if the cells that are to be run cannot be: a package, disk or memory is missing.

    Disk and memory are lower bounds: activations are not counted, nor the states of optimizers that keep more than a
    momentum.
    """
    specs = [cell.cell.spec for cell in cells if isinstance(cell.cell.spec, Spec)]
    if not specs:
        return
    if importlib.util.find_spec("safetensors") is None:
        raise ValueError("training needs safetensors for its checkpoints, got none: pip install 'muonlab[lab]'")
    sizes = [count_parameters(spec) for spec in specs]
    largest = max(sizes)
    on_disk = ON_DISK * FLOAT * largest * request.jobs + (FLOAT * sum(sizes) if request.keep_weights else 0)
    _require("disk", on_disk, _free_disk(request.folder), "checkpoints and weights")
    if request.device == "cpu":
        _require("memory", IN_MEMORY * FLOAT * largest * request.jobs, _free_memory(), "weights, gradients and momenta")


def count_parameters(spec: Spec) -> int:
    """Return the number of parameters of the model of a spec."""
    if isinstance(spec.model, OwnModel) and callable(spec.model.target):
        return spec.model.parameters
    return _parameters(spec.model, spec.dataset, spec.block, spec.first_width)


@cache
def _parameters(model: str | OwnModel, dataset: str | OwnDataset, block: int | None, first_width: int | None) -> int:
    from muonlab.lab.training.setup import model_for_checks

    spec = Spec(model=model, dataset=dataset, block=block, first_width=first_width)
    return sum(p.numel() for p in model_for_checks(spec).parameters())


def _require(what: str, needed: int, free: int | None, for_what: str) -> None:
    if free is not None and needed > free:
        raise ValueError(
            f"the cells need at least {needed / 1e9:.3g} GB of {what} for {for_what}, got {free / 1e9:.3g} GB: run "
            f"fewer at a time, choose a smaller model, or free some"
        )


def _free_disk(folder: Path) -> int:
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free


def _free_memory() -> int | None:
    """Return the bytes of memory that can be used without swapping; None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
