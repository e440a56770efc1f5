"""What the user's own parts of a spec have in common: a target, its options, and an identity of plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from muonlab.lab.own.source import name_of, source_hash

Target = str | Callable[..., Any]
"""A registered name, or a class or function."""


@dataclass(frozen=True, eq=False)
class OwnPart:
    """A part of a spec that is a plain object.

    Args:
        target: a registered name, or the class or function.
        options: its keyword arguments.
    """

    target: Target
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {name: _plain(name, value) for name, value in self.options.items()})

    @property
    def name(self) -> str:
        """The registered name, or that of the class or function."""
        return self.target if isinstance(self.target, str) else name_of(self.target)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the part is, as JSON values; of code that cannot be hashed only its name."""
        return self._about()

    def _about(self) -> dict[str, Any]:
        try:
            source = self._source
        except ValueError:
            source = None
        return {"name": self.name, "options": dict(self.options), **({} if source is None else {"source": source})}

    def check_hashable(self) -> None:
        """Raise ``ValueError`` if the identity does not determine what the part does."""
        self._source  # noqa: B018 - raises

    @property
    def _source(self) -> str | None:
        return None if isinstance(self.target, str) else source_hash(self.target)

    def changed(self, options: Mapping[str, Any]) -> Self:
        """Return a copy with other options."""
        return replace(self, options={**self.options, **options})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}


def _plain(name: str, value: Any) -> Any:
    """Return an option as a JSON value; raise TypeError if it is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(name, each) for each in value]
    raise TypeError(
        f"an option must be a number, text, true or false, none, or several of these, got {name}={value!r} of type "
        f"{type(value).__name__}: pass plain values and make the object from them in a function of your own"
    )


class OwnLoss(OwnPart):
    """A loss function of the user: ``(outputs, targets)`` to the mean over the batch."""


def loss(function: Callable[..., Any]) -> OwnLoss:
    """Return a loss function for ``Spec(loss=…)``; a plain function may be given there as well."""
    return OwnLoss(function)
