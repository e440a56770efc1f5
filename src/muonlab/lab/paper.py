"""The printed results of the paper: tables, slopes, varied settings, and which numbers are doubtful."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class TimedLosses:
    """A table of mean training losses over wall-clock time (Kim & Oh 2026, Tables 2-7).

    Args:
        item: its number by order of appearance; the source prints none.
        label: of the table in the source.
        study: the study of this lab that reproduces it.
        model: as in the caption.
        dataset: as in the caption.
        seconds: training time of each column.
        losses: rows by optimizer. The row printed as "Muon with SVD" is ``"Muon (SVD)"``, its name elsewhere there.
    """

    item: str
    label: str
    study: str
    model: str
    dataset: str
    seconds: tuple[int, ...]
    losses: Mapping[str, tuple[float, ...]]


def _table(
    number: int,
    label: str,
    study: str,
    trained: tuple[str, str],
    seconds: tuple[int, ...],
    rows: tuple[tuple[float, ...], ...],
) -> TimedLosses:
    losses = MappingProxyType(dict(zip(OPTIMIZERS, rows, strict=True)))
    return TimedLosses(f"Table {number}", f"tab:{label}", study, *trained, seconds, losses)


OPTIMIZERS = ("SGD-M", "Muon (SVD)", "Muon (q=1)", "Muon (q=2)", "Muon (q=3)")
"""The rows of the tables, in their order."""

TABLES: tuple[TimedLosses, ...] = (
    _table(
        2, "optimizer_results_mlp", "mlp-mnist", ("MLP (0.5M)", "MNIST"), (50, 100, 150, 200, 250),
        (
            (0.550, 0.525, 0.517, 0.514, 0.513),
            (0.616, 0.612, 0.600, 0.583, 0.565),
            (0.526, 0.514, 0.506, 0.502, 0.501),
            (0.532, 0.518, 0.509, 0.503, 0.501),
            (0.548, 0.529, 0.511, 0.503, 0.501),
        ),
    ),
    _table(
        3, "optimizer_results_cifarnet", "q-ablation", ("CifarNet (2M)", "CIFAR-10"), (10, 20, 30, 40, 50, 60),
        (
            (1.366, 1.157, 1.084, 1.045, 1.021, 1.010),
            (2.211, 1.334, 1.227, 1.207, 1.193, 1.182),
            (1.130, 1.014, 0.945, 0.905, 0.888, 0.884),
            (1.129, 1.064, 1.001, 0.932, 0.888, 0.876),
            (1.191, 1.145, 1.079, 0.990, 0.905, 0.876),
        ),
    ),
    _table(
        4, "optimizer_results_resnet18", "resnet18-cifar100", ("ResNet-18 (11.2M)", "CIFAR-100"),
        (100, 200, 300, 400, 500),
        (
            (3.096, 2.612, 2.324, 2.157, 2.072),
            (3.202, 2.767, 2.668, 2.594, 2.522),
            (2.427, 1.986, 1.716, 1.563, 1.514),
            (2.407, 2.127, 1.826, 1.584, 1.495),
            (2.554, 2.329, 1.985, 1.624, 1.481),
        ),
    ),
    _table(
        5, "optimizer_results_imagenet", "wrn-tiny-imagenet", ("WideResNet-28-10 (36.6M)", "Tiny-ImageNet"),
        (400, 800, 1200, 1600, 2000),
        (
            (4.694, 4.299, 4.045, 3.914, 3.857),
            (4.267, 4.020, 3.846, 3.734, 3.520),
            (4.035, 3.369, 2.903, 2.495, 2.144),
            (3.766, 3.246, 2.815, 2.311, 1.856),
            (3.666, 3.317, 2.929, 2.372, 1.800),
        ),
    ),
    _table(
        6, "optimizer_results_fineweb", "gpt-124m-fineweb", ("NanoGPT (124M)", "FineWeb"),
        (100, 200, 300, 400, 500, 600),
        (
            (10.938, 7.656, 6.000, 5.375, 4.938, 4.594),
            (10.250, 9.188, 8.625, 8.062, 7.594, 7.125),
            (5.969, 4.094, 2.469, 1.367, 0.879, 0.637),
            (5.000, 2.344, 1.047, 0.395, 0.157, 0.030),
            (3.984, 2.125, 1.180, 0.523, 0.142, 0.026),
        ),
    ),
    _table(
        7, "optimizer_fineweb_gpt1.3B", "gpt-1.3b-fineweb", ("GPT-2 based model (1.3B)", "FineWeb"),
        (600, 1200, 1800, 2400, 3000, 3600),
        (
            (6.4062, 5.3750, 4.2812, 3.2969, 2.4219, 2.0156),
            (8.2280, 8.0810, 7.9340, 7.7870, 7.6400, 7.4930),
            (6.0625, 3.5156, 1.0781, 0.1436, 0.1338, 0.0109),
            (5.1562, 2.8906, 0.5898, 0.1133, 0.0349, 0.0113),
            (5.6562, 3.2031, 1.2188, 0.4609, 0.1201, 0.0286),
        ),
    ),
)  # fmt: skip
"""Training losses over the wall clock, in the order of the paper."""


@dataclass(frozen=True)
class PrintedSlopes:
    """A row of the table of slopes: exponents of the rank in the epoch mean of ``‖∇f‖_*`` (Kim & Oh 2026, Table 8)."""

    optimizer: str
    raw: float
    normalised: float


RANKS = (16, 32, 64, 128, 216)
SLOPES: tuple[PrintedSlopes, ...] = (
    PrintedSlopes("SGD-M", 0.292, -0.208),
    PrintedSlopes("Muon (SVD)", 0.102, -0.398),
    PrintedSlopes("Muon (q=3)", -0.106, -0.606),  # printed as "Muon (NS)"; the text gives q = 3
)


DEGREES = (1, 2, 3, 4, 5)
BATCH_SIZES = (64, 128, 256, 512, 1024)
AD_HOC = ("3.4445", "-4.7750", "2.0315")
"""Coefficients of the ad-hoc polynomial, in ascending powers of λ."""


@dataclass(frozen=True)
class Doubt:
    """A printed number that is not reliable, and why."""

    item: str
    words: str


DOUBTS: tuple[Doubt, ...] = (
    Doubt(
        "Table 7",
        "The row of Muon (SVD) falls by exactly 0.147 every 600 s, and alone among the rows of Tables 6 and 7 its "
        "values are none of bfloat16's: it was interpolated, so no claim may rest on it.",
    ),
    Doubt(
        "Table 2",
        "The losses end at 0.501, below 0.867, which is the least that smoothing of 0.2 allows with 10 classes: the "
        "MLP was trained with 0.1 or less, though 0.2 is the only value printed.",
    ),
    Doubt(
        "Table 6",
        "6000 updates of 8 sequences are 4.9 passes over 10M tokens, few for a training loss of 0.026: the batch of 8 "
        "may be that of each of 8 GPUs, which makes 39 passes.",
    ),
    Doubt(
        "NanoGPT",
        "124.2M parameters are printed; 12 layers of width 768, 50,257 tokens and 1024 places with a tied head have "
        "124,439,808, and no way of counting that was tried gives 124.2M.",
    ),
)
