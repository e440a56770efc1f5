"""Looks a parameter up in the table of known layers, by the modules around it, its name and its shape."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Literal

from torch import nn

from muonlab.optim.architectures import (
    BY_HEADS,
    FUSED_BY_HEADS,
    KNOWN_PARAMETERS,
    OUTPUT_PROJECTIONS,
    QUERIES,
    ROLES,
    SIZES,
    KnownParameter,
)
from muonlab.optim.owners import WRAPPERS, Site
from muonlab.optim.views import check_fits, check_view, matrix_blocks, parse_view

Heads = Literal["auto"] | int | None


def known_default(places: Sequence[Site], shape: Sequence[int]) -> tuple[str, str] | None:
    """Return how the table reads a parameter, with the reason; None if no row matches or fits its shape."""
    for row, site in _matches(KNOWN_PARAMETERS, places):
        if row.read_as in ROLES:
            return row.read_as, row.why
        view = _resolved(row.read_as, shape, partial(_size, site=site))
        if view is not None and _makes_matrices(view, shape):
            return check_view(view), row.why
    return None


def by_heads(places: Sequence[Site], shape: Sequence[int], heads: Heads, name: str) -> tuple[str, str] | None:
    """Return how ``heads`` cuts a parameter; None if it is no projection of attention, and an error without a size."""
    if heads is None:
        return None
    for row, site in _matches(BY_HEADS, places):
        if len(shape) != 2:
            continue

        def size(symbol: str, site: Site = site) -> int | None:
            return _size(symbol, site) if symbol != "head_dim" or heads == "auto" else _head_dim(site, heads)

        view = _resolved(row.read_as, shape, size)
        if view is None:
            got = "no head_dim or number of heads in the module or its config" if heads == "auto" else f"heads={heads}"
            raise ValueError(
                f"heads must give the size of a head, got {got} for {name!r} of shape {tuple(shape)}: pass heads=12 "
                f"for 12 query heads, or a rule such as rules={{{name!r}: 'row_heads(64)'}}"
            )
        if not _makes_matrices(view, shape):
            raise ValueError(
                f"heads must cut into matrices of two or more rows and columns, got {view!r} for {name!r} of shape "
                f"{tuple(shape)}: pass another number of heads, or a rule such as rules={{{name!r}: 'flatten'}}"
            )
        return view, row.why
    return None


def _matches(rows: Sequence[KnownParameter], places: Sequence[Site]) -> Iterator[tuple[KnownParameter, Site]]:
    """Yield the rows that match, in their order, each with the module that it names."""
    found = [(number, site) for site in places for number in _rows_by_name(rows, site.below)]
    for number, site in sorted(found, key=lambda pair: pair[0]):
        row = rows[number]
        if _is_a(site.module, row.module) and all(_meets(site, *wanted) for wanted in row.when.items()):
            yield row, site


@lru_cache(maxsize=4096)
def _rows_by_name(rows: Sequence[KnownParameter], below: str) -> tuple[int, ...]:
    return tuple(number for number, row in enumerate(rows) if _matches_any(below, row.parameter))


def _matches_any(text: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns.split(" | "))


def _is_a(module: nn.Module, classes: str) -> bool:
    return any(_class_matches(kind.__module__, kind.__name__, classes) for kind in type(module).__mro__)


@lru_cache(maxsize=4096)
def _class_matches(module: str, name: str, classes: str) -> bool:
    return _matches_any(name, classes) or _matches_any(f"{module}.{name}", classes)


# Conditions


def _stored(module: nn.Module) -> str | None:
    """Return how experts are stored: the two halves of ``gate_up_proj`` make what ``down_proj`` takes."""
    up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if getattr(up, "ndim", 0) != 3 or getattr(down, "ndim", 0) != 3:
        return None
    (_, rows, columns), (_, down_rows, down_columns) = up.shape, down.shape  # type: ignore[union-attr]
    if (rows, columns) == (2 * down_columns, down_rows):
        return "outputs × inputs"
    return "inputs × outputs" if (rows, columns) == (down_columns, 2 * down_rows) else None


CONDITIONS: Mapping[str, Callable[[nn.Module], object]] = {
    "stored": _stored,
    "has_experts": lambda module: isinstance(getattr(module, "experts", None), nn.Module),
    "has_kv_lora_rank": lambda module: _attribute(module, "kv_lora_rank") is not None,
    "key_as_long_as_value": lambda module: (
        _attribute(module, "qk_nope_head_dim") == _attribute(module, "v_head_dim") is not None
    ),
}
"""What a row may require of its module besides the value of an attribute."""


def _meets(site: Site, name: str, wanted: object) -> bool:
    if name == "holder":
        return _is_a(site.holder, str(wanted))
    if name in CONDITIONS:
        return CONDITIONS[name](site.module) == wanted
    return getattr(site.module, name, None) == wanted


# Sizes


def _resolved(template: str, shape: Sequence[int], size: Callable[[str], int | None]) -> str | None:
    """Return a view with its names replaced by numbers; None if one of them is not known."""
    words, bracket, inside = template.partition("(")
    if not bracket:
        return template
    whole = shape[-1] if "column" in words else shape[-2 if "batch" in words else 0]

    def value(name: str) -> int | None:
        parts = {"half": 2, "third": 3, "twelfth": 12}.get(name)
        return whole // parts if parts else size(name)

    numbers = [_sum(formula, value) for formula in inside.rstrip(")").split(",")]
    return None if None in numbers else f"{words}({', '.join(map(str, numbers))})"


def _sum(formula: str, value: Callable[[str], int | None]) -> int | None:
    """Return the value of a sum of products of names and numbers."""
    total = 0
    for term in formula.split("+"):
        factors = [int(name) if name.isdigit() else value(name) for name in map(str.strip, term.split("*"))]
        if None in factors:
            return None
        total += prod(factor for factor in factors if factor is not None)
    return total


def _size(name: str, site: Site) -> int | None:
    """Return a size by the attributes of the module, of its config, and of the configs above it."""
    [formula, *_] = SIZES.get(name, (name,))
    if "*" in formula:
        return _sum(formula, lambda factor: _size(factor, site))
    configs = (getattr(module, "config", None) for module in site.around)
    for place in (site.module, *(config for config in configs if config is not None)):
        value = _size_in(place, name)
        if value is not None:
            return value
    return None


def _size_in(place: object, name: str) -> int | None:
    for formula in SIZES.get(name, (name,)):
        if "/" in formula:
            whole, parts = (_size_in(place, part.strip()) for part in formula.split("/"))
            value = whole // parts if whole and parts and whole % parts == 0 else None
        else:
            value = _attribute(place, formula)
        if value is not None:
            return value
    return None


def _attribute(place: object, name: str) -> int | None:
    value = getattr(place, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _head_dim(site: Site, heads: int) -> int | None:
    """Return the size of a head from the shapes of a module's projections and the number of its query heads.

    An output projection takes one head for each query; a query projection may also hold gates.
    """
    for rows, parts in ((OUTPUT_PROJECTIONS, 1), (QUERIES, 1), (FUSED_BY_HEADS, 3)):
        for below, parameter in site.module.named_parameters():
            for row, _ in _matches(rows, [_site_below(site, below)]):
                whole = parameter.shape[-1 if "column" in row.read_as else 0]
                return whole // (heads * parts) if whole % (heads * parts) == 0 else None
    return None


def _site_below(site: Site, below: str) -> Site:
    path = [part for part in below.split(".") if part not in WRAPPERS]
    holder = site.module.get_submodule(below.rpartition(".")[0])
    return Site(site.module, ".".join(path), holder, site.around)


def _makes_matrices(view: str, shape: Sequence[int]) -> bool:
    """Whether a view fits a shape and cuts it into matrices of two or more rows and columns."""
    parsed = parse_view(view)
    dimensions = len(shape) > 2 if parsed.batch else len(shape) == 2 or view == "flatten"
    try:
        check_fits(check_view(view), shape, "the parameter")
    except ValueError:
        return False
    return dimensions and all(min(block.matrices[-2:]) > 1 for block in matrix_blocks(tuple(shape), view))
