"""The pages in a real browser: what a reader sees, points at, sorts, copies, prints and hears."""

from __future__ import annotations

from functools import cache

import pytest

from muonlab.report.page.html import index_html, study_html
from muonlab.report.values import Entry, Fact, Link, Page, Problem, Section
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
        "index": lambda: index_html(pages.index()),
        "long study": lambda: study_html(long_page(long)),
        "long index": lambda: index_html(pages.index(title=long, entries=(Entry(long, long_page(long)),))),
    }[name]()


def long_page(long: str) -> Page:
    return pages.page(
        title=long,
        labels=(long,),
        warnings=(long,),
        facts=(Fact(long, long, code=True), Fact(long, long)),
        problems=(Problem(long, long),),
        links=(Link(long, long),),
        findings=(pages.finding(statement=long, ours=long),),
    )


@pytest.fixture
def study(open_page):
    return open_page(made("study")).page


@pytest.mark.parametrize("name", ["study", "index", "empty"])
def test_a_page_loads_without_an_error_or_a_request(open_page, name):
    opened = open_page(made(name))
    assert opened.page.locator("h1").count() == 1
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


def test_sorting_is_stable_and_keeps_one_sorted_column(study):
    buttons = study.locator("#table-final thead button")
    buttons.nth(1).click()
    assert column(study, "#table-final table", 1)[2:4] == ["Muon (q=3)", "AdamW"]
    buttons.nth(1).click()
    assert column(study, "#table-final table", 1)[:2] == ["Muon (q=3)", "AdamW"]
    buttons.nth(3).click()
    states = [th.get_attribute("aria-sort") for th in study.locator("#table-final thead th").all()]
    assert states == ["none", "none", "none", "ascending", "none"]


def test_text_sorts_as_in_a_dictionary_with_dashes_last(study):
    study.locator("#table-final thead button").nth(4).click()
    assert column(study, "#table-final table", 5) == ["Ärger", "ours", "ours", "ours", "–"]


def test_values_sort_as_numbers_with_infinities_at_the_ends_and_what_is_no_number_last(open_page):
    values = {"inf": float("inf"), "nan": float("nan"), "one": 1.0, "less": float("-inf"), "huge": 1e300}
    values |= {"tenth": 0.1, "below": 0.09, "minus forty": -40.0, "minus five": -5.0}
    table = pages.table("t", tuple(values.items()), header=("name", "value"))
    page = open_page(study_html(pages.page(sections=(Section("s", "S", "", (), (table,)),)))).page
    page.locator("#table-t thead button").nth(1).press("Enter")
    names = ["less", "minus forty", "minus five", "below", "tenth", "one", "huge", "inf", "nan"]
    assert column(page, "#table-t table", 1) == names


def test_the_index_sorts_and_leads_to_its_studies(open_page):
    page = open_page(made("index")).page
    page.locator("#studies thead button").first.click()
    links = page.locator("#studies tbody a").evaluate_all("links => links.map((a) => a.getAttribute('href'))")
    assert links == ["rank-smoke/index.html", "quickstart-small/index.html"]


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


def test_the_ground_is_white_or_nearly_black_and_the_button_goes_round(open_page):
    ground = "getComputedStyle(document.body).backgroundColor"
    white, black = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
    for dark, expected in ((False, [white, white, black, white]), (True, [black, white, black, black])):
        page = open_page(made("empty"), dark=dark).page
        button = page.locator("[data-theme-button]")
        seen = [(button.text_content(), page.evaluate(ground))]
        for _ in range(3):
            button.click()
            seen.append((button.text_content(), page.evaluate(ground)))
        words = ["Theme: auto", "Theme: light", "Theme: dark", "Theme: auto"]
        assert seen == list(zip(words, expected, strict=True))


@pytest.mark.parametrize("name", ["study", "index", "long study", "long index"])
def test_no_page_scrolls_sideways(open_page, name):
    page = open_page(made(name), width=360).page
    page.evaluate(OPEN)
    assert page.evaluate(FITS) == [360, 360]
    page.set_viewport_size({"width": 768, "height": 900})
    assert page.evaluate(FITS) == [768, 768]


