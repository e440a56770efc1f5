"""The source of a user's class or function, with everything that it uses from the user's files, and its hash."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_WAY_OUT = (
    "define it with def or class at the top level of a file and pass values as options, or set cache=False in the study"
)


def name_of(target: Callable[..., Any]) -> str:
    """Return the name of a class or function; with its module if it is installed.

    Example:
        >>> import json
        >>> name_of(json.dumps)
        'json.dumps'
    """
    name = str(getattr(target, "__qualname__", type(target).__qualname__))
    module = str(getattr(target, "__module__", "") or "")
    return name if module in ("", "__main__") or _file_of(sys.modules.get(module)) else f"{module}.{name}"


def source_hash(target: Callable[..., Any]) -> str | None:
    """Return the sha256 of the source of a class or function, and of what it uses from the user's files.

    Comments and layout do not count. None for installed code, such as torch's, which its name identifies.

    Raises:
        ValueError: if the source does not determine what it does (a lambda, a function inside a function) or cannot be
            read.
    """
    check_hashable(target)
    module = sys.modules.get(target.__module__)
    if module is not None and _file_of(module) is None and module.__name__ != "__main__":
        return None
    found: dict[str, str] = {}
    _collect(module, target.__qualname__.partition(".")[0], found)
    return hashlib.sha256("\n".join(f"{name}\n{found[name]}" for name in sorted(found)).encode()).hexdigest()


def check_hashable(target: Callable[..., Any]) -> None:
    """Raise ``ValueError`` for a class or function that its source does not determine."""
    name = getattr(target, "__qualname__", None)
    if name is None:
        got = f"{target!r}, an object whose values are not in its source"
    elif "<lambda>" in name:
        got = "a lambda"
    elif "<locals>" in name:
        got = f"{name}, which is defined inside a function and may use its variables"
    else:
        return
    raise ValueError(f"a cell is identified by the source of its parts, got {got}: {_WAY_OUT}")


def _collect(module: ModuleType | None, name: str, found: dict[str, str]) -> None:
    """Add the definition of a name of a module, and those of all names that it uses."""
    path = _file_of(module)
    if module is None or path is None:
        raise ValueError(
            f"a cell is identified by the source of its parts, got {name}, whose source is not in a file: {_WAY_OUT}"
        )
    place = f"{module.__name__ if module.__name__ != '__main__' else path.stem}:{name}"
    nodes = _definitions(path, path.stat().st_mtime_ns).get(name, ())
    if place in found or not nodes:
        return
    found[place] = "\n".join(map(ast.unparse, nodes))
    for used in sorted({used for node in nodes for used in _names(node)}):
        value = getattr(module, used, None)
        if used in _definitions(path, path.stat().st_mtime_ns):
            _collect(module, used, found)
        elif isinstance(value, ModuleType):
            if _file_of(value) is not None:
                found[value.__name__] = ast.unparse(ast.parse(Path(str(value.__file__)).read_text(encoding="utf-8")))
        elif (home := sys.modules.get(getattr(value, "__module__", None) or "")) and _file_of(home) is not None:
            _collect(home, str(getattr(value, "__qualname__", used)).partition(".")[0], found)


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id


@cache
def _definitions(path: Path, _: int) -> dict[str, list[ast.stmt]]:
    """Return the statements at the top level of a file that define each name; the second argument is its time."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        for name in _defined(statement):
            found.setdefault(name, []).append(statement)
    return found


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return set()
    names = {part.id for part in ast.walk(statement) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    inner = (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt))  # in if, try, with
    return names.union(*map(_defined, inner))


def _file_of(module: ModuleType | None) -> Path | None:
    """Return the file of a module of the user; None for installed modules and those without a file."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return None if any(path.is_relative_to(folder) for folder in _installed()) else path


@cache
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [Path(sysconfig.get_path(name)).resolve() for name in names]
    return (*places, Path(__file__).resolve().parents[2])
