"""Figures of the report: their numbers are those given, their words say what is seen."""

from __future__ import annotations

import math
import re
from functools import cache
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from muonlab.lab.grid_optima import runs_by_optimizer
from muonlab.lab.slopes import rank_slopes
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.report.curves import Curve
from muonlab.report.figures import (
    bounds_figure,
    cost_figure,
    frontier_figure,
    layers_figure,
    optima_figure,
    rank_figure,
    response_figure,
    tau_phi_figure,
    training_figure,
)
from muonlab.report.figures.style import curve_styles
from tests.report.drawn import SVG, paths, placed
from tests.report.made import swept

JORDAN = preset("jordan").polynomial
OPTIMIZERS = ["SGD-M", "Muon (q=1)", "Muon (q=3)", "Muon (SVD)"]


def curve(label, level, *, n=12, runs=3, scale=1.0):
    x = np.arange(1.0, n + 1) * scale
    return Curve(label, x, level + np.sin(np.arange(n) * 2.5) * 0.3, np.full(n, 0.05) if runs > 1 else None, runs)


@cache
def losses(runs=3):
    """Curves of four optimizers, and their figure; drawn once."""
    return training(runs=runs)


def training(labels=OPTIMIZERS, *, acrosses=("epoch", "seconds"), name="losses", **options):
    curves = {
        (metric, across): [curve(label, 1.0 + i + j / 2, scale=7.0 if across == "seconds" else 1.0, **options)
                           for i, label in enumerate(labels)]
        for j, metric in enumerate(("train_loss", "test_loss")) for across in acrosses
    }  # fmt: skip
    return curves, training_figure(name, "Losses", curves)


def cost_rows():
    shapes = [(64, 216), (768, 768), (256, 2304), (256, 512)]
    return [
        {"m": m, "n": n, "predicted_ratio": 2.0 + i, "measured_ratio": 3.0 + i * i, "svd_seconds": 0.1 * (i + 1)}
        | {"horner_seconds": 0.02 * (i + 1), "ours_seconds": 0.01 * (i + 1), "polar_seconds": 0.05 * (i + 1)}
        for i, (m, n) in enumerate(shapes)
    ]


def bound_rows(problems=3, methods=("sgdm", "muon_q3", "muon_svd")):
    return [
        {"problem": f"problem {p}", "method": method, "measured": 0.1 * (p + 1) * (i + 1), "name": name}
        | {"bound": 0.1 * (p + 1) * (i + 1) * factor}
        for p in range(problems)
        for i, method in enumerate(methods)
        for name, factor in (("paper", 20.0), ("sharp", 4.0))
    ]


def certificate_rows(layers=("hidden.0.weight", "hidden.1.weight"), steps=(1, 11, 21)):
    rows = []
    for step in steps:
        for i, name in enumerate(layers):
            delta = 1 - 10.0 ** -(i / 5 + 2) / step
            epsilon = 1 - math.sqrt(1 - delta)
            rows.append(
                {"event": "matrix", "step": step, "name": name, "delta": delta, "epsilon": epsilon, "rank": 3}
                | {"chi": 1 / (1 - epsilon), "alignment": 0.8 - i / 50, "alignment_floor": 0.45}
                | {"descent": 0.84 - i / 50, "op_norm": 1.05}
            )
        rows.append({"event": "whole", "step": step, "alignment": 0.79})
    return rows


def norms():
    base = {"SGD-M": 0.3, "Muon (SVD)": 0.1, "Muon (q=3)": -0.1}
    return {name: {r: [2 * r**w * f for f in (0.9, 1.0, 1.1)] for r in (128, 16, 64, 32)} for name, w in base.items()}


def sweeps():
    """Runs of two optimizers with two seeds on two networks."""
    places = {"Muon (q=1)": [(-2.2, 2.4), (-2.6, 2.0)], "Muon (SVD)": [(-3.5, 1.4), (-3.3, 1.8)]}
    return runs_by_optimizer(
        cell for network in ("digits", "MNIST") for name, at in places.items() for cell in swept(name, at, network)
    )


