"""A study that takes a second: a narrow MLP on a part of the digits; and helpers to compare results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muonlab.lab import Spec, Study
from muonlab.lab.runner.results import CellResult
from muonlab.lab.study import Axis, Point, Profile

SPEC = Spec(model="mlp-small", dataset="digits", batch_size=64, steps=12, evaluate_every=5, train=256, test=64, lr=0.05)
OPTIMIZERS = Axis("optimizer", (Point("SGD-M", {"optimizer": "sgdm"}), Point("Muon (q=3)", {"optimizer": "muon"})))


def study(spec: Spec = SPEC, *, work: str = "muonlab.lab.training.loop:train", name: str = "tiny") -> Study:
    profile = Profile(seeds=1, differences="tiny", threads=1)
    return Study(
        number=0,
        name=name,
        title="Tiny",
        claims=("It runs.",),
        items=(),
        base=spec,
        axes=(OPTIMIZERS,),
        profiles={"smoke": profile, "small": profile, "paper": Profile(seeds=2, threads=1)},
        work=work,
    )


class Bench:
    """A CellContext without a runner: rows in lists, and a stop request after a number of checks."""

    def __init__(self, folder: Path, *, stop_after: int | None = None, checkpoint_seconds: float = 1e9) -> None:
        self.folder, self.data, self.key, self.data_hash = folder, None, "key", None
        self.checkpoint_seconds, self.keep_weights = checkpoint_seconds, True
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.asked = 0
        self.stop_after = stop_after

    @property
    def stopping(self) -> bool:
        self.asked += 1
        return self.asked == self.stop_after

    def begin(self, saved: dict[str, dict[str, Any]]) -> None:
        self.rows = {name: self.rows[name][: rows["lines"]] for name, rows in saved.items()}

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        self.rows.setdefault(file, []).append(row)

    def save_rows(self) -> dict[str, dict[str, Any]]:
        return {name: {"lines": len(rows), "sha256": ""} for name, rows in self.rows.items()}

    def progress(self, done: int, total: int, **numbers: float) -> None:
        assert 0 <= done <= total
        assert all(math.isfinite(number) for number in numbers.values())


CLOCKS = ("seconds", "cpu_seconds", "other_seconds")


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def assert_same_cells(cells: Sequence[CellResult], others: Sequence[CellResult]) -> None:
    """Both have the same weights, rows and certificates, apart from the clocks."""
    for a, b in zip(cells, others, strict=True):
        assert (a.label, a.seed, a.status, b.status) == (b.label, b.seed, "done", "done")
        assert a.summary.get("weights_sha256") == b.summary.get("weights_sha256")
        assert without_clock(a.metrics) == without_clock(b.metrics)
        assert a.certificates() == b.certificates()
