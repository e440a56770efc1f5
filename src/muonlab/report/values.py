"""The values that a page is made of: figures with their numbers, tables, findings, and read problems."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

ClaimVerdict = Literal["held", "not held", "not tested at this scale"]
VERDICTS: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
ResultRow = Mapping[str, Any]
"""A row of ``metrics.jsonl`` or ``certificates.jsonl``, or the summary of a cell."""
AxisScale = Literal["linear", "log"]


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation over runs; the deviation of a single run is None."""

    mean: float
    std: float | None
    runs: int


TableCell = str | int | float | MeanStd | None
"""A table cell; None is printed as a dash."""


@dataclass(frozen=True)
class Series:
    """The numbers of a curve, which the page shows under the pointer.

    Args:
        label: name in the legend.
        x: positions, ascending.
        y: one value for each position.
        std: standard deviation at each position; None for a single run.
        colour: as ``#rrggbb``.
    """

    label: str
    x: tuple[float, ...] = field(repr=False)
    y: tuple[float, ...] = field(repr=False)
    std: tuple[float, ...] | None = field(default=None, repr=False)
    colour: str = ""


@dataclass(frozen=True)
class Panel:
    """One set of axes in a figure: its position in the drawing, its scales and its curves.

    Args:
        x_name: label of the horizontal axis, with its unit.
        y_name: label of the vertical axis.
        box: left, top, right and bottom in units of the drawing's viewBox.
        x_range: values at the left and right end.
        y_range: values at the bottom and top end.
        x_scale: scale of the horizontal axis.
        y_scale: scale of the vertical axis.
        series: the curves.
    """

    x_name: str
    y_name: str
    box: tuple[float, float, float, float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_scale: AxisScale
    y_scale: AxisScale
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Figure:
    """A drawing for a page, with its texts and numbers.

    Args:
        name: file name and anchor; letters, digits and hyphens.
        title: heading.
        alt: text alternative: what the figure shows.
        caption: how to read it, in one or two sentences.
        svg: the drawing, without scripts, style attributes and links; all ids begin with ``name``.
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
    """A table; the first column names the row.

    Args:
        name: file name and anchor; letters, digits and hyphens.
        title: heading.
        caption: what the numbers are.
        header: names of the columns.
        rows: one cell for each column: text, number, mean with deviation, or None.
        digits: significant digits of floats.
    """

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    digits: int = 4

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column has only numbers and dashes."""
        return tuple(
            all(not isinstance(row[j], str) for row in self.rows) and any(row[j] is not None for row in self.rows)
            for j in range(len(self.header))
        )

    def text(self, cell: TableCell) -> str:
        """Return the printed text of a cell.

        Example:
            >>> table = Table("t", "", "", ("x",), ())
            >>> table.text(0.123456), table.text(MeanStd(0.5, 0.0123, 3)), table.text(None)
            ('0.1235', '0.500 ± 0.012', '–')
        """
        if cell is None:
            return "–"
        if isinstance(cell, MeanStd):
            return self.text(cell.mean) if not cell.std else _with_deviation(cell.mean, cell.std)
        return f"{cell:.{self.digits}g}" if isinstance(cell, float) else str(cell)


def _with_deviation(mean: float, std: float) -> str:
    """Return mean ± deviation, both to the second significant digit of the deviation."""
    decimals = 1 - math.floor(math.log10(std))
    if not 0 <= decimals <= 8 or abs(mean) >= 1e8:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim of the paper.

    Args:
        claim: its name in the ledger.
        source: where the paper makes it.
        statement: the claim as a sentence.
        study: the study that tests it, with profile, data labels and number of runs.
        rule: the rule that decides it, with its tolerance.
        ours: our result as text.
        paper: the paper's result as text; empty if it prints none.
        verdict: ``"held"``, ``"not held"`` or ``"not tested at this scale"``.
        why: details of the decision, or why the claim was not tested.
    """

    claim: str
    source: str
    statement: str
    study: str
    rule: str
    ours: str
    paper: str
    verdict: ClaimVerdict
    why: str


@dataclass(frozen=True)
class ReadProblem:
    """A file or cell that could not be read, and why."""

    where: str
    what: str


@dataclass(frozen=True)
class Section:
    """A part of a page: an introduction, figures and tables."""

    name: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Fact:
    """A name and its value in the summary or the environment of a page; ``code`` marks a command to copy."""

    name: str
    value: str
    code: bool = False


@dataclass(frozen=True)
class Link:
    """A file of the run directory: its path relative to the page, and what it contains."""

    path: str
    content: str


@dataclass(frozen=True)
class Page:
    """The page of a study.

    Args:
        title: title of the study.
        study: its name.
        profile: the profile that was run.
        status: ``"done"``, ``"open"`` or ``"failed"``.
        labels: short warnings shown next to the title and every number: profile, subset, stand-in.
        warnings: sentences to read before the numbers: what is smaller, incomplete or not comparable.
        facts: command, data, seeds, cells.
        environment: machine and versions.
        findings: verdicts on the claims of this study.
        sections: figures and tables.
        links: files of the run.
        problems: what could not be read.
        cells: number of cells.
        done: number of finished cells.
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
    problems: tuple[ReadProblem, ...]
    cells: int = 0
    done: int = 0