def plans():
    return [
        {"m": m, "n": 768, "schedule": "taylor2 x3" if k == 3 else "polar_express(0.01)", "steps": k, "method": "gram"}
        | {"prescale": "schatten4", "seconds": m * 1e-6 * k, "alignment": 1 - 0.3 * 0.5**k, "floor": 0.4 + k / 100}
        for m in (768, 64)
        for k in (5, 1, 3)
    ]


FIGURES = {
    "training": lambda: losses()[1],
    "many curves": lambda: training([f"cell {i}" for i in range(15)], acrosses=("epoch",), runs=1)[1],
    "rank": lambda: rank_figure(norms()),
    "optima": lambda: optima_figure(sweeps()),
    "cost": lambda: cost_figure(cost_rows()),
    "bounds": lambda: bounds_figure(bound_rows()),
    "layers": lambda: layers_figure(certificate_rows(), name="layers", title="Layers"),
    "tau and phi": lambda: tau_phi_figure({"taylor1": taylor(1), "taylor2": taylor(2), "jordan": JORDAN}),
    "response": lambda: response_figure(
        {"Taylor": Schedule.repeat(taylor(2), 3), "Polar Express": preset("polar_express").schedule(5)}
    ),
    "frontier": lambda: frontier_figure(plans()),
}


@cache
def drawn(kind):
    return FIGURES[kind]()


def check_plain(figure):
    root = ET.fromstring(figure.svg)
    for element in root.iter():
        assert element.tag.removeprefix(SVG) not in ("script", "style", "image", "foreignObject", "a", "metadata")
        for key, value in element.attrib.items():
            assert key != "style"
            assert not key.startswith(("on", "{"))
            assert key != "id" or value.startswith(figure.name)
            assert key != "href" or value.startswith(f"#{figure.name}-")
            assert not re.search(r"\b(nan|inf)\b", value)
    assert root.find(f"{SVG}desc").text == figure.alt
    _, _, width, height = map(float, root.get("viewBox").split())
    for panel in figure.panels:
        left, top, right, bottom = panel.box
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        for one in panel.series:
            assert one.x
            assert list(one.x) == sorted(one.x)
            assert all(map(math.isfinite, (*one.x, *one.y, *(one.std or ()))))
            for x, y in zip(one.x, one.y, strict=True):
                at = placed(panel, x, y)
                assert left - 0.01 <= at[0] <= right + 0.01
                assert top - 0.01 <= at[1] <= bottom + 0.01
    return root


def test_figures_are_plain_and_worded():
    for kind in FIGURES:
        figure = drawn(kind)
        check_plain(figure)
        assert 40 < len(figure.alt) <= 600
        assert re.search(r"\d", figure.alt)
        assert figure.caption.endswith(".")
        assert all(len(one.x) <= 60 for panel in figure.panels for one in panel.series)
        assert all(re.fullmatch(r"#[0-9a-f]{6}", one.colour) for panel in figure.panels for one in panel.series)


def test_nothing_to_draw_is_none():
    lost = {("train_loss", "epoch"): [Curve("a", np.array([1.0]), np.array([math.nan]), None, 1)]}
    lost_rows = [{"event": "matrix", "step": 1, "name": "a", "delta": None}]
    assert training_figure("t", "", {}) is None
    assert training_figure("t", "", lost) is None
    assert rank_figure({}) is rank_figure({"a": {16: [math.nan], 32: []}}) is None
    assert cost_figure([]) is cost_figure([{"m": 1, "n": 3}]) is None
    assert bounds_figure([]) is bounds_figure([{"problem": "a", "method": "b", "measured": None, "bound": 1.0}]) is None
    assert (
        layers_figure([], name="layers", title="Layers")
        is layers_figure(lost_rows, name="layers", title="Layers")
        is None
    )
    assert tau_phi_figure({}) is response_figure({}) is None
    assert frontier_figure([]) is frontier_figure([{"m": 1, "n": 1, "seconds": 0.0, "alignment": 0.5}]) is None


