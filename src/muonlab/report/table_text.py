"""Tables as Markdown and LaTeX: what is pasted into notes and papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from muonlab.report.values import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "|": r"\textbar{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "κ": r"$\kappa$",
    "∇": r"$\nabla$",
    "‖": r"$\|$",
    "√": r"$\surd$",
    "ω": r"$\omega$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "χ": r"$\chi$",
    "ρ": r"$\rho$",
    "η": r"$\eta$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "φ": r"$\varphi$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": r"$-$",
    "²": r"$^2$",
    "–": "--",
    "…": r"\dots{}",
}
_MARKDOWN = "\\`*_[]<>|~$&"
_BLOCK = re.compile(r"^(\d*)([#+=.)-])")
"""What makes of a line of Markdown a heading, a rule or an entry of a list, when it is the first sign."""
_LATIN = 0x24F
"""The last letter that LaTeX prints without a package for another script."""


def labelled(table: Table, labels: Sequence[str]) -> Table:
    """Return a table whose caption says what its numbers are of: what is pasted elsewhere loses its page.

    Example:
        >>> labelled(Table("t", "Losses", "Means.", ("",), ()), ["profile small", "subset"]).caption
        'Means. Made with muonlab: profile small, subset.'
    """
    if not labels:
        return table
    return replace(table, caption=f"{table.caption} Made with muonlab: {', '.join(labels)}.".strip())


def to_markdown(table: Table) -> str:
    r"""Return a table in GitHub's Markdown, its caption below.

    Example:
        >>> print(to_markdown(Table("t", "Losses", "Means.", ("", "loss"), (("a|b", 0.5),))))
        **Losses**
        <BLANKLINE>
        |  | loss |
        |---|---:|
        | a\|b | 0.5 |
        <BLANKLINE>
        Means.
    """
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    lines = [[*map(markdown_text, table.header)], *([markdown_text(table.text(c)) for c in row] for row in table.rows)]
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    body = "\n".join([rows[0], f"|{'|'.join(rule)}|", *rows[1:]])
    title = markdown_text(table.title)
    caption = _BLOCK.sub(r"\1\\\2", markdown_text(table.caption))
    return "\n\n".join(part for part in (f"**{title}**" if title else "", body, caption) if part)


def to_latex(table: Table) -> str:
    r"""Return a table for LaTeX with the package ``booktabs``.

    Example:
        >>> print(to_latex(Table("losses", "Losses", "Means.", ("", "loss"), (("a_b", 0.5),))))
        \begin{table}
        \centering
        \caption{Losses. Means.}
        \label{tab:losses}
        \begin{tabular}{lr}
        \toprule
         & loss \\
        \midrule
        a\_b & 0.5 \\
        \bottomrule
        \end{tabular}
        \end{table}
    """
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    rows = [_latex_row(map(table.text, row)) for row in table.rows]
    head = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(f'{table.title}. {table.caption}'.strip())}}}"]
    return "\n".join(
        [
            *head,
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(table.header),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def latex_text(text: str) -> str:
    """Return text that LaTeX prints as it is; what it has no sign for is written by its number."""
    return "".join(_latex_letter(letter) for letter in _line(text))


def markdown_text(text: str) -> str:
    """Return text that Markdown prints as it is, on one line."""
    return "".join(f"\\{letter}" if letter in _MARKDOWN else letter for letter in _line(text))


def _line(text: str) -> str:
    """Return what of a text can be printed, with single blanks."""
    return " ".join("".join(letter for letter in text if letter.isprintable() or letter.isspace()).split())


def _latex_row(cells: Iterable[str]) -> str:
    row = " & ".join(map(latex_text, cells)) + r" \\"
    return f"{{}}{row}" if row[0] in "[*" else row  # else the rule or the row before takes it for its option


def _latex_letter(letter: str) -> str:
    if letter in _LATEX:
        return _LATEX[letter]
    return letter if ord(letter) <= _LATIN else f"U+{ord(letter):04X}"
