"""The page of a study and the index over several, each one file of HTML that needs no network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muonlab.report.page import markup
from muonlab.report.page.numbers import Numbers, hover_data, numbers_of
from muonlab.report.table_text import labelled, to_latex, to_markdown
from muonlab.report.values import Cell, Entry, Figure, Finding, Index, Page, Section, Spread, Table, Verdict

VERDICTS: tuple[Verdict, ...] = ("held", "not held", "not tested at this scale")
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*)")


@dataclass(frozen=True)
class Shown:
    """A cell as it stands in a table: its text, the number it sorts by, and where it leads."""

    text: str
    number: str | None = None
    missing: bool = False
    path: str | None = None


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted: names of columns, which of them are numbers, and rows."""

    header: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: list[list[Shown]]


@dataclass(frozen=True)
class ShownTable:
    """A table with the texts one can copy."""

    table: Table
    grid: Grid
    markdown: str
    latex: str


@dataclass(frozen=True)
class ShownFigure:
    """A figure whose drawing was looked at, with what the pointer tells and the numbers in words."""

    figure: Figure
    svg: Markup
    data: list[dict[str, object]]
    numbers: Numbers


@dataclass(frozen=True)
class ShownSection:
    """A section with its figures and tables ready."""

    section: Section
    figures: list[ShownFigure]
    tables: list[ShownTable]


def study_html(page: Page) -> str:
    """Return the page of a study as HTML.

    Raises:
        ValueError: if a drawing holds more than shapes and text, or two things would have the same anchor.
    """
    _check_names(page.sections)
    sections = [_shown_section(section, page.labels) for section in page.sections]
    return markup.document(
        "study.html",
        scripts=("report.js", "hover.js"),
        page=page,
        sections=sections,
        counts=_counts(page.findings),
    )


def index_html(index: Index) -> str:
    """Return the page over several studies as HTML."""
    return markup.document(
        "index.html",
        index=index,
        studies=_studies(index.entries),
        counts=_counts(index.findings),
    )


def grid(table: Table) -> Grid:
    """Return a table as it is shown: floats rounded, with the whole number to sort by."""
    return Grid(table.header, table.numeric, [[_shown(table, cell) for cell in row] for row in table.rows])


def _shown(table: Table, cell: Cell) -> Shown:
    if cell is None or cell == "":
        return Shown(table.text(None), missing=True)
    if isinstance(cell, str):
        return Shown(cell)
    if isinstance(cell, Spread):
        return Shown(table.text(cell), number=repr(cell.mean))
    return Shown(table.text(cell), number=repr(cell) if isinstance(cell, float) else str(int(cell)))


def _shown_section(section: Section, labels: Sequence[str]) -> ShownSection:
    named = [(table, labelled(table, labels)) for table in section.tables]
    return ShownSection(
        section,
        [_shown_figure(figure) for figure in section.figures],
        [ShownTable(table, grid(table), to_markdown(text), to_latex(text)) for table, text in named],
    )


def _shown_figure(figure: Figure) -> ShownFigure:
    return ShownFigure(
        figure, markup.drawing(figure.svg, figure.name), hover_data(figure.panels), numbers_of(figure.panels)
    )


def _counts(findings: Iterable[Finding]) -> list[tuple[str, int]]:
    found = Counter(finding.verdict for finding in findings)
    return [(verdict, found[verdict]) for verdict in VERDICTS]


def _studies(entries: Sequence[Entry]) -> Grid:
    header = ("Study", "Profile", "Status", "Labels", "Held", "Not held", "Not tested", "Cells")
    numeric = (False, False, False, False, True, True, True, True)
    return Grid(header, numeric, [_study(entry) for entry in entries])


def _study(entry: Entry) -> list[Shown]:
    page = entry.page
    verdicts = [Shown(str(count), number=str(count)) for _, count in _counts(page.findings)]
    words = [Shown(text or "–", missing=not text) for text in (page.profile, page.status, ", ".join(page.labels))]
    cells = Shown(f"{page.done} of {page.cells}", number=str(page.done))
    return [Shown(page.title or page.study, path=markup.href(entry.path)), *words, *verdicts, cells]


def _check_names(sections: Sequence[Section]) -> None:
    for kind, names in (
        ("section", [section.name for section in sections]),
        ("figure", [figure.name for section in sections for figure in section.figures]),
        ("table", [table.name for section in sections for table in section.tables]),
    ):
        for name, count in Counter(names).items():
            if not _WORD.fullmatch(name):
                raise ValueError(f"a {kind}'s name must be letters, digits and hyphens, got {name!r}: rename it")
            if count > 1:
                raise ValueError(f"names must differ within a page, got {count} {kind}s {name!r}: rename one")