def test_the_grid_of_losses_has_the_numbers_given():
    curves, figure = losses()
    names = [(panel.x_name, panel.y_name) for panel in figure.panels]
    assert names == [(x, y) for x in ("epoch", "seconds of training") for y in ("training loss", "test loss")]
    keys = [(metric, across) for across in ("epoch", "seconds") for metric in ("train_loss", "test_loss")]
    for key, panel in zip(keys, figure.panels, strict=True):
        for given, shown in zip(curves[key], panel.series, strict=True):
            assert shown.label == given.label
            assert shown.x == tuple(given.x)
            assert shown.y == tuple(given.mean)
            assert shown.std == tuple(given.std)
            assert shown.colour == curve_styles(OPTIMIZERS)[given.label].colour


def test_losses_are_drawn_where_the_panels_say():
    _, figure = losses()
    for label in OPTIMIZERS:
        lines = paths(figure.svg, curve_styles(OPTIMIZERS)[label].colour)
        assert len(lines) == 4
        for line, panel in zip(lines, figure.panels, strict=True):
            one = next(one for one in panel.series if one.label == label)
            np.testing.assert_allclose(
                line, [placed(panel, x, y) for x, y in zip(one.x, one.y, strict=True)], atol=0.03
            )
    assert {panel.y_scale for panel in figure.panels} == {"linear"}


def test_bands_are_there_only_for_several_runs():
    def bands(figure):
        return sum(path.get("fill-opacity") == "0.16" for path in ET.fromstring(figure.svg).iter())

    assert bands(losses()[1]) == 4 * len(OPTIMIZERS)
    alone = losses(runs=1)[1]
    assert bands(alone) == 0
    assert all(one.std is None for panel in alone.panels for one in panel.series)
    assert alone.caption.startswith("One run")


def test_a_curve_that_diverged_is_drawn_as_far_as_it_goes_and_one_without_values_is_named():
    x = np.arange(4.0)
    some = [
        Curve("half", x, np.array([1.0, 2.0, math.inf, math.nan]), None, 1),
        Curve("lost", x, x * math.nan, None, 1),
    ]
    figure = training_figure("t", "T", {("train_loss", "epoch"): some})
    assert [(one.label, one.y) for one in figure.panels[0].series] == [("half", (1.0, 2.0))]
    assert "no finite value: lost" in figure.caption
    assert "half 2" in figure.alt


def test_more_than_twelve_curves_are_all_drawn_but_not_all_named():
    figure = drawn("many curves")
    said = ["".join(text.itertext()) for text in ET.fromstring(figure.svg).iter(f"{SVG}text")]
    assert sum(text.startswith("cell") for text in said) == 12
    assert len(figure.panels[0].series) == 15
    assert "All 15 curves are drawn; the legend has the first 12." in figure.caption
    colours = {one.colour for one in figure.panels[0].series}
    assert sum(len(paths(figure.svg, colour)) for colour in colours) == 2 * 15


def test_the_rank_figure_shows_means_spreads_and_slopes():
    figure = drawn("rank")
    raw, normalised = figure.panels
    assert (raw.x_scale, raw.y_scale, normalised.y_scale) == ("log", "log", "log")
    for one, scaled in zip(raw.series, normalised.series, strict=True):
        given = norms()[one.label]
        assert one.x == (16.0, 32.0, 64.0, 128.0)
        assert one.y == pytest.approx([np.mean(given[int(r)]) for r in one.x])
        assert one.std == pytest.approx([np.std(given[int(r)], ddof=1) for r in one.x])
        assert scaled.y == pytest.approx(np.array(one.y) / np.sqrt(one.x))
        assert scaled.std == pytest.approx(np.array(one.std) / np.sqrt(one.x))
        slopes = rank_slopes([int(r) for r in one.x], one.y)
        words = f"slopes {slopes.raw:.2f}, {slopes.normalised:.2f}".replace("-", "−")
        assert f"{one.label}: {words}" in figure.svg
        assert f"{one.label} {slopes.raw:.3g}" in figure.alt


def test_fitted_lines_have_the_slope_that_the_legend_says():
    figure = drawn("rank")
    for panel, less in zip(figure.panels, (0.0, 0.5), strict=True):
        fits = [
            line for line in paths(figure.svg, curve_styles(["SGD-M"])["SGD-M"].colour) if len(line) > 2 or _long(line)
        ]
        inside = [line for line in fits if panel.box[0] <= line[0][0] <= panel.box[2]]
        (x0, y0), (x1, y1) = inside[-1][0], inside[-1][-1]
        left, top, right, bottom = panel.box
        decades_x = (x1 - x0) / (right - left) * math.log10(panel.x_range[1] / panel.x_range[0])
        decades_y = (y0 - y1) / (bottom - top) * math.log10(panel.y_range[1] / panel.y_range[0])
        assert decades_y / decades_x == pytest.approx(0.3 - less, abs=0.01)


