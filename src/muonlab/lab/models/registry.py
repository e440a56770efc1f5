"""The registered models, for studies, the contract tests and ``muonlab list models``.

Every module of this package is imported, so that a new one only has to call :func:`register`.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from muonlab import _checks


@dataclass(frozen=True)
class Model:
    """A registered model.

    Args:
        name: its name in specs and lists.
        build: builds it from ``(shape, classes, **options)``.
        shape: one example: ``(channels, height, width)``, or ``(block,)`` for tokens.
        classes: the classes, or the size of the vocabulary.
        parameters: number of parameters for this shape and these classes, frozen ones included.
        source: the publication that describes it.
    """

    name: str
    build: Callable[..., nn.Module]
    shape: tuple[int, ...]
    classes: int
    parameters: int
    source: str

    @property
    def options(self) -> dict[str, Any]:
        """The options that it takes, with their defaults."""
        _, _, *options = inspect.signature(self.build).parameters.values()
        return {option.name: option.default for option in options}


_REGISTRY: dict[str, Model] = {}


def register(model: Model) -> Model:
    """Add a model; raise ``ValueError`` if its name is taken."""
    if model.name in _REGISTRY:
        raise ValueError(f"a model named {model.name!r} is registered already: choose another name")
    if not model.source:
        raise ValueError(f"model {model.name!r} needs a source: say who described it")
    _REGISTRY[model.name] = model
    return model


def models() -> Mapping[str, Model]:
    """Return every registered model by name.

    Example:
        >>> from muonlab.lab.models import models
        >>> models()["cifarnet"].parameters
        1972792
    """
    package = import_module("muonlab.lab.models")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"muonlab.lab.models.{module.name}")
    return MappingProxyType(_REGISTRY)


def build(name: str, *, shape: Sequence[int] | None = None, classes: int | None = None, **options: Any) -> nn.Module:
    """Build a registered model with random weights from torch's global generator.

    Args:
        name: one of :func:`models`.
        shape: of one example; None is the model's own.
        classes: number of classes, or size of the vocabulary; None is the model's own.
        **options: of the model, such as ``widths``.

    Returns:
        The network, on torch's default device, in training mode. If it has a method ``fit``, call it with normalised
        training images before the first step; if it has ``matrix_rules``, pass them as ``split_params(rules=…)``.

    Example:
        >>> from muonlab.lab.models import build
        >>> build("mlp-small", shape=(1, 8, 8)).head
        Linear(in_features=64, out_features=10, bias=True)
    """
    known = models()
    if name not in known:
        near = difflib.get_close_matches(str(name), known) or list(known)
        raise ValueError(f"name must be a registered model, got {name!r}: did you mean {', '.join(map(repr, near))}?")
    model = known[name]
    for option in options:
        if option not in model.options:
            accepted = ", ".join(model.options)
            raise TypeError(f"model {name!r} takes the options {accepted}, got {option!r}: use one of these")
    sizes = model.shape if shape is None else positive_integers("shape", shape, like=model.shape)
    number = model.classes if classes is None else _checks.integer("classes", classes, at_least=2)
    return model.build(sizes, number, **options)


def describe() -> dict[str, Any]:
    """Return the registered models as plain values; parameters are counted on the meta device."""
    return {"models": [_describe(model) for model in models().values()]}


def _describe(model: Model) -> dict[str, Any]:
    with torch.device("meta"):
        network = model.build(model.shape, model.classes)
    return {
        "name": model.name,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "shape": list(model.shape),
        "classes": model.classes,
        "source": model.source,
    }


def positive_integers(name: str, values: object, *, like: tuple[int, ...], any_length: bool = False) -> tuple[int, ...]:
    """Return ``values`` as a tuple of positive integers, as many as in ``like``, or any number with ``any_length``."""
    rule = f"{name} must be {'one or more' if any_length else len(like)} integers such as {like}"
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{rule}, got {values!r}: pass a tuple")
    numbers = tuple(_checks.integer(f"each entry of {name}", value, at_least=1) for value in values)
    if not numbers or (len(numbers) != len(like) and not any_length):
        raise ValueError(f"{rule}, got {numbers}: pass that many")
    return numbers
