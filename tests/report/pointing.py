"""A pointer over a figure, and what its tooltip says."""

from __future__ import annotations

from typing import Any

from muonlab.report.values import Panel
from tests.report import pages


def point(page: Any, figure: str, panel: Panel, x: float, y: float) -> None:
    """Move the pointer to a value of a panel, by the place of the drawing on the screen."""
    svg = page.locator(f"#figure-{figure} svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    across, down = pages.position(panel, x, y)
    page.mouse.move(box["x"] + across * box["width"] / 720, box["y"] + down * box["height"] / 290)


def tip(page: Any, figure: str = "loss") -> tuple[str, dict[str, str]]:
    """Return the head of the tooltip, and label and value of every row."""
    shown = page.locator(f"#figure-{figure} [data-tip]")
    rows = zip(shown.locator(".label").all_text_contents(), shown.locator(".value").all_text_contents(), strict=True)
    return shown.locator(".head").first.text_content(), dict(rows)
