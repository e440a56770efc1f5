from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = "Definition|Assumption|Proposition|Lemma|Theorem|Corollary|Remark|Algorithm|Table|Figure"
CITATION = re.compile(rf"\b({KINDS})(?:s|ies)? (\d+(?:(?:, | and |-)\d+)*)")
STATEMENTS = {
    "Definition": 5, "Assumption": 2, "Proposition": 2, "Lemma": 11, "Theorem": 4, "Corollary": 2, "Remark": 2,
    "Algorithm": 3,
}  # fmt: skip


def cited(text: str) -> set[tuple[str, int]]:
    """Return every statement that a text names, "Lemmas 2-4 and 7" taken apart."""
    found = set()
    for kind, numbers in CITATION.findall(re.sub(r"\s+", " ", text)):
        for part in re.split(r", | and ", numbers):
            first, _, last = part.partition("-")
            found |= {(kind, n) for n in range(int(first), int(last or first) + 1)}
    return found


def rows() -> list[dict[str, str]]:
    """Return the rows of all tables of the map."""
    result = []
    header: list[str] = []
    for line in (ROOT / "docs/paper-map.md").read_text().splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [c.strip() for c in line.strip("|").split("|")]
        if not header:
            header = cells
        elif not set(line) <= set("|-"):
            result.append(dict(zip(header, cells, strict=True)))
    return result


ROWS = rows()
MAPPED = [row for row in ROWS if "test" in row]


def resolve(path: str) -> object:
    """Return the object that a dotted path names."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"{path} names no module")


def test_citations_are_taken_apart():
    assert cited("(Lemmas 4, 6 and 7, Theorem 2)") == {("Lemma", 4), ("Lemma", 6), ("Lemma", 7), ("Theorem", 2)}
    assert cited("Lemmas 1-3") == {("Lemma", 1), ("Lemma", 2), ("Lemma", 3)}


def test_every_statement_of_the_paper_has_one_row():
    names = [row.get("statement") or row.get("item") for row in ROWS]
    for kind, count in STATEMENTS.items():
        for number in range(1, count + 1):
            assert names.count(f"{kind} {number}") == 1, f"{kind} {number}"


def test_a_row_names_code_a_test_and_a_page_that_exist():
    for row in MAPPED:
        assert resolve(row["code"].strip("`")).__doc__
        assert (ROOT / row["test"].strip("`")).is_file()
        page = re.fullmatch(r"\[page\]\((.+)\)", row["page"])
        assert page is not None
        assert (ROOT / "docs" / page[1]).is_file()


def test_the_code_of_a_row_cites_the_statement():
    for row in [row for row in MAPPED if cited(row["statement"])]:
        found = resolve(row["code"].strip("`"))
        documented = found.fget if isinstance(found, property) else found
        assert cited(row["statement"]) <= cited(inspect.getdoc(documented) or "")


def test_every_citation_in_the_code_has_a_row():
    names = {row.get("statement") or row.get("item") for row in ROWS}
    for path in (ROOT / "src").rglob("*.py"):
        for kind, number in cited(path.read_text()):
            known = f"{kind} {number}" in names or kind in ("Table", "Figure")
            assert known, f"{path.name} cites {kind} {number}, which is not in docs/paper-map.md"


def test_every_table_and_figure_has_the_study_that_makes_it_again():
    from muonlab.lab.studies import studies

    items = {row["item"]: row for row in ROWS if "study" in row}
    assert {f"Table {n}" for n in range(1, 9)} | {f"Figure {n}" for n in range(1, 12)} == set(items)
    for study in studies().values():
        for item in study.items:
            if item.startswith(("Table", "Figure")):
                assert items[item]["study"] == f"`muonlab run {study.name}`"
                assert getattr(resolve(items[item]["code"].strip("`")), "STUDY", None) is study
    remade = {item for study in studies().values() for item in study.items}
    assert set(items) - {"Table 1"} <= remade
