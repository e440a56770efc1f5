"""A parameter as an optimizer knows it, and as its step sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor

from muonlab.optim.layout import Block, Layout


class Member(NamedTuple):
    """A parameter of an optimizer, with the group, the name and the layout that it has there."""

    group: dict[str, Any]
    name: str
    param: Tensor
    layout: Layout


class Part(NamedTuple):
    """A parameter, or a block of its rows, as the step sees it: plain tensors that share its memory."""

    param: Tensor
    group: dict[str, Any]
    layout: Layout
    weight: Tensor
    grad: Tensor
    momentum: Tensor
    finite: Tensor | None = None
    """Whether the parameter's gradient and momentum are in range, on its device; None where nobody asks."""
    block: Block | None = None
    """What of the parameter is orthogonalized together with it; None where nothing is orthogonalized."""
    number: int = 0
    """Number of the block in the parameter."""


def named(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a group with a name for messages."""
    names = group.get("param_names") or [f"parameter {i} of its group" for i in range(len(group["params"]))]
    return zip(names, group["params"], strict=True)


def name_of(group: Mapping[str, Any], param: Tensor) -> str:
    """Return the name of one parameter of a group."""
    return next(name for name, p in named(group) if p is param)


def by_group(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield neighbours of one group together."""
    for _, members in groupby(parts, key=lambda part: id(part.group)):
        yield list(members)
