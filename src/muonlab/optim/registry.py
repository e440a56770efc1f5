"""The registry of optimizers and recipes, which ``muonlab list optimizers`` and the contract tests use.

Every module of this package that calls :func:`register` is imported by :func:`optimizers`.
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
class RegisteredOptimizer:
    """A registered optimizer.

    Args:
        name: its name in lists and tests.
        build: returns it for ``(params, lr=…, momentum=…)`` and further options.
        source: the paper or package that describes it.
        any_shape: whether it accepts parameters of fewer than two dimensions.
    """

    name: str
    build: Callable[..., Optimizer]
    source: str
    any_shape: bool = False


_REGISTRY: dict[str, RegisteredOptimizer] = {}


def register(
    name: str, build: Callable[..., Optimizer], *, source: str, any_shape: bool = False
) -> RegisteredOptimizer:
    """Register an optimizer; raise if the name is taken."""
    if name in _REGISTRY:
        raise ValueError(f"an optimizer named {name!r} is registered already: choose another name")
    if not source:
        raise ValueError(f"optimizer {name!r} needs a source: name the paper or the package that describes it")
    _REGISTRY[name] = RegisteredOptimizer(name, build, source, any_shape)
    return _REGISTRY[name]


def optimizers() -> Mapping[str, RegisteredOptimizer]:
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
    """Return the default options of each registered optimizer, read from its parameter groups.

    Example:
        >>> describe()["optimizers"][0]["name"], describe()["optimizers"][0]["lr"]
        ('muon', 0.02)
    """
    return {"optimizers": [_describe(entry) for entry in optimizers().values()]}


def _describe(entry: RegisteredOptimizer) -> dict[str, Any]:
    parameters = inspect.signature(entry.build).parameters
    required = [name for name in ("lr", "momentum") if parameters[name].default is inspect.Parameter.empty]
    group = entry.build([torch.zeros(2, 2)], **dict.fromkeys(required, 0.5)).param_groups[0]
    kind, *fields = group.get("orthogonalizer", ("none",))
    return {
        "name": entry.name,
        "source": entry.source,
        **{name: None if name in required else float(group[name]) for name in ("lr", "momentum")},
        "momentum_form": group.get("momentum_form", "heavy_ball"),
        **{name: group.get(name) for name in ("nesterov", "weight_decay", "scale", "renormalize")},
        "orthogonalizer": f"{fields[0]}, {fields[2]} prescale" if kind == "newton_schulz" else kind,
    }
