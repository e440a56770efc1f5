"""Every optimizer and recipe by name: what the contract tests run over and ``muonlab list optimizers`` shows.

A module of this package that calls :func:`register` is found by itself.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.optimizer import Optimizer


@dataclass(frozen=True)
class Entry:
    """A registered optimizer.

    Args:
        name: its name in lists and tests.
        build: makes it from ``(params, lr=…, momentum=…)`` and options of its own.
        source: who described it, and where.
        any_shape: whether it takes parameters of fewer than two dimensions.
    """

    name: str
    build: Callable[..., Optimizer]
    source: str
    any_shape: bool = False


_REGISTRY: dict[str, Entry] = {}


def register(name: str, build: Callable[..., Optimizer], *, source: str, any_shape: bool = False) -> Entry:
    """Add an optimizer; a name that is taken is refused."""
    if name in _REGISTRY:
        raise ValueError(f"an optimizer named {name!r} is registered already: choose another name")
    if not source:
        raise ValueError(f"optimizer {name!r} needs a source: say who described it")
    _REGISTRY[name] = Entry(name, build, source, any_shape)
    return _REGISTRY[name]


def optimizers() -> Mapping[str, Entry]:
    """Return every registered optimizer by name.

    Example:
        >>> from muonlab.optim import optimizers
        >>> "muon.paper" in optimizers()
        True
    """
    package = import_module("muonlab.optim")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"muonlab.optim.{module.name}")
    return MappingProxyType(_REGISTRY)


def describe() -> dict[str, Any]:
    """Return what each registered optimizer does by default, read off its parameter groups."""
    return {"optimizers": [_describe(entry) for entry in optimizers().values()]}


def _describe(entry: Entry) -> dict[str, Any]:
    parameters = inspect.signature(entry.build).parameters
    asked = [name for name in ("lr", "momentum") if parameters[name].default is inspect.Parameter.empty]
    group = entry.build([torch.zeros(2, 2)], **dict.fromkeys(asked, 0.5)).param_groups[0]
    kind, *fields = group.get("orthogonalizer", ("none",))
    return {
        "name": entry.name,
        "source": entry.source,
        **{name: None if name in asked else float(group[name]) for name in ("lr", "momentum")},
        "momentum_form": group.get("momentum_form", "heavy_ball"),
        **{name: group.get(name) for name in ("nesterov", "weight_decay", "scale", "renormalize")},
        "orthogonalizer": f"{fields[0]}, {fields[2]} prescale" if kind == "newton_schulz" else kind,
    }
