"""The explorer of the theory: one HTML file with controls, for browsers without a network."""

from __future__ import annotations

import json
import os
import re
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from muonlab.lab.files import disk
from muonlab.report.explore import data
from muonlab.report.page.markup import document

if TYPE_CHECKING:
    from muonlab.diagnostics.singular_values import Response
    from muonlab.orthogonalize.prescale import Prescale

STYLES = ("style.css", "explore.css")
SCRIPTS = ("report.js", "explore-numbers.js", "explore-plot.js", "explore-figures.js", "explore.js")
TITLES = {"jordan": "Jordan's quintic (ad hoc)", "polar_express": "Polar Express"}


class Try(NamedTuple):
    """A view worth a look: what to say of it, and the fragment that opens it."""

    title: str
    words: str
    fragment: str


def explore(path: str | os.PathLike[str], *, show: bool = False) -> dict[str, Any]:
    """Write the explorer as one HTML file, whole or not at all.

    Args:
        path: the file.
        show: whether to open it in a browser.

    Returns:
        Where it is, and how large.
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise ValueError(f"--out must be a file in a directory that is there, got {target}: name another")
    text = explorer_html().encode()
    disk.write(target, text)
    if show:
        webbrowser.open(target.resolve().as_uri())
    return {"page": str(target), "bytes": len(text)}


def explorer_html() -> str:
    """Return the explorer as the text of one HTML file; computing its floors takes some seconds."""
    return document(
        "explore.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=embedded(data.page_data()),
        maths=maths,
        tries=tries(),
        polynomials=_polynomials(),
        spectra=tuple(data.SPECTRA.items()),
        shapes=tuple((f"{m}x{n}", f"{m} × {n}") for m, n in data.SHAPES),
        prescales=tuple(data.PRESCALES.items()),
        kappas=len(data.KAPPAS),
        most_steps=data.MOST_STEPS,
        sharp_steps=data.SHARP_STEPS,
        norms=len(data.NORMS),
        lambdas=len(data.LAMBDAS),
        ranks=len(data.RANKS),
        ratios=len(data.RATIOS),
        largest_side=data.LARGEST_SIDE,
        rank_words=", ".join(map(str, data.RANKS)),
    )


def embedded(values: dict[str, Any]) -> Markup:
    r"""Return JSON that can stand inside a script element: no ``<`` of it can close one.

    Example:
        >>> embedded({"a": "</script>"})
        Markup('{"a":"\\u003c/script>"}')
    """
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def maths(text: str) -> Markup:
    """Return words with their indices and exponents set as such.

    Example:
        >>> maths("χ_q < u^(κ+1)")
        Markup('χ<sub>q</sub> &lt; u<sup>κ+1</sup>')
    """
    lowered = re.sub(r"_(gemm|svd|op|[\w*])", r"<sub>\1</sub>", str(escape(text)))
    return Markup(re.sub(r"\^\(([^()]*)\)|\^(\w)", lambda m: f"<sup>{m[1] or m[2]}</sup>", lowered))


def _polynomials() -> tuple[tuple[str, str], ...]:
    others = tuple(name for name in data.polynomial_names() if not name.startswith("taylor"))
    return ("taylor", "Taylor, degree κ (paper)"), *((name, TITLES.get(name, name)) for name in others)


def tries() -> tuple[Try, ...]:
    """Return the views to begin with, their numbers computed by the library."""
    square: dict[str, Any] = {"spectrum": "gaussian", "shape": "768x768"}
    start, bound = _of_the_square("taylor2", 3)
    better, _ = _of_the_square("taylor2", 3, "schatten8")
    jordan, _ = _of_the_square("jordan", 5)
    still, _ = _of_the_square("taylor2", 3, "paper", 1e-3)
    return (
        Try(
            "A Gaussian 768 × 768 matrix, three quintic steps.",
            f"χ is {start.chi:,.0f}, or {bound:,.0f} by the paper's bound; what counts, 1/a, "
            f"is {1 / start.alignment:.3g}.",
            urlencode({"kappa": 2, "q": 3, **square}),
        ),
        Try(
            "The same, divided by its Schatten-8 norm.",
            f"A better prescale alone brings 1/a to {1 / better.alignment:.3g}.",
            urlencode({"kappa": 2, "q": 3, "prescale": "schatten8", **square}),
        ),
        Try(
            "Five steps of Jordan's quintic.",
            f"Theorem 2 says nothing of it; the alignment theorem charges {1 / jordan.alignment:.3g}.",
            urlencode({"polynomial": "jordan", "q": 5, **square}),
        ),
        Try(
            "Algorithm 1 as printed, near a stationary point.",
            f"At ‖M‖ = 0.001 dividing by max{{1, ‖M‖}} does nothing: 1/a is {1 / still.alignment:.3g}, "
            f"as if no step were made.",
            urlencode({"kappa": 2, "q": 3, "prescale": "paper", "norm": 0.001, **square}),
        ),
    )


def _of_the_square(name: str, q: int, prescale: Prescale = "frobenius", norm: float = 1.0) -> tuple[Response, float]:
    """Return what steps make of a Gaussian 768×768 matrix, and χ_q by the paper's bound for κ = 2."""
    from muonlab.diagnostics.singular_values import respond
    from muonlab.theory import chi

    of = data.spectrum_of("gaussian", (768, 768), norm)
    found = respond(of, data.schedule_of(name, q), prescale)
    return found, chi(kappa=2, q=q, bound=True, sigma_min=float(of.values[-1]) / found.alpha)
