"""The pages as text: what stands in them, in which order, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from muonlab.report.page import markup, numbers
from muonlab.report.page.html import grid, index_html, study_html
from muonlab.report.values import Entry, Link, Section, Series, Spread, Table
from tests.report import pages
from tests.report.hostile import HOSTILE

SHAPE = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{}</svg>'


class Outline(HTMLParser):
    """Ids, headings and elements of a page, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]

    @property
    def levels(self) -> list[int]:
        return [int(tag[1]) for tag, _ in self.tags if re.fullmatch(r"h[1-6]", tag)]


@pytest.fixture(scope="module")
def study() -> str:
    return study_html(pages.page())


def every_page() -> dict[str, str]:
    return {
        "study": study_html(pages.page()),
        "empty": study_html(pages.empty()),
        "index": index_html(pages.index()),
        "empty index": index_html(pages.index(entries=(), findings=(), problems=())),
    }


def test_the_parts_of_a_study_come_in_the_order_of_reading(study):
    order = ["warnings", "problems", "summary", "section-training", "figure-loss", "table-final", "section-alignment"]
    order += ["claims", "environment", "files"]
    ids = Outline(study).ids
    assert [name for name in ids if name in order] == order


@pytest.mark.parametrize("name", ["study", "empty", "index", "empty index"])
def test_headings_descend_one_level_at_a_time_below_a_single_h1(name):
    levels = Outline(every_page()[name]).levels
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))


@pytest.mark.parametrize("name", ["study", "empty", "index", "empty index"])
def test_ids_are_unique_and_every_anchor_has_its_target(name):
    outline = Outline(every_page()[name])
    anchors = [(attributes.get("href") or "")[1:] for tag, attributes in outline.tags if tag == "a"]
    anchors = [anchor for anchor in anchors if f'href="#{anchor}"' in every_page()[name]]
    assert len(outline.ids) == len(set(outline.ids))
    assert set(anchors) <= set(outline.ids)
    assert "content" in anchors


@pytest.mark.parametrize("name", ["study", "empty", "index", "empty index"])
def test_the_policy_allows_the_scripts_and_styles_of_the_page_by_hash_and_nothing_else(name):
    text = every_page()[name]
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    for kind in ("script", "style"):
        inside = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inside]
        sources = " ".join(f"'sha256-{value}'" for value in hashes)
        assert f"; {kind}-src {sources}; " in policy
        assert inside
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("; img-src data:; base-uri 'none'; form-action 'none'")
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", ["study", "empty", "index", "empty index"])
def test_no_element_has_a_style_a_handler_or_an_address_elsewhere(name):
    for tag, attributes in Outline(every_page()[name]).tags:
        assert not [key for key in attributes if key == "style" or key.startswith("on")], tag
        for key in ("src", "href"):
            assert not re.match(r"[a-z]+:|//", (attributes.get(key) or "").removeprefix("data:,")), (tag, attributes)


def test_verdicts_are_told_by_a_sign_and_by_words(study):
    for sign, words in (("✓", "held"), ("✗", "not held"), ("○", "not tested at this scale")):
        assert f'<span aria-hidden="true">{sign}</span> {words}</span>' in study


def test_labels_stand_beside_the_title_and_every_figure_and_table(study):
    blocks = 1 + 2 + 1 + 1  # title, figures, table, claims
    assert study.count("<li>profile small</li>") == blocks


def test_numbers_in_tables_sort_by_the_whole_value_and_not_by_what_is_printed(study):
    assert 'data-value="0.98765" class="number">0.9877<' in study
    assert 'data-value="1e-05" class="number">1e-05<' in study


def test_a_table_can_be_copied_as_markdown_and_latex(study):
    assert "| Muon (q=1) | 9.5 | 0.9877 | 10 | ours |" in study
    assert r"\begin{tabular}{lrrrl}" in study


def test_the_index_links_each_study_and_counts_its_verdicts_and_cells():
    text = index_html(pages.index())
    row = re.search(r"<tr><th scope=\"row\"><a href=\"quickstart-small/index.html\">.*?</tr>", text, re.DOTALL)[0]
    assert re.findall(r'data-value="(\d+)"', row) == ["1", "1", "1", "15"]
    assert "profile small, 3 of 5 seeds" in row
    assert "study.json is not JSON" in text


def test_cells_of_the_index_are_sorted_by_how_many_are_done():
    page = pages.page(cells=1_020, done=1_015)
    text = index_html(pages.index(entries=(Entry("a", page), Entry("b", page))))
    assert text.count('data-value="1015" class="number">1015 of 1020<') == 2


def test_a_mean_with_its_spread_is_shown_whole_and_sorted_by_the_mean():
    made = Table("t", "T", "", ("a", "loss"), (("x", Spread(0.51234, 0.00123, 3)), ("y", Spread(2.0, None, 1))))
    shown = grid(made)
    assert shown.numeric == (False, True)
    assert [(row[1].text, row[1].number) for row in shown.rows] == [("0.5123 ± 0.0012", "0.51234"), ("2", "2.0")]


