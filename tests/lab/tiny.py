"""A study of a second: a narrow MLP on a part of the digits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from muonlab.lab import Spec, Study
from muonlab.lab.study import Axis, Point, Profile

SPEC = Spec(model="mlp-small", dataset="digits", batch_size=64, steps=12, evaluate_every=5, train=256, test=64, lr=0.05)
OPTIMIZERS = Axis("optimizer", (Point("SGD-M", {"optimizer": "sgdm"}), Point("Muon (q=3)", {"optimizer": "muon"})))


def study(spec: Spec = SPEC, *, work: str = "muonlab.lab.train:train", name: str = "tiny") -> Study:
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
        self.folder, self.data, self.data_hash = folder, None, None
        self.checkpoint_seconds = checkpoint_seconds
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.asked = 0
        self.stop_after = stop_after

    @property
    def stopping(self) -> bool:
        self.asked += 1
        return self.asked == self.stop_after

    def begin(self, lines: dict[str, int]) -> None:
        self.rows = {name: self.rows[name][:count] for name, count in lines.items()}

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        self.rows.setdefault(file, []).append(row)

    def lines(self) -> dict[str, int]:
        return {name: len(rows) for name, rows in self.rows.items()}

    def progress(self, done: int, total: int, **numbers: float) -> None:
        assert 0 <= done <= total
        assert all(math.isfinite(number) for number in numbers.values())


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
