"""Drawings: plain, self-contained, the same every time, and true to their numbers."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import matplotlib
import numpy as np
import pytest

from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import (
    MOST_ALT,
    DrawnPanel,
    clean,
    finite_numbers,
    legend,
    name_axes,
    new_canvas,
    power,
    shorten,
    to_figure,
)
from muonlab.report.figures.style import CurveStyle
from muonlab.report.figures.svg import INK, plain_svg
from tests.report.drawn import SVG, paths, placed

RED = "#dd3377"
STYLE = CurveStyle(RED, "o")
HOSTILE = [
    "$x^2$", "$\\frac{1}{", "<script>alert(1)</script>", "&amp; & &#0;", "a_b^c \\", "😀 漢字", "two\nlines\t",
    "\x00\x1b[31m", "\ud800 lone", "\ufffe", "\u202eturned", "]]>", "<!-- -->", "x" * 5000, "", "_hidden",
    "url(javascript:x)", "%s {0}",
]  # fmt: skip


def draw(
    x=(1.0, 2.0, 3.0, 4.0), y=(1.0, 3.0, 2.0, 5.0), label="a", name="fig", x_scale="linear", y_scale="linear", **words
):
    x, y = finite_numbers(x, x_scale), finite_numbers(y, y_scale)
    with new_canvas(3) as canvas:
        axes = canvas.subplots()
        name_axes(axes, words.get("x_name", "x"), words.get("y_name", "y"), x_scale=x_scale, y_scale=y_scale)
        line = drawing.draw_curve(axes, x, y, STYLE)
        legend(canvas, [(label, line)])
        traced = DrawnPanel(
            axes, words.get("x_name", "x"), words.get("y_name", "y"), [drawing.series(label, x, y, colour=RED)]
        )
        title, alt = words.get("title", "Title"), words.get("alt", "Alt")
        return to_figure(canvas, [traced], name=name, title=title, alt=alt, caption="Caption")


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def assert_plain(svg, name):
    assert svg.startswith("<svg ")
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("width") is None
    assert len(root.get("viewBox").split()) == 4
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    assert set(root.get("aria-labelledby").split()) <= set(ids)
    allowed = {"svg", "g", "defs", "path", "use", "clipPath", "rect", "text", "title", "desc"}
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in allowed
        for key, value in element.attrib.items():
            assert key != "style"
            assert not key.lower().startswith("on")
            assert "{" not in key, "no foreign namespaces"
            assert INK not in value
            if key == "id":
                assert value.startswith(f"{name}-")
            if key == "href":
                assert value.removeprefix("#") in ids
            if "url(" in value:
                assert re.fullmatch(r"url\(#(.+)\)", value)[1] in ids
            if key in ("d", "x", "y", "transform"):
                assert not re.search(r"nan|inf", value, re.IGNORECASE)
    assert not re.search(r"<!|<\?|xlink|<style|#000000", svg)


def test_a_drawing_is_plain_and_says_what_it_is():
    figure = draw(title="A <title> & more", alt="What is seen")
    assert_plain(figure.svg, "fig")
    root = ET.fromstring(figure.svg)
    assert root.find(f"{SVG}title").text == "A <title> & more" == figure.title
    assert root.find(f"{SVG}desc").text == "What is seen" == figure.alt


def test_axes_and_words_take_the_ink_of_the_page():
    root = ET.fromstring(draw().svg)
    assert all(element.get("fill") == "currentColor" for element in root.iter(f"{SVG}text"))
    strokes = {element.get("stroke") for element in root.iter() if element.get("stroke")}
    assert strokes == {"currentColor", RED}
    assert root.get("font-family") == "system-ui, sans-serif"
    grid = [element.get("stroke-opacity") for element in root.iter(f"{SVG}path") if element.get("stroke-opacity")]
    assert grid
    assert all(float(value) < 0.3 for value in grid)
    assert not any(element.get("fill") in ("#ffffff", "white") for element in root.iter())


def test_the_same_numbers_give_the_same_bytes_whatever_the_user_has_set():
    first = draw(label="$1 & 😀")
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "text.usetex": True}):
        assert draw(label="$1 & 😀") == first
        assert matplotlib.rcParams["font.size"] == 30
    assert dict(matplotlib.rcParams) == before
    assert draw(label="$1 & 😀", name="other").svg != first.svg


def test_hostile_words_stay_words(caplog):
    for label in HOSTILE:
        figure = draw(label=label, x_name=label, y_name=label, title=label, alt=label)
        assert_plain(figure.svg, "fig")
        said = texts(figure.svg)
        if clean(label):
            assert shorten(label) in said
        assert figure.panels[0].series[0].label == clean(label) == figure.panels[0].x_name
        assert len(figure.alt) <= MOST_ALT
        assert not caplog.records
        figure.svg.encode()


def test_the_panel_places_points_where_they_are_drawn():
    for scales in [("linear", "linear"), ("log", "linear"), ("linear", "log"), ("log", "log")]:
        x, y = (1.0, 2.0, 30.0, 400.0), (0.5, 300.0, 2.0, 50.0)
        figure = draw(x, y, x_scale=scales[0], y_scale=scales[1])
        panel = figure.panels[0]
        (line,) = paths(figure.svg, RED)
        assert len(line) == 4
        for drawn, a, b in zip(line, x, y, strict=True):
            assert drawn == pytest.approx(placed(panel, a, b), abs=0.03)
            assert panel.box[0] <= drawn[0] <= panel.box[2]
            assert panel.box[1] <= drawn[1] <= panel.box[3]
        assert (panel.x_scale, panel.y_scale) == scales
        assert panel.series[0].x == x
        assert panel.series[0].y == y


def test_numbers_that_cannot_be_drawn_leave_a_gap():
    for scale in ["linear", "log"]:
        y = [1.0, 2.0, math.nan, math.inf, -math.inf, None, 1.7e308, 3.0, 4.0]
        figure = draw(range(9), y, y_scale=scale)
        assert_plain(figure.svg, "fig")
        assert figure.panels[0].series[0].x == (0.0, 1.0, 7.0, 8.0)
        assert figure.panels[0].series[0].y == (1.0, 2.0, 3.0, 4.0)
        (line,) = paths(figure.svg, RED)
        assert len(line) == 4


def test_a_single_or_constant_value_can_be_drawn():
    for value in [0.0, -3.5, 1e140]:
        for x in ((1.0,), (1.0, 2.0)):
            panel = draw(x, [value] * len(x)).panels[0]
            assert all(map(math.isfinite, (*panel.box, *panel.x_range, *panel.y_range)))
            assert panel.y_range[0] < panel.y_range[1]


def test_a_log_axis_of_values_that_differ_by_rounding_has_a_range_about_them():
    for level in [1e-149, 2.0]:
        panel = draw((1, 2), (level, np.nextafter(level, math.inf)), y_scale="log").panels[0]
        assert panel.y_range == pytest.approx((level / 1.5, level * 1.5))


def test_series_are_thinned_but_keep_both_ends():
    x = np.arange(1000.0)[::-1]
    one = drawing.series("a", x, x**2, x / 10, colour=RED)
    assert len(one.x) == 60
    assert (one.x[0], one.x[-1], one.y[-1]) == (0.0, 999.0, 999.0**2)
    assert list(one.x) == sorted(one.x)
    assert one.std == pytest.approx(np.array(one.x) / 10)
    assert drawing.series("a", np.array([]), np.array([]), colour=RED).x == ()


def test_a_missing_spread_is_missing_and_not_zero():
    for spread in [(math.nan, math.nan), (0.5, math.nan), (math.inf, 0.5)]:
        assert drawing.series("a", np.arange(2.0), np.arange(2.0), np.array(spread), colour=RED).std is None


def test_log_ticks_are_plain_text():
    said = texts(draw((1, 10), (1e-9, 1e4), y_scale="log").svg)
    assert {"10⁻⁸", "10⁴"} & set(said)
    assert not any("mathdefault" in text for text in said)
    assert [power(value) for value in (1e-7, 3e5, 1000.0, 0.002, 0.0, -1.0)] == [
        "10⁻⁷",
        "3×10⁵",
        "1000",
        "0.002",
        "",
        "",
    ]


def test_styles_of_the_drawing_become_attributes_and_the_rest_goes():
    written = b"""<?xml version="1.0"?><!DOCTYPE svg><svg xmlns="http://www.w3.org/2000/svg" width="1pt"
      viewBox="0 0 9 9" xmlns:xlink="http://www.w3.org/1999/xlink" onload="x()"><metadata>m</metadata>
      <style>*{}</style><script>x()</script><!-- c --><g id="unused"><text x="1.23456" onclick="x()"
      style="font: italic 700 12.5px 'A', serif; text-anchor: end; fill: #010203">hi</text></g>
      <image xlink:href="http://host/a.png"/><foreignObject/><defs><path id="m" d="M 0 0 \nL 1.005 2"/></defs>
      <use xlink:href="#m" style="stroke: #dd3377; behavior: url(x); position: fixed"/>
      <a xlink:href="http://x"><path d="M 0 0"/></a></svg>"""
    svg = plain_svg(written, name="n", title="t", alt="a")
    assert_plain(svg, "n")
    assert not re.search("host|script|image|behavior|position|metadata|http://x|unused", svg)
    text = next(ET.fromstring(svg).iter(f"{SVG}text"))
    assert text.attrib == {
        "x": "1.23", "font-size": "12.5", "font-style": "italic", "font-weight": "700", "text-anchor": "end",
        "fill": "currentColor",
    }  # fmt: skip
    assert next(ET.fromstring(svg).iter(f"{SVG}use")).attrib == {"href": "#n-m", "stroke": RED}
