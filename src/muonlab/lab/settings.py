"""Frozen values whose fields are checked by their annotations, from Python and from ``key=value`` words alike."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from muonlab import _checks

MOST_THREADS = 1_024


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every cell of a study has; specs add fields of type str, bool, int, float, Literal or one of these or None.

    Args:
        seed: of the weights and of the order of the data; optimizers that are compared share it.
        threads: of torch on a CPU; part of what a cell is, because sums round differently with it.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
    """

    seed: int = 0
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, kind in types_of(type(self)).items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), kind))
        _checks.integer("seed", self.seed, at_least=0)
        _checks.integer("threads", self.threads, at_least=1)
        if self.threads > MOST_THREADS:
            raise ValueError(
                f"threads must be at most {MOST_THREADS:,}, got {self.threads:,}: use those of the machine"
            )
        if self.device.partition(":")[0] not in ("cpu", "cuda", "mps"):
            raise ValueError(f"device must be cpu, cuda, cuda:N or mps, got {self.device!r}: pick one of these")

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with other values; a name that is no field is refused."""
        known = types_of(type(self))
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name, known) or sorted(known)
                raise ValueError(
                    f"a setting must be a field of {type(self).__name__}, got {name!r}: "
                    f"{'did you mean ' if len(near) < len(known) else 'they are '}{', '.join(near)}"
                )
        return dataclasses.replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return dataclasses.asdict(self)

    def non_defaults(self) -> dict[str, Any]:
        """Return the fields whose values are not their defaults.

        Example:
            >>> Settings(seed=3).non_defaults()
            {'seed': 3}
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}


def types_of(kind: type[Settings]) -> dict[str, Any]:
    """Return the types of a spec's fields by name."""
    if kind not in _TYPES:
        hints = get_type_hints(kind)
        _TYPES[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _TYPES[kind]


_TYPES: dict[type[Settings], dict[str, Any]] = {}


def read_words(kind: type[Settings], words: Iterable[str]) -> dict[str, Any]:
    """Read ``key=value`` words as the types of a spec's fields.

    Example:
        >>> from muonlab.lab.spec import Spec
        >>> read_words(Spec, ["lr=0.1", "clip=none", "augmentation=flip"])
        {'lr': 0.1, 'clip': None, 'augmentation': 'flip'}
    """
    read: dict[str, Any] = {}
    known = types_of(kind)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"a setting must be key=value, got {word!r}: write for example lr=0.1")
        if name in read:
            raise ValueError(f"a setting must be given once, got {name!r} twice: keep one of them")
        if name not in known:
            kind().changed({name: None})  # raises with the names that are near
        read[name] = _checked(name, _value(text, known[name]), known[name])
    return read


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _value(text: str, kind: Any) -> Any:
    """Return the value that a word means for a type, or the word itself if it means none."""
    options = _options(kind)
    if NoneType in options and text == "none":
        return None
    if bool in options:
        return {"true": True, "false": False}.get(text, text)
    for number in (int, float):
        if number in options:
            try:
                return number(text)
            except ValueError:
                continue
    return text


def _checked(name: str, value: Any, kind: Any) -> Any:
    """Return a value that is of the type, whole numbers as floats where these are asked for."""
    options = _options(kind)
    if value is None and NoneType in options:
        return None
    for option in options:
        if get_origin(option) is Literal:
            return _checks.one_of(name, value, get_args(option))
        if option is bool and isinstance(value, bool):
            return value
        if option is int and not isinstance(value, (bool, str)) and isinstance(value, int):
            return value
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is str and isinstance(value, str):
            return value
    raise TypeError(
        f"{name} must be {_words(options)}, got {value!r} of type {type(value).__name__}: {_advice(options)}"
    )


def _words(options: tuple[Any, ...]) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
    return " or ".join(names.get(option, str(option)) for option in options)


def _advice(options: tuple[Any, ...]) -> str:
    examples = {bool: "True (true on the command line)", int: "3", float: "0.1", str: "a word"}
    return f"pass for example {next(examples[option] for option in options if option in examples)}"
