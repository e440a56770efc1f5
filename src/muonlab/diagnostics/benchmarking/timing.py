"""Times of optimizer steps here and in other packages: one process, the same matrices, in turns."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from muonlab.optim.muon import Muon
from muonlab.orthogonalize import newton_schulz
from muonlab.orthogonalize.hardware import multiplies_in_hardware, wait
from muonlab.polynomials import preset

Run = Callable[[], object]
Shapes = Sequence[tuple[int, int]]

LR, MOMENTUM, STEPS = 0.02, 0.95, 5


def block_shapes(width: int, layers: int) -> list[tuple[int, int]]:
    """Return the hidden matrices of a GPT with separate queries, keys and values."""
    return [(width, width)] * 4 * layers + [(4 * width, width), (width, 4 * width)] * layers


def parameters(shapes: Shapes, device: torch.device) -> list[torch.nn.Parameter]:
    """Return parameters with gradients, equal for all sides."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in shapes:
        weight, gradient = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
        made.append(torch.nn.Parameter(weight))
        made[-1].grad = gradient
    return made


def step_sides(shapes: Shapes, device: torch.device) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the steps to time, and the packages that are left out with the reason."""
    sides: dict[str, Run] = {
        "muonlab": Muon(parameters(shapes, device), LR, momentum=MOMENTUM).step,
        "muonlab, as torch.optim.Muon": Muon.torch(parameters(shapes, device), LR, 0.0, MOMENTUM).step,
    }
    left_out = {}
    for name, build in PACKAGES.items():
        if not multiplies_in_hardware(torch.bfloat16, device):
            left_out[name] = f"it computes in bfloat16, which {device.type} emulates here"
            continue
        try:
            sides[name] = build(parameters(shapes, device))
        except ImportError as error:
            left_out[name] = str(error)
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {error}"  # a package that cannot be built does not stop the rest
    return sides, left_out


def _torch(params: list[torch.nn.Parameter]) -> Run:
    return torch.optim.Muon(params, LR, weight_decay=0.0, momentum=MOMENTUM).step


def _muon_optimizer(params: list[torch.nn.Parameter]) -> Run:
    step: Run = importlib.import_module("muon").SingleDeviceMuon(params, LR, momentum=MOMENTUM).step
    return step


def _optimuon(params: list[torch.nn.Parameter]) -> Run:
    step: Run = importlib.import_module("optimuon").Muon(params, LR, MOMENTUM, weight_decay=0.0).step
    return step


def _pytorch_optimizer(params: list[torch.nn.Parameter]) -> Run:
    group = {"params": params, "use_muon": True, "lr": LR, "momentum": MOMENTUM}
    step: Run = importlib.import_module("pytorch_optimizer").Muon([group]).step
    return step


PACKAGES: dict[str, Callable[[list[torch.nn.Parameter]], Run]] = {
    "torch.optim.Muon": _torch,
    "muon-optimizer": _muon_optimizer,
    "optimuon": _optimuon,
    "pytorch_optimizer": _pytorch_optimizer,
}


def usual_iteration(M: Tensor, dtype: torch.dtype) -> Tensor:
    """Orthogonalize as most packages do: five steps of Jordan's polynomial on X, one matrix at a time."""
    a, b, c = preset("jordan").polynomial.coefficients
    X = (M.mT if M.shape[-2] > M.shape[-1] else M).to(dtype)
    X = X / X.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        A = X @ X.mT
        X = torch.addmm(X, torch.addmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if M.shape[-2] > M.shape[-1] else X


def orthogonalization_sides(shapes: Shapes, device: torch.device, *, compiled: bool) -> dict[str, Run]:
    """Return orthogonalizations of the same matrices: a batch for each shape, and each alone by the usual iteration."""
    dtype = next(
        dtype for dtype in (torch.float16, torch.bfloat16, torch.float32) if multiplies_in_hardware(dtype, device)
    )
    matrices = [p.detach() for p in parameters(shapes, device)]
    stacks = [torch.stack([M for M in matrices if M.shape == shape]) for shape in dict.fromkeys(shapes)]
    options: dict[str, Any] = {"compute_dtype": dtype, "accuracy": "half"}
    schedule = preset("jordan").schedule(STEPS)
    sides: dict[str, Run] = {
        "muonlab": lambda: [newton_schulz(stack, schedule, **options) for stack in stacks],
        "usual iteration": lambda: [usual_iteration(M, dtype) for M in matrices],
    }
    if compiled:
        compiled_iteration = torch.compile(usual_iteration)
        sides["usual iteration, compiled"] = lambda: [compiled_iteration(M, dtype) for M in matrices]
    return sides


def interleaved(sides: dict[str, Run], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Return seconds by side: all sides in turns, after two rounds of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 2):
        for name, run in sides.items():
            wait(device)
            start = time.perf_counter()
            run()
            wait(device)
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def compare(title: str, sides: dict[str, Run], rounds: int, device: torch.device) -> dict[str, Any]:
    """Time the sides; ``speedup`` of a side is the median over the rounds of its time over that of ``muonlab``."""
    seconds = interleaved(sides, rounds, device)
    speedup = {
        name: statistics.median(a / b for a, b in zip(times, seconds["muonlab"], strict=True))
        for name, times in seconds.items()
    }
    return {
        "title": title,
        "rounds": rounds,
        "median_ms": {name: round(statistics.median(times) * 1e3, 4) for name, times in seconds.items()},
        "speedup_of_muonlab": {name: round(value, 3) for name, value in speedup.items()},
    }


def release_memory(device: torch.device) -> None:
    """Free cached memory of the device between comparisons."""
    with suppress(RuntimeError):
        if device.type == "cuda":
            torch.cuda.empty_cache()
