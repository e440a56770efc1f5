"""Write the explorer of the theory: one interactive HTML file that needs no network."""

from __future__ import annotations

import json
import os
import re
import webbrowser
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from muonlab import _checks, _files
from muonlab.lab.files import disk
from muonlab.report.explore import data
from muonlab.report.page.markup import document

if TYPE_CHECKING:
    from muonlab.diagnostics.matrix_spectra import Response
    from muonlab.orthogonalize.prescale import Prescale

STYLES = ("style.css", "explore.css")
SCRIPTS = ("report.js", "explore-numbers.js", "explore-plot.js", "explore-figures.js", "explore.js")
TITLES = {"jordan": "Jordan's quintic (ad hoc)", "polar_express": "Polar Express"}


class Example(NamedTuple):
    """An example view: its title, its description, and the URL fragment that opens it."""

    title: str
    description: str
    fragment: str


def explore(path: str | os.PathLike[str], *, show: bool = False) -> dict[str, Any]:
    """Write the explorer to one HTML file.

    Args:
        path: the file to write; an existing file is replaced.
        show: open it in a browser.

    Returns:
        The path and the size in bytes.

    Raises:
        ValueError: if the path is a directory or its directory does not exist.
    """
    target = _checks.path("path", path)
    if target.is_dir() or not target.parent.is_dir():
        raise ValueError(f"--out must be a file in an existing directory, got {target}: choose another")
    _files.require_replaceable(target)  # before the seconds that the page takes
    text = explorer_html().encode()
    disk.write_file(target, text)
    if show:
        webbrowser.open(target.resolve().as_uri())
    return {"page": str(target), "bytes": len(text)}


def explorer_html() -> str:
    """Return the explorer as HTML; computing its floors takes some seconds."""
    return document(
        "explore.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=script_json(data.page_data()),
        math_markup=math_markup,
        examples=examples(),
        polynomials=_polynomials(),
        shapes=tuple((f"{m}x{n}", f"{m} × {n}") for m, n in data.SHAPES),
        constants=data,
    )


def script_json(values: dict[str, Any]) -> Markup:
    r"""Return JSON for a script element; ``<`` is escaped, so that it cannot close the element.

    Example:
        >>> script_json({"a": "</script>"})
        Markup('{"a":"\\u003c/script>"}')
    """
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def math_markup(text: str) -> Markup:
    """Return text with its indices and exponents as subscripts and superscripts.

    Example:
        >>> math_markup("χ_q < u^(κ+1)")
        Markup('χ<sub>q</sub> &lt; u<sup>κ+1</sup>')
    """
    lowered = re.sub(r"_(gemm|svd|op|[\w*])", r"<sub>\1</sub>", str(escape(text)))
    return Markup(re.sub(r"\^\(([^()]*)\)|\^(\w)", lambda m: f"<sup>{m[1] or m[2]}</sup>", lowered))


def _polynomials() -> tuple[tuple[str, str], ...]:
    others = tuple(name for name in data.polynomial_names() if not name.startswith("taylor"))
    return ("taylor", "Taylor, degree κ (paper)"), *((name, TITLES.get(name, name)) for name in others)


def examples() -> tuple[Example, ...]:
    """Return the example views of the page, with numbers computed by the library."""
    square: dict[str, Any] = {"spectrum": "gaussian", "shape": "768x768"}
    start, bound = _on_gaussian("taylor2", 3)
    better, _ = _on_gaussian("taylor2", 3, "schatten8")
    jordan, _ = _on_gaussian("jordan", 5)
    still, _ = _on_gaussian("taylor2", 3, "paper", 1e-3)
    return (
        Example(
            "A Gaussian 768 × 768 matrix, three quintic steps.",
            f"χ is {start.chi:,.0f}, and {bound:,.0f} by the paper's bound; the factor 1/a of the alignment theorem "
            f"is {1 / start.alignment:.3g}.",
            urlencode({"kappa": 2, "q": 3, **square}),
        ),
        Example(
            "The same, divided by its Schatten-8 norm.",
            f"The better prescale reduces 1/a to {1 / better.alignment:.3g}.",
            urlencode({"kappa": 2, "q": 3, "prescale": "schatten8", **square}),
        ),
        Example(
            "Five steps of Jordan's quintic.",
            f"Theorem 2 does not cover it; by the alignment theorem its factor is {1 / jordan.alignment:.3g}.",
            urlencode({"polynomial": "jordan", "q": 5, **square}),
        ),
        Example(
            "Algorithm 1 as printed, near a stationary point.",
            f"At ‖M‖ = 0.001 dividing by max{{1, ‖M‖}} does nothing: 1/a is {1 / still.alignment:.3g}, "
            f"as without any step.",
            urlencode({"kappa": 2, "q": 3, "prescale": "paper", "norm": 0.001, **square}),
        ),
    )


def _on_gaussian(name: str, q: int, prescale: Prescale = "frobenius", norm: float = 1.0) -> tuple[Response, float]:
    """Return the response of a Gaussian 768×768 matrix to q steps, and χ_q by the paper's bound for κ = 2."""
    from muonlab.diagnostics.matrix_spectra import respond
    from muonlab.theory import chi

    spectrum = data.spectrum_of("gaussian", (768, 768), norm)
    response = respond(spectrum, data.schedule_of(name, q), prescale)
    sigma_min = float(spectrum.values[-1]) / response.alpha
    return response, chi(kappa=2, q=q, bound=True, sigma_min=sigma_min)
