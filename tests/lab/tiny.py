"""A study of a second: a narrow MLP on a part of the digits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from muonlab.lab import Spec, Study
from muonlab.lab.study import Axis, Point, Profile

SPEC = Spec(model="mlp-small", dataset="digits", batch_size=64, steps=12, evaluate_every=5, train=256, test=64, lr=0.05)
OPTIMIZERS = Axis("optimizer", (Point("SGD-M", {"optimizer": "sgdm"}), Point("Muon (q=3)", {"optimizer": "muon"})))


def study(spec: Spec = SPEC, *, work: str = "muonlab.lab.training.loop:train", name: str = "tiny") -> Study:
    profile = Profile(seeds=1, words="tiny", threads=1)
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
    """A desk without a runner: rows in lists, a bell that a test rings after so many updates."""

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