def _long(line):
    return abs(line[0][0] - line[-1][0]) > 50


def test_ranks_of_one_run_have_no_spread_beside_ranks_of_several():
    figure = rank_figure({"SGD-M": {16: [1.0, 1.2], 32: [2.0], 64: [3.0, 3.4]}})
    for panel, by in zip(figure.panels, (1.0, math.sqrt(32)), strict=True):
        several, alone = panel.series
        assert (several.label, several.x) == ("SGD-M", (16.0, 64.0))
        assert all(value > 0 for value in several.std)
        assert (alone.label, alone.x, alone.std) == ("SGD-M, one run", (32.0,), None)
        assert alone.y == pytest.approx((2.0 / by,))
    assert "over seeds for ranks with several runs;" in figure.caption
    assert "standard deviation" not in rank_figure({"SGD-M": {16: [1.0], 32: [2.0]}}).caption


def test_the_optima_figure_shows_the_least_loss_at_each_learning_rate_and_momentum():
    panels, runs = drawn("optima").panels, sweeps()
    names = ["learning rate", "1/(1 − momentum)"]
    assert [panel.x_name for panel in panels] == [f"{of}: {name}" for of in ("digits", "MNIST") for name in names]
    for place, panel in enumerate(panels):
        network, axis = ("digits", "MNIST")[place // 2], place % 2
        for one in panel.series:
            seeds = [*runs[network, one.label].values()]
            for x, y, std in zip(one.x, one.y, one.std, strict=True):
                least = [
                    min(
                        row["final_train_loss"]
                        for (lr, momentum), row in of_seed.items()
                        if math.isclose(x, 1 / (1 - momentum) if axis else lr)
                    )
                    for of_seed in seeds
                ]
                assert y == pytest.approx(np.mean(least))
                assert std == pytest.approx(np.std(least, ddof=1))
    alone = optima_figure({name: {0: by_seed[0]} for name, by_seed in runs.items()})
    assert all(one.std is None for panel in alone.panels for one in panel.series)
    assert optima_figure({}) is None


def test_cost_points_are_the_ratios_of_each_shape():
    ratios, seconds = drawn("cost").panels
    given = {f"{row['m']}×{row['n']}": row for row in cost_rows()}
    assert {one.label for one in ratios.series} == set(given)
    for one in ratios.series:
        assert (one.x, one.y) == ((given[one.label]["predicted_ratio"],), (given[one.label]["measured_ratio"],))
    assert ratios.x_range == ratios.y_range, "the diagonal goes from corner to corner"
    by_size = sorted(cost_rows(), key=lambda row: row["m"] * row["n"])
    shown = {one.label: one.y for one in seconds.series}
    assert shown["SVD"] == tuple(row["svd_seconds"] for row in by_size)
    assert shown["steps, ours"] == tuple(row["ours_seconds"] for row in by_size)
    assert len(shown) == 4


def test_every_line_of_the_bounds_has_its_numbers():
    figure = drawn("bounds")
    assert len(figure.panels) == 9
    first = figure.panels[0]
    assert first.x_name == "sgdm on problem 0: average nuclear norm of ∇f"
    assert [one.label for one in first.series] == ["measured", "paper", "sharp"]
    assert [one.x[0] for one in first.series] == pytest.approx([0.1, 2.0, 0.4])
    assert all(one.y == one.x for panel in figure.panels for one in panel.series), "the value, not the height"
    assert "none are below it" in figure.alt


def test_marks_of_the_bounds_are_drawn_where_their_panels_say():
    figure = drawn("bounds")
    marks = [
        (float(use.get("x")), float(use.get("y")))
        for use in ET.fromstring(figure.svg).iter(f"{SVG}use")
        if figure.panels[0].box[0] < float(use.get("x")) and use.get("y")
    ]
    for panel in figure.panels:
        for one in panel.series:
            at = placed(panel, one.x[0], one.y[0])
            assert min(math.dist(at, mark) for mark in marks) < 0.3


def test_seeds_of_a_method_are_averaged_and_their_bounds_are_said_once():
    rows = [
        {"problem": "p", "method": "sgdm", "measured": measured, "bound": bound, "name": name}
        for measured in (1.0, 2.0, 3.0)
        for name, bound in (("paper", 5.0), ("sharp", 4.0))
    ]
    (panel,) = bounds_figure(rows).panels
    assert [(one.label, one.y) for one in panel.series] == [("measured", (2.0,)), ("paper", (5.0,)), ("sharp", (4.0,))]


def test_layers_show_their_certificates():
    rows = certificate_rows()
    panels = {panel.y_name: panel for panel in drawn("layers").panels}
    assert list(panels) == ["1 − residual δ", "polar error ε", "factor χ", "descent ρ", "gain s", "alignment ρ/s"]
    mine = [row for row in rows if row.get("name") == "hidden.1.weight"]
    shown = {
        name: next(one for one in panel.series if one.label == "hidden.1.weight") for name, panel in panels.items()
    }
    assert shown["1 − residual δ"].x == (1.0, 11.0, 21.0)
    assert shown["1 − residual δ"].y == pytest.approx([1 - row["delta"] for row in mine])
    assert shown["polar error ε"].y == tuple(row["epsilon"] for row in mine)
    assert shown["factor χ"].y == tuple(row["chi"] for row in mine)
    assert shown["descent ρ"].y == tuple(row["descent"] for row in mine)
    assert shown["gain s"].y == tuple(row["op_norm"] for row in mine)
    assert shown["alignment ρ/s"].y == tuple(row["alignment"] for row in mine)
    others = {one.label: one.y for one in panels["alignment ρ/s"].series}
    assert others["hidden.1.weight, floor"] == (0.45,) * 3
    assert others["whole network"] == (0.79,) * 3
    assert (panels["1 − residual δ"].y_scale, panels["factor χ"].y_scale) == ("log", "log")


def test_null_and_missing_certificates_are_left_out():
    rows = certificate_rows()
    rows[0] |= {"delta": None, "chi": math.inf, "alignment": None, "descent": 0.6}
    del rows[0]["epsilon"]
    figure = layers_figure(rows, name="layers", title="Layers")
    first = [panel.series[0] for panel in figure.panels]
    assert [one.x for one in first] == [(11.0, 21.0)] * 3 + [(1.0, 11.0, 21.0)] * 2 + [(11.0, 21.0)]
    assert first[3].y[0] == 0.6


def test_tau_and_phi_are_those_of_the_polynomials():
    figure = tau_phi_figure({"taylor2": taylor(2), "jordan": JORDAN})
    tau, phi = figure.panels
    for one, p in zip(tau.series, (taylor(2), JORDAN), strict=True):
        assert one.y == pytest.approx([p.tau(x) for x in one.x])
    shown = {one.label: one for one in phi.series}
    assert shown["jordan"].y == pytest.approx([JORDAN.phi(u) for u in shown["jordan"].x])
    assert shown["u^3"].y == pytest.approx(np.array(shown["u^3"].x) ** 3)
    assert "τ(1) is taylor2 1" in figure.alt


def test_the_response_is_that_of_the_schedule():
    F = Schedule.repeat(taylor(2), 3)
    (panel,) = response_figure({"three": F}).panels
    assert panel.x_scale == "log"
    assert panel.series[0].y == pytest.approx([F(s) for s in panel.series[0].x])
    assert (panel.series[0].x[0], panel.series[0].x[-1]) == pytest.approx((1e-4, 1.0))


def test_the_frontier_names_every_choice():
    (panel,) = drawn("frontier").panels
    assert panel.x_scale == "log"
    assert len(panel.series) == 6
    by_label = {one.label: one for one in panel.series}
    one = by_label["768×768: taylor2, 3 steps, schatten4, gram, floor 0.43"]
    assert (one.x, one.y) == ((pytest.approx(768e-6 * 3),), (1 - 0.3 * 0.125,))
    assert len({one.colour for one in panel.series}) == 2
