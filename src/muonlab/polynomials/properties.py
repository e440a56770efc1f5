"""Which parts of Proposition 1 a polynomial satisfies, decided by rigorous enclosures."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from muonlab.polynomials.base import Exact, Polynomial, derivative, reflect
from muonlab.polynomials.ranges import range_on

_ZERO, _ONE = Fraction(0), Fraction(1)


def is_positive(p: Polynomial) -> bool:
    """Return whether ``p > 0`` on [0, 1] (Kim & Oh 2026, Proposition 1)."""
    return range_on(p.exact, _ZERO, _ONE)[0] > 0


def is_at_least_one(p: Polynomial) -> bool:
    """Return whether ``p ≥ 1`` on [0, 1] with equality at λ = 1 alone (Kim & Oh 2026, Proposition 1)."""
    constant, *rest = p.exact_u
    return constant == 1 and range_on(rest, _ZERO, _ONE)[0] > 0  # (p - 1)/u > 0


def tau_is_increasing(p: Polynomial) -> bool:
    """Return whether ``τ' > 0`` inside [0, 1], so that ``τ`` increases strictly (Kim & Oh 2026, Proposition 1)."""
    return range_on(_dtau_cofactor(p), _ZERO, _ONE)[0] > 0


def _dtau_cofactor(p: Polynomial) -> Exact:
    """Return ``τ'`` in powers of u without its zeros at the ends of [0, 1] (order κ at u = 0 for ``p_κ``)."""
    return reflect(_without_zero_at_zero(reflect(_without_zero_at_zero(derivative(p.exact_phi)))))


def _without_zero_at_zero(a: Exact) -> Exact:
    return a[next(k for k, c in enumerate(a) if c != 0) :]


def preserves_unit_ball(p: Polynomial) -> bool:
    """Return whether a step keeps ``‖X‖_op ≤ 1``: ``τ ≤ 1`` on [0, 1] to 2^-60 (Kim & Oh 2026, Proposition 1)."""
    return range_on(p.exact_phi, _ZERO, _ONE)[0] >= -Fraction(1, 2**60)


@dataclass(frozen=True)
class Analysis:
    """The premises of Lemma 2 for one polynomial on [0, 1], and where they fail."""

    p_range: tuple[float, float]
    p_at_one: float
    tau_at_one: float
    dtau: tuple[float, ...]
    dtau_at_zero: float
    dtau_at_one: float
    tau_extrema: tuple[float, ...]
    positive: bool
    at_least_one: bool
    tau_increasing: bool
    unit_ball: bool

    @property
    def covered(self) -> bool:
        """Whether Theorems 1 and 2 of the paper apply as stated (Proposition 1 holds)."""
        return self.positive and self.tau_increasing and self.unit_ball and self.tau_at_one == 1.0

    @property
    def reason(self) -> str:
        """Why the paper's guarantee does not apply, or that it does."""
        if self.covered:
            return "Proposition 1 holds: tau increases on [0, 1] to tau(1) = 1"
        failures = []
        if not self.positive:
            failures.append(f"p is not positive on [0, 1] (range {self.p_range[0]:.4g} to {self.p_range[1]:.4g})")
        if not self.tau_increasing:
            failures.append(f"tau is not increasing on [0, 1] (tau'(1) = {self.dtau_at_one:.6g})")
        if not self.unit_ball:
            failures.append("tau exceeds 1 on [0, 1]")
        if self.tau_at_one != 1.0:
            failures.append(f"p(1) = {self.p_at_one:.6g}, not 1")
        return "; ".join(failures)


def analyse(p: Polynomial) -> Analysis:
    """Decide Proposition 1 for any polynomial as the paper's last appendix does: range of p, ``τ'``, extrema of ``τ``.

    The digits printed there for the ad-hoc polynomial are slightly off: τ'(0) is 11.86458 (printed 11.8641), τ'(1) is
    -0.506823 (printed -0.5087), and the coefficient of λ² in τ' is 110.3869 (printed 110.3556). Nor is "p in [0, 1]" a
    premise: the Taylor polynomials themselves satisfy p >= 1.

    Example:
        >>> from muonlab.polynomials import preset
        >>> a = analyse(preset("jordan").polynomial)
        >>> round(a.dtau_at_zero, 5), round(a.dtau_at_one, 6), a.tau_extrema[0].__round__(4)
        (11.86458, -0.506823, 0.3075)
    """
    if not isinstance(p, Polynomial):
        raise TypeError(
            f"p must be a Polynomial, got {type(p).__name__}: pass preset(name).polynomial or taylor(kappa)"
        )
    low, high = range_on(p.exact, _ZERO, _ONE)
    roots = np.roots([float(c) for c in reversed(_dtau_cofactor(p))])
    inside = sorted(1 - float(z.real) for z in roots if abs(z.imag) < 1e-9 and 0 < z.real < 1)
    return Analysis(
        p_range=(float(low), float(high)),
        p_at_one=float(p(1)),
        tau_at_one=float(p.tau(1)),
        dtau=tuple(map(float, reflect(derivative(p.exact_phi)))),  # in ascending powers of λ
        dtau_at_zero=float(p.dtau(0)),
        dtau_at_one=float(p.dtau(1)),
        tau_extrema=tuple(inside),
        positive=is_positive(p),
        at_least_one=is_at_least_one(p),
        tau_increasing=tau_is_increasing(p),
        unit_ball=preserves_unit_ball(p),
    )
