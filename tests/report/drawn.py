"""What a drawing has: the vertices of its lines, and where a panel says that a point lies."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def paths(svg, colour):
    """Return the vertices of every clipped line of a colour."""
    found = []
    for path in ET.fromstring(svg).iter(f"{SVG}path"):
        if path.get("stroke") == colour and path.get("fill") == "none" and path.get("clip-path"):
            found.append(
                [tuple(map(float, pair)) for pair in re.findall(r"[ML] ?(\S+) (\S+?)(?=[ML]|\s|$)", path.get("d"))]
            )
    return found


def placed(panel, x, y):
    """Return where the panel says that a point lies."""
    along = []
    for value, (low, high), scale in ((x, panel.x_range, panel.x_scale), (y, panel.y_range, panel.y_scale)):
        by = math.log10 if scale == "log" else float
        along.append((by(value) - by(low)) / (by(high) - by(low)))
    left, top, right, bottom = panel.box
    return left + along[0] * (right - left), bottom - along[1] * (bottom - top)
