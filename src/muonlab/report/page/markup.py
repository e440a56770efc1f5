"""Documents of one file: templates filled, style and scripts inside, and a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from urllib.parse import quote
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

SCALE = 1.6
"""Pixels for a unit of a drawing: text of 9 units is read at 14 pixels."""
_NOT_CHARACTERS = re.compile("[\x00\ud800-\udfff]")
_UNSEEN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE[^>\[]*>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_OUTSIDE = re.compile(r"javascript:|url\((?!#)", re.IGNORECASE)
_SHAPES = frozenset(
    {"svg", "g", "defs", "use", "symbol", "path", "rect", "line", "circle", "ellipse", "polyline", "polygon", "text"}
    | {"tspan", "title", "desc", "clipPath", "mask", "marker", "linearGradient", "radialGradient", "stop", "pattern"}
)


def document(
    template: str,
    *,
    styles: tuple[str, ...] = ("style.css",),
    scripts: tuple[str, ...] = ("report.js",),
    **values: object,
) -> str:
    """Return a page as the text of one file that needs no network.

    Args:
        template: a file of ``templates/`` that extends ``base.html``.
        styles: files of ``templates/`` to put inside, in this order.
        scripts: likewise; each runs in its own strict function scope if it makes one.
        values: what the template names.
    """
    inside = {"styles": [asset(name) for name in styles], "scripts": [asset(name) for name in scripts]}
    text = (
        _environment()
        .get_template(template)
        .render(**inside, policy=_policy(inside["styles"], inside["scripts"]), **values)
    )
    return characters(text)


def characters(text: str) -> str:
    """Return text a file can hold and a browser shows: NUL and lone surrogates become the replacement character."""
    return _NOT_CHARACTERS.sub("\ufffd", text)


def asset(name: str) -> Markup:
    """Return a style sheet or script of ours as it will stand in a page."""
    text = files("muonlab.report").joinpath("templates", name).read_text(encoding="utf-8")
    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise ValueError(
            f"{name} must not have a closing tag or a comment of HTML in it: write '<' + '/script' instead"
        )
    return Markup(text)


def href(path: str) -> str:
    """Return a path as an address from the page's own place: never with a scheme or a host.

    Example:
        >>> href("cells/a b.json"), href("javascript:alert(1)"), href("//host/x")
        ('cells/a%20b.json', 'javascript%3Aalert%281%29', './/host/x')
    """
    address = quote(path, safe="/", errors="replace")
    return f".{address}" if address.startswith("/") else address or "./"


def drawing(svg: str, name: str) -> Markup:
    """Return an SVG as markup after a look at every element and attribute of it: the only markup taken on trust.

    Args:
        svg: the drawing. Its prologue, comments and metadata are left out.
        name: what its ids must begin with, so that those of two drawings differ.

    Raises:
        ValueError: if it could run, load or link anything, or is no drawing.
    """
    text = _UNSEEN.sub("", svg).strip()
    if "<!" in text or "<?" in text:
        raise ValueError(f"the drawing {name!r} must have no declarations, got '<!' or '<?': write plain elements")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(
            f"the drawing {name!r} must be well-formed SVG, got {error}: write it with a library"
        ) from None
    if _local(root.tag) != "svg":
        raise ValueError(
            f"the drawing {name!r} must be an svg element, got {_local(root.tag)!r}: give the whole drawing"
        )
    for element in root.iter():
        _check(element, name)
    return Markup(_sized(text, root))


def _sized(text: str, root: ElementTree.Element) -> str:
    """Return the drawing with a width of its own, so that a page need neither stretch nor guess it."""
    box = root.get("viewBox", "").split()
    if "width" in root.attrib or len(box) != 4:
        return text
    width, height = (SCALE * float(side) for side in box[2:])
    return text.replace("<svg", f'<svg width="{width:.0f}" height="{height:.0f}"', 1)


def _check(element: ElementTree.Element, name: str) -> None:
    if _local(element.tag) not in _SHAPES:
        raise ValueError(
            f"the drawing {name!r} must have shapes and text only, got <{_local(element.tag)}>: leave it out"
        )
    for key, value in element.attrib.items():
        attribute = _local(key).lower()
        if attribute == "style" or attribute.startswith("on"):
            raise ValueError(f"the drawing {name!r} must have no {attribute!r}, got {value!r}: use plain attributes")
        if (attribute == "href" and not value.startswith("#")) or _OUTSIDE.search(value):
            raise ValueError(f"the drawing {name!r} must refer to itself only, got {value!r}: use '#' and an id")
        if attribute == "id" and not value.startswith(name):
            raise ValueError(f"ids of the drawing {name!r} must begin with its name, got {value!r}: put it in front")


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _policy(styles: list[Markup], scripts: list[Markup]) -> str:
    parts = ["default-src 'none'", *(_sources(kind, texts) for kind, texts in (("script", scripts), ("style", styles)))]
    return "; ".join([*parts, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _sources(kind: str, texts: list[Markup]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return f"{kind}-src " + (" ".join(f"'sha256-{value}'" for value in hashes) or "'none'")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("muonlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["href"] = href
    return environment
