"""The evidence for a claim: the finished runs of a study by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.runner.timing import Timing, timing_of, unit_symbol
from muonlab.report.curves import Rows, mean_std, time_to, trace

UNTIMED = Timing(None, "No times were measured.")


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of a rule: whether the claim held, our result as text, and details of the decision."""

    held: bool
    ours: str
    why: str


@dataclass(frozen=True)
class Evidence:
    """The finished cells of a study, with the numbers that rules need.

    Its methods raise :class:`MissingEvidenceError` if a number is not among the results.

    Args:
        results: of the study; None if it was not run.
        done: the finished cells by label.
        timing: the clock of the study.
        timed: the finished cells whose times are comparable, by label; their ``seconds`` are from that clock.
    """

    results: Results | None
    done: Mapping[str, Sequence[CellResult]]
    timing: Timing = UNTIMED
    timed: Mapping[str, Sequence[CellResult]] = field(default_factory=dict)

    @property
    def second(self) -> str:
        """The symbol of the unit of time: ``"s"`` or ``"CPU s"``."""
        return unit_symbol(self.timing.clock)

    @property
    def finished(self) -> list[CellResult]:
        """The finished cells of all labels."""
        return [cell for cells in self.done.values() for cell in cells]

    def cells(self, label: str) -> Sequence[CellResult]:
        """Return the runs of a label."""
        if label not in self.done:
            raise MissingEvidenceError(f"{label} was not run")
        return self.done[label]

    def timed_cells(self, label: str) -> Sequence[CellResult]:
        """Return the runs of a label whose times are comparable."""
        self.cells(label)
        if self.timing.clock is None:
            raise MissingEvidenceError(self.timing.explanation)
        if label not in self.timed:
            raise MissingEvidenceError(f"{label} has no run that was timed on {self.timing.hardware}")
        return self.timed[label]

    def timed_runs(self, label: str) -> list[Rows]:
        """Return the rows of each run of a label whose times are comparable."""
        return [cell.metrics for cell in self.timed_cells(label)]

    def runs(self, label: str) -> list[Rows]:
        """Return the rows of each run of a label."""
        return [cell.metrics for cell in self.cells(label)]

    def last(self, label: str, metric: str) -> float:
        """Return a metric at the end of training, mean over runs."""
        return _mean(label, metric, [trace([cell.last], metric, "epoch")[1].tolist() for cell in self.cells(label)])

    def to_reach(self, labels: Sequence[str], metric: str) -> tuple[float, dict[str, float]]:
        """Return the lowest loss that every timed run of these labels reaches, and the mean time to it by label."""
        if not labels:
            raise MissingEvidenceError("no run is finished")
        lowest = [_values(label, metric, rows).min() for label in labels for rows in self.timed_runs(label)]
        target = float(max(lowest))
        return target, {
            label: _mean(label, metric, [[time_to(rows, metric, target)] for rows in self.timed_runs(label)])
            for label in labels
        }

    def seconds_per_update(self, label: str) -> float:
        """Return the time of training per update, mean over the timed runs."""
        return _mean(label, "seconds", [[cell.seconds_per_update] for cell in self.timed_cells(label)])

    def timed_summaries(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the label and summary of every timed cell."""
        return [(label, cell.summary) for label in self.done for cell in self.timed_cells(label)]

    def rows(self, event: str) -> list[tuple[CellResult, Mapping[str, Any]]]:
        """Return all rows of an event, with their cell, of the finished cells."""
        return [(cell, row) for cell in self.finished for row in cell.metrics if row["event"] == event]

    def certificates(self) -> list[tuple[CellResult, Mapping[str, Any]]]:
        """Return the recorder's rows with their cell, one for each matrix and recorded step."""
        return [(cell, row) for cell in self.finished for row in cell.certificates() if row["event"] == "matrix"]


class MissingEvidenceError(ValueError):
    """The results lack what a rule needs."""


def evidence_of(results: Results) -> Evidence:
    """Return the finished and the timed cells of a study as evidence."""
    timing = timing_of(results)
    return Evidence(results, results.places(status="done"), timing, timing.places())


def _values(label: str, metric: str, rows: Rows) -> Any:
    values = trace(rows, metric, "seconds")[1]
    if not len(values):
        raise MissingEvidenceError(f"{label} has no {metric.replace('_', ' ')}")
    return values


def _mean(label: str, metric: str, values: Sequence[Sequence[float | None]]) -> float:
    sound = [value for run in values for value in run if value is not None]
    if not sound or len(sound) < len(values):
        raise MissingEvidenceError(f"{label} has a run without {metric.replace('_', ' ')}")
    return mean_std(sound).mean
