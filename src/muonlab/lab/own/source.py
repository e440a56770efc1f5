"""The source of a user's class or function, with everything that it uses from the user's files, and its hash."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

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
    home = _home(target)
    name = str(getattr(home, "__qualname__", type(home).__qualname__))
    name = name if home is target else f"{name}.{target.__name__}"
    module = str(getattr(home, "__module__", "") or "")
    return name if module in ("", "__main__") or _file_of(sys.modules.get(module)) else f"{module}.{name}"


def source_hash(target: Callable[..., Any]) -> str | None:
    """Return the sha256 of the source of a class or function, and of what it uses from the user's files.

    Comments and layout do not count. None for installed code, such as torch's, which its name identifies.

    Raises:
        ValueError: if the source does not determine what it does (a lambda, a function inside a function, a method of
            an object) or cannot be read.
    """
    check_hashable(target)
    home = _home(target)
    module = sys.modules.get(home.__module__)
    path = _file_of(module)
    name = home.__qualname__.partition(".")[0]
    if module is None or path is None:
        if module is not None and module.__name__ != "__main__":
            return None
        raise ValueError(
            f"a cell is identified by the source of its parts, got {name}, whose source is not in a file: {_WAY_OUT}"
        )
    found: dict[str, str | None] = {}
    _collect(_File(module.__name__, path), name, found)
    parts = [f"{name}\n{found[name]}" for name in sorted(found) if found[name]]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def check_hashable(target: Callable[..., Any]) -> None:
    """Raise ``ValueError`` for a class or function that its source does not determine."""
    name = getattr(target, "__qualname__", None)
    if name is None:
        got = f"{target!r}, an object whose values are not in its source"
    elif "<lambda>" in name:
        got = "a lambda"
    elif "<locals>" in name:
        got = f"{name}, which is defined inside a function and may use its variables"
    elif inspect.ismethod(target) and _home(target) is target:
        got = f"{name}, a method of an object whose values are not in its source"
    else:
        return
    raise ValueError(f"a cell is identified by the source of its parts, got {got}: {_WAY_OUT}")


def _home(target: Any) -> Any:
    """Return the class of a class method, which may be a subclass of the one that defines it; else the target."""
    owner = getattr(target, "__self__", None) if inspect.ismethod(target) else None
    return owner if isinstance(owner, type) else target


class _File(NamedTuple):
    """A file of the user and the name by which it is imported."""

    module: str
    path: Path

    @property
    def code(self) -> _Code:
        return _read(self.path, self.path.stat().st_mtime_ns)

    def place(self, name: str = "") -> str:
        """Return the key of a definition, or of the whole file."""
        module = self.path.stem if self.module == "__main__" else self.module
        return f"{module}:{name}" if name else module


class _Code(NamedTuple):
    """A file's syntax tree, and the statements at its top level that define or change each name, and that import it."""

    tree: ast.Module
    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, list[tuple[_Import, ast.alias]]]


_Import = ast.Import | ast.ImportFrom


def _collect(file: _File, name: str, found: dict[str, str | None]) -> bool:
    """Add the definition of a name of a file, and those of all names that it uses; return whether there is one."""
    code = file.code
    if file.place() in found:
        return name in code.definitions or name in code.imports
    if file.place(name) in found:  # None: not found there, or searched for right now
        return found[file.place(name)] is not None
    nodes = code.definitions.get(name, [])
    found[file.place(name)] = "\n".join(map(ast.unparse, nodes)) or None
    for statement, alias in code.imports.get(name, []):
        _follow(file, statement, alias, found)
    for used in sorted({used.id for node in nodes for used in _names(node)}):
        _collect(file, used, found)
    for node in nodes:
        _follow_all(file, node, found)
    if not nodes and (name in code.imports or _is_in_star_import(file, name, found)):
        found[file.place(name)] = ""
    return found[file.place(name)] is not None


def _is_in_star_import(file: _File, name: str, found: dict[str, str | None]) -> bool:
    """Add the definition of a name that a file has from ``from … import *``; return whether there is one."""
    return any(
        _collect(star, name, found)
        for statement, _ in file.code.imports.get("*", [])
        if isinstance(statement, ast.ImportFrom) and (star := _users_file(_module_of(file, statement))) is not None
    )


