"""Render the page of a study and the index of several studies as HTML, each a single file without network access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muonlab.report.page import markup
from muonlab.report.page.numbers import NumberTables, hover_data, number_tables
from muonlab.report.table_text import to_latex, to_markdown, with_labels
from muonlab.report.values import VERDICTS, Figure, Finding, Index, IndexEntry, MeanStd, Page, Section, Table, TableCell


@dataclass(frozen=True)
class CellView:
    """A cell of an HTML table: its text, the number it sorts by, and the path it links to."""

    text: str
    number: str | None = None
    missing: bool = False
    path: str | None = None


@dataclass(frozen=True)
class SortableTable:
    """An HTML table: names of columns, which of them are numeric, and rows."""

    header: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: list[list[CellView]]


@dataclass(frozen=True)
class TableView:
    """A table with its texts to copy."""

    table: Table
    sortable: SortableTable
    markdown: str
    latex: str


@dataclass(frozen=True)
class FigureView:
    """A figure with its data for the pointer and its numbers as tables."""

    figure: Figure
    svg: Markup
    data: list[dict[str, object]]
    numbers: NumberTables


@dataclass(frozen=True)
class SectionView:
    """A section whose figures and tables are ready for the template."""

    section: Section
    figures: list[FigureView]
    tables: list[TableView]


def study_html(page: Page) -> str:
    """Return the page of a study as HTML."""
    return markup.document(
        "study.html",
        scripts=("report.js", "hover.js"),
        page=page,
        sections=[_section_view(section, page.labels) for section in page.sections],
        counts=_verdict_counts(page.findings),
    )


def index_html(index: Index) -> str:
    """Return the index of several studies as HTML."""
    header = ("Study", "Profile", "Status", "Labels", "Held", "Not held", "Not tested", "Cells")
    numeric = (False, False, False, False, True, True, True, True)
    studies = SortableTable(header, numeric, [_index_row(entry) for entry in index.entries])
    return markup.document("index.html", index=index, studies=studies, counts=_verdict_counts(index.findings))


def sortable_table(table: Table) -> SortableTable:
    """Return a table for HTML: numbers are printed rounded, and sorted by their full value."""
    return SortableTable(table.header, table.numeric, [[_cell_view(table, cell) for cell in row] for row in table.rows])


def _cell_view(table: Table, cell: TableCell) -> CellView:
    if cell is None or cell == "":
        return CellView(table.text(None), missing=True)
    if isinstance(cell, str):
        return CellView(cell)
    return CellView(table.text(cell), number=repr(cell.mean if isinstance(cell, MeanStd) else cell))


def _section_view(section: Section, labels: Sequence[str]) -> SectionView:
    return SectionView(
        section,
        [
            FigureView(figure, markup.inline_svg(figure.svg), hover_data(figure.panels), number_tables(figure.panels))
            for figure in section.figures
        ],
        [
            TableView(
                table,
                sortable_table(table),
                to_markdown(with_labels(table, labels)),
                to_latex(with_labels(table, labels)),
            )
            for table in section.tables
        ],
    )


def _verdict_counts(findings: Iterable[Finding]) -> list[tuple[str, int]]:
    counts = Counter(finding.verdict for finding in findings)
    return [(verdict, counts[verdict]) for verdict in VERDICTS]


def _index_row(entry: IndexEntry) -> list[CellView]:
    page = entry.page
    return [
        CellView(page.title, path=entry.path),
        *(CellView(text or "–", missing=not text) for text in (page.profile, page.status, ", ".join(page.labels))),
        *(CellView(str(count), number=str(count)) for _, count in _verdict_counts(page.findings)),
        CellView(f"{page.done} of {page.cells}", number=str(page.done)),
    ]
