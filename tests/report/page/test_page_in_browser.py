"""The pages in a real browser: what a reader sees, points at, sorts, copies, prints and hears."""

from __future__ import annotations

from functools import cache

import pytest

from muonlab.report.page.html import index_html, study_html
from muonlab.report.values import Fact, Link, Page, ReadProblem, Section
from tests.report import pages
from tests.report.pointing import point

pytestmark = pytest.mark.browser

CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, under) => top.slice(0, 3).map((c, i) => c * (top[3] ?? 1) + under[i] * (1 - (top[3] ?? 1)));
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("script, .swatch, title, desc")) continue;
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const ink = over(channels(element.closest("svg") ? style.fill : style.color), ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), element.tagName, walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""
OPEN = "for (const details of document.querySelectorAll('details')) details.open = true"
FITS = "() => [document.documentElement.scrollWidth, innerWidth]"


def column(page, table, number):
    """Return the texts of a column, top to bottom."""
    return page.locator(f"{table} tbody tr > :nth-child({number})").all_text_contents()


@cache
def made(name: str) -> str:
    """Return one of the sample pages; made when a test asks for it."""
    long = "x" * 400
    return {
        "study": lambda: study_html(pages.page()),
        "empty": lambda: study_html(pages.empty()),
        "index": pages.index,
        "long study": lambda: study_html(long_page(long)),
        "long index": lambda: index_html({long: long_page(long)}, pages.findings(), ()),
    }[name]()


def long_page(long: str) -> Page:
    return pages.page(
        title=long,
        labels=(long,),
        warnings=(long,),
        facts=(Fact(long, long, code=True), Fact(long, long)),
        problems=(ReadProblem(long, long),),
        links=(Link(long, long),),
        findings=(pages.finding(statement=long, ours=long),),
    )


@pytest.fixture
def study(open_page):
    return open_page(made("study")).page


@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_loads_without_an_error_or_a_request_and_does_not_scroll_sideways(open_page, width):
    for name in ("study", "index", "empty", "long study", "long index"):
        opened = open_page(made(name), width=width)
        opened.page.evaluate(OPEN)
        assert opened.page.locator("h1").count() == 1
        assert opened.page.evaluate(FITS) == [width, width], name
        assert (opened.errors, opened.requests) == ([], [])


def test_the_policy_stops_scripts_styles_handlers_and_images_that_were_put_in(open_page):
    put_in = (
        "<script>window.hacked = 1</script><p id='x' style='color: rgb(1, 2, 3)'>x</p><button id='y' "
        "onclick='window.hacked = 1'>y</button><style>#x { color: rgb(1, 2, 3) }</style><img src='x.png'></main>"
    )
    opened = open_page(made("study").replace("</main>", put_in))
    opened.page.click("#y")
    assert opened.page.evaluate(
        "[window.hacked === undefined, getComputedStyle(document.querySelector('#x')).color]"
    ) == [
        True,
        "rgb(28, 33, 40)",
    ]
    assert len(opened.errors) == 5
    assert all("Content Security Policy" in error for error in opened.errors)
    opened.errors.clear()
    opened.requests.clear()


def test_numbers_sort_by_value_up_then_down_then_as_they_were_with_dashes_last(study):
    first = column(study, "#table-final table", 2)
    button = study.locator("#table-final thead button").nth(1)
    seen = []
    for _ in range(3):
        button.click()
        state = study.locator("#table-final thead th").nth(1).get_attribute("aria-sort")
        seen.append((state, column(study, "#table-final table", 2)))
    assert seen == [
        ("ascending", ["1e-05", "9.5", "10.25", "10.25", "–"]),
        ("descending", ["10.25", "10.25", "9.5", "1e-05", "–"]),
        ("none", first),
    ]


def test_the_theme_button_changes_the_page_and_the_command_is_copied(open_page):
    page = open_page(made("study")).page
    ground = "getComputedStyle(document.body).backgroundColor"
    for theme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 28)"), ("auto", "rgb(255, 255, 255)")):
        page.locator("[data-theme-button]").click()
        assert page.locator("[data-theme-button]").text_content() == f"Theme: {theme}"
        assert page.evaluate(ground) == colour
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#summary [data-copy]").click()
    page.locator("#summary [data-copy]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "muonlab run quickstart --profile small --json"


def test_values_sort_as_numbers_with_infinities_at_the_ends_and_what_is_no_number_last(open_page):
    values = {"inf": float("inf"), "nan": float("nan"), "one": 1.0, "less": float("-inf"), "huge": 1e300}
    values |= {"tenth": 0.1, "below": 0.09, "minus forty": -40.0, "minus five": -5.0}
    table = pages.table("t", tuple(values.items()), header=("name", "value"))
    page = open_page(study_html(pages.page(sections=(Section("s", "S", "", (), (table,)),)))).page
    page.locator("#table-t thead button").nth(1).press("Enter")
    names = ["less", "minus forty", "minus five", "below", "tenth", "one", "huge", "inf", "nan"]
    assert column(page, "#table-t table", 1) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study", "index", "empty"])
def test_all_text_stands_out_from_its_ground(open_page, name):
    page = open_page(made(name)).page
    page.evaluate(OPEN)
    if page.locator("#figure-loss").count():
        point(page, "loss", pages.figure().panels[0], 5.0, 1.0)
        assert page.locator("#figure-loss [data-tip]").is_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(CONTRAST)
        assert len(found) > 10
        assert [entry for entry in found if entry[0] < 4.5] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study", "index", "empty"])
def test_landmarks_names_and_tables_are_there_for_those_who_listen(open_page, name):
    page = open_page(made(name)).page
    facts = page.evaluate(
        """() => {
          const all = (s) => [...document.querySelectorAll(s)];
          const ids = all("[id]").map((e) => e.id);
          return {
            lang: document.documentElement.lang,
            landmarks: ["main", "body > header", "nav[aria-label]", "body > footer"].map((s) => all(s).length),
            first: document.querySelector("a").textContent,
            twice: ids.filter((id, i) => ids.indexOf(id) !== i),
            lost: all("[aria-labelledby]").flatMap((e) => e.getAttribute("aria-labelledby").split(" "))
              .filter((id) => !document.getElementById(id)),
            figures: all("figure").filter((f) => !f.querySelector("figcaption") || !f.querySelector("[role=img]")
              .getAttribute("aria-label") || !f.querySelector("[aria-live]")).length,
            captions: all("table").filter((t) => !t.caption?.textContent).length,
            scopes: all("th").filter((th) => !th.getAttribute("scope")).length,
            heads: all("table[data-sortable] thead th")
              .filter((th) => th.getAttribute("aria-sort") !== "none" || !th.querySelector("button")).length,
            buttons: all("button").filter((b) => !(b.getAttribute("aria-label") || b.textContent).trim()).length,
          };
        }"""
    )
    assert facts == {
        "lang": "en",
        "landmarks": [1, 1, 1, 1],
        "first": "Skip to content",
        "twice": [],
        "lost": [],
        "figures": 0,
        "captions": 0,
        "scopes": 0,
        "heads": 0,
        "buttons": 0,
    }
