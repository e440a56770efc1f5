"""The Newton-Schulz polynomials of the paper: Taylor polynomials of ``λ^{-1/2}`` at ``λ = 1``."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from muonlab import _checks
from muonlab.polynomials.base import Exact, Polynomial, reflect


def central(s: int) -> Fraction:
    """Return ``c_s = C(2s, s)/4^s`` (Kim & Oh 2026, Definition 2)."""
    s = _checks.integer("s", s, at_least=0)
    return Fraction(math.comb(2 * s, s), 4**s)


def taylor(kappa: int) -> Polynomial:
    r"""Return ``p_κ(λ) = Σ_{s≤κ} c_s (1-λ)^s`` with exact coefficients (Kim & Oh 2026, Definition 2).

    Args:
        kappa: degree in ``λ``, at least 1; 1 is the cubic and 2 the quintic iteration (Corollary 2).

    Example:
        >>> taylor(2).coefficients
        (1.875, -1.25, 0.375)
    """
    return _taylor(_checks.integer("kappa", kappa, at_least=1, at_most=_checks.LARGEST_DEGREE))


@cache
def _taylor(kappa: int) -> Polynomial:
    p = Polynomial(reflect([central(s) for s in range(kappa + 1)]), name=f"taylor{kappa}")
    vars(p)["exact_phi"] = phi_closed_form(kappa)  # instead of multiplying p out
    return p


def phi_closed_form(kappa: int) -> Exact:
    """Return ``φ_κ`` from the closed form ``(2κ+1) c_κ Σ_s c_s u^{κ+1+s}/(κ+1+s)`` in powers of ``u``.

    Integrating ``τ'`` gives it; every coefficient is positive and they sum to 1, which proves
    ``2 c_{κ+1} u^{κ+1} ≤ φ_κ(u) ≤ u^{κ+1}`` on all of [0, 1] (Kim & Oh 2026, Lemma 3, whose proof covers only small u).
    """
    kappa = _checks.integer("kappa", kappa, at_least=1, at_most=_checks.LARGEST_DEGREE)
    lead = (2 * kappa + 1) * central(kappa)
    return (Fraction(0),) * (kappa + 1) + tuple(lead * central(s) / (kappa + 1 + s) for s in range(kappa + 1))
