"""Colour, marker and line of curves: an optimizer has the same style in every study.

All colours have a contrast of at least 3:1 on the light and on the dark page, so the same drawing works on both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "8", "H", "x", "+", "1", "2", "3", "4")
LINES = ("-", "--", "-.", ":")

OTHERS = (
    "#1188ee", "#bb6611", "#9933ee", "#338855", "#dd3377", "#887722", "#667799", "#ee5544", "#118899", "#aa66bb",
)  # fmt: skip
"""Colours of labels that are not optimizers, by their position in the list."""

RAMP = ("#4a5ae0", "#7a56d6", "#a44fc0", "#c44a98", "#d8506a", "#dd6540", "#d0781a")
"""Colours of ordered labels, from blue over red to amber."""


@dataclass(frozen=True)
class CurveStyle:
    """The colour of a curve as ``#rrggbb``, and marker and line style by their matplotlib names."""

    colour: str
    marker: str
    line: str = "-"


SGD_M_STYLE, SVD_STYLE = CurveStyle("#6e6e82", "s"), CurveStyle("#449966", "D")
STEP_STYLES = tuple(
    CurveStyle(colour, marker)
    for colour, marker in (
        ("#aa7722", "X"), ("#ff5511", "^"), ("#dd44cc", "v"), ("#4455ff", "o"), ("#1188cc", "P"), ("#9933ee", "*"),
        ("#bb4466", "<"), ("#778822", ">"), ("#5577aa", "p"), ("#886644", "h"), ("#aa55aa", "d"),
    )
)  # fmt: skip
"""Muon with q = 0 … 10 Newton-Schulz steps."""

_NAMED = {
    "SGD-M": SGD_M_STYLE,
    "Muon (SVD)": SVD_STYLE,
    "muon_svd": SVD_STYLE,
    "sgdm": SGD_M_STYLE,
    "NS polynomial": STEP_STYLES[3],  # the ad-hoc study takes three steps
    "Ad-hoc polynomial": CurveStyle("#bb6611", "s", "--"),
}
_MUON = re.compile(r"(?:Muon \(q=|muon_q)(\d{1,2})\)?$")


def curve_styles(labels: Iterable[str]) -> dict[str, CurveStyle]:
    """Return the style of each label. Optimizers have fixed styles; others get unused markers in their order.

    A label of several parts, such as ``"Muon (q=3), r=16"``, has the colour of the first part, and its marker if free.

    Example:
        >>> curve_styles(["r=16", "Muon (q=3)"])["Muon (q=3)"] == curve_styles(["Muon (q=3)"])["Muon (q=3)"]
        True
    """
    names = list(dict.fromkeys(labels))
    styles = {name: style for name in names if (style := optimizer_style(name))}
    taken = {style.marker for style in styles.values()}
    for place, name in enumerate(names):
        if name not in styles:
            styles[name] = _with_free_marker(_preferred_style(name, place), taken, place)
            taken.add(styles[name].marker)
    return {name: styles[name] for name in names}


def optimizer_style(label: str) -> CurveStyle | None:
    """Return the fixed style of an optimizer's label; None for other labels."""
    if label in _NAMED:
        return _NAMED[label]
    steps = _MUON.match(label)
    return STEP_STYLES[int(steps[1])] if steps and int(steps[1]) < len(STEP_STYLES) else None


def _preferred_style(label: str, place: int) -> CurveStyle:
    """Return the style of a label if its marker is free."""
    first = label.split(", ", maxsplit=1)[0]
    ordered = _ordered(first)
    if ordered is not None:
        return ordered
    return optimizer_style(first) or CurveStyle(OTHERS[place % len(OTHERS)], MARKERS[place % len(MARKERS)])


def _with_free_marker(style: CurveStyle, taken: set[str], place: int) -> CurveStyle:
    """Return the style with an unused marker, as long as there is one."""
    if style.marker not in taken:
        return style
    free = [marker for marker in MARKERS if marker not in taken]
    line = LINES[len(taken) % len(LINES)]
    return replace(style, marker=free[0] if free else MARKERS[place % len(MARKERS)], line=line)


_AXES: Mapping[str, Callable[[float], float]] = {
    # position on the ramp between 0 and 1; chosen so that the paper's values are well apart
    r"Muon \(κ=(\d{1,4})\)$": lambda kappa: (min(kappa, 5) - 1) / 5 + max(kappa - 5, 0) / 25,
    r"B=(\d{1,9})$": lambda size: (math.log2(size) - 5.5) / 5,
    r"r=(\d{1,9})$": lambda rank: (math.log2(rank) - 3.5) / 4.5,
}


def _ordered(label: str) -> CurveStyle | None:
    for pattern, place in _AXES.items():
        match = re.match(pattern, label)
        if match and (value := int(match[1])) > 0:
            return CurveStyle(ramp(place(value)), MARKERS[round(value - 1 if "κ" in label else math.log2(value)) % 10])
    return None


def ramp(place: float) -> str:
    """Return the colour at a position between 0 and 1 of the ramp from blue over red to amber.

    Example:
        >>> ramp(0.0), ramp(2.0)
        ('#4a5ae0', '#d0781a')
    """
    at = min(max(place, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in RAMP[low : low + 2]]
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in zip(*ends, strict=True))
