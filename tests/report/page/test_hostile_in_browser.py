"""Hostile strings in every place of a page, in a real browser: they are text, and nothing comes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muonlab.report import write_report
from muonlab.report.page.html import index_html, study_html
from muonlab.report.values import Fact, Link, Page, ReadProblem, Section, Series
from tests.report import pages
from tests.report.hostile import HOSTILE
from tests.report.pointing import point, tip
from tests.report.rundirs import write_run

pytestmark = pytest.mark.browser


def shown_text(text: str) -> str:
    """A string as a page shows it, with single spaces."""
    return " ".join(text.split())


def hostile_page() -> Page:
    curves = tuple(Series(text, (1.0, 2.0), (0.5, 0.25), None, text) for text in HOSTILE)
    panel = pages.panel(curves=curves)
    figure = pages.figure("loss", replace(panel, series=()))
    table = pages.table("all", tuple((text, text, 1.0) for text in HOSTILE), header=("a", "b", "c"))
    heads = pages.table("heads", (HOSTILE,), header=HOSTILE)
    return pages.page(
        labels=HOSTILE,
        warnings=HOSTILE,
        facts=tuple(Fact(text, text, code=bool(i % 2)) for i, text in enumerate(HOSTILE)),
        environment=tuple(Fact(text, text) for text in HOSTILE),
        findings=tuple(
            pages.finding(statement=text, rule=text, ours=text, paper=text, why=text, source=text, claim=text)
            for text in HOSTILE
        ),
        sections=(Section("s", HOSTILE[0], HOSTILE[1], (replace(figure, panels=(panel,)),), (table, heads)),),
        links=tuple(Link(text, text) for text in HOSTILE),
        problems=tuple(ReadProblem(text, text) for text in HOSTILE),
    )


def test_hostile_strings_are_text_everywhere(open_page):
    page = open_page(study_html(hostile_page())).page
    point(page, "loss", pages.panel(), 1.0, 1.0)
    expected = [shown_text(text) for text in HOSTILE]
    for selector in (
        ".head .badges li",
        "#warnings li",
        "#summary dt",
        "#environment dd",
        "#problems code",
        "#problems .what",
        "#files a",
        "#table-all tbody th",
        "#table-all tbody td:nth-child(2)",
        "#table-heads thead th",
        "#claims .statement",
        "#claims tbody td:last-child",
        "#figure-loss details thead th:not(:first-child)",
    ):
        assert [shown_text(text) for text in page.locator(selector).all_text_contents()] == expected, selector
    assert {shown_text(label) for label in tip(page)[1]} <= set(expected)
    assert page.evaluate("window.hacked") is None
    studies = {text: replace(pages.empty(), title=text) for text in HOSTILE}
    index = open_page(index_html(studies, pages.findings(), ())).page
    links = index.locator("#studies tbody a")
    assert [shown_text(text) for text in links.all_text_contents()] == expected
    assert links.evaluate_all("links => links.every((a) => a.href.startsWith('file:'))")
    assert index.evaluate("window.hacked") is None
    assert page.locator("script:not([type])").count() == 2
    assert page.locator("script").count() == 3
    assert page.locator("img, iframe, object, embed, form, input, base, math, template, plaintext").count() == 0
    attributes = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((e) => !e.matches(".tip, .swatch"))
          .flatMap((e) => e.getAttributeNames()).filter((name) => /^(on|style)/.test(name))"""
    )
    assert attributes == []
    schemes = page.locator("#files a").evaluate_all("links => [...new Set(links.map((a) => new URL(a.href).protocol))]")
    assert schemes == ["file:"]


@pytest.mark.slow
def test_hostile_labels_go_through_a_run_directory_its_figures_and_its_page_as_text(open_page, tmp_path):
    labels = [text for text in HOSTILE if len(text) < 200]  # longer ones cannot name a folder
    folder = write_run(tmp_path / "run", labels, seeds=1)
    assert write_report(folder)["problems"] == []
    page = open_page(folder / "report.html").page
    shown = page.locator("#table-final-losses tbody th").all_text_contents()
    assert [shown_text(text) for text in shown] == [shown_text(text) for text in labels]
    assert page.locator("figure :is(a, image, foreignObject)").count() == 0
    assert page.locator("script:not([type])").count() == 2  # our own
