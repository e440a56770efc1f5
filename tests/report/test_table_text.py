"""Tables as text, read back: a naive reader of Markdown and of LaTeX must find the cells that went in."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.report.table_text import latex_text, to_latex, to_markdown
from muonlab.report.values import Table
from tests.report.hostile import HOSTILE

ALL_ASCII = "".join(chr(code) for code in range(0x20, 0x7F))
LINES = (*HOSTILE, ALL_ASCII, *(f"{letter}x" for letter in string.punctuation), "\\|", "a\\", "|", "\\\\|\\", "[1] x")


def shown(text):
    """What of a text can be shown on a line: no control characters, single blanks."""
    return " ".join("".join(letter for letter in text if letter.isprintable() or letter.isspace()).split())


def read_markdown(text):
    """Rows of cells, by splitting at each bar that no backslash precedes."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    rows = [re.findall(r"((?:\\.|[^|\\])*)\|", line[1:]) for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell).strip() for cell in row] for row in rows]


def table(*rows, header=("", "loss"), title="Losses", caption="Means.", **more):
    return Table("losses", title, caption, header, rows, **more)


# ------------------------------------------------------------------------------------------------------------ Markdown


def test_a_real_reader_of_markdown_shows_the_text_itself():
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for text in LINES:
        tokens = reader.parse(to_markdown(table((text, 0.5), header=(text, "loss"), title=text, caption=f"C {text}")))
        inline = [token for token in tokens if token.type == "inline"]
        words = ["".join(part.content for part in token.children) for token in inline]
        marked = {part.type for token in inline[1:] for part in token.children} - {"text", "text_special"}
        expected = shown(text)
        title = [expected] if expected else []
        assert words == [*title, expected, "loss", expected, "0.5", shown(f"C {text}")]
        assert not marked  # no emphasis, link, code or markup
        assert {token.type.removesuffix("_open") for token in tokens if token.type.endswith("_open")} <= {
            "paragraph", "table", "thead", "tbody", "tr", "th", "td",
        }  # fmt: skip


def test_columns_of_numbers_are_flush_right_and_those_with_a_word_are_not():
    made = table(("a", 1, 0.5, None), ("b", None, "n/a", None), header=("", "whole", "mixed", "empty"))
    assert to_markdown(made).split("\n")[3] == "|---|---:|---|---|"
    assert r"\begin{tabular}{lrll}" in to_latex(made)


def test_floats_have_the_digits_of_the_table_and_whole_numbers_all_theirs():
    made = table(("a", 123456.789), ("b", 1234567), ("c", 0.000123456), digits=3)
    assert [row[1] for row in read_markdown(to_markdown(made))[2:]] == ["1.23e+05", "1234567", "0.000123"]


# --------------------------------------------------------------------------------------------------------------- LaTeX

SPECIAL = {
    r"\textbackslash{}": "\\", r"\textasciicircum{}": "^", r"\textasciitilde{}": "~", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\{": "{", r"\}": "}", r"\$": "$", r"\&": "&", r"\#": "#", r"\%": "%",
    r"\_": "_",
}  # fmt: skip


def read_latex(text):
    """ASCII as LaTeX would print it; what is left of its own signs is an error."""
    found = ""
    while text:
        command = next((name for name in SPECIAL if text.startswith(name)), None)
        assert command or text[0] not in "\\{}$&#%_^~|<>", f"LaTeX would act on {text[:20]!r}"
        found += SPECIAL[command] if command else text[0]
        text = text[len(command) if command else 1 :]
    return found


def balanced(text):
    """Whether braces that LaTeX acts on come in pairs, none closed before it was opened."""
    depth = 0
    for letter in re.sub(r"\\[{}]", "", text):
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            return False
    return depth == 0


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40))
def test_latex_of_any_ascii_text_prints_that_text(text):
    assert read_latex(latex_text(text)) == " ".join(text.split())


def test_latex_has_a_line_and_the_cells_for_each_row():
    for text in LINES:
        made = to_latex(table((text, 0.5), (text, None), header=(text, "loss"), title=text, caption=text))
        lines = made.split("\n")
        assert len(lines) == 13
        for line in (lines[6], lines[8], lines[9]):
            assert line.endswith(r" \\")
            assert len(re.split(r"(?<!\\)&", line)) == 2
            assert not line.startswith(("[", "*"))  # a rule or the end of a row would take it for its option
        assert balanced(made)
        assert all(letter.isprintable() for line in lines for letter in line)


def test_signs_beyond_ascii_are_commands_or_numbers():
    for text, latex in [
        ("κ = 2", r"$\kappa$ = 2"),
        ("‖∇f‖_*/√r", r"$\|$$\nabla$f$\|$\_*/$\surd$r"),
        ("0.5 ± 0.1", r"0.5 $\pm$ 0.1"),
        ("64×216", r"64$\times$216"),
        ("–", "--"),
        ("Ärger", "Ärger"),
        ("→ 🧪", "U+2192 U+1F9EA"),
        ("a\x00\x07b\n\tc", "ab c"),
    ]:
        assert latex_text(text) == latex
