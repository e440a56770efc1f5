"""Which clock the times of a study are read from, and for which cells: those that ran on one kind of machine.

Wall seconds are used when every cell ran alone on a quiet machine. Processor seconds are used when every cell ran with
one thread, because then they hardly depend on other processes. Otherwise times are not comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from muonlab.lab.runner.results import CellResult, Results, by_label

ClockName = Literal["wall", "cpu"]
QUIET = 0.05
"""Largest fraction of the machine's processor time that other processes may use while cells are timed."""
UNKNOWN = "an unknown machine"
UNITS: Mapping[ClockName, str] = {"wall": "seconds", "cpu": "CPU seconds"}
"""The unit of each clock."""


def unit_symbol(clock: ClockName | None) -> str:
    """Return the symbol of a clock's second.

    Example:
        >>> unit_symbol("wall"), unit_symbol("cpu")
        ('s', 'CPU s')
    """
    return UNITS[clock or "wall"].replace("seconds", "s")


def unit_name(clock: ClockName) -> str:
    """Return the unit of a clock, with the name of the clock.

    Example:
        >>> unit_name("wall"), unit_name("cpu")
        ('wall seconds', 'CPU seconds')
    """
    return "wall seconds" if clock == "wall" else UNITS[clock]


@dataclass(frozen=True)
class Timing:
    """The times of a study that can be compared.

    Args:
        clock: ``"wall"`` or ``"cpu"``; None if times are not comparable.
        explanation: which clock is used and why, or why there is none, in one sentence.
        hardware: of the timed cells.
        cells: the timed cells, with ``seconds`` of this clock in their rows and summaries; none without a clock.
        left_out: cells that ran on other hardware, or on more than one kind.
    """

    clock: ClockName | None
    explanation: str
    hardware: str = ""
    cells: tuple[CellResult, ...] = field(default=(), repr=False)
    left_out: tuple[CellResult, ...] = field(default=(), repr=False)

    @property
    def unit(self) -> str:
        """The unit of the times, for axes and tables."""
        return UNITS[self.clock or "wall"]

    def places(self) -> dict[str, list[CellResult]]:
        """Return the timed cells by label."""
        return by_label(self.cells)


def timing_of(results: Results) -> Timing:
    """Choose the clock for the finished cells of a study; running seeds count only if no seed has ended."""
    groups: dict[str, list[CellResult]] = {}
    for cell in results.of_ended_seeds().cells:
        if cell.status == "done" and _clocks(cell):
            groups.setdefault(" and ".join(_machines(cell)) or UNKNOWN, []).append(cell)
    if not groups:
        return Timing(None, "No times were measured.")
    single = [name for name, cells in groups.items() if len(_machines(cells[0])) == 1]
    if not single:
        return Timing(None, f"Times are not comparable: no cell ran on one known machine ({'; '.join(groups)}).")
    hardware = max(single, key=lambda name: (len({cell.label for cell in groups[name]}), len(groups[name])))
    cells = groups.pop(hardware)
    left_out = tuple(cell for others in groups.values() for cell in others)
    clock, explanation = _choose(cells)
    if left_out:
        count = f"{len(cells)} of {len(cells) + len(left_out)} cells"
        explanation += f" Times are those of {count}, on {hardware}; the other cells ran on {'; '.join(groups)}."
    if clock is None:
        return Timing(None, explanation, hardware, (), left_out)
    return Timing(clock, explanation, hardware, tuple(on_clock(cell, clock) for cell in cells), left_out)


def on_clock(cell: CellResult, clock: ClockName) -> CellResult:
    """Return a cell with the times of a clock, under the names of the wall clock's times."""
    if clock == "wall":
        return cell
    metrics = tuple(_in_cpu_seconds(row) for row in cell.metrics)
    return replace(cell, metrics=metrics, summary=_in_cpu_seconds(cell.summary))


def _in_cpu_seconds(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers with each ``x`` replaced by ``cpu_x`` where there is one.

    Example:
        >>> _in_cpu_seconds({"step": 1, "seconds": 2.0, "cpu_seconds": 1.5})
        {'step': 1, 'seconds': 1.5, 'cpu_seconds': 1.5}
    """
    return {name: numbers.get(f"cpu_{name}", value) for name, value in numbers.items()}


def _choose(cells: Sequence[CellResult]) -> tuple[ClockName | None, str]:
    busy = _why_not_wall(cells)
    if not busy:
        known = all(_share_of_others(cell) is not None for cell in cells)
        quiet = "on a quiet machine" if known else "and the load by other processes is unknown"
        return "wall", f"Times are wall seconds: each cell ran alone, {quiet}."
    several = _why_not_cpu(cells)
    if not several:
        return "cpu", f"Times are CPU seconds, of one thread for each cell: {busy}."
    return None, f"Times are not comparable: {busy}, and {several}."


def _why_not_wall(cells: Sequence[CellResult]) -> str:
    if any(cell.jobs > 1 for cell in cells):
        return "cells ran side by side"
    shares = [share for cell in cells if (share := _share_of_others(cell)) is not None]
    if max(shares, default=0.0) > QUIET:
        return f"other processes used up to {max(shares):.0%} of the machine"
    return ""


def _share_of_others(cell: CellResult) -> float | None:
    """Return the fraction of the machine's processor time that other processes used; None if unknown."""
    clocks = _clocks(cell)
    if clocks.get("other_seconds") is None or not cell.cores or not clocks["seconds"]:
        return None
    return float(clocks["other_seconds"] / clocks["seconds"] / cell.cores)


def _why_not_cpu(cells: Sequence[CellResult]) -> str:
    if any(str(cell.spec.get("device", "cpu")).partition(":")[0] != "cpu" for cell in cells):
        return "they ran on a GPU"
    if any(cell.ranks and max(cell.ranks) > 1 for cell in cells):
        return "several processes trained each of them"
    if any(cell.spec.get("threads", 1) != 1 for cell in cells):
        return "they ran with more than one thread"
    if any(_clocks(cell).get("cpu_seconds") is None for cell in cells):
        return "their processor time was not measured"
    return ""


def _clocks(cell: CellResult) -> Mapping[str, Any]:
    """Return the clocks of a cell at its end, or at its last evaluation; empty if it has none."""
    return next((row for row in (cell.summary, cell.last) if isinstance(row.get("seconds"), (int, float))), {})


def _machines(cell: CellResult) -> list[str]:
    """Return the machines that a cell ran on, with the number of processes if there were several; empty if unknown."""
    ranks = [f", {count} processes" if count > 1 else "" for count in cell.ranks or (1,)]
    return [f"{hardware}{count}" for hardware in cell.machines for count in ranks]
