"""Polynomials of Newton-Schulz steps, exact in both bases, and schedules of them.

A step maps ``X`` to ``p(X Xᵀ) X``, so a singular value ``s`` goes to ``s·p(s²)``. With ``λ = s²`` and ``u = 1 - λ``
the maps of the paper are ``τ(λ) = λ p(λ)²`` and ``φ(u) = 1 - τ(1 - u)`` (Kim & Oh 2026, Lemma 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from muonlab import _checks

Array = npt.NDArray[np.float64]
Number = int | float | Fraction
Exact = tuple[Fraction, ...]
X = TypeVar("X", float, Fraction, Array)


def multiply_polynomials(a: Sequence[Fraction], b: Sequence[Fraction]) -> Exact:
    """Return the coefficients of the product of two polynomials."""
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return tuple(product)


def derivative(a: Sequence[Fraction]) -> Exact:
    """Return the coefficients of the derivative."""
    return tuple(k * a[k] for k in range(1, len(a))) or (Fraction(0),)


def reflect(a: Sequence[Fraction]) -> Exact:
    """Rewrite a polynomial in ``x`` in powers of ``1 - x`` (the same map serves both directions)."""
    n = len(a)
    return tuple((-1) ** j * sum((a[k] * math.comb(k, j) for k in range(j, n)), Fraction(0)) for j in range(n))


def horner(coefficients: Sequence[Any], x: X) -> X:
    """Evaluate a polynomial given by its coefficients in ascending order."""
    total = coefficients[-1] + 0 * x  # a constant, too, keeps the shape of x
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return cast(X, total)


def _exact(value: Any) -> Fraction:
    if isinstance(value, (bool, complex)):
        raise TypeError(f"a coefficient must be an int, float, Fraction or decimal string, got {value!r}")
    try:
        return Fraction(float(value) if isinstance(value, np.floating) else value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(
            f"a coefficient must be a finite int, float, Fraction or decimal string, got {value!r}"
        ) from None


@dataclass(frozen=True, init=False)
class Polynomial:
    r"""A step polynomial ``p(λ) = Σ_k a_k λᵏ`` with exact rational coefficients.

    Floats are taken at their binary value; give published decimals as strings to take them literally. Called with an
    int or a :class:`~fractions.Fraction` it is exact, with a float or an array it computes in float64, in powers of
    ``u = 1 - λ``, where the coefficients of interest do not cancel on ``[0, 1]``.

    Args:
        coefficients: in ascending powers of ``λ``, at least two (κ ≥ 1), the last one not zero.
        name: shown in tables; not part of equality.

    Example:
        >>> p = Polynomial(("1.5", "-0.5"), name="cubic")
        >>> p.kappa, p(Fraction(1, 4)), p.tau(1.0)
        (1, Fraction(11, 8), 1.0)
    """

    exact: Exact
    name: str = field(default="", compare=False)

    def __init__(self, coefficients: Iterable[Number | str], name: str = "") -> None:
        if isinstance(coefficients, (str, bytes)) or not isinstance(coefficients, Iterable):
            raise TypeError(f"coefficients must be a sequence of numbers, got {coefficients!r}")
        exact = tuple(_exact(c) for c in coefficients)
        if len(exact) < 2 or exact[-1] == 0:
            raise ValueError(
                f"a polynomial needs degree kappa >= 1 with a non-zero leading coefficient, got {len(exact)} "
                f"coefficient(s) {tuple(map(float, exact))}: add a term or drop the trailing zeros"
            )
        object.__setattr__(self, "exact", exact)
        object.__setattr__(self, "name", name)

    @cached_property
    def _hash(self) -> int:
        return hash(self.exact)

    def __hash__(self) -> int:
        return self._hash  # schedules key caches in hot paths, and hashing Fractions is slow

    @property
    def kappa(self) -> int:
        """Degree in ``λ`` (Kim & Oh 2026, Definition 2)."""
        return len(self.exact) - 1

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """Coefficients in powers of ``λ`` as floats."""
        return tuple(map(float, self.exact))

    @cached_property
    def exact_u(self) -> Exact:
        """Exact coefficients in powers of ``u = 1 - λ``."""
        return reflect(self.exact)

    @cached_property
    def coefficients_u(self) -> tuple[float, ...]:
        """Coefficients in powers of ``u = 1 - λ`` as floats."""
        return tuple(map(float, self.exact_u))

    @cached_property
    def exact_phi(self) -> Exact:
        """Exact coefficients of ``φ`` in powers of ``u`` (Kim & Oh 2026, Lemma 2)."""
        tau = multiply_polynomials((Fraction(1), Fraction(-1)), multiply_polynomials(self.exact_u, self.exact_u))
        return (1 - tau[0], *(-c for c in tau[1:]))

    @cached_property
    def _phi(self) -> tuple[float, ...]:
        return tuple(map(float, self.exact_phi))

    @overload
    def __call__(self, lam: int) -> Fraction: ...
    @overload
    def __call__(self, lam: X) -> X: ...
    def __call__(self, lam: Any) -> Any:
        """Evaluate ``p(λ)``."""
        if isinstance(lam, (int, Fraction)):
            return horner(self.exact_u, Fraction(1 - lam))
        return horner(self.coefficients_u, 1 - _floating(lam))

    @overload
    def tau(self, lam: int) -> Fraction: ...
    @overload
    def tau(self, lam: X) -> X: ...
    def tau(self, lam: Any) -> Any:
        """Evaluate ``τ(λ) = λ p(λ)²`` (Kim & Oh 2026, Proposition 1)."""
        p = self(lam)
        return lam * p * p

    @overload
    def phi(self, u: int) -> Fraction: ...
    @overload
    def phi(self, u: X) -> X: ...
    def phi(self, u: Any) -> Any:
        """Evaluate ``φ(u) = 1 - τ(1 - u)`` from its own coefficients, without cancellation (Lemma 2)."""
        if isinstance(u, (int, Fraction)):
            return horner(self.exact_phi, Fraction(u))
        return horner(self._phi, _floating(u))

    @overload
    def dtau(self, lam: int) -> Fraction: ...
    @overload
    def dtau(self, lam: X) -> X: ...
    def dtau(self, lam: Any) -> Any:
        """Evaluate ``τ'(λ)``; for the Taylor polynomials ``(2κ+1) c_κ u^κ p(λ)`` (Proposition 1)."""
        exact = derivative(self.exact_phi)  # dτ/dλ = -dτ/du = dφ/du
        if isinstance(lam, (int, Fraction)):
            return horner(exact, Fraction(1 - lam))
        return horner(tuple(map(float, exact)), 1 - _floating(lam))

    @overload
    def step(self, s: int) -> Fraction: ...
    @overload
    def step(self, s: X) -> X: ...
    def step(self, s: Any) -> Any:
        """Map a singular value through one Newton-Schulz step: ``s ↦ s·p(s²)``."""
        if isinstance(s, (int, Fraction)):
            return s * self(Fraction(s) ** 2)
        s = _floating(s)
        return s * horner(self.coefficients_u, (1 - s) * (1 + s))

    @property
    def exact_step(self) -> Exact:
        """Exact coefficients of ``s·p(s²)`` in powers of ``s``."""
        odd = [Fraction(0)] * (2 * len(self.exact))
        odd[1::2] = self.exact
        return tuple(odd)

    def shrunk(self, safety: Number | str) -> Polynomial:
        """Return the polynomial whose step at ``s`` is this one's at ``s/safety`` (a safety factor)."""
        factor = _exact(safety)
        if factor <= 0:
            raise ValueError(f"a safety factor must be greater than 0, got {safety!r}: 1 leaves the polynomial alone")
        return Polynomial(tuple(a / factor ** (2 * k + 1) for k, a in enumerate(self.exact)), name=self.name)

    def __str__(self) -> str:
        return self.name or f"Polynomial({', '.join(f'{c:.6g}' for c in self.coefficients)})"

    def __repr__(self) -> str:
        return f"Polynomial({tuple(map(str, self.exact))!r}, name={self.name!r})"


