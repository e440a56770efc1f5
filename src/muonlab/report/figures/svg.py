"""Convert matplotlib's SVG to plain SVG: attributes instead of styles, prefixed ids, the text colour of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

INK = "#010203"
"""Placeholder for ``currentColor`` while matplotlib draws; no curve may have this colour."""

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_ELEMENTS = {"svg", "g", "defs", "path", "use", "clipPath", "rect", "text", "tspan"}
_ATTRIBUTES = {
    "id", "d", "x", "y", "width", "height", "transform", "clip-path", "href", "fill", "fill-opacity", "fill-rule",
    "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit",
    "stroke-dasharray", "stroke-dashoffset", "opacity", "text-anchor", "font-size", "font-style", "font-weight",
}  # fmt: skip


def plain_svg(written: bytes, *, name: str, title: str, alt: str) -> str:
    """Return matplotlib's SVG with allowed elements and attributes only, for a page.

    Args:
        written: the SVG of matplotlib.
        name: prefix of all ids.
        title: title of the drawing.
        alt: its text alternative.
    """
    root = ET.fromstring(written)
    box = root.get("viewBox", "")
    _simplify(root, frozenset(re.findall(r'(?:href="|url\()#([^")]+)', written.decode())), name)
    root.attrib.clear()
    root.attrib |= {"xmlns": _SVG[1:-1], "viewBox": box, "role": "img", "aria-labelledby": f"{name}-title {name}-desc"}
    root.attrib |= {"font-family": "system-ui, sans-serif", "stroke-linejoin": "round", "stroke-linecap": "butt"}
    for place, (tag, text) in enumerate((("title", title), ("desc", alt))):
        element = ET.Element(tag, {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(place, element)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def svg_with_labels(svg: str, labels: Sequence[str]) -> str:
    """Return a drawing with the labels of its page written below, for a file of its own."""
    if not labels:
        return svg
    root = ET.fromstring(svg)
    left, top, width, height = map(float, root.get("viewBox", "").split())
    place = {"x": f"{left + 4:g}", "y": f"{top + height + 9:g}", "font-size": "8", "fill": "currentColor"}
    root.set("viewBox", f"{left:g} {top:g} {width:g} {height + 13:g}")
    ET.SubElement(root, f"{_SVG}text", place).text = f"muonlab: {', '.join(labels)}"
    ET.register_namespace("", _SVG[1:-1])
    return ET.tostring(root, encoding="unicode")


def _simplify(element: ET.Element, used: frozenset[str], name: str) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    if element.tag not in ("text", "tspan"):
        element.text = None
    element.tail = None
    attributes = element.attrib | _declarations(element.get("style", "")) | {"href": element.get(_LINK, "")}
    if attributes.get("id") not in used:
        attributes.pop("id", None)
    element.attrib.clear()
    for key, value in attributes.items():
        if key in _ATTRIBUTES and value and not value.startswith("rotate(-0 "):
            element.set(key, _value(key, value, name))
    for child in list(element):
        _simplify(child, used, name)
        if child.tag not in _ELEMENTS or _is_invisible(child):
            element.remove(child)


def _is_invisible(element: ET.Element) -> bool:
    empty = element.tag in ("g", "defs") and len(element) == 0
    return empty or (element.tag == "path" and element.get("fill") == "none" and "stroke" not in element.attrib)


def _declarations(style: str) -> dict[str, str]:
    """Return the declarations of a style attribute; of ``font``, only size, style and weight."""
    pairs = dict(part.split(":", 1) for part in style.split(";") if ":" in part)
    pairs = {key.strip(): value.strip() for key, value in pairs.items()}
    for word in pairs.pop("font", "").split("'")[0].split():
        size = re.fullmatch(r"([\d.]+)(?:px)?(?:/\S+)?", word)
        if size and (word.endswith("px") or "px/" in word):
            pairs["font-size"] = size[1]
        elif word in ("italic", "oblique"):
            pairs["font-style"] = word
        elif word in ("bold", "bolder", "lighter") or re.fullmatch(r"[1-9]00", word):
            pairs["font-weight"] = word
    return pairs


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if value == INK:
        return "currentColor"
    if "#" in value and key in ("href", "clip-path"):
        return value.replace("#", f"#{name}-")
    if key == "font-size":
        return value.removesuffix("px")
    if key in ("fill", "stroke"):
        return value
    rounded = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(rounded.split())
