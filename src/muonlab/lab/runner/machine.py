"""The environment of a run: hardware, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muonlab import __version__

LIBRARIES = ("torch", "numpy", "datasets", "tokenizers", "safetensors", "scikit-learn")


def environment() -> dict[str, Any]:
    """Return hardware, versions and the commit of the source; None where unknown."""
    import torch

    from muonlab.orthogonalize.hardware import processor

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "muonlab": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": processor(),
        "cpu_model": _cpu_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "gpus": devices,
        "libraries": {name: _version(name) for name in LIBRARIES},
        "allocator": {name: value for name, value in sorted(os.environ.items()) if name.startswith("MALLOC_")},
    }


def describe_machine(environment: Mapping[str, Any]) -> str:
    """Return what the time of a cell depends on: processor, cores, GPUs, torch, allocator.

    Example:
        >>> describe_machine({"cpu": "A 1", "cpu_model": "6-85-7", "cores": 2, "libraries": {"torch": "2.13.0"}})
        'A 1 (6-85-7), 2 cores, no GPU, torch 2.13.0'
    """
    model = f" ({environment['cpu_model']})" if environment.get("cpu_model") else ""
    devices = ", ".join(map(str, environment.get("gpus") or ["no GPU"]))
    torch = (environment.get("libraries") or {}).get("torch")
    allocator = " ".join(f"{name}={value}" for name, value in (environment.get("allocator") or {}).items())
    parts = [f"{environment.get('cpu')}{model}", f"{environment.get('cores')} cores", devices, f"torch {torch}"]
    return ", ".join([*parts, *([allocator] if allocator else [])])


def _cpu_model() -> str | None:
    """Return family, model and stepping of the processor, as several may share a name; None if unknown."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "model" in fields:
            return "-".join(fields.get(name, "?") for name in ("cpu family", "model", "stepping"))
    return None


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _commit() -> str | None:
    """Return the commit of the source, with a plus if files were changed; None outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed inside the repository of another project
    commit = git("rev-parse", "HEAD")
    return commit and commit + ("+" if git("status", "--porcelain", "--", str(here.parent)) else "")
