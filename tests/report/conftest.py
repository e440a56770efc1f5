"""Fixtures: a real browser that watches pages for errors and requests, and a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from muonlab.report import figures
from tests.report.rundirs import OPTIMIZERS, write_run

PATIENCE = 10_000


@dataclass
class Opened:
    """A page in the browser; ``errors`` and ``requests`` must be empty when the test ends."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    listeners: dict[str, Callable[[Any], None]] = field(default_factory=dict, repr=False)

    def forget(self) -> None:
        """Remove the listeners, so that another test can use the window."""
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)


@dataclass
class Windows:
    """Windows of the browser, kept when a test is over: a new one costs more than most tests."""

    browser: Any
    free: dict[bool, list[Any]] = field(default_factory=lambda: {False: [], True: []})

    def take(self, touch: bool) -> Any:
        return self.free[touch].pop() if self.free[touch] else self.browser.new_context(has_touch=touch).new_page()


@pytest.fixture(scope="session")
def windows(chromium: Any) -> Windows:
    return Windows(chromium)


@pytest.fixture
def open_page(windows: Windows, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open HTML, or an HTML file, by file://; at the end there may be no console error and no request."""
    all_opened: list[tuple[bool, Opened]] = []

    def open_(
        html: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False
    ) -> Opened:
        path = tmp_path / f"page-{len(all_opened)}.html" if isinstance(html, str) else html
        if isinstance(html, str):
            path.write_text(html, encoding="utf-8", newline="")
        opened = Opened(windows.take(touch))
        all_opened.append((touch, opened))
        opened.page.set_default_timeout(PATIENCE)
        opened.page.set_viewport_size({"width": width, "height": height})
        scheme = "dark" if dark else "light"
        opened.page.emulate_media(media="screen", color_scheme=scheme, reduced_motion="reduce")
        _watch(opened, path.resolve().as_uri())
        opened.page.goto(path.resolve().as_uri())
        return opened

    yield open_
    for touch, opened in all_opened:
        opened.forget()
        opened.page.mouse.move(0, 0)
        opened.page.goto("about:blank")
        opened.page.context.clear_permissions()
        windows.free[touch].append(opened.page)
    assert [opened.errors for _, opened in all_opened if opened.errors] == []
    assert [opened.requests for _, opened in all_opened if opened.requests] == []


def _watch(opened: Opened, address: str) -> None:
    def requested(request: Any) -> None:
        if request.url.partition("#")[0] != address:
            opened.requests.append(request.url)

    def logged(message: Any) -> None:
        if message.type == "error":
            opened.errors.append(message.text)

    def failed(error: Any) -> None:
        opened.errors.append(str(error))

    opened.listeners |= {"request": requested, "console": logged, "pageerror": failed}
    for event, listener in opened.listeners.items():
        opened.page.on(event, listener)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run directory of two seeds of four optimizers, written by hand."""
    return write_run(tmp_path / "made", OPTIMIZERS)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time of a page."""
    for name in ("training", "rank", "optima", "cost", "frontier", "bounds", "layers", "tau_phi", "response"):
        monkeypatch.setattr(figures, f"{name}_figure", lambda *_, **__: None)