def test_on_a_phone_each_claim_is_a_card_that_is_still_a_row_of_a_table(open_page):
    page = open_page(made("study"), width=360).page
    table = page.locator("table.ledger")
    assert table.bounding_box()["width"] <= 360
    assert page.locator("#claims .scroll").evaluate("e => e.scrollWidth - e.clientWidth") == 0
    assert page.get_by_role("table", name="Claims of the paper").get_by_role("row").count() == 4
    assert page.get_by_role("columnheader", name="Verdict").count() == 1
    assert page.get_by_role("rowheader", name="Newton–Schulz is faster").count() == 1
    page.get_by_role("columnheader", name="Verdict").get_by_role("button").click()
    page.get_by_role("columnheader", name="Verdict").get_by_role("button").click()
    assert [text.split()[0] for text in column(page, "table.ledger", 1)] == ["○", "✗", "✓"]


def test_a_long_list_of_problems_or_files_is_folded_after_the_first(open_page):
    problems = tuple(Problem(f"cell {k}", "unreadable") for k in range(30))
    links = tuple(Link(f"{k}.json", "") for k in range(30))
    page = open_page(study_html(pages.page(problems=problems, links=links))).page
    for part, element, first, folded in (("#problems", "code", 6, "and 24 more"), ("#files", "a", 8, "and 22 more")):
        shown = page.locator(f"{part} {element}")
        assert (shown.count(), shown.locator("visible=true").count()) == (30, first)
        page.locator(f"{part} summary", has_text=folded).click()
        assert shown.locator("visible=true").count() == 30


def test_what_is_wide_scrolls_in_a_region_that_the_keyboard_reaches(open_page):
    page = open_page(made("study"), width=360).page
    wide = page.evaluate(
        """() => [...document.querySelectorAll("main *")]
          .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
          .filter((e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
          .map((e) => [e.tabIndex, /region|group/.test(e.getAttribute("role")), !!e.getAttribute("aria-label")])"""
    )
    assert len(wide) >= 2
    assert all(entry == [0, True, True] for entry in wide)


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
        "first": "To the content",
        "twice": [],
        "lost": [],
        "figures": 0,
        "captions": 0,
        "scopes": 0,
        "heads": 0,
        "buttons": 0,
    }


def test_the_skip_link_is_seen_when_focused_and_leads_to_the_content(study):
    study.keyboard.press("Tab")
    assert study.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    study.keyboard.press("Enter")
    assert study.evaluate("[location.hash, document.activeElement.id]") == ["#content", "content"]


def test_the_command_is_copied(open_page):
    page = open_page(made("study")).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#summary [data-copy]").click()
    page.locator("#summary [data-copy]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "muonlab run quickstart --profile small --json"


def test_without_a_clipboard_the_text_is_selected_and_the_button_says_what_to_press(study):
    study.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    study.evaluate("document.execCommand = () => false")
    study.locator("#summary [data-copy]").click()
    study.locator("#summary [data-copy]", has_text="Selected: press Ctrl+C").wait_for()
    assert study.evaluate("String(getSelection())") == "muonlab run quickstart --profile small --json"


def test_on_paper_everything_is_open_black_on_white_and_nothing_is_cut_off(open_page):
    page = open_page(made("study"), dark=True).page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    kinds = page.evaluate(
        "[...document.querySelectorAll('.scroll, .drawing')].map((e) => getComputedStyle(e).overflowX)"
    )
    assert set(kinds) == {"visible"}
    assert page.locator("[data-theme-button]").is_hidden()
    page.set_viewport_size({"width": 700, "height": 1000})
    assert page.evaluate(FITS) == [700, 700]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


def test_motion_is_smooth_only_where_it_is_welcome(study):
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    assert study.evaluate(behaviour) == "auto"
    study.emulate_media(reduced_motion="no-preference")
    assert study.evaluate(behaviour) == "smooth"


def test_without_scripts_the_page_says_the_same(chromium, tmp_path):
    (tmp_path / "page.html").write_text(study_html(pages.page()), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("summary", has_text="Numbers").first.click()
    assert page.locator("#figure-loss details table").first.is_visible()
    assert page.locator("[data-copy], [data-theme-button]").locator("visible=true").count() == 0
    context.close()
