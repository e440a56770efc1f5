"""Draw with matplotlib and return plain SVG for a page.

The SVG has no styles, scripts or external links, so a page with a strict content security policy shows it. Axes and
text are ``currentColor``, so the same drawing works on a light and on a dark page. Equal numbers give equal bytes.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from muonlab.polynomials.base import Array
from muonlab.report.figures.style import CurveStyle
from muonlab.report.figures.svg import INK, plain_svg
from muonlab.report.values import AxisScale, Figure, Panel, Series

WIDTH = 6.8
"""Width in inches of a drawing with two columns; on a screen of 360 pixels its text is still 7 pixels high."""

MOST_POINTS, MOST_ALT, MOST_LABEL = 60, 600, 34
HUGE = 1e150
"""Larger numbers are not drawn: matplotlib's margins would overflow."""

NARROW = 1e-6
"""If the values of a log axis differ relatively by less, they are treated as equal."""

_RC: dict[str, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "axes.formatter.use_mathtext": False, "text.usetex": False,
    "font.family": "DejaVu Sans", "font.size": 10, "axes.labelsize": 10, "axes.titlesize": 10, "legend.fontsize": 9.5,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK,
    "axes.titlecolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.7, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": INK, "grid.alpha": 0.14, "grid.linewidth": 0.7, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.minor.width": 0.5,
    "ytick.minor.width": 0.5, "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "legend.frameon": False, "legend.handlelength": 2.0, "legend.columnspacing": 1.4, "legend.handletextpad": 0.6,
    "legend.borderaxespad": 0.2, "legend.labelspacing": 0.35, "lines.markersize": 4.6, "lines.linewidth": 1.6,
    "axes.formatter.useoffset": False, "axes.xmargin": 0.03, "figure.constrained_layout.hspace": 0.06,
    "figure.constrained_layout.wspace": 0.05,
}  # fmt: skip


@dataclass(frozen=True)
class DrawnPanel:
    """Axes of a drawing with the numbers of their curves."""

    axes: Axes
    x_name: str
    y_name: str
    series: Sequence[Series]


@contextmanager
def new_canvas(height: float, width: float = WIDTH) -> Iterator[Canvas]:
    """Yield an empty drawing of this size in inches, with fixed matplotlib settings inside the context."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_RC)
        canvas = Canvas(figsize=(width, height), dpi=72, layout="constrained")
        FigureCanvasSVG(canvas)
        yield canvas


# Numbers and text --------------------------------------------------------------------------------------------------


def finite_number(value: object) -> float:
    """Return a number as a float, and NaN for None, other types and numbers too large to draw."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value) if abs(value) <= HUGE else math.nan


def finite_numbers(values: Iterable[object], scale: AxisScale = "linear") -> Array:
    """Return values as an array, with NaN for those that cannot be drawn; on a log axis they must be positive."""
    array = np.array([finite_number(value) for value in values], dtype=np.float64)
    return np.where(array > 1 / HUGE, array, np.nan) if scale == "log" else array


def series(label: str, x: Array, y: Array, std: Array | None = None, *, colour: str, most: int = MOST_POINTS) -> Series:
    """Return the finite points of a curve, ascending and thinned to ``most`` points.

    If a standard deviation is missing, all are left out; a zero in its place would mean that the runs agree.
    """
    kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    kept = kept[np.argsort(x[kept], kind="stable")]
    kept = kept[spaced_indices(len(kept), most)]
    kept_std = None if std is None or not np.all(np.isfinite(std[kept])) else tuple(std[kept].tolist())
    return Series(clean(label), tuple(x[kept].tolist()), tuple(y[kept].tolist()), kept_std, colour)


def spaced_indices(count: int, most: int) -> npt.NDArray[np.intp]:
    """Return at most ``most`` evenly spaced indices below ``count``, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def clean(text: object) -> str:
    """Return text on one line; characters that XML cannot hold or that are invisible are replaced."""
    kept = "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in str(text))
    return " ".join(kept.split())


def shorten(text: object, most: int = MOST_LABEL) -> str:
    """Return cleaned text of at most ``most`` characters, with an ellipsis if it was cut.

    Example:
        >>> shorten("a layer with quite a name", 12)
        'a layer wit…'
    """
    cleaned = clean(text)
    return cleaned if len(cleaned) <= most else cleaned[: most - 1].rstrip() + "…"


def describe_values(values: Sequence[tuple[str, float]], most: int = 6) -> str:
    """Return named values as text and name the lowest; of more than ``most`` only the lowest and the highest.

    Example:
        >>> describe_values([("SGD-M", 1.5), ("Muon (q=3)", 0.25)])
        'SGD-M 1.5, Muon (q=3) 0.25; lowest: Muon (q=3)'
    """
    if not values:
        return "none"
    low, high = min(values, key=lambda pair: pair[1]), max(values, key=lambda pair: pair[1])
    if len(values) > most:
        ends = f"from {low[1]:.3g} ({shorten(low[0], 40)}, lowest) to {high[1]:.3g} ({shorten(high[0], 40)})"
        return f"{ends} over {len(values)}"
    text = ", ".join(f"{shorten(name, 40)} {value:.3g}" for name, value in values)
    return text if len(values) == 1 or low[1] == high[1] else f"{text}; lowest: {shorten(low[0], 40)}"


# Parts of a drawing ------------------------------------------------------------------------------------------------


class _LogFormatter(ticker.LogFormatter):
    """Tick labels of a log axis without mathtext; matplotlib chooses which ticks are labelled."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return power(x) if super().__call__(x, pos) else ""