def _floating(value: Any) -> Any:
    """Turn anything but a float into a float64 array (or scalar), so that integers never wrap around."""
    return value if isinstance(value, float) else np.asarray(value, dtype=np.float64)


@dataclass(frozen=True)
class Schedule:
    r"""A polynomial per step; as a function it is the composed odd map ``F_q`` on singular values.

    Args:
        polynomials: the step polynomials in the order of use; empty for q = 0, where ``F_0(s) = s``.
        name: shown in tables; not part of equality.

    Example:
        >>> from muonlab.polynomials import taylor
        >>> F = Schedule.repeat(taylor(2), 3)
        >>> F.steps, F(0), F(1), round(F(0.1), 6)
        (3, Fraction(0, 1), Fraction(1, 1), 0.591881)
        >>> (Schedule.repeat(taylor(1), 2) + F).steps
        5
    """

    polynomials: tuple[Polynomial, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.polynomials, Polynomial) or not isinstance(self.polynomials, Iterable):
            raise TypeError(
                f"a Schedule takes a sequence of Polynomials, got {type(self.polynomials).__name__}: "
                f"use Schedule.repeat(polynomial, steps) for one polynomial"
            )
        steps = tuple(self.polynomials)
        for j, p in enumerate(steps):
            if not isinstance(p, Polynomial):
                raise TypeError(f"step {j} of a Schedule must be a Polynomial, got {p!r} of type {type(p).__name__}")
        object.__setattr__(self, "polynomials", steps)

    @classmethod
    def repeat(cls, polynomial: Polynomial, steps: int) -> Schedule:
        """Use one polynomial for every step (Kim & Oh 2026, Algorithm 1, lines 6-8)."""
        steps = _checks.integer("steps", steps, at_least=0, at_most=_checks.LARGEST_STEPS)
        return cls((polynomial,) * steps, name=f"{polynomial} x{steps}" if steps else "identity")

    @classmethod
    def polar_express(cls, ell: float, kappa: int = 2, steps: int = 5, *, cushion: float | None = None) -> Schedule:
        """Return the schedule of :func:`muonlab.polynomials.polar_express`: a minimax polynomial for each step.

        ``cushion=None`` is the published choice.
        """
        from muonlab.polynomials.minimax import CUSHION, polar_express

        return polar_express(ell=ell, kappa=kappa, steps=steps, cushion=CUSHION if cushion is None else cushion)

    @property
    def steps(self) -> int:
        """Number q of Newton-Schulz steps."""
        return len(self.polynomials)

    @cached_property
    def slope(self) -> Fraction:
        """Exact slope of ``F_q`` at zero, ``Π_j p_j(0)``, by which a tiny singular value grows."""
        return math.prod((p.exact[0] for p in self.polynomials), start=Fraction(1))

    @overload
    def __call__(self, s: int) -> Fraction: ...
    @overload
    def __call__(self, s: X) -> X: ...
    def __call__(self, s: Any) -> Any:
        """Evaluate ``F_q(s)`` on a singular value, an array of them, or exactly on a Fraction."""
        if isinstance(s, int):
            s = Fraction(s)
        elif not isinstance(s, (float, Fraction)):
            s = np.array(s, dtype=np.float64)
        for p in self.polynomials:
            s = p.step(s)
        return s

    def with_safety(self, safety: Number | str) -> Schedule:
        """Divide the input of every step but the last by ``safety`` (the form in which Polar Express is used)."""
        factor = _exact(safety)
        if factor <= 0:
            raise ValueError(f"a safety factor must be greater than 0, got {safety!r}: 1 leaves the schedule alone")
        if not self.polynomials:
            return self
        *first, last = self.polynomials
        return Schedule((*(p.shrunk(factor) for p in first), last), name=f"{self} (safety {float(factor):g})")

    def __add__(self, other: Schedule) -> Schedule:
        if not isinstance(other, Schedule):
            return NotImplemented
        return Schedule(self.polynomials + other.polynomials, name=f"{self} then {other}")

    def __len__(self) -> int:
        return len(self.polynomials)

    def __iter__(self) -> Iterator[Polynomial]:
        return iter(self.polynomials)

    def __str__(self) -> str:
        return self.name or f"Schedule({', '.join(map(str, self.polynomials))})"

    def __repr__(self) -> str:
        return f"<Schedule {self}>"  # exact coefficients are long, and help() prints defaults: see .polynomials
