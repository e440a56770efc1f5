"""``bench``: check a device, time it beside other packages, and return what can be sent in."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import muonlab
from muonlab import _checks
from muonlab.diagnostics.benchmarking.correctness import check_device
from muonlab.diagnostics.benchmarking.timing import (
    block_shapes,
    compare,
    orthogonalization_sides,
    release_memory,
    step_sides,
)
from muonlab.orthogonalize.crossover import has_triton, kernels_for
from muonlab.orthogonalize.hardware import processor

SIZES = {"cuda": (768, 12), "mps": (256, 2)}
"""Width and layers of the timed network by kind of device; others take ``(128, 2)``."""


def bench(
    device: str | torch.device = "cpu",
    *,
    width: int | None = None,
    layers: int | None = None,
    rounds: int = 7,
    compiled: bool | None = None,
    show: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Check the results of a device against float64, then time Muon on it beside other packages.

    Nothing is timed if a result is wrong. Times are taken in one process in turns, and are meaningful as ratios.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``.
        width: width of the GPT whose hidden matrices are stepped; by default 768 on CUDA, 128 on a CPU.
        layers: its layers; by default 12 on CUDA, 2 on a CPU.
        rounds: timed repetitions of each side.
        compiled: whether the usual iteration is also timed compiled by torch.compile; by default on CUDA only.
        show: called with a line before each part.

    Returns:
        The report: ``hardware``, ``correct`` (a row for each check), ``status`` (``"passed"`` or ``"failed"``), and
        ``times`` (empty if a check failed).

    Raises:
        ValueError: the device is not there.

    Example:
        >>> report = bench("cpu", width=16, layers=1, rounds=1)
        >>> report["status"], [part["title"] for part in report["times"]]
        ('passed', ['orthogonalization', 'step'])
    """
    place = _device(device)
    default_width, default_layers = SIZES.get(place.type, (128, 2))
    width = _checks.integer("width", default_width if width is None else width, at_least=8, at_most=16_384)
    layers = _checks.integer("layers", default_layers if layers is None else layers, at_least=1, at_most=200)
    rounds = _checks.integer("rounds", rounds, at_least=1, at_most=1000)
    tell = show or (lambda _: None)
    tell("checking results against float64")
    rows = check_device(place)
    report: dict[str, Any] = {
        "muonlab": muonlab.__version__,
        "hardware": hardware(place),
        "width": width,
        "layers": layers,
        "status": "passed" if all(row["ok"] for row in rows) else "failed",
        "correct": rows,
        "times": [],
        "left_out": {},
    }
    if report["status"] == "failed":
        return report
    shapes = block_shapes(width, layers)
    tell(f"timing the orthogonalization of {len(shapes)} matrices")
    compiled = place.type == "cuda" if compiled is None else compiled
    sides = orthogonalization_sides(shapes, place, compiled=compiled)
    report["times"].append(compare("orthogonalization", sides, rounds, place))
    del sides
    release_memory(place)
    tell("timing steps")
    steps, report["left_out"] = step_sides(shapes, place)
    report["times"].append(compare("step", steps, rounds, place))
    return report


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch finds here, got {device!r}: {message}") from None
    return place


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what a reader needs to know about the machine."""
    about: dict[str, Any] = {
        "device": device.type,
        "name": processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda or torch.version.hip,
            "kernels": kernels_for(device)[1] if has_triton() else "no Triton",
        }
    return about


def file_name(report: dict[str, Any]) -> str:
    """Return a name for the file of a report.

    Example:
        >>> file_name({"hardware": {"name": "NVIDIA H100 80GB HBM3"}})
        'muonlab-bench-nvidia-h100-80gb-hbm3.json'
    """
    name = re.sub(r"[^a-z0-9]+", "-", report["hardware"]["name"].lower()).strip("-")
    return f"muonlab-bench-{name or 'device'}.json"


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report as JSON to a file."""
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
