"""Take the README's picture, the quickstart's page: python docs/guides/picture.py [PAGE] [PICTURE].

It needs Chromium (``apt install chromium``) and a page, which ``make demo`` makes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PAGE = Path("runs/quickstart-small/report.html")
PICTURE = Path(__file__).parent / "quickstart-page.png"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SIZE = {"width": 860, "height": 1790}


def take(page: Path, picture: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not page.exists():
        sys.exit(f"a picture takes Chromium and a page, got {browser} and {page}: apt install chromium, make demo")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=ARGUMENTS)
        view = chromium.new_page(viewport=SIZE, color_scheme="light")
        view.goto(page.resolve().as_uri())
        view.screenshot(path=picture)
        chromium.close()


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    take(*(given + [PAGE, PICTURE][len(given) :]))
