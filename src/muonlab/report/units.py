"""What the seconds of each clock are called in tables, figures and claims."""

from __future__ import annotations

from muonlab.lab.runner.timing import UNITS, ClockName


def symbol(clock: ClockName | None) -> str:
    """Return the symbol of a second.

    Example:
        >>> symbol("wall"), symbol("cpu")
        ('s', 'CPU s')
    """
    return UNITS[clock or "wall"].replace("seconds", "s")


def full_name(clock: ClockName) -> str:
    """Return the unit with its clock.

    Example:
        >>> full_name("wall"), full_name("cpu")
        ('wall seconds', 'CPU seconds')
    """
    return "wall seconds" if clock == "wall" else UNITS[clock]
