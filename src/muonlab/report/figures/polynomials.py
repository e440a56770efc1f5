"""τ and φ of a step polynomial, and F_q of a schedule (Kim & Oh 2026, Lemma 2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.polynomials import Polynomial, Schedule
from muonlab.polynomials.base import Array
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import CurveStyle, curve_styles
from muonlab.report.figures.svg import INK
from muonlab.report.values import Figure, Series

POINTS, FINE = 241, 1441
"""Points on [0, 1], and on a log axis, where schedules of many steps oscillate fast near 1."""
SMALLEST = 1e-4
"""Smallest singular value of the response figure."""


def tau_phi_figure(polynomials: Mapping[str, Polynomial]) -> Figure | None:
    """Return τ(λ) and φ(u) of polynomials by label on [0, 1], with ``u^{κ+1}`` dashed; None without polynomials."""
    if not polynomials:
        return None
    styles, unit = curve_styles(polynomials), np.linspace(0, 1, POINTS)
    with drawing.new_canvas(2.9) as canvas:
        left, right = canvas.subplots(1, 2)
        tau, handles = _curves(
            left, "λ", "τ(λ)", {label: (unit, p.tau(unit)) for label, p in polynomials.items()}, styles
        )
        phi, _ = _curves(right, "u", "φ(u)", {label: (unit, p.phi(unit)) for label, p in polynomials.items()}, styles)
        more = []
        for kappa in sorted({p.kappa for p in polynomials.values()}):
            style = next(styles[label] for label, p in polynomials.items() if p.kappa == kappa)
            right.plot(unit, unit ** (kappa + 1), color=style.colour, linestyle="--", linewidth=1.1)
            more.append(drawing.series(f"u^{kappa + 1}", unit, unit ** (kappa + 1), colour=style.colour))
        dashed = Line2D([], [], color=INK, linestyle="--", linewidth=1.1)
        drawing.legend(canvas, [*handles.items(), ("u^(κ+1)", dashed)])
        return drawing.to_figure(
            canvas,
            [tau, DrawnPanel(phi.axes, phi.x_name, phi.y_name, [*phi.series, *more])],
            name="tau-phi",
            title="τ and φ of step polynomials",
            alt=_alt(polynomials),
            caption="A step maps λ to τ(λ) and the residual u = 1 − λ to φ(u). Where φ lies below the dashed u^(κ+1), "
            "one step raises the residual at least to that power.",
        )


def response_figure(schedules: Mapping[str, Schedule]) -> Figure | None:
    """Return ``F_q(s)`` of schedules by label, against s on a log axis; None without schedules."""
    if not schedules:
        return None
    styles, s = curve_styles(schedules), np.geomspace(SMALLEST, 1, FINE)
    with drawing.new_canvas(3.0) as canvas:
        with np.errstate(all="ignore"):  # overflowing values are not drawn
            values = {label: (s, drawing.finite_numbers(F(s))) for label, F in schedules.items()}
        panel, handles = _curves(
            canvas.subplots(), "singular value s", "F(s) after all steps", values, styles, log=True
        )
        panel.axes.axhline(1, color=INK, linewidth=0.8, alpha=0.5)
        drawing.legend(canvas, list(handles.items()))
        ends = [(label, float(y[0])) for label, (_, y) in values.items() if np.isfinite(y[0])]
        tops = [(label, float(np.nanmax(y))) for label, (_, y) in values.items() if np.any(np.isfinite(y))]
        largest = drawing.describe_values(tops)
        alt = f"At s = {SMALLEST:g} F is: {drawing.describe_values(ends)}. Largest values: {largest}."
        caption = (
            "An exact polar factor maps every s > 0 to 1; the sooner a curve reaches 1, the fewer directions are lost."
        )
        return drawing.to_figure(
            canvas, [panel], name="response", title="Singular values after all steps", alt=alt, caption=caption
        )


def _curves(
    axes: Axes, x_name: str, y_name: str, values: Mapping[str, tuple[Array, Array]], styles: Mapping[str, CurveStyle],
    *, log: bool = False,
) -> tuple[DrawnPanel, dict[str, Artist]]:  # fmt: skip
    drawing.name_axes(axes, x_name, y_name, x_scale="log" if log else "linear")
    handles: dict[str, Artist] = {}
    series: list[Series] = []
    for place, (label, (x, y)) in enumerate(values.items()):
        calm = 1 / (1 + float(np.nansum(np.abs(np.diff(y)))))  # oscillating curves are drawn first, below the others
        handles[label] = drawing.draw_curve(axes, x, y, styles[label], shift=place, linewidth=1.4, zorder=2 + calm)
        series.append(drawing.series(label, x, y, colour=styles[label].colour))
    return DrawnPanel(axes, x_name, y_name, series), handles


def _alt(polynomials: Mapping[str, Polynomial]) -> str:
    ends = ", ".join(f"{drawing.shorten(label, 30)} {p.tau(1.0):.3g}" for label, p in list(polynomials.items())[:6])
    halves = drawing.describe_values([(label, float(p.phi(0.5))) for label, p in polynomials.items()])
    return f"τ(0) is 0; τ(1) is {ends}. A residual of one half becomes: {halves}."
