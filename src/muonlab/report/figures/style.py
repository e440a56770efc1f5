"""Colour, marker and line of every curve: an optimizer looks the same in each study, on a white page and a dark one.

All colours are mid-tones with a contrast of 3:1 or more on both pages, so that one drawing serves either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

WHITE_PAGE, DARK_PAGE = "#ffffff", "#14171c"

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "8", "H", "x", "+", "1", "2", "3", "4")
LINES = ("-", "--", "-.", ":")

OTHERS = (
    "#1188ee", "#bb6611", "#9933ee", "#338855", "#dd3377", "#887722", "#667799", "#ee5544", "#118899", "#aa66bb",
)  # fmt: skip
"""For labels that name nothing known, by their place in the list."""

RAMP = ("#4a5ae0", "#7a56d6", "#a44fc0", "#c44a98", "#d8506a", "#dd6540", "#d0781a")
"""Ordered: ever redder, then ever yellower and lighter."""


@dataclass(frozen=True)
class Look:
    """How a curve is drawn: a colour as ``#rrggbb``, and the marker and line style by matplotlib's names."""

    colour: str
    marker: str
    line: str = "-"


SGD_M, SVD = Look("#6e6e82", "s"), Look("#449966", "D")
STEPS = (
    Look("#aa7722", "X"), Look("#ff5511", "^"), Look("#dd44cc", "v"), Look("#4455ff", "o"), Look("#1188cc", "P"),
    Look("#9933ee", "*"), Look("#bb4466", "<"), Look("#778822", ">"), Look("#5577aa", "p"), Look("#886644", "h"),
    Look("#aa55aa", "d"),
)  # fmt: skip
"""Muon with q = 0 … 10 Newton-Schulz steps."""

_NAMED = {
    "SGD-M": SGD_M,
    "Muon (SVD)": SVD,
    "muon_svd": SVD,
    "sgdm": SGD_M,
    "NS polynomial": STEPS[3],  # the ad-hoc study runs Muon with three steps of it
    "Ad-hoc polynomial": Look("#bb6611", "s", "--"),
}
_MUON = re.compile(r"(?:Muon \(q=|muon_q)(\d{1,2})\)?$")


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """Return how each label is drawn; optimizers have theirs, others take what is left in the order of the list.

    A label of several parts, ``"Muon (q=3), r=16"``, has the colour of its first, and its marker unless that is taken.

    Example:
        >>> looks(["r=16", "Muon (q=3)"])["Muon (q=3)"] == looks(["Muon (q=3)"])["Muon (q=3)"]
        True
    """
    names = list(dict.fromkeys(labels))
    found = {name: look for name in names if (look := optimizer_look(name))}
    taken = {look.marker for look in found.values()}
    for place, name in enumerate(names):
        if name not in found:
            found[name] = _spared(_look(name, place), taken, place)
            taken.add(found[name].marker)
    return {name: found[name] for name in names}


def optimizer_look(label: str) -> Look | None:
    """Return the look that an optimizer's own label has everywhere, None for any other label."""
    if label in _NAMED:
        return _NAMED[label]
    steps = _MUON.match(label)
    return STEPS[int(steps[1])] if steps and int(steps[1]) < len(STEPS) else None


def _look(label: str, place: int) -> Look:
    """Return the look that a label would like to have."""
    first = label.split(", ", maxsplit=1)[0]
    ordered = _ordered(first)
    if ordered is not None:
        return ordered
    return optimizer_look(first) or Look(OTHERS[place % len(OTHERS)], MARKERS[place % len(MARKERS)])


def _spared(look: Look, taken: set[str], place: int) -> Look:
    """Return the look with a marker that no other curve has, as long as there are any."""
    if look.marker not in taken:
        return look
    free = [marker for marker in MARKERS if marker not in taken]
    line = LINES[len(taken) % len(LINES)]
    return replace(look, marker=free[0] if free else MARKERS[place % len(MARKERS)], line=line)


_AXES: Mapping[str, Callable[[float], float]] = {
    # place on the ramp; the paper's values lie well apart, others are at its ends
    r"Muon \(κ=(\d{1,4})\)$": lambda kappa: (min(kappa, 5) - 1) / 5 + max(kappa - 5, 0) / 25,
    r"B=(\d{1,9})$": lambda size: (math.log2(size) - 5.5) / 5,
    r"r=(\d{1,9})$": lambda rank: (math.log2(rank) - 3.5) / 4.5,
}


def _ordered(label: str) -> Look | None:
    for pattern, place in _AXES.items():
        found = re.match(pattern, label)
        if found and int(found[1]) > 0:
            value = int(found[1])
            return Look(ramp(place(value)), MARKERS[round(value - 1 if "κ" in label else math.log2(value)) % 10])
    return None


def ramp(place: float) -> str:
    """Return the colour at a place between 0 and 1 of an ordered ramp from blue over red to amber.

    Example:
        >>> ramp(0.0), ramp(2.0)
        ('#4a5ae0', '#d0781a')
    """
    at = min(max(place, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in RAMP[low : low + 2]]
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in zip(*ends, strict=True))