def power(value: float) -> str:
    """Return a positive number as a tick label of a log axis; empty for other numbers.

    Example:
        >>> power(0.01), power(2e-7), power(1e12)
        ('0.01', '2×10⁻⁷', '10¹²')
    """
    if not 0 < value < math.inf:
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    if -3 <= exponent <= 3:
        return f"{value:.6g}"
    raised = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = f"{value / 10.0**exponent:.3g}"
    return raised if mantissa == "1" else f"{mantissa}×{raised}"


def name_axes(
    axes: Axes, x_name: str, y_name: str, *, x_scale: AxisScale = "linear", y_scale: AxisScale = "linear"
) -> None:
    """Set names and scales of both axes; call it before drawing."""
    axes.set_xlabel(shorten(x_name, 60))
    axes.set_ylabel(shorten(y_name, 40))
    for axis, scale, set_scale in ((axes.xaxis, x_scale, axes.set_xscale), (axes.yaxis, y_scale, axes.set_yscale)):
        set_scale(scale)
        if scale == "log":
            axis.set_major_formatter(_LogFormatter())
            axis.set_minor_formatter(_LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))


def draw_curve(
    axes: Axes, x: Array, y: Array, style: CurveStyle, *, thin: bool = False, shift: int = 0, **options: Any
) -> Artist:
    """Draw a curve with about eight markers and return the line; NaN leaves a gap.

    Args:
        axes: axes to draw on.
        x: positions.
        y: values.
        style: colour, marker and line.
        thin: draw a thin line without markers.
        shift: shifts the markers, so that those of coinciding curves lie next to each other.
        options: further options of ``Axes.plot``.
    """
    every = max(1, math.ceil(len(x) / 8))
    start = shift * max(1, every // 5) % every
    settings: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "in_layout": False}
    settings |= {"linewidth": 0.9} if thin else {"marker": style.marker, "markevery": (start, every)}
    return axes.plot(x, y, **(settings | options))[0]


def legend(canvas: Canvas, entries: Sequence[tuple[str, Artist]]) -> None:
    """Add a legend in rows above the axes and increase the height of the drawing accordingly."""
    if not entries:
        return
    names = [shorten(label) for label, _ in entries]
    columns = max(1, min(len(names), int((canvas.get_figwidth() * 72 - 10) / (max(map(len, names)) * 5.6 + 38))))
    rows = math.ceil(len(names) / columns)
    columns = math.ceil(len(names) / rows)
    canvas.set_figheight(canvas.get_figheight() + rows * 15 / 72)
    # matplotlib fills a legend by columns; reorder it so that it reads by rows
    order = [place for column in range(columns) for place in range(column, len(names), columns)]
    canvas.legend([entries[i][1] for i in order], [names[i] for i in order], loc="outside upper center", ncols=columns)


# The drawing as a value --------------------------------------------------------------------------------------------


def to_figure(canvas: Canvas, panels: Sequence[DrawnPanel], *, name: str, title: str, alt: str, caption: str) -> Figure:
    """Return the drawing as a figure of a page; call it inside :func:`new_canvas`."""
    title, alt = clean(title), shorten(alt, MOST_ALT)
    for axes in canvas.axes:
        _widen_log_axes(axes)
    for text in canvas.findobj(Text):
        text.set_parse_math(False)
        text.set_text(clean(text.get_text()))
    written = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": name}):
        # the browser's fonts draw the text, so glyphs that matplotlib's font lacks do not matter
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        warnings.filterwarnings("ignore", message=r"constrained_layout not applied")
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = plain_svg(written.getvalue(), name=name, title=title, alt=alt)
    return Figure(name, title, alt, clean(caption), svg, tuple(_panel(canvas, panel) for panel in panels))


def _widen_log_axes(axes: Axes) -> None:
    """Widen a log axis whose values are nearly equal: matplotlib would give it an empty range."""
    (left, bottom), (right, top) = axes.dataLim.get_points().tolist()
    if axes.get_xscale() == "log" and axes.get_autoscalex_on() and 0 < left <= right < left * (1 + NARROW):
        axes.set_autoscalex_on(False)  # else matplotlib asks for the old range and warns
        axes.set_xlim(left / 1.5, right * 1.5)
    if axes.get_yscale() == "log" and axes.get_autoscaley_on() and 0 < bottom <= top < bottom * (1 + NARROW):
        axes.set_autoscaley_on(False)
        axes.set_ylim(bottom / 1.5, top * 1.5)


def _panel(canvas: Canvas, drawn: DrawnPanel) -> Panel:
    box, high = drawn.axes.bbox, canvas.bbox.height
    left, right = map(float, drawn.axes.get_xlim())
    bottom, top = map(float, drawn.axes.get_ylim())
    corners = [round(float(at), 2) for at in (box.x0, high - box.y1, box.x1, high - box.y0)]
    return Panel(
        x_name=clean(drawn.x_name),
        y_name=clean(drawn.y_name),
        box=(corners[0], corners[1], corners[2], corners[3]),
        x_range=(left, right),
        y_range=(bottom, top),
        x_scale=_scale(drawn.axes.get_xscale()),
        y_scale=_scale(drawn.axes.get_yscale()),
        series=tuple(series for series in drawn.series if series.x),
    )


def _scale(name: str) -> AxisScale:
    return "log" if name == "log" else "linear"
