"""What a page is made of: figures with the numbers behind them, tables, findings, and what could not be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["held", "not held", "not tested at this scale"]
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Spread:
    """A mean over runs, and one standard deviation; None for a single run."""

    mean: float
    std: float | None
    runs: int


Cell = str | int | float | Spread | None
"""An entry of a table; None is a dash."""


@dataclass(frozen=True)
class Series:
    """A curve as numbers: what a reader sees when the pointer is on it.

    Args:
        label: as in the legend.
        x: places, ascending.
        y: values, one for each.
        spread: one standard deviation at each, or None where there is one run only.
        colour: as drawn.
    """

    label: str
    x: tuple[float, ...] = field(repr=False)
    y: tuple[float, ...] = field(repr=False)
    spread: tuple[float, ...] | None = field(default=None, repr=False)
    colour: str = ""


@dataclass(frozen=True)
class Panel:
    """One set of axes in a figure: where it lies in the drawing, what its scales are, and its curves.

    Args:
        x_name: of the horizontal axis, with its unit.
        y_name: of the vertical one.
        box: left, top, right and bottom in units of the drawing's viewBox.
        x_range: values at its left and right.
        y_range: values at its bottom and top.
        x_scale: of the horizontal axis.
        y_scale: of the vertical one.
        series: the curves.
    """

    x_name: str
    y_name: str
    box: tuple[float, float, float, float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_scale: Scale
    y_scale: Scale
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Figure:
    """A drawing that can stand in a page, with its words and numbers.

    Args:
        name: a word of letters, digits and hyphens: file name and anchor.
        title: a line above it.
        alt: what it shows, in words, for those who cannot see it.
        caption: how to read it, in a sentence or two.
        svg: the drawing: no scripts, no style attributes, no links, ids that begin with ``name``.
        panels: the numbers.
    """

    name: str
    title: str
    alt: str
    caption: str
    svg: str = field(repr=False)
    panels: tuple[Panel, ...] = field(repr=False)


@dataclass(frozen=True)
class Table:
    """Rows under headers; the first column names the row.

    Args:
        name: a word of letters, digits and hyphens: file name and anchor.
        title: a line above it.
        caption: what the numbers are.
        header: one name for each column.
        rows: of as many cells. Text, numbers, means with their spread, or None.
        digits: significant digits of floats.
    """

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 4

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"a row must have a cell for each of {len(self.header)} columns, got {len(row)} in {self.name!r}: "
                    f"use None for a missing one"
                )

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it has numbers (and dashes) only."""
        return tuple(
            all(not isinstance(row[j], str) for row in self.rows) and any(row[j] is not None for row in self.rows)
            for j in range(len(self.header))
        )

    def text(self, cell: Cell) -> str:
        """Return a cell as it is printed.

        Example:
            >>> table = Table("t", "", "", ("x",), ())
            >>> table.text(0.123456), table.text(Spread(0.5, 0.0123, 3)), table.text(None)
            ('0.1235', '0.500 ± 0.012', '–')
        """
        if cell is None:
            return "–"
        if isinstance(cell, Spread):
            return self.text(cell.mean) if not cell.std else _with_spread(cell.mean, cell.std)
        return f"{cell:.{self.digits}g}" if isinstance(cell, float) else str(cell)


def _with_spread(mean: float, std: float) -> str:
    """Return a mean to the second digit of its spread."""
    decimals = 1 - math.floor(math.log10(std))
    if not 0 <= decimals <= 8 or abs(mean) >= 1e8:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


@dataclass(frozen=True)
class Finding:
    """A claim as decided by its rule.

    Args:
        claim: name of the entry in the ledger.
        source: where the paper says so.
        statement: what it says.
        study: that tests it.
        rule: what decides, tolerance included.
        ours: our number, in words.
        paper: the paper's, in words; empty where it prints none.
        verdict: ``"held"``, ``"not held"`` or ``"not tested at this scale"``.
        why: what decided, or why it was not tested.
    """

    claim: str
    source: str
    statement: str
    study: str
    rule: str
    ours: str
    paper: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Problem:
    """Something in a directory that could not be used, and why."""

    where: str
    what: str


@dataclass(frozen=True)
class Section:
    """A part of a page: figures and tables that belong together."""

    name: str
    title: str
    words: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Fact:
    """A line of the page's head or of its environment: a name, and what it is; ``code`` for what is typed."""

    name: str
    value: str
    code: bool = False


@dataclass(frozen=True)
class Link:
    """A file of the run directory, by its path from the page."""

    path: str
    words: str


@dataclass(frozen=True)
class Page:
    """All that the page of a study says.

    Args:
        title: of the study.
        study: its name.
        profile: what was run of it.
        status: ``"done"``, ``"open"`` or ``"failed"``.
        labels: short warnings that stand beside the title and every number: profile, subset, stand-in.
        warnings: sentences a reader must know before the numbers: what is smaller, incomplete, not comparable.
        facts: command, data, seeds, cells.
        environment: machine and versions.
        findings: the claims of this study.
        sections: figures and tables.
        links: to the files of the run.
        problems: what could not be used.
        cells: how many there are.
        done: of them.
    """

    title: str
    study: str
    profile: str
    status: str
    labels: tuple[str, ...]
    warnings: tuple[str, ...]
    facts: tuple[Fact, ...]
    environment: tuple[Fact, ...]
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    links: tuple[Link, ...]
    problems: tuple[Problem, ...]
    cells: int = 0
    done: int = 0


@dataclass(frozen=True)
class Entry:
    """A study in the index: its page by path from the index, and the page's head."""

    path: str
    page: Page


@dataclass(frozen=True)
class Index:
    """All that the page over several studies says; findings are those of the whole ledger."""

    title: str
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
