"""Tables as Markdown and LaTeX, to paste into notes and papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from muonlab.report.values import Table

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "|": r"\textbar{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "–": "--", "…": r"\dots{}",
    "κ": r"$\kappa$", "ω": r"$\omega$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "χ": r"$\chi$", "ρ": r"$\rho$",
    "η": r"$\eta$", "β": r"$\beta$", "λ": r"$\lambda$", "σ": r"$\sigma$", "τ": r"$\tau$", "φ": r"$\varphi$",
    "∇": r"$\nabla$", "‖": r"$\|$", "√": r"$\surd$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$",
    "≥": r"$\geq$", "−": r"$-$", "²": r"$^2$",
}  # fmt: skip
_MARKDOWN = "\\`*_[]<>|~$&"
_LATIN = 0x24F
"""The last code point that LaTeX prints without a package for another script."""


def with_labels(table: Table, labels: Sequence[str]) -> Table:
    """Return a table whose caption names the labels of the page, because it may be pasted elsewhere.

    Example:
        >>> with_labels(Table("t", "Losses", "Means.", ("",), ()), ["profile small", "subset"]).caption
        'Means. Made with muonlab: profile small, subset.'
    """
    if not labels:
        return table
    return replace(table, caption=f"{table.caption} Made with muonlab: {', '.join(labels)}.".strip())


def to_markdown(table: Table) -> str:
    r"""Return a table as GitHub Markdown, with the caption below.

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
    caption = markdown_text(table.caption)
    return "\n\n".join(part for part in (f"**{title}**" if title else "", body, caption) if part)


def to_latex(table: Table) -> str:
    r"""Return a table as LaTeX; it needs the package ``booktabs``.

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
    """Escape text for LaTeX; a character that it cannot print becomes its code point, such as ``U+2192``."""
    return "".join(_latex_letter(letter) for letter in _line(text))


def markdown_text(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return "".join(f"\\{letter}" if letter in _MARKDOWN else letter for letter in _line(text))


def _line(text: str) -> str:
    """Remove control characters and replace white space by single spaces."""
    return " ".join("".join(letter for letter in text if letter.isprintable() or letter.isspace()).split())


def _latex_row(cells: Iterable[str]) -> str:
    row = " & ".join(map(latex_text, cells)) + r" \\"
    return f"{{}}{row}" if row[0] in "[*" else row  # else LaTeX reads it as an option of the row before


def _latex_letter(letter: str) -> str:
    if letter in _LATEX:
        return _LATEX[letter]
    return letter if ord(letter) <= _LATIN else f"U+{ord(letter):04X}"
