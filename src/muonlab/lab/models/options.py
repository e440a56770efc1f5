"""Checks of what several models take as options."""

from __future__ import annotations

from collections.abc import Iterable

from muonlab import _checks


def whole_numbers(name: str, values: object, *, like: tuple[int, ...], any_length: bool = False) -> tuple[int, ...]:
    """Return ``values`` as a tuple of integers of at least 1, as many as in ``like`` or, on request, one and more."""
    rule = f"{name} must be {'one or more' if any_length else len(like)} whole numbers such as {like}"
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{rule}, got {values!r}: pass a tuple")
    numbers = tuple(_checks.integer(f"each entry of {name}", value, at_least=1) for value in values)
    if not numbers or (len(numbers) != len(like) and not any_length):
        raise ValueError(f"{rule}, got {numbers}: pass that many")
    return numbers
