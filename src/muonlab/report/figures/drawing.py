"""From matplotlib to a drawing that can stand in a page: plain SVG that takes its ink from the text around it.

What leaves here has neither styles, scripts nor links to elsewhere, so a page with a strict content security policy
shows it; axes and words are ``currentColor``, so one drawing serves a white page and a dark one. The same numbers give
the same bytes.
"""

from __future__ import annotations

import io
import math
import re
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

from muonlab.report.figures.plain_svg import INK, plain_svg
from muonlab.report.figures.style import Look
from muonlab.report.values import Figure, Panel, Scale, Series

Array = npt.NDArray[np.float64]

WIDTH = 6.8
"""Inches of a drawing of two columns: on a page of 360 pixels its words are still about 7 pixels high."""

MOST_POINTS, MOST_ALT, MOST_LABEL = 60, 600, 34
HUGE = 1e150
"""Numbers beyond this are as good as infinite to a drawing: its margins would overflow."""

NARROW = 1e-6
"""Relative width below which the values of a log axis are taken for one."""

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
class Traced:
    """Axes of a drawing and the curves on them, as numbers."""

    axes: Axes
    x_name: str
    y_name: str
    series: Sequence[Series]


@contextmanager
def sheet(height: float, width: float = WIDTH) -> Iterator[Canvas]:
    """Give an empty drawing of so many inches; whatever settings the user has, within it they are ours."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_RC)
        canvas = Canvas(figsize=(width, height), dpi=72, layout="constrained")
        FigureCanvasSVG(canvas)
        yield canvas


# Numbers and words -------------------------------------------------------------------------------------------------


def number(value: object) -> float:
    """Return a value as a float that can be drawn, else NaN: for None, text, infinities and what is near them."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        return math.nan
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if abs(found) <= HUGE else math.nan


def numbers(values: Iterable[object], scale: Scale = "linear") -> Array:
    """Return values as an array with NaN for those that cannot be drawn; on a log axis they must be positive."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        found = values.astype(np.float64)
        found[~(np.abs(found) <= HUGE)] = np.nan
    else:
        found = np.array([number(value) for value in values], dtype=np.float64)
    return np.where(found > 1 / HUGE, found, np.nan) if scale == "log" else found


def series(
    label: str, x: Array, y: Array, spread: Array | None = None, *, colour: str, most: int = MOST_POINTS
) -> Series:
    """Return a curve as numbers, ascending, without those that cannot be drawn, and thinned to ``most`` points.

    A spread that is missing anywhere is left out: a zero in its place would say that the runs agree. Where only some
    places have one, make two curves of them.
    """
    kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    kept = kept[np.argsort(x[kept], kind="stable")]
    kept = kept[thinned(len(kept), most)]
    wide = None if spread is None or not np.all(np.isfinite(spread[kept])) else tuple(spread[kept].tolist())
    return Series(clean(label), tuple(x[kept].tolist()), tuple(y[kept].tolist()), wide, colour)


def thinned(count: int, most: int) -> npt.NDArray[np.intp]:
    """Return at most so many indices of ``count``, spread evenly, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def clean(text: object) -> str:
    """Return words that XML can hold, on one line; what it cannot hold becomes a replacement character."""
    kept = "".join(c if c.isprintable() or c.isspace() else _unprintable(c) for c in str(text))
    return " ".join(kept.split())


def _unprintable(c: str) -> str:
    code = ord(c)
    bidi = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069  # would turn the words that follow
    return "\ufffd" if bidi or code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE else c


def short(text: object, most: int = MOST_LABEL) -> str:
    """Return words cleaned and no longer than ``most``, with an ellipsis where they end.

    Example:
        >>> short("a layer with quite a name", 12)
        'a layer wit…'
    """
    words = clean(text)
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def listed(values: Sequence[tuple[str, float]], most: int = 6) -> str:
    """Return named values in words, the lowest among them named; of many only the ends.

    Example:
        >>> listed([("SGD-M", 1.5), ("Muon (q=3)", 0.25)])
        'SGD-M 1.5, Muon (q=3) 0.25; lowest: Muon (q=3)'
    """
    if not values:
        return "none"
    low, high = min(values, key=lambda pair: pair[1]), max(values, key=lambda pair: pair[1])
    if len(values) > most:
        words = f"from {low[1]:.3g} ({short(low[0], 40)}, lowest) to {high[1]:.3g} ({short(high[0], 40)})"
        return f"{words} over {len(values)}"
    words = ", ".join(f"{short(name, 40)} {value:.3g}" for name, value in values)
    return words if len(values) == 1 or low[1] == high[1] else f"{words}; lowest: {short(low[0], 40)}"


# Parts of a drawing ------------------------------------------------------------------------------------------------


class _LogFormatter(ticker.LogFormatter):
    """Words of a log axis without mathtext; which ticks have any is matplotlib's choice."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return power(x) if super().__call__(x, pos) else ""


def power(value: float) -> str:
    """Return a positive number as a log axis has it.

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


