"""Values under the pointer, the arrow keys and a finger, in a real browser."""

from __future__ import annotations

import pytest

from muonlab.report.page.html import study_html
from muonlab.report.values import Page, Panel, Section, Series
from tests.report import pages
from tests.report.pointing import point, tip

pytestmark = pytest.mark.browser


def with_figure(*panels: Panel) -> Page:
    return pages.page(sections=(Section("s", "S", "", (pages.figure("loss", *panels),)),))


@pytest.fixture
def study(open_page):
    return open_page(study_html(pages.page())).page


def test_the_pointer_reads_every_curve_at_the_nearest_epoch(study):
    for which, scale in [(0, "linear"), (1, "log")]:
        panel = pages.figure().panels[which]
        assert panel.x_scale == scale
        for epoch, other in ((1.0, 2.0), (7.0, 8.0), (7.0, 6.0), (20.0, 20.4)):
            # Nine tenths of the way to the middle between two epochs, as it is drawn.
            beside = epoch**0.55 * other**0.45 if scale == "log" else 0.55 * epoch + 0.45 * other
            point(study, "loss", panel, beside, 0.5)
            losses = [pages.loss(i, epoch) for i in range(len(pages.OPTIMIZERS))]
            expected = [f"{loss:.4g} ± {0.02 * loss:.4g}" for loss in losses]
            assert tip(study) == (f"epoch {epoch:.0f}", dict(zip(pages.OPTIMIZERS, expected, strict=True)))
            across = pages.position(panel, epoch, 0.5)[0]
            guide = study.locator("#figure-loss .guide")
            assert [float(guide.get_attribute(end)) for end in ("x1", "x2")] == pytest.approx([across, across])


@pytest.mark.slow
def test_of_many_curves_the_nearest_to_the_pointer_are_told(open_page):
    curves = tuple(Series(f"c{k}", (1.0, 20.0), (k / 20, k / 20)) for k in range(40))
    panel = pages.panel(curves=curves)
    page = open_page(study_html(with_figure(panel))).page
    point(page, "loss", panel, 2.0, 1.0)
    _, rows = tip(page)
    assert len(rows) == 12
    assert {"c18", "c19", "c20", "c21", "c22"} <= set(rows)
    assert page.locator("#figure-loss [data-tip]").text_content().endswith("and 28 more")


def test_arrow_keys_read_the_values_aloud_and_escape_ends_it(study):
    drawing = study.locator("#figure-loss .drawing")
    said = study.locator("#figure-loss [data-said]")
    drawing.focus()
    drawing.press("ArrowRight")
    assert said.text_content().startswith("Panel 1 of 2. epoch 1; Muon (q=1): 0.9857 ± 0.01971; ")
    drawing.press("ArrowRight")
    assert tip(study)[0] == "epoch 2"
    drawing.press("ArrowDown")
    assert said.text_content().startswith("Panel 2 of 2. epoch 2; ")
    drawing.press("End")
    assert tip(study) == ("epoch 20", tip(study)[1])
    drawing.press("ArrowRight")
    assert tip(study)[0] == "epoch 20"
    drawing.press("ArrowLeft")
    drawing.press("ArrowUp")
    assert said.text_content().startswith("Panel 1 of 2. epoch 19; ")
    drawing.press("Escape")
    assert study.locator("#figure-loss [data-tip]").is_hidden()
    assert said.text_content() == ""


@pytest.mark.slow
def test_a_finger_reads_the_values_too(open_page):
    page = open_page(study_html(pages.page()), width=360, touch=True).page
    svg = page.locator("#figure-loss svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    across, down = pages.position(pages.figure().panels[0], 5.0, 1.0)
    page.touchscreen.tap(box["x"] + across * box["width"] / 720, box["y"] + down * box["height"] / 290)
    assert tip(page)[0] == "epoch 5"
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
