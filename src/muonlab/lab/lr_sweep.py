"""A cell of the study lr-by-steps: the same training run with several learning rates, one row for each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from muonlab import _checks
from muonlab.lab.cell_context import CellContext, Stopped
from muonlab.lab.files.row_files import SavedRows
from muonlab.lab.spec import Spec


@dataclass(frozen=True)
class SweepSpec(Spec):
    """A training run that is repeated with several learning rates, ``lr`` and each next one twice the one before.

    The auxiliary optimizer must have a rate and a momentum of its own, so that only the main one varies.

    Args:
        aux_lr: as in :class:`Spec`, not None.
        aux_momentum: as in :class:`Spec`, not None.
        lr_count: number of learning rates.
    """

    aux_lr: float | None = 0.08
    aux_momentum: float | None = 0.7
    lr_count: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.integer("lr_count", self.lr_count, at_least=1)
        for name in ("aux_lr", "aux_momentum"):
            if getattr(self, name) is None:
                raise ValueError(f"a sweep must fix {name}, got none: set it, so that only the main optimizer varies")

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates, each twice the one before.

        Example:
            >>> SweepSpec(lr=0.02, lr_count=3).rates
            (0.02, 0.04, 0.08)
        """
        return tuple(self.lr * 2**k for k in range(self.lr_count))

    def run_spec(self, lr: float) -> Spec:
        """Return the spec of the training run with one of the rates."""
        return Spec(**{field.name: getattr(self, field.name) for field in fields(Spec)}).changed({"lr": lr})


def sweep(spec: SweepSpec, context: CellContext) -> dict[str, float | int]:
    """Train with every learning rate and write a row for each; return the numbers of that with the least training loss.

    A row (``event: "rate"``) has ``lr``, the last evaluation (``final_train_loss`` is the mean over the updates since
    the evaluation before, ``final_test_loss``, ``final_test_accuracy``), and the means over the recorded steps, without
    the first, of what the optimizer did with the momenta: ``descent`` is ρ = ⟨M, O⟩/‖M‖_*, ``op_norm`` is s = ‖O‖_op.
    These two are missing if nothing was recorded.

    A sweep that is stopped starts again from its first rate.
    """
    from muonlab.lab.training.loop import train

    context.begin({})
    best: dict[str, Any] = {}
    for number, lr in enumerate(spec.rates):
        context.progress(number, spec.lr_count)
        run = _OneRun(context)
        train(spec.run_spec(lr), run)
        row = {"event": "rate", "lr": lr, **_last_evaluation(run.rows), **_gains(run.rows)}
        context.write(row)
        if not best or row["final_train_loss"] < best["final_train_loss"]:
            best = row
    context.progress(spec.lr_count, spec.lr_count)
    return {"rates": spec.lr_count, "best_lr": best["lr"], **{name: best[name] for name in _FINAL}}


_FINAL = ("final_train_loss", "final_test_loss", "final_test_accuracy")


class _OneRun:
    """The context of one of the training runs: its rows stay in memory, and it writes no checkpoints and weights."""

    def __init__(self, cell: CellContext) -> None:
        self._cell = cell
        self.folder: Path = cell.folder
        self.data: Path | None = cell.data
        self.key: str = cell.key
        self.data_hash: str | None = cell.data_hash
        self.checkpoint_seconds, self.keep_weights = float("inf"), False
        self.rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def stopping(self) -> bool:
        """False; raise :class:`Stopped` at once if the cell is asked to stop, as there is nothing to save."""
        if self._cell.stopping:
            raise Stopped
        return False

    def begin(self, saved: SavedRows) -> None:
        """Start without rows: a run has no checkpoint to resume from."""
        assert not saved

    def write(self, row: dict[str, Any], file: str = "metrics") -> None:
        """Keep a row."""
        self.rows.setdefault(file, []).append(row)

    def save_rows(self) -> SavedRows:
        """Return nothing: rows are not saved."""
        return {}

    def progress(self, done: int, total: int, **numbers: float) -> None:
        """Show nothing: the cell shows its rates."""


def _last_evaluation(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    last = rows["metrics"][-1]
    return {name: last[name.removeprefix("final_")] for name in ("step", *_FINAL)}


def _gains(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return the means of ρ and s of the network over the recorded steps, without the first: there M is a gradient."""
    whole = [row for row in rows.get("certificates", []) if row["event"] == "whole" and row["step"] > 1]
    names = ("descent", "op_norm") if whole else ()
    return {name: statistics.fmean(row[name] for row in whole) for name in names}
