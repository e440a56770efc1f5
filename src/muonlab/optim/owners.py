"""Lists the parameters of a network, each with all its names and the modules that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

WRAPPERS = ("base_layer", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names that wrappers put between a module and the parameter of its child: peft, torch.compile, checkpointing, FSDP."""
_DEEPEST = 3
"""A row names a parameter by at most this many parts, as in ``lora_A.default.weight``."""


@dataclass(frozen=True)
class Site:
    """Where a parameter is: a module above it, its name as seen from there, and what surrounds them.

    Args:
        module: the module of a row.
        below: the name of the parameter as seen from ``module``.
        holder: the module that holds the parameter itself.
        around: ``module`` and the modules above it, the nearest first.
    """

    module: nn.Module
    below: str
    holder: nn.Module
    around: tuple[nn.Module, ...]


def sites(modules: Mapping[str, nn.Module], path: str, attribute: str) -> list[Site]:
    """Return the places from which a row may name a parameter, the module that holds it first."""
    parts = path.split(".") if path else []
    above = [modules[".".join(parts[:count])] for count in range(len(parts), -1, -1)]
    found, below = [], attribute
    for depth, module in enumerate(above):
        if below.count(".") >= _DEEPEST:
            break
        found.append(Site(module, below, above[0], tuple(above[depth:])))
        if depth < len(parts) and parts[-1 - depth] not in WRAPPERS:
            below = f"{parts[-1 - depth]}.{below}"
    return found


class Owner(NamedTuple):
    """A module that holds a parameter; for a parametrized weight, the module that uses it, and the parameter's part."""

    module: nn.Module
    attribute: str
    sites: list[Site]
    part: Literal["weight", "magnitude", "coordinates"] = "weight"


@dataclass(frozen=True)
class NamedParameter:
    """A parameter with its names and owners: more than one of each if it is tied."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)


def named_parameters(model: nn.Module) -> list[NamedParameter]:
    """Return every parameter once, in the order of the model, with all its names and owners."""
    found: dict[int, NamedParameter] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{attribute}" if path else attribute
            if is_lazy(parameter):
                raise ValueError(
                    f"parameters must have a shape, got {name!r} uninitialized: run one forward pass of the model first"
                )
            entry = found.setdefault(id(parameter), NamedParameter(parameter))
            entry.names.append(name)
            entry.owners.append(_owner(modules, path, attribute))
    return list(found.values())


def _owner(modules: Mapping[str, nn.Module], path: str, attribute: str) -> Owner:
    module = modules[path]
    if not isinstance(module, ParametrizationList):
        return Owner(module, attribute, sites(modules, path, attribute))
    base, _, tensor = f".{path}".rpartition(".parametrizations.")
    base = base.lstrip(".")
    kinds = [type(parametrization).__name__.strip("_") for parametrization in module]
    # Both rescale the matrix that is stored; any other parametrization may store something else than the matrix.
    part: Literal["weight", "magnitude", "coordinates"] = "coordinates"
    if kinds in (["WeightNorm"], ["SpectralNorm"]):
        part = "magnitude" if kinds == ["WeightNorm"] and attribute == "original0" else "weight"
    return Owner(modules[base], tensor, sites(modules, base, tensor), part)
