"""Named polynomials with their sources; raw published numbers, with the safety factor as a separate field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muonlab import _checks
from muonlab.polynomials.base import Number, Polynomial, Schedule
from muonlab.polynomials.taylor_polynomial import taylor


@dataclass(frozen=True)
class Preset:
    """A registry entry: one polynomial per step (the last repeats), its source, and how its authors use it.

    Args:
        name: the registry's key.
        table: step polynomials as published; further steps repeat the last.
        source: who published the numbers, and where.
        safety: the factor its authors divide by in half precision; never applied unless asked for.
        steps: the number of steps its authors use.
    """

    name: str
    table: tuple[Polynomial, ...]
    source: str
    safety: str = "1"
    steps: int = 5

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f"preset {self.name!r} needs a source: say where its numbers come from")
        table = tuple(self.table)
        if not table or not all(isinstance(p, Polynomial) for p in table):
            raise ValueError(f"preset {self.name!r} needs at least one Polynomial, got {self.table!r}: give its table")
        object.__setattr__(self, "table", table)

    @property
    def polynomial(self) -> Polynomial:
        """The single polynomial of a preset that repeats one."""
        if len(self.table) != 1:
            raise ValueError(
                f"preset {self.name!r} has {len(self.table)} different polynomials, not one: use .schedule(steps)"
            )
        return self.table[0]

    def schedule(self, steps: int | None = None, *, safety: Number | str = 1) -> Schedule:
        """Return the first ``steps`` polynomials, raw unless a ``safety`` factor is given (theirs is ``.safety``)."""
        count = (
            self.steps if steps is None else _checks.integer("steps", steps, at_least=0, at_most=_checks.LARGEST_STEPS)
        )
        used = self.table[:count] + self.table[-1:] * (count - len(self.table))
        raw = Schedule(used, name=f"{self.name} x{count}")
        return raw if safety == 1 else raw.with_safety(safety)


_REGISTRY: dict[str, Preset] = {}
PRESETS: Mapping[str, Preset] = MappingProxyType(_REGISTRY)
"""Every registered preset by name (read-only; :func:`register` adds one)."""


def register(entry: Preset) -> Preset:
    """Add a preset; raise ValueError if the name is taken."""
    if entry.name in _REGISTRY:
        raise ValueError(f"a preset named {entry.name!r} is registered already: choose another name")
    _REGISTRY[entry.name] = entry
    return entry


def preset(name: str) -> Preset:
    """Return a registered preset.

    Example:
        >>> preset("jordan").polynomial.coefficients
        (3.4445, -4.775, 2.0315)
        >>> preset("polar_express").schedule(3).steps
        3
    """
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(f"unknown preset {name!r}: registered are {', '.join(map(repr, sorted(_REGISTRY)))}")
    return _REGISTRY[name]


register(Preset("cubic", (taylor(1),), "Newton-Schulz iteration of degree 3: p_1 of Kim & Oh 2026, Definition 2"))
register(Preset("quintic", (taylor(2),), "Newton-Schulz iteration of degree 5: p_2 of Kim & Oh 2026, Definition 2"))
register(
    Preset(
        "jordan",
        (Polynomial(("3.4445", "-4.7750", "2.0315"), name="jordan"),),
        source="K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024; "
        "the ad-hoc polynomial of Kim & Oh 2026, last appendix",
    )
)
register(
    Preset(
        "polar_express",
        tuple(
            Polynomial(row, name=f"polar_express[{j}]")
            for j, row in enumerate(
                (
                    ("8.28721", "-23.59589", "17.30039"),
                    ("4.10706", "-2.94785", "0.54484"),
                    ("3.94869", "-2.90890", "0.55182"),
                    ("3.31842", "-2.48849", "0.51005"),
                    ("2.30065", "-1.66890", "0.41881"),
                    ("1.89130", "-1.26800", "0.37680"),
                    ("1.875", "-1.25", "0.375"),
                )
            )
        ),
        source="N. Amsel, D. Persson, C. Musco, R. M. Gower, The Polar Express, 2025 "
        "(ell = 1e-3, cushion = 0.02407327424182761), five decimals",
        safety="1.01",
    )
)
