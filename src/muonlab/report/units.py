"""Names of the units of time in tables, figures and claims."""

from __future__ import annotations

from muonlab.lab.runner.timing import UNITS, ClockName


def symbol(clock: ClockName | None) -> str:
    """Return the symbol of a clock's second.

    Example:
        >>> symbol("wall"), symbol("cpu")
        ('s', 'CPU s')
    """
    return UNITS[clock or "wall"].replace("seconds", "s")


def full_name(clock: ClockName) -> str:
    """Return the unit of a clock, with the name of the clock.

    Example:
        >>> full_name("wall"), full_name("cpu")
        ('wall seconds', 'CPU seconds')
    """
    return "wall seconds" if clock == "wall" else UNITS[clock]
