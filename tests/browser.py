"""The browser of all tests: one for each worker, since playwright cannot be started twice in a process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing(reason: str) -> NoReturn:
    """Skip what needs the browser; with MUONLAB_REQUIRE=browser that is a failure."""
    if "browser" in os.environ.get("MUONLAB_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and MUONLAB_REQUIRE asks for it")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    found = [os.environ.get("MUONLAB_CHROMIUM", ""), *(shutil.which(name) for name in BROWSERS)]
    path = next((path for path in found if path), None)
    if path is None:
        missing(f"none of {', '.join(BROWSERS)} is on the path and MUONLAB_CHROMIUM names no browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
