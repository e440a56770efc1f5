"""The documentation site: it builds without a warning, names every public thing, and works in a browser offline."""

from __future__ import annotations

import functools
import http.server
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sphinx", "furo", "myst_parser", "sphinx_gallery", "sphinx_copybutton", "sphinx-mathjax-offline")
MODULES = ("", ".optim", ".orthogonalize", ".diagnostics", ".polynomials", ".theory", ".lab", ".report")
FORMULAS = ("guides/muon", "theory/theorem-a", "theory/alignment-theorem", "theory/theorem-1", "reference/optimizers")
ELSEWHERE = (
    "start/install",
    "start/tutorial/five_minutes",
    "guides/distributed",
    "results",
    "examples",
    "architecture",
)


def public_names(module):
    """Return the public names of a module: those of ``__all__``, else what it imports from its modules."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(f"{module.__name__}.")
    ]


def test_the_reference_has_every_public_name_and_each_has_a_docstring():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    referenced = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", pages, flags=re.M))
    for part in MODULES:
        module = importlib.import_module(f"muonlab{part}")
        names = public_names(module)
        assert names, part
        for name in names:
            known = any(path.rpartition(".")[2] == name for path in referenced)
            assert known, f"docs/reference has no muonlab{part}.{name}"
            assert inspect.getdoc(getattr(module, name)), name


def test_every_example_and_every_command_is_on_its_page():
    from muonlab.cli.answers import ANSWERS

    page = (ROOT / "docs/examples.md").read_text()
    for example in (ROOT / "examples").glob("*.py"):
        assert f"../examples/{example.name}\n" in page, example.name
    page = (ROOT / "docs/reference/command-line.md").read_text()
    for command in ANSWERS:
        name = command.__name__.removesuffix("Command").lower()
        assert re.search(rf"^\| `muonlab {name}[ `]", page, flags=re.M), name


def test_every_guide_has_a_snippet_that_pytest_runs():
    elsewhere = {"trainers.md"}  # its programs are examples, which need the trainers
    for guide in (ROOT / "docs/guides").glob("*.md"):
        assert ">>> " in guide.read_text() or guide.name in elsewhere, guide.name


def test_the_tutorial_runs_and_says_what_it_promises():
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "docs/tutorial/five_minutes.py"],
        capture_output=True, text=True, check=False, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    trained, planned = map(float, re.findall(r"test accuracy ([\d.]+)%", done.stdout))
    assert min(trained, planned) > 95
    assert len(re.findall(r"step +\d+, [02].weight: alignment 0\.\d+", done.stdout)) == 10
    assert "holds alignment" in done.stdout
    assert "resumed to the same bits: True" in done.stdout


# ------------------------------------------------------------------------------------------------- the built site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from a copy of its sources with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples", "results", "tests", "benchmarks", "src"):
        target = folder / name
        if name == "docs":
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("start/tutorial", "__pycache__"))
        else:
            target.symlink_to(ROOT / name)
    for file in ROOT.glob("*.*"):
        if file.is_file():
            (folder / file.name).symlink_to(file)
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, folder / "docs", folder / "site"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A handler that does not log."""

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(params=[360, 1280])
def window(request, chromium, address):
    """A page of the browser that keeps console errors, failed requests, and requests to anywhere else."""
    page = chromium.new_page(viewport={"width": request.param, "height": 900})
    page.wrong = []
    page.on("console", lambda message: page.wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda failed: page.wrong.append(failed.url))
    page.on("request", lambda sent: None if sent.url.startswith((address, "data:")) else page.wrong.append(sent.url))
    yield page
    page.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.docs(*PACKAGES)
def test_pages_show_formulas_without_an_error_or_a_request_to_anywhere_else(window, address):
    for name in (*FORMULAS, *ELSEWHERE):
        window.goto(f"{address}/{name}.html", wait_until="networkidle")
        assert window.locator("h1").count() == 1
        wide = window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 1, f"{name} is {wide} pixels too wide"
        if name in FORMULAS:
            window.locator("mjx-container svg").first.wait_for()
            assert window.locator("mjx-merror, [data-mjx-error]").count() == 0, name
            assert "$$" not in window.locator("article").inner_text(), name
    assert window.wrong == []


@pytest.mark.slow
@pytest.mark.docs(*PACKAGES)
def test_the_reference_shows_no_addresses_and_no_field_without_its_own_words(site):
    for page in (site / "reference").glob("*.html"):
        for wrong in ("&lt;function", " object at ", " object&gt;", "Alias for field", ">Type<", "~typing"):
            assert wrong not in page.read_text(encoding="utf-8"), f"{page.name}: {wrong}"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.docs(*PACKAGES)
def test_the_pages_of_all_committed_runs_are_on_the_site_and_linked(window, address):
    window.goto(f"{address}/guides/own-study.html")
    window.get_by_role("link", name="Its page").click()
    window.get_by_role("heading", level=1, name="A byte-level GPT on web text").wait_for()
    window.goto(f"{address}/results.html")
    window.get_by_role("link", name="the pages of all committed runs").click()
    linked = {link.get_attribute("href") for link in window.locator("a[href$='report.html']").all()}
    assert {f"{head.parent.name}/report.html" for head in (ROOT / "results/runs").glob("*/study.json")} <= linked
    assert window.wrong == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.docs(*PACKAGES)
def test_search_finds_an_option_and_leads_to_the_guide(window, address):
    window.goto(f"{address}/search.html?q=renormalize", wait_until="networkidle")
    found = window.locator("#search-results li a")
    found.first.wait_for()
    titles = found.all_inner_texts()
    assert any("Muon and its options" in title for title in titles), titles
    assert window.wrong == []
    window.goto(f"{address}/search.html?q=nosuchwordanywhere", wait_until="networkidle")
    window.get_by_text("did not match any documents").wait_for()
    assert found.count() == 0
