"""The maps of Newton-Schulz steps: τ and φ of a polynomial, F_q of a schedule (Kim & Oh 2026, Lemma 2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.polynomials import Polynomial, Schedule
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Array, Traced
from muonlab.report.figures.plain_svg import INK
from muonlab.report.figures.style import Look, looks
from muonlab.report.values import Figure, Series

POINTS, FINE = 241, 1441
"""Places on [0, 1], and on a log axis, where schedules of many steps oscillate fast near 1."""


def tau_phi_figure(
    polynomials: Mapping[str, Polynomial],
    *,
    name: str = "tau-phi",
    title: str = "τ and φ of step polynomials",
) -> Figure | None:
    """Return τ(λ) and φ(u) on [0, 1], with ``u^{κ+1}`` dashed beside φ.

    Args:
        polynomials: by label.
        name: of the figure.
        title: of the figure.
    """
    if not polynomials:
        return None
    how, unit = looks(polynomials), np.linspace(0, 1, POINTS)
    with drawing.sheet(2.9) as canvas:
        left, right = canvas.subplots(1, 2)
        tau, handles = _curves(left, "λ", "τ(λ)", {label: (unit, p.tau(unit)) for label, p in polynomials.items()}, how)
        phi, _ = _curves(right, "u", "φ(u)", {label: (unit, p.phi(unit)) for label, p in polynomials.items()}, how)
        more = []
        for kappa in sorted({p.kappa for p in polynomials.values()}):
            look = next(how[label] for label, p in polynomials.items() if p.kappa == kappa)
            right.plot(unit, unit ** (kappa + 1), color=look.colour, linestyle="--", linewidth=1.1)
            more.append(drawing.series(f"u^{kappa + 1}", unit, unit ** (kappa + 1), colour=look.colour))
        dashed = Line2D([], [], color=INK, linestyle="--", linewidth=1.1)
        drawing.legend(canvas, [*handles.items(), ("u^(κ+1)", dashed)])
        return drawing.finish(
            canvas,
            [tau, Traced(phi.axes, phi.x_name, phi.y_name, [*phi.series, *more])],
            name=name,
            title=title,
            alt=_alt(polynomials),
            caption="A step takes λ to τ(λ) and the residual u = 1 − λ to φ(u). Where φ lies under the dashed u^(κ+1) "
            "one step raises the residual to that power or better.",
        )


def response_figure(
    schedules: Mapping[str, Schedule],
    *,
    name: str = "response",
    title: str = "What schedules do to a singular value",
    smallest: float = 1e-4,
) -> Figure | None:
    """Return ``F_q(s)`` against s on a log axis, from ``smallest`` to 1."""
    if not schedules:
        return None
    how, s = looks(schedules), np.geomspace(smallest, 1, FINE)
    with drawing.sheet(3.0) as canvas:
        with np.errstate(all="ignore"):  # what overflows is not drawn
            values = {label: (s, drawing.numbers(F(s))) for label, F in schedules.items()}
        panel, handles = _curves(canvas.subplots(), "singular value s", "F(s) after all steps", values, how, log=True)
        panel.axes.axhline(1, color=INK, linewidth=0.8, alpha=0.5)
        drawing.legend(canvas, list(handles.items()))
        ends = [(label, float(y[0])) for label, (_, y) in values.items() if np.isfinite(y[0])]
        tops = [(label, float(np.nanmax(y))) for label, (_, y) in values.items() if np.any(np.isfinite(y))]
        alt = f"At s = {smallest:g} F is: {drawing.listed(ends)}. Largest values: {drawing.listed(tops)}."
        caption = (
            "An exact polar factor takes every s > 0 to 1; the sooner a curve reaches 1, the fewer directions it loses."
        )
        return drawing.finish(canvas, [panel], name=name, title=title, alt=alt, caption=caption)


def _curves(
    axes: Axes, x_name: str, y_name: str, values: Mapping[str, tuple[Array, Array]], how: Mapping[str, Look], *,
    log: bool = False,
) -> tuple[Traced, dict[str, Artist]]:  # fmt: skip
    drawing.name_axes(axes, x_name, y_name, x_scale="log" if log else "linear")
    handles: dict[str, Artist] = {}
    series: list[Series] = []
    for place, (label, (x, y)) in enumerate(values.items()):
        calm = 1 / (1 + float(np.nansum(np.abs(np.diff(y)))))  # what oscillates is drawn first, under the rest
        handles[label] = drawing.trace(axes, x, y, how[label], shift=place, linewidth=1.4, zorder=2 + calm)
        series.append(drawing.series(label, x, y, colour=how[label].colour))
    return Traced(axes, x_name, y_name, series), handles


def _alt(polynomials: Mapping[str, Polynomial]) -> str:
    ends = ", ".join(f"{drawing.short(label, 30)} {p.tau(1.0):.3g}" for label, p in list(polynomials.items())[:6])
    halves = drawing.listed([(label, float(p.phi(0.5))) for label, p in polynomials.items()])
    return f"τ(0) is 0; τ(1) is {ends}. A residual of one half becomes: {halves}."
