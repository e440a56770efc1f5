"""The pages as text: what stands in them, in which order, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from html.parser import HTMLParser

import pytest

from muonlab.report.page import numbers
from muonlab.report.page.html import index_html, sortable_table, study_html
from muonlab.report.values import MeanStd, Section, Series, Table
from tests.report import pages


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


@cache
def every_page() -> dict[str, str]:
    return {
        "study": study_html(pages.page()),
        "empty": study_html(pages.empty()),
        "index": pages.index(),
        "empty index": index_html({}, (), ()),
    }


def test_the_parts_of_a_study_come_in_the_order_of_reading(study):
    order = ["warnings", "problems", "summary", "section-training", "figure-loss", "table-final", "section-alignment"]
    order += ["claims", "environment", "files"]
    ids = Outline(study).ids
    assert [name for name in ids if name in order] == order


def test_ids_are_unique_and_every_anchor_has_its_target():
    for name in ["study", "empty", "index", "empty index"]:
        outline = Outline(every_page()[name])
        anchors = [(attributes.get("href") or "")[1:] for tag, attributes in outline.tags if tag == "a"]
        anchors = [anchor for anchor in anchors if f'href="#{anchor}"' in every_page()[name]]
        assert len(outline.ids) == len(set(outline.ids))
        assert set(anchors) <= set(outline.ids)
        assert "content" in anchors


def test_the_policy_allows_the_scripts_and_styles_of_the_page_by_hash_and_nothing_else():
    for name in ["study", "empty", "index", "empty index"]:
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


def test_no_element_has_a_style_a_handler_or_an_address_elsewhere():
    for name in ["study", "empty", "index", "empty index"]:
        for tag, attributes in Outline(every_page()[name]).tags:
            assert not [key for key in attributes if key == "style" or key.startswith("on")], tag
            for key in ("src", "href"):
                address = (attributes.get(key) or "").removeprefix("data:,")
                assert not re.match(r"[a-z]+:|//", address), (name, tag)


def test_verdicts_are_told_by_a_sign_and_by_words(study):
    for sign, words in (("✓", "held"), ("✗", "not held"), ("○", "not tested at this scale")):
        assert f'<span aria-hidden="true">{sign}</span> {words}</span>' in study


def test_labels_stand_beside_the_title_and_every_figure_and_table(study):
    blocks = 1 + 2 + 1 + 1  # title, figures, table, claims
    assert study.count("<li>profile small</li>") == blocks


def test_numbers_in_tables_sort_by_the_whole_value_and_not_by_what_is_printed(study):
    assert 'data-value="0.98765" class="number">0.9877<' in study
    assert 'data-value="1e-05" class="number">1e-05<' in study


def test_the_index_links_each_study_and_counts_its_verdicts_and_cells():
    text = pages.index()
    row = re.search(r"<tr><th scope=\"row\"><a href=\"quickstart-small/index.html\">.*?</tr>", text, re.DOTALL)[0]
    assert re.findall(r'data-value="(\d+)"', row) == ["1", "1", "1", "15"]
    assert "profile small, 3 of 5 seeds" in row
    assert "study.json is not JSON" in text


def test_a_mean_with_its_spread_is_shown_whole_and_sorted_by_the_mean():
    made = Table("t", "T", "", ("a", "loss"), (("x", MeanStd(0.51234, 0.00123, 3)), ("y", MeanStd(2.0, None, 1))))
    shown = sortable_table(made)
    assert shown.numeric == (False, True)
    assert [(row[1].text, row[1].number) for row in shown.rows] == [("0.5123 ± 0.0012", "0.51234"), ("2", "2.0")]


def test_an_empty_study_says_that_there_is_nothing():
    text = study_html(pages.empty())
    assert "This study tests no claim of the paper." in text
    assert "no cell of this study has results yet" in text
    assert 'id="claims"' not in text


def test_a_long_curve_is_thinned_to_sixty_rows_with_both_ends():
    places = tuple(float(x) for x in range(1000))
    shown = numbers.number_tables([pages.panel(curves=pages.series(places=places))]).panels[0]
    assert [len(shown.rows), shown.rows[0][0], shown.rows[-1][0]] == [60, "0", "999"]
    assert shown.note == "60 of 1,000 rows, evenly spaced."


def test_curves_over_places_of_their_own_are_listed_one_after_another():
    curves = tuple(Series(str(k), (k + 0.1, k + 5.1), (1.0, 2.0)) for k in range(4))
    shown = numbers.number_tables([pages.panel(curves=curves)]).panels[0]
    assert shown.header == ["Curve", "epoch", "training loss"]
    assert shown.rows[:2] == [["0", "0.1", "1"], ["0", "5.1", "2"]]
    assert len(shown.rows) == 8


def test_more_than_three_thousand_numbers_are_a_sentence():
    curves = tuple(Series(str(k), pages.EPOCHS, pages.EPOCHS) for k in range(151))
    section = Section("s", "S", "", (pages.figure("many", pages.panel(curves=curves)),))
    text = study_html(pages.page(sections=(section,)))
    assert "This figure has 3,020 numbers, too many for a table" in text
    assert "<summary>Numbers</summary>" not in text
