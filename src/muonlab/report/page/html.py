"""Render the page of a study and the index of several studies as HTML, each a single file without network access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muonlab.report.page import markup
from muonlab.report.page.numbers import hover_data, number_tables
from muonlab.report.table_text import to_latex, to_markdown, with_labels
from muonlab.report.values import VERDICTS, Finding, MeanStd, Page, ReadProblem, Table, TableCell


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


def study_html(page: Page) -> str:
    """Return the page of a study as HTML."""
    return markup.document(
        "study.html",
        scripts=("report.js", "hover.js"),
        page=page,
        counts=_verdict_counts(page.findings),
        sortable_table=sortable_table,
        with_labels=with_labels,
        to_markdown=to_markdown,
        to_latex=to_latex,
        inline_svg=markup.inline_svg,
        hover_data=hover_data,
        number_tables=number_tables,
    )


def index_html(pages: Mapping[str, Page], findings: Sequence[Finding], problems: Sequence[ReadProblem]) -> str:
    """Return the index of several studies as HTML.

    Args:
        pages: the page of each study by its path relative to the index.
        findings: verdicts on all claims of the ledger.
        problems: what could not be read.
    """
    header = ("Study", "Profile", "Status", "Labels", "Held", "Not held", "Not tested", "Cells")
    numeric = (False, False, False, False, True, True, True, True)
    studies = SortableTable(header, numeric, [_index_row(path, page) for path, page in pages.items()])
    counts = _verdict_counts(findings)
    return markup.document("index.html", studies=studies, findings=findings, problems=problems, counts=counts)


def sortable_table(table: Table) -> SortableTable:
    """Return a table for HTML: numbers are printed rounded, and sorted by their full value."""
    return SortableTable(table.header, table.numeric, [[_cell_view(table, cell) for cell in row] for row in table.rows])


def _cell_view(table: Table, cell: TableCell) -> CellView:
    if cell is None or cell == "":
        return CellView(table.text(None), missing=True)
    if isinstance(cell, str):
        return CellView(cell)
    return CellView(table.text(cell), number=repr(cell.mean if isinstance(cell, MeanStd) else cell))


def _verdict_counts(findings: Iterable[Finding]) -> list[tuple[str, int]]:
    counts = Counter(finding.verdict for finding in findings)
    return [(verdict, counts[verdict]) for verdict in VERDICTS]


def _index_row(path: str, page: Page) -> list[CellView]:
    return [
        CellView(page.title, path=path),
        *(CellView(text or "–", missing=not text) for text in (page.profile, page.status, ", ".join(page.labels))),
        *(CellView(str(count), number=str(count)) for _, count in _verdict_counts(page.findings)),
        CellView(f"{page.done} of {page.cells}", number=str(page.done)),
    ]
