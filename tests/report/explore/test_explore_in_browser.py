"""The explorer in a real browser: whatever the controls say, the numbers shown are the library's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from muonlab.polynomials import analyse
from muonlab.report.explore import data as explorer_data
from muonlab.report.explore import explorer as explore
from tests.report.explorer_views import FRAME, RANKS, READ, SET, View, differences, expected, views

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer_data, "RANKS", RANKS)
        patch.setattr(explorer_data, "SHARP_STEPS", 1)
        yield Path(explore.explore(tmp_path_factory.mktemp("explorer") / "explore.html")["page"])


def compared(page: Any, some: list[View]) -> list[str]:
    wrong = []
    for view in some:
        page.evaluate(SET, view.controls)
        wrong += differences(page.evaluate(READ), view)
    return wrong


def test_every_number_is_the_librarys_over_the_whole_grid(open_page, page_file):
    some = views()
    assert len(set(some)) >= 40
    assert {view.name for view in some} == set(explorer_data.polynomial_names())
    assert {view.q for view in some} == set(range(11))
    assert {view.kind for view in some} == set(explorer_data.SPECTRA)
    assert {view.prescale for view in some} == set(explorer_data.PRESCALES)
    assert {view.shape for view in some} == set(explorer_data.SHAPES)
    assert {0, 44} <= {view.lambda0 for view in some}
    page = open_page(page_file).page
    assert set(page.evaluate(READ)) == set(expected(View()))
    assert compared(page, some) == []


@pytest.mark.parametrize("basis", ["u", "phi"])
def test_a_coefficient_that_is_off_in_the_eighth_digit_is_noticed(open_page, page_file, basis):
    head, mark, rest = page_file.read_text(encoding="utf-8").partition('id="explorer-data">')
    text, end, tail = rest.partition("</script>")
    data = json.loads(text)
    data["polynomials"]["taylor2"]["steps"][0][basis][-1] *= 1 + 1e-8
    page = open_page(head + mark + json.dumps(data) + end + tail).page
    assert compared(page, [View(lambda0=0), View()]) != []
    assert compared(page, [View(name="taylor3")]) == []


@pytest.mark.slow
def test_what_the_paper_does_not_cover_is_not_applicable_with_the_librarys_reason(open_page, page_file):
    page = open_page(page_file).page
    reasons = page.locator("[data-reason-of]:visible")
    assert reasons.count() == 0
    page.select_option("#polynomial", "jordan")
    page.evaluate(SET, {"q": "5"})
    why = analyse(explorer_data.schedule_of("jordan", 1).polynomials[0]).reason
    for name in ("m-chi-bound", "delta"):
        assert why in page.locator(f'[data-reason-of="{name}"]').inner_text()
    assert page.locator('[data-number="chi-bound"]').inner_text() == "not applicable"
    assert page.locator("#kappa").is_disabled()
    page.evaluate(SET, {"q": "0"})  # no step: Theorem 2 has nothing to object to
    assert reasons.count() == 1
    assert "q of 1 or more" in reasons.inner_text()
    page.evaluate(SET, {"q": "3", "polynomial": "taylor", "prescale": "paper", "norm": "2"})
    assert "leaves norm 0.001 and" in page.locator('[data-reason-of="floor"]').inner_text()


def test_the_headline_and_the_sides_follow_the_shape(open_page, page_file):
    page = open_page(page_file).page
    assert "χ ≤ 5,215" in page.locator("output#headline").inner_text()
    assert "1/a = 1.64" in page.locator("output#headline").inner_text()
    page.select_option("#shape", "64x576")
    assert "64 × 576" in page.locator("output#headline").inner_text()
    assert (page.input_value("#m"), page.input_value("#n")) == ("64", "576")
    page.fill("#m", "")
    page.fill("#n", "99999999")
    page.keyboard.press("Tab")
    assert page.input_value("#n") == "576"
    assert differences(page.evaluate(READ), View(shape=(64, 576), m=64, n=576)) == []
    page.click("#reset")
    assert differences(page.evaluate(READ), View()) == []


def test_the_address_holds_the_view(open_page, page_file):
    view = View("polar_express", 4, 30, "two values", (768, 3072), "paper", 3, 0, 12, 345, 5)
    page = open_page(page_file).page
    page.evaluate(SET, view.controls)
    page.wait_for_url(re.compile("ratio="))
    fragment = page.evaluate("location.hash")
    assert parse_qs(fragment[1:])["lambda0"] == ["5e-7"]
    other = open_page(page_file).page
    other.goto(f"{page_file.as_uri()}{fragment}")
    other.reload()
    assert other.evaluate("location.hash") == fragment
    assert differences(other.evaluate(READ), view) == []
    controls = {name: other.input_value(f"#{name}") for name in view.controls}
    assert controls == view.controls


JUMP = """(fragment) => new Promise((done) => {
  addEventListener("hashchange", () => setTimeout(done), { once: true });
  location.hash = fragment;
})"""
HACK = "<img src=x onerror=window.hacked=1>"
HOSTILE = (
    f"kappa={HACK}", f"q={HACK}&polynomial={HACK}", "polynomial=__proto__", "polynomial=constructor&spectrum=toString",
    "spectrum=gaussian%20768x768&shape=__proto__", "kappa=1e999&q=-1e999", "q=NaN", "q=Infinity&kappa=-Infinity",
    "lambda0=0", "lambda0=-1&norm=0&ratio=-5", "lambda0=1e-400", "q=3.7&kappa=0x2", "m=-3&n=1e300", "m=&n=%00",
    "m=1;alert(1)", "%E0%A4%A", "&&&===&q", f"</script><script>window.hacked=1</script>&q={'9' * 4000}",
    "javascript:window.hacked=1", "q=3&q=5&q=<b>", "prescale=none", "shape=1x1&rank=1e999", "kappa[]=2&kappa=%2B3",
)  # fmt: skip


def test_hostile_fragments_are_ignored_or_clamped_and_never_become_markup(open_page, page_file):
    page = open_page(page_file).page
    elements = "[document.querySelectorAll('script,img,iframe,b,a').length, document.body.children.length]"
    before = page.evaluate(elements)
    sound = (
        """() => [...document.querySelectorAll("#controls input")].every((c) => c.value !== "" && c.validity.valid)"""
    )
    for place, fragment in enumerate(HOSTILE):
        page.evaluate(JUMP, fragment)
        if place % 6 == 0:
            page.reload()
        assert page.evaluate("window.hacked") is None
        assert page.evaluate(elements) == before, fragment
        assert page.evaluate(sound), fragment
        shown = page.evaluate(READ)
        assert math.isfinite(float(shown["alignment"][0])), fragment
        assert "<" not in page.locator("#headline").inner_text(), fragment
    page.goto(f"{page_file.as_uri()}#kappa=99&q=-4&m=0&n=123456&lambda0=1e-300")
    page.reload()
    assert differences(page.evaluate(READ), View("taylor5", 0, 44, m=1, n=16384)) == []


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_scrolls_sideways(open_page, page_file, width):
    page = open_page(page_file, width=width).page
    page.evaluate(SET, View("polar_express", 10, 44, "decaying gaussian", m=16384, n=16384).controls)
    page.evaluate(FRAME)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_pointer_reads_the_curves(open_page, page_file):
    page = open_page(page_file).page
    page.evaluate(FRAME)
    page.locator("#plot-factor").scroll_into_view_if_needed()
    box = page.locator("#plot-factor").bounding_box()
    page.mouse.move(box["x"] + 46 + (box["width"] - 58) * 3.3 / 10.6, box["y"] + 100)  # q = 3 between -0.3 and 10.3
    words = page.locator("#plot-factor + .readout")
    assert words.inner_text() == "q = 3, χ bound = 5,215, χ = 4,111, 1/a = 1.64"
    page.mouse.move(1, 1)
    assert words.inner_text() == ""
