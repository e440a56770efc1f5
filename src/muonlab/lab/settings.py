"""Frozen dataclasses whose fields are checked against their annotations, from Python and from ``key=value`` text."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from muonlab import _checks
from muonlab.lab.own.part import OwnPart

MOST_THREADS = 1_024


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of every cell; specs add fields of type str, bool, int, float, Literal, or one of these or None.

    Args:
        seed: of the weights and of the order of the data, the same for all optimizers that are compared.
        threads: of torch on a CPU; part of a cell's identity, because sums round differently with another number.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
    """

    seed: int = 0
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), kind))
        _checks.integer("seed", self.seed, at_least=0)
        _checks.integer("threads", self.threads, at_least=1)
        if self.threads > MOST_THREADS:
            raise ValueError(
                f"threads must be at most {MOST_THREADS:,}, got {self.threads:,}: use at most the cores of the machine"
            )
        if self.device.partition(":")[0] not in ("cpu", "cuda", "mps"):
            raise ValueError(f"device must be cpu, cuda, cuda:N or mps, got {self.device!r}: pick one of these")

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with other values; raise ValueError for a name that is not a field.

        ``FIELD.OPTION`` is an option of a model, dataset or optimizer that is a plain object.
        """
        known = field_types(type(self))
        whole = {name: value for name, value in settings.items() if "." not in name}
        options: dict[str, dict[str, Any]] = {}
        for name in settings.keys() - whole.keys():
            field, _, option = name.partition(".")
            options.setdefault(field, {})[option] = settings[name]
        for name in (*whole, *options):
            if name not in known:
                near = difflib.get_close_matches(name, known) or sorted(known)
                raise ValueError(
                    f"a setting must be a field of {type(self).__name__}, got {name!r}: "
                    f"{'did you mean ' if len(near) < len(known) else 'they are '}{', '.join(near)}"
                )
        copy = dataclasses.replace(self, **whole) if whole or not options else self
        parts = {name: _own_part(name, getattr(copy, name)) for name in options}
        changed: dict[str, Any] = {name: part.changed(options[name]) for name, part in parts.items()}
        return dataclasses.replace(copy, **changed) if changed else copy

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; what is a plain object by its identity."""
        return {field.name: plain_value(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def own_parts(self) -> list[OwnPart]:
        """Return the fields that are plain objects."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return [value for value in values if isinstance(value, OwnPart)]

    def non_defaults(self) -> dict[str, Any]:
        """Return the fields whose values are not their defaults.

        Example:
            >>> Settings(seed=3).non_defaults()
            {'seed': 3}
        """
        defaults = {field.name: plain_value(field.default) for field in dataclasses.fields(self)}
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}


def plain_value(value: Any) -> Any:
    """Return a value of a field as a JSON value."""
    return value.identity if isinstance(value, OwnPart) else value


def _own_part(name: str, value: Any) -> OwnPart:
    if not isinstance(value, OwnPart):
        raise ValueError(
            f"options belong to a model, a dataset or an optimizer that is a plain object, got {name} = {value!r}: "
            f"write {name}={name}({value!r}, …) in the study"
        )
    return value


def field_types(kind: type[Settings]) -> dict[str, Any]:
    """Return the types of a spec's fields by name."""
    if kind not in _FIELD_TYPES:
        hints = get_type_hints(kind)
        _FIELD_TYPES[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _FIELD_TYPES[kind]


_FIELD_TYPES: dict[type[Settings], dict[str, Any]] = {}


def parse_settings(kind: type[Settings], arguments: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``key=value`` arguments, by the types of a spec's fields.

    Example:
        >>> from muonlab.lab.spec import Spec
        >>> parse_settings(Spec, ["lr=0.1", "clip=none", "augmentation=flip"])
        {'lr': 0.1, 'clip': None, 'augmentation': 'flip'}
    """
    settings: dict[str, Any] = {}
    known = field_types(kind)
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            raise ValueError(f"a setting must be key=value, got {argument!r}: write for example lr=0.1")
        if name in settings:
            raise ValueError(f"a setting must be given once, got {name!r} twice: keep one of them")
        if name.partition(".")[0] in known and "." in name:
            settings[name] = _literal(text)
            continue
        if name not in known:
            kind().changed({name: None})  # raises with similar names
        settings[name] = _checked(name, _parse(text, known[name]), known[name])
    return settings


def _literal(text: str) -> Any:
    """Return the value of a text such as ``3``, ``(0.9, 0.95)``, ``none`` or ``gelu``."""
    words = {"none": None, "true": True, "false": False}
    try:
        return words[text] if text in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _parse(text: str, kind: Any) -> Any:
    """Return the value of a text for a type, or the text itself if it is not of that type."""
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
    """Return the value, an integer as a float where a float is expected; raise TypeError if it is of another type."""
    options = _options(kind)
    if value is None and NoneType in options:
        return None
    if isinstance(value, OwnPart) and type(value) in options:
        return value
    for option in options:
        if get_origin(option) is Literal:
            return _checks.one_of(name, value, get_args(option))
        if (option is bool and isinstance(value, bool)) or (option is str and isinstance(value, str)):
            return value
        if option is int and not isinstance(value, (bool, str)) and isinstance(value, int):
            return value
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
    examples = {bool: "True (true on the command line)", int: "3", float: "0.1", str: "a word"}
    expected = " or ".join(names.get(option, _type_name(option)) for option in options)
    example = next((examples[option] for option in options if option in examples), "a function")
    raise TypeError(
        f"{name} must be {expected}, got {value!r} of type {type(value).__name__}: pass for example {example}"
    )


def _type_name(option: Any) -> str:
    own = isinstance(option, type) and issubclass(option, OwnPart)
    return f"a {option.__name__.removeprefix('Own').lower()} of your own" if own else str(option)