def test_an_empty_study_says_that_there_is_nothing():
    text = study_html(pages.empty())
    assert "No claim of the paper is decided by this study." in text
    assert "nothing of this study has been run to the end" in text
    assert 'id="claims"' not in text


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("<script>1</script>", "<script>"),
        ("<style>*{}</style>", "<style>"),
        ("<foreignObject/>", "<foreignObject>"),
        ("<image href='#x'/>", "<image>"),
        ("<a href='#x'/>", "<a>"),
        ("<animate onbegin='1'/>", "<animate>"),
        ("<path onclick='1'/>", "no 'onclick'"),
        ("<path OnClick='1'/>", "no 'onclick'"),
        ("<path style='fill:red'/>", "no 'style'"),
        ("<use href='https://example.invalid/#x'/>", "itself only"),
        ("<use xlink:href='x.svg#x'/>", "itself only"),
        ("<path fill='url(https://example.invalid/)'/>", "itself only"),
        ("<path fill='url(\"x.svg#y\")'/>", "itself only"),
        ("<path d='JavaScript:1'/>", "itself only"),
        ("<path id='other'/>", "begin with its name"),
        ("<title><![CDATA[<script>1</script>]]></title>", "no declarations"),
        ("<path>", "well-formed"),
        ("&undefined;", "well-formed"),
    ],
)
def test_a_drawing_that_could_run_load_or_link_is_refused(inside, words):
    figure = pages.figure(svg=SHAPE.format(inside))
    with pytest.raises(ValueError, match=re.escape(words)):
        study_html(pages.page(sections=(Section("s", "S", "", (figure,)),)))


def test_what_is_no_drawing_is_refused():
    with pytest.raises(ValueError, match="must be an svg element, got 'p'"):
        markup.drawing("<p/>", "x")


def test_a_drawing_may_refer_to_its_own_parts_and_loses_its_prologue():
    svg = SHAPE.format("<metadata>m</metadata><path id='x-1'/><use xlink:href='#x-1' clip-path='url(#x-2)'/>")
    text = markup.drawing(f'<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "a"\n "b">\n<!-- c -->{svg}', "x")
    assert text == svg.replace("<metadata>m</metadata>", "")


@pytest.mark.parametrize("name", ["", "two words", "a/b", "<b>", "ä", "-x"])
def test_a_name_that_is_no_anchor_is_refused(name):
    with pytest.raises(ValueError, match="a section's name must be letters"):
        study_html(pages.page(sections=(Section(name, "", ""),)))


def test_two_figures_of_one_name_are_refused():
    section = Section("s", "S", "", (pages.figure(), pages.figure()))
    with pytest.raises(ValueError, match="got 2 figures 'loss'"):
        study_html(pages.page(sections=(section,)))


@pytest.mark.parametrize("path", HOSTILE)
def test_no_path_becomes_an_address_with_a_scheme_or_a_host(path):
    address = markup.href(path)
    assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", address)
    assert not address.startswith("//")
    assert f'href="{address}"' in study_html(replace(pages.empty(), links=(Link(path, ""),)))


def test_every_page_can_be_written_as_utf_8():
    text = study_html(replace(pages.empty(), title="lone \ud800", labels=("nul \x00",)))
    assert "lone \ufffd".encode() in text.encode()
    assert "\x00" not in text


def test_what_is_not_finite_is_null_in_the_data_of_a_figure():
    curve = Series("a", (1.0, 2.0, 3.0), (math.nan, math.inf, 0.1234567891), (0.1, math.nan, 0.0))
    data = numbers.hover_data([pages.panel(curves=(curve,))])
    assert data[0]["series"][0]["y"] == [None, None, 0.123457]
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_long_curve_is_thinned_to_sixty_rows_with_both_ends():
    places = tuple(float(x) for x in range(1000))
    shown = numbers.numbers_of([pages.panel(curves=pages.series(places=places))]).panels[0]
    assert [len(shown.rows), shown.rows[0][0], shown.rows[-1][0]] == [60, "0", "999"]
    assert shown.note == "60 of 1,000 rows, evenly spaced."


def test_curves_over_places_of_their_own_are_listed_one_after_another():
    curves = tuple(Series(str(k), (k + 0.1, k + 5.1), (1.0, 2.0)) for k in range(4))
    shown = numbers.numbers_of([pages.panel(curves=curves)]).panels[0]
    assert shown.header == ["Curve", "epoch", "training loss"]
    assert shown.rows[:2] == [["0", "0.1", "1"], ["0", "5.1", "2"]]
    assert len(shown.rows) == 8


def test_more_than_three_thousand_numbers_are_a_sentence():
    curves = tuple(Series(str(k), pages.EPOCHS, pages.EPOCHS) for k in range(151))
    section = Section("s", "S", "", (pages.figure("many", pages.panel(curves=curves)),))
    text = study_html(pages.page(sections=(section,)))
    assert "The 3,020 numbers behind this figure are too many" in text
    assert "<summary>Numbers</summary>" not in text


def test_a_panel_without_curves_has_no_table():
    section = Section("s", "S", "", (pages.figure("none", pages.panel(curves=())),))
    assert "<summary>Numbers</summary>" not in study_html(pages.page(sections=(section,)))


def test_a_large_report_is_made_within_three_seconds():
    figures = tuple(pages.figure(f"f{k}") for k in range(40))
    rows = tuple((f"row {k}", k / 7, k, "text", None) for k in range(1000))
    tables = tuple(pages.table(f"t{k}", rows) for k in range(3))
    page = pages.page(sections=(Section("s", "S", "", figures, tables),), findings=pages.findings() * 14)
    study_html(pages.page())
    start = time.process_time()
    text = study_html(page)
    assert time.process_time() - start < 3
    assert text.count("<figure") == 40


def test_an_asset_that_would_close_its_own_element_is_refused(tmp_path, monkeypatch):
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "x.js").write_text("'</script>'")
    monkeypatch.setattr(markup, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="must not have a closing tag"):
        markup.asset("x.js")
