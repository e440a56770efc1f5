"""Argument checks that return the checked value; every message names the rule, the value and the way out."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LARGEST = 10**300
"""Largest accepted integer; a float cannot hold much larger ones."""
LARGEST_DEGREE = 300
"""Largest degree κ of a polynomial: its exact coefficients take a quarter of a second."""
LARGEST_RATE = 1e30
"""Largest learning rate and factor of weight decay: above, an update overflows float32."""
LARGEST_STEPS = 1000
"""Most steps of a schedule."""
LARGEST_MATRIX = 2**32
"""Most entries of a matrix whose orthogonalization is planned: 16 GiB in float32."""


def integer(name: str, value: object, *, at_least: int, at_most: int = LARGEST) -> int:
    """Return ``value`` as an int that is at least ``at_least`` and at most ``at_most``."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}: pass {int(value)} if that is meant")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}: pass a whole number"
        ) from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}: pass {at_least} or more")
    if at_most < number <= LARGEST:
        raise ValueError(f"{name} must be at most {at_most}, got {number}: pass {at_most} or less")
    if number > LARGEST:
        raise ValueError(f"{name} must be at most 1e300, got a number of {len(str(number))} digits: pass a smaller one")
    return number


def real(
    name: str,
    value: object,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return ``value`` as a float inside the interval from ``low`` to ``high``."""
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} must be a real number, got {value!r} of type {type(value).__name__}: pass a float")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a real number, got {value!r} of type {type(value).__name__}: pass a float"
        ) from None
    below = number <= low if low_open else number < low
    above = number >= high if high_open else number > high
    if math.isnan(number) or math.isinf(number) or below or above:
        left, right = "(" if low_open or math.isinf(low) else "[", ")" if high_open or math.isinf(high) else "]"
        raise ValueError(
            f"{name} must be a finite number in {left}{low:g}, {high:g}{right}, got {number!r}: "
            f"choose a value inside that interval"
        )
    return number


def positive(name: str, value: object) -> float:
    """Return ``value`` as a finite float that is greater than zero."""
    return real(name, value, low=0.0, low_open=True)


def non_negative(name: str, value: object) -> float:
    """Return ``value`` as a finite float that is zero or more."""
    return real(name, value, low=0.0)


def boolean(name: str, value: object) -> bool:
    """Return a bool; raise for any other type, 0 and 1 included."""
    if not isinstance(value, bool):
        shown = repr(value)
        raise TypeError(f"{name} must be True or False, got {shown[:60]} of type {type(value).__name__}: pass a bool")
    return value


def path(name: str, value: object) -> Path:
    """Return ``value`` as a path that a file system can have; a null character is what no name has."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a path, got {value!r} of type {type(value).__name__}: pass a string or a Path")
    if "\0" in os.fspath(value):
        raise ValueError(f"{name} must be a path, got {os.fspath(value)!r} with a null character: leave it out")
    return Path(value)


def one_of(name: str, value: T, options: Collection[T]) -> T:
    """Return ``value`` if it is one of ``options``."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}: pick one of these")
    return value
