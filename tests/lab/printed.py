"""Hyper-parameters and parameter counts as the paper prints them, against which the studies are tested."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters as printed; None where the paper prints none.

    Args:
        study: the study of this lab that uses them.
        lr: of the main optimizer.
        momentum: of the same.
        batch_size: on a GPU; 8 of the language models may be per GPU, of 8 GPUs.
        epochs: passes over the data.
        steps: updates, for language models.
        runs: seeds.
        smoothing: of labels.
        clip: largest norm of the gradients.
        warmup: part of the updates.
        aux_lr: of the auxiliary SGD.
        head_lr: of the same on the linear head.
        aux_momentum: of the same, Nesterov.
        cpu_batch_size: the fallback.
        train: tokens.
        test: tokens.
        block: tokens in a sequence.
    """

    study: str
    lr: float
    momentum: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    runs: int | None = None
    smoothing: float | None = None
    clip: float | None = None
    warmup: float | None = None
    aux_lr: float | None = None
    head_lr: float | None = None
    aux_momentum: float | None = None
    cpu_batch_size: int | None = None
    train: int | None = None
    test: int | None = None
    block: int | None = None


_TEXT = {"steps": 6000, "train": 10_000_000, "test": 1_000_000, "block": 1024}
RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "q-ablation", 0.0860632, 0.730778, 512, epochs=50, runs=5, smoothing=0.2, clip=1.0, warmup=0.05,
        aux_lr=1.4949e-3, head_lr=1.72446, aux_momentum=0.989703, cpu_batch_size=256,
    ),
    Recipe("mlp-mnist", 0.08, 0.7, 256, epochs=50, runs=5),
    Recipe("resnet18-cifar100", 0.08, 0.7, 512, epochs=50, runs=5),
    Recipe("wrn-tiny-imagenet", 0.08, 0.7, 128, epochs=30, runs=3),
    Recipe("gpt-124m-fineweb", 0.02, 0.95, 8, **_TEXT),
    Recipe("gpt-1.3b-fineweb", 0.02, 0.95, 8, **_TEXT),
)  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of a model, as printed, and as counted on the model that the paper describes."""

    model: str
    printed: str
    counted: int


PARAMETERS: tuple[Parameters, ...] = (
    Parameters("mlp", "0.5M", 535_818),
    Parameters("cifarnet", "2M", 1_972_792),
    Parameters("resnet18", "11.2M", 11_227_812),
    Parameters("wrn-28-10", "36.6M", 36_600_984),
    Parameters("gpt-124m", "124.2M", 124_439_808),
    Parameters("gpt-1.3b", "1313.63M", 1_313_626_112),
)


def common_difference(values: Sequence[float], digits: int = 4) -> float | None:
    """Return the step of an arithmetic progression, or None if the values, rounded to ``digits``, are none."""
    steps = {round(later - sooner, digits) for sooner, later in pairwise(values)}
    return steps.pop() if len(steps) == 1 else None


def is_bfloat16(value: float, digits: int) -> bool:
    """Return whether a number printed with ``digits`` decimals can be a rounded bfloat16 number."""
    (bits,) = struct.unpack(">I", struct.pack(">f", value))
    near = [struct.unpack(">f", struct.pack(">I", (bits & 0xFFFF0000) + step))[0] for step in (0, 0x10000)]
    return any(abs(float(candidate) - value) <= 0.5001 * 10.0**-digits for candidate in near)


def smoothing_floor(classes: int, smoothing: float) -> float:
    """Return the least possible cross-entropy with smoothed labels: the entropy of a label."""
    rest = smoothing / classes
    parts = [1 - smoothing + rest, *[rest] * (classes - 1)]
    return -math.fsum(part * math.log(part) for part in parts if part)