def name_axes(axes: Axes, x_name: str, y_name: str, *, x_scale: Scale = "linear", y_scale: Scale = "linear") -> None:
    """Set names and scales; to be done before anything is drawn."""
    axes.set_xlabel(short(x_name, 60))
    axes.set_ylabel(short(y_name, 40))
    for axis, scale, set_scale in ((axes.xaxis, x_scale, axes.set_xscale), (axes.yaxis, y_scale, axes.set_yscale)):
        set_scale(scale)
        if scale == "log":
            axis.set_major_formatter(_LogFormatter())
            axis.set_minor_formatter(_LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))


def trace(axes: Axes, x: Array, y: Array, look: Look, *, thin: bool = False, shift: int = 0, **options: Any) -> Artist:
    """Draw a curve with about eight markers (none where it is thin) and return the line; NaN leave a gap.

    Args:
        axes: to draw on.
        x: places.
        y: values.
        look: of it.
        thin: one of very many.
        shift: moves the markers along, so that those of curves that coincide lie beside each other.
        options: of ``Axes.plot``.
    """
    every = max(1, math.ceil(len(x) / 8))
    start = shift * max(1, every // 5) % every
    how: dict[str, Any] = {"color": look.colour, "linestyle": look.line, "in_layout": False}
    how |= {"linewidth": 0.9} if thin else {"marker": look.marker, "markevery": (start, every)}
    return axes.plot(x, y, **(how | options))[0]


def legend(canvas: Canvas, entries: Sequence[tuple[str, Artist]]) -> None:
    """Put a legend in rows above the axes and make the drawing that much higher."""
    if not entries:
        return
    words = [short(label) for label, _ in entries]
    columns = max(1, min(len(words), int((canvas.get_figwidth() * 72 - 10) / (max(map(len, words)) * 5.6 + 38))))
    rows = math.ceil(len(words) / columns)
    columns = math.ceil(len(words) / rows)
    canvas.set_figheight(canvas.get_figheight() + rows * 15 / 72)
    order = [place for column in range(columns) for place in range(column, len(words), columns)]  # read by rows
    canvas.legend([entries[i][1] for i in order], [words[i] for i in order], loc="outside upper center", ncols=columns)


# The drawing as a value --------------------------------------------------------------------------------------------


def finish(canvas: Canvas, panels: Sequence[Traced], *, name: str, title: str, alt: str, caption: str) -> Figure:
    """Return what was drawn as a figure of a page, within :func:`sheet`."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
        raise ValueError(
            f"a figure's name must be letters, digits and hyphens, got {name!r}: it is an anchor of a page"
        )
    title, alt = clean(title), short(alt, MOST_ALT)
    for axes in canvas.axes:
        _open(axes)
    for text in canvas.findobj(Text):
        text.set_parse_math(False)
        text.set_text(clean(text.get_text()))
    written = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": name}):
        # the page's fonts draw the words, so it is no matter what matplotlib's own lacks
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        warnings.filterwarnings("ignore", message=r"constrained_layout not applied")
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = plain_svg(written.getvalue(), name=name, title=title, alt=alt)
    return Figure(name, title, alt, clean(caption), svg, tuple(_panel(canvas, one) for one in panels))


def _open(axes: Axes) -> None:
    """Give a log axis whose values are all but equal a range; matplotlib's own would be nothing, or rounding."""
    (left, bottom), (right, top) = axes.dataLim.get_points().tolist()
    if axes.get_xscale() == "log" and axes.get_autoscalex_on() and 0 < left <= right < left * (1 + NARROW):
        axes.set_autoscalex_on(False)  # else the old range is asked for, and warns
        axes.set_xlim(left / 1.5, right * 1.5)
    if axes.get_yscale() == "log" and axes.get_autoscaley_on() and 0 < bottom <= top < bottom * (1 + NARROW):
        axes.set_autoscaley_on(False)
        axes.set_ylim(bottom / 1.5, top * 1.5)


def _panel(canvas: Canvas, traced: Traced) -> Panel:
    box, high = traced.axes.bbox, canvas.bbox.height
    left, right = map(float, traced.axes.get_xlim())
    bottom, top = map(float, traced.axes.get_ylim())
    corners = [round(float(at), 2) for at in (box.x0, high - box.y1, box.x1, high - box.y0)]
    return Panel(
        x_name=clean(traced.x_name),
        y_name=clean(traced.y_name),
        box=(corners[0], corners[1], corners[2], corners[3]),
        x_range=(left, right),
        y_range=(bottom, top),
        x_scale=_scale(traced.axes.get_xscale()),
        y_scale=_scale(traced.axes.get_yscale()),
        series=tuple(one for one in traced.series if one.x),
    )


def _scale(name: str) -> Scale:
    return "log" if name == "log" else "linear"