def _collect_file(file: _File, found: dict[str, str | None]) -> None:
    """Add a whole file, and what it imports from other files of the user."""
    if file.place() not in found:
        found[file.place()] = ast.unparse(file.code.tree)
        _follow_all(file, file.code.tree, found)


def _follow_all(file: _File, node: ast.AST, found: dict[str, str | None]) -> None:
    for statement, alias in _imports(node):
        _follow(file, statement, alias, found)


def _follow(file: _File, statement: _Import, alias: ast.alias, found: dict[str, str | None]) -> None:
    """Add what an import takes from a file of the user: the definition of the name, or the whole file."""
    if isinstance(statement, ast.Import):
        parts = alias.name.split(".")
        for end in range(len(parts)):
            if (package := _users_file(".".join(parts[: end + 1]))) is not None:
                _collect_file(package, found)
        return
    name = _module_of(file, statement)
    source = _users_file(name)
    in_itself = source is not None and source.path == file.path  # ``from . import layers`` in a package
    if source is not None and not in_itself and alias.name != "*" and _collect(source, alias.name, found):
        return
    whole = _users_file(f"{name}.{alias.name}") or source
    if whole is not None:
        _collect_file(whole, found)


def _module_of(file: _File, statement: ast.ImportFrom) -> str:
    package = file.module if file.path.name == "__init__.py" else file.module.rpartition(".")[0]
    relative = "." * statement.level + (statement.module or "")
    try:
        return importlib.util.resolve_name(relative, package) if statement.level else relative
    except ImportError:  # of a file that is not in a package, which tries another import then
        return ""


def _users_file(module: str) -> _File | None:
    """Return a module of the user by its name, without running it; None for installed ones."""
    if module not in sys.modules:
        try:
            top = importlib.util.find_spec(module.partition(".")[0])
            if top is None or (top.origin is not None and _users_path(top.origin) is None):
                return None
            spec = importlib.util.find_spec(module)
        except Exception:  # a package of the user may raise anything when it is imported
            return None
        path = _users_path(spec.origin) if spec is not None and spec.origin is not None else None
    else:
        path = _file_of(sys.modules[module])
    return None if path is None else _File(module, path)


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name))


def _imports(node: ast.AST) -> Iterator[tuple[_Import, ast.alias]]:
    for part in ast.walk(node):
        if isinstance(part, _Import):
            yield from ((part, alias) for alias in part.names)


@cache
def _read(path: Path, _: int) -> _Code:
    """Return the code of a file; the second argument is its time."""
    code = _Code(ast.parse(path.read_bytes()), {}, {})
    for statement in code.tree.body:
        for name in _defined(statement):
            code.definitions.setdefault(name, []).append(statement)
        for imported, alias in () if isinstance(statement, _SCOPES) else _imports(statement):
            bound = alias.name.partition(".")[0] if isinstance(imported, ast.Import) else alias.name
            code.imports.setdefault(alias.asname or bound, []).append((imported, alias))
    return code


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level assigns, or whose value it changes."""
    if isinstance(statement, _SCOPES):
        return {statement.name}
    if isinstance(statement, _Import):
        return set()
    names = {part.id for part in _names(statement) if isinstance(part.ctx, ast.Store)}
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):  # TABLE["key"] = value, Net.forward = faster
        names |= {_root(part) for part in ast.walk(statement) if isinstance(getattr(part, "ctx", None), ast.Store)}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):  # TABLE.update(…)
        names.add(_root(statement.value.func) if isinstance(statement.value.func, ast.Attribute) else "")
    inner = (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt))  # in if, try, with
    return names.union(*map(_defined, inner)) - {""}


def _root(node: ast.AST) -> str:
    """Return the name at the start of ``name.attribute[index]``; empty if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _file_of(module: ModuleType | None) -> Path | None:
    """Return the file of a module of the user; None for installed modules and those without a file."""
    file = getattr(module, "__file__", None)
    return None if file is None else _users_path(file)


def _users_path(file: str) -> Path | None:
    path = Path(file).resolve()
    is_installed = path.suffix != ".py" or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    is_installed = is_installed or any(path.is_relative_to(folder) for folder in _installed())
    return None if is_installed else path


@cache
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [Path(sysconfig.get_path(name)).resolve() for name in names]
    return (*places, Path(__file__).resolve().parents[2])
