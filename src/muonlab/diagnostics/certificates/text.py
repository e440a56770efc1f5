"""Certificates as text: tables for a terminal, a paragraph of explanation, escaped HTML for a notebook."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from muonlab._columns import aligned
from muonlab.polynomials import Schedule
from muonlab.theory.summary import finite

if TYPE_CHECKING:
    from muonlab.diagnostics.certificates.certificate import Certificate
    from muonlab.diagnostics.certificates.network_certificate import NetworkCertificate

ALIGNMENT_THEOREM = "alignment theorem"
FLOOR = "alignment floor"
THEOREM_2 = "Theorem 2"
THEOREM_4 = "Theorem 4"
LEMMAS_9_AND_10 = "Lemmas 9 and 10"
EXACT = "exact polar factor"


def method(schedule: Schedule, prescale: str) -> str:
    """Return the name of an orthogonalizer: its schedule and prescale."""
    return f"{schedule}, {prescale} prescale"


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are not finite become None."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return finite(value) if isinstance(value, float) else value


def number(value: float | None) -> str:
    """Format a number with four digits; "-" for None."""
    return "-" if value is None else f"{value:.4g}"


def certificate(c: Certificate) -> str:
    """Format a certificate: verdict, numbers, statements, paragraph."""
    m, n = c.shape
    title = f"{c.name} ({m}x{n})" if c.name else f"{m}x{n} matrix"
    rows = [
        ("rank, effective rank", f"{c.rank}, {number(c.effective_rank)}"),
        ("norms: nuclear, operator, Frobenius", ", ".join(map(number, (c.nuclear, c.operator, c.frobenius)))),
        ("residual delta_0 -> delta_q", f"{number(c.delta_0)} -> {number(c.delta)}"),
        ("polar error epsilon_q", number(c.epsilon)),
        ("paper's factor chi_q (bound)", f"{number(c.chi)} ({number(c.chi_bound)})"),
        ("descent rho, gain s", f"{number(c.descent)}, {number(c.op_norm)}"),
        ("alignment rho/s (floor)", f"{number(c.alignment)} ({number(c.alignment_floor)})"),
        ("factor on the bound, 1/alignment", number(c.factor)),
    ]
    width = max(len(label) for label, _ in rows)
    lines = [f"{title}, {c.method}: {c.status}", *(f"  {label.ljust(width)}  {value}" for label, value in rows)]
    lines += [f"  {v.statement}: {v.status}. {v.reason}" for v in c.verdicts]
    if c.not_covered:
        lines.append(f"  Not covered: {'; '.join(c.not_covered)}.")
    return "\n".join([*lines, "", explain(c)])


def explain(c: Certificate) -> str:
    """Return a paragraph on what a certificate means, for readers who do not know the paper."""
    m, n = c.shape
    if c.status == "not_applicable":
        why = next((v.reason for v in c.verdicts if v.statement == ALIGNMENT_THEOREM), "nothing was decided")
        return f"The proof says nothing about this {m}x{n} matrix: {why}."
    if c.status == "violated":
        wrong = "; ".join(f"{v.statement}: {v.reason}" for v in c.verdicts if v.status == "violated")
        return (
            f"This {m}x{n} matrix and its direction contradict what can be proved ({wrong}). Another polynomial or "
            f"prescale than the one named was used, or the computation is wrong; no guarantee covers training with it."
        )
    subject = "The direction given for" if c.foreign else f"The update direction of {c.method} for"
    sentences = [
        f"{subject} this {m}x{n} matrix descends {c.alignment:.1%} as fast as the exact "
        f"polar factor of the same length (alignment {c.alignment:.3g}; 1 is exact). If every step were aligned like "
        f"this one and equally long, the bound on the average gradient norm would be at most {c.factor:.3g} times that "
        f"of the exact one."
    ]
    if c.chi > 2 * c.factor:
        amount = f"{c.chi:.3g}" if math.isfinite(c.chi) else "infinite"
        sentences.append(
            f"Judged by its worst direction alone, as the paper's χ does, the factor would be {amount}: the smallest "
            f"singular value is {math.sqrt(c.lambda_min):.2g} of the scale. Alignment weighs directions by their size."
        )
    if c.alignment_floor is not None and c.method != EXACT:
        sentences.append(
            f"No matrix of rank {min(c.shape)} or less falls below {c.alignment_floor:.3g} with this method."
        )
    if c.not_covered:
        sentences.append(f"The theorem does not cover {', '.join(c.not_covered)}.")
    return " ".join(sentences)


def network(n: NetworkCertificate) -> str:
    """Format a table with a line per matrix, and the verdict on the whole."""
    header = ["matrix", "shape", "rank", "delta_0", "delta_q", "chi_q", "rho", "s", "alignment", "floor", "status"]
    rows = [
        [
            name,
            f"{c.shape[0]}x{c.shape[1]}",
            str(c.rank),
            *map(number, (c.delta_0, c.delta, c.chi, c.descent, c.op_norm, c.alignment, c.alignment_floor)),
            c.status,
        ]
        for name, c in n.matrices.items()
    ]
    methods = sorted({c.method for c in n.matrices.values()})
    lines = [
        *aligned([header, *rows], right=range(1, len(header))),
        "",
        f"Orthogonalized by {'; '.join(methods)}.",
        *(f"{name}: {c.reason}" for name, c in n.matrices.items() if c.status != "holds"),
    ]
    whole = (
        f"Network ({n.what}): {n.status}. Descent {number(n.descent)}, gain {number(n.op_norm)}, "
        f"alignment {number(n.alignment)} (floor {number(n.alignment_floor)}). {n.reason}."
    )
    if n.not_covered:
        lines.append(f"Not covered: {'; '.join(n.not_covered)}.")
    if n.assumed:
        lines.append(f"Assumed: {'; '.join(n.assumed)}.")
    decay = []
    if n.pull is not None and n.reduced_descent > 0:
        decay = [f"Weight decay reduces the descent from {number(n.descent)} to {number(n.reduced_descent)}."]
    return "\n".join([*lines, "", whole, *decay])


def only_the_gap(n: NetworkCertificate) -> str:
    """Say that weight decay leaves a bound on the Frank-Wolfe gap alone, with its value (docs/theory/theorem-b.md)."""
    if n.present_gap is None:
        value = "its value needs the gradients"
    elif n.present_gap < 0:
        value = f"it is {number(n.present_gap)} now, negative: a small bound does not mean a small gradient"
    else:
        value = f"it is {number(n.present_gap)} now"
    return (
        f"weight decay pulls by {number(n.pull)} (lambda times the norm of the weights), no less than the descent "
        f"{number(n.descent)}: gradient norms are not bounded, only the Frank-Wolfe gap is ({value})"
    )


def as_html(text: str) -> str:
    """Return text as an HTML element, with all markup escaped."""
    return f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
