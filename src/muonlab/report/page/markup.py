"""Fill a template to a single HTML file with its styles and scripts inside.

Jinja2 escapes all text. The content security policy allows only the scripts and styles of the page, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

SCALE = 1.6
"""Pixels per unit of a drawing: text of 9 units is 14 pixels high."""


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
        styles: files of ``templates/`` to include, in this order.
        scripts: likewise.
        values: variables of the template.
    """
    style_texts, script_texts = ([_asset(name) for name in names] for names in (styles, scripts))
    return (
        _environment()
        .get_template(template)
        .render(styles=style_texts, scripts=script_texts, policy=_policy(style_texts, script_texts), **values)
    )


def inline_svg(svg: str) -> Markup:
    """Return a drawing of :func:`muonlab.report.figures.svg.plain_svg` as markup, with its size in pixels."""
    _, _, width, height = (SCALE * float(number) for number in ElementTree.fromstring(svg).get("viewBox", "").split())
    return Markup(svg.replace("<svg", f'<svg width="{width:.0f}" height="{height:.0f}"', 1))


def _asset(name: str) -> Markup:
    return Markup(files("muonlab.report").joinpath("templates", name).read_text(encoding="utf-8"))


def _policy(styles: list[Markup], scripts: list[Markup]) -> str:
    sources = [f"script-src {_hashes(scripts)}", f"style-src {_hashes(styles)}"]
    return "; ".join(["default-src 'none'", *sources, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _hashes(texts: list[Markup]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return " ".join(f"'sha256-{value}'" for value in hashes)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("muonlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
