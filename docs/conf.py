"""How Sphinx builds the documentation (`make docs`): pages in Markdown, docstrings, a tutorial that is run; offline."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import muonlab
from muonlab.report.publish import write_report

DOCS = Path(__file__).parent
RUNS = (DOCS / "../results/runs").resolve()
PAGES = Path(tempfile.mkdtemp(prefix="muonlab-pages-"))

project = "muonlab"
author = "the authors of muonlab"
version = release = muonlab.__version__
html_title = f"muonlab {release}"
html_show_copyright = False

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "paper",
    "tutorial",
    "sg_execution_times.rst",
    "start/tutorial/index.rst",
    "start/tutorial/sg_execution_times.rst",
]
highlight_language = "none"  # a fence without a language is text; those of Python say so
nitpicky = True
nitpick_ignore_regex = [  # types in signatures; the public names of muonlab must resolve
    ("py:class", r"(?!muonlab\.).*"),
    ("py:class", r"muonlab\.\w+\.\w+\..*"),
    ("py:obj", r"typing\..*"),
]

myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_mock_imports = ["transformers", "lightning", "accelerate"]
autodoc_typehints = "signature"
autodoc_type_aliases = {"ParamsT": "ParamsT", "MatrixView": "MatrixView"}
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# With a network, MUONLAB_DOCS_INTERSPHINX=1 links torch's names to torch's own documentation.
intersphinx_mapping = (
    {"python": ("https://docs.python.org/3", None), "torch": ("https://docs.pytorch.org/docs/stable", None)}
    if os.environ.get("MUONLAB_DOCS_INTERSPHINX")
    else {}
)

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
html_static_path = ["_static"]
html_css_files = ["muonlab.css"]
html_extra_path = [str(PAGES)]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False

# One file renders all formulas, without a network: MathJax 3.2.2 as the package sphinx-mathjax-offline brings it.
_mathjax = find_spec("sphinx-mathjax-offline")
if _mathjax is not None and _mathjax.origin is not None:
    html_static_path.append(str(Path(_mathjax.origin).parent / "static/mathjax/tex-svg.js"))
mathjax_path = "tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"scale": 0.9}}

# The tutorial is run when the site is built; its page shows what it printed, and offers it as a notebook.
sphinx_gallery_conf = {
    "examples_dirs": "tutorial",
    "gallery_dirs": "start/tutorial",
    "filename_pattern": "five_minutes",
    "copyfile_regex": "",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "plot_gallery": True,
    "abort_on_example_error": True,
}


def _without_blank_last_line(app: Any, docname: str, source: list[str]) -> None:  # noqa: ARG001
    """Remove the blank line that a doctest needs before the end of its fence."""
    source[0] = re.sub(r"\n\n```\n", "\n```\n", source[0])


def _readable(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None):  # noqa: ARG001
    """Show neither arguments that Muon takes only to explain what to write instead, nor addresses of objects."""
    signature = (signature or "").replace("*positional: Never", "*").replace(", **unknown: Never", "")
    return re.sub(r"<[^<>]*>", "...", signature) or None, result


def _without_internals(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:  # noqa: ARG001
    """Leave out the checks of an optimizer, and fields of tuples, which the docstring of the class explains."""
    return True if name == "checks" or (getattr(obj, "__doc__", "") or "").startswith("Alias for field") else None


def _write_pages_of_runs(app: Any) -> None:  # noqa: ARG001
    """Write the pages of all committed runs, and their index, for the folder ``runs`` of the site."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "runs"
        committed = subprocess.run(["git", "-C", RUNS, "archive", "HEAD"], capture_output=True, check=False)
        if committed.returncode:  # not a repository
            shutil.copytree(RUNS, copy)
        else:  # make runs may be writing to the working tree
            with tarfile.open(fileobj=io.BytesIO(committed.stdout)) as archive:
                archive.extractall(copy, filter="data")
        write_report(copy)
        for page in (copy / "index.html", *copy.glob("*/report.html")):
            target = PAGES / "runs" / page.relative_to(copy)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)


def _remove_pages_of_runs(app: Any, exception: Exception | None) -> None:  # noqa: ARG001
    """Remove what :func:`_write_pages_of_runs` wrote; Sphinx has copied it to the site."""
    shutil.rmtree(PAGES)


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("builder-inited", _write_pages_of_runs)
    app.connect("build-finished", _remove_pages_of_runs)
    app.connect("source-read", _without_blank_last_line)
    app.connect("autodoc-process-signature", _readable)
    app.connect("autodoc-skip-member", _without_internals)
