"""Lemma 11 on this machine: predicted and measured time of an SVD over that of Newton-Schulz steps, by shape."""

from __future__ import annotations

from muonlab.lab import Axis, Point, Profile, Study
from muonlab.lab.costs import CostSpec

_SMALL = (
    (64, 216), (64, 576), (256, 576), (256, 2304),  # CifarNet
    (512, 784), (256, 512),  # MLP
    (768, 768), (768, 2304), (768, 3072),  # GPT, 124M
)  # fmt: skip
_LARGE = ((2048, 2048), (2048, 6144), (2048, 8192))  # GPT, 1.3B


def _shapes(*shapes: tuple[int, int]) -> Axis:
    return Axis("shape", tuple(Point(f"{m}×{n}", {"m": m, "n": n}) for m, n in shapes))


STUDY = Study(
    number=11,
    name="wall-clock",
    title="Time of an SVD over Newton-Schulz steps by shape, predicted and measured",
    claims=(
        "The ratio is (2 + 4m/n)/(q(κ+1)) times the ratio of the throughputs of products and of SVDs (Lemma 11).",
        "Products run at a higher throughput than SVDs, on modern GPUs often 4 to 10 times.",
        "Two or three Newton-Schulz steps take less time than an SVD at every shape.",
    ),
    items=("Lemma 11",),
    base=CostSpec(),
    axes=(_shapes(*_SMALL, *_LARGE),),
    profiles={
        "smoke": Profile(
            1,
            "three of CifarNet's matrices, 3 repetitions",
            {"repeats": 3},
            (_shapes((64, 216), (64, 576), (256, 576)),),
        ),
        "small": Profile(
            1, "the matrices of the MLP, CifarNet and the 124M GPT, 7 repetitions", {"repeats": 7}, (_shapes(*_SMALL),)
        ),
        "paper": Profile(1),
    },
    work="muonlab.lab.costs:measure_costs",
)
