"""Every row of PEERS.md names tests that exist, or a reason why there is none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("PEERS.md")
NAMED = re.compile(r"`([^`]+\.py)::(\w+)`")


@cache
def functions_in(path: str) -> dict[str, tuple[str, ...]]:
    """Return the functions of a file with their decorators."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: tuple(map(ast.unparse, node.decorator_list)) for node in functions}


def fault(here: str) -> str | None:
    """Say what is wrong with the last cell of a row, if anything."""
    named = NAMED.findall(here)
    if here.startswith("reason: "):
        if len(here) < len("reason: ") + 15:
            return "the reason says nothing"
    elif not named or NAMED.sub("", here).strip(", "):
        return "neither tests nor a reason"
    for path, name in named:
        if not (ROOT / path).is_file():
            return f"no file {path}"
        if not name.startswith("test_") or name not in functions_in(path):
            return f"no test {name} in {path}"
    return None


def test_every_row_names_tests_that_exist_or_a_reason():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [row for row in rows if not row.startswith(("|---", "| item |"))]
    assert len(rows) == 119
    for row in rows:
        item, what, here = (cell.strip() for cell in row.strip("|").split("|"))
        assert item
        assert what
        assert fault(here) is None, f"{item}: {fault(here)}"


def test_a_row_that_names_nothing_is_found_out():
    for here, message in [
        ("", "neither tests nor a reason"),
        ("reason: later", "the reason says nothing"),
        ("reason: refused, see `tests/optim/test_muon.py::test_gone`", "no test test_gone in"),
        ("`tests/optim/test_muon.py`", "neither tests nor a reason"),
        ("`tests/optim/test_moon.py::test_it`", "no file tests/optim/test_moon.py"),
        ("`tests/optim/test_muon.py::test_that_is_not_there`", "no test test_that_is_not_there in"),
        ("`tests/optim/test_muon.py::parameters`", "no test parameters in"),
    ]:
        assert message in (fault(here) or "")


def test_no_test_that_is_named_is_skipped_or_expected_to_fail():
    for path, name in sorted(set(NAMED.findall(PAGE.read_text()))):
        decorators = functions_in(path).get(name, ())
        assert not any(re.search(r"mark\.(skip|xfail)\b", decorator) for decorator in decorators), f"{path}::{name}"
