"""The value that every rate returns: a total, its named terms, the step size and momentum it holds for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from muonlab import _checks

BoundStatus = Literal["applies", "not_applicable"]


@dataclass(frozen=True)
class Bound:
    """An upper bound on ``(1/T) Σ_t E‖∇f(W_{t-1})‖_*``.

    Args:
        total: the bound; infinite when the theorem gives none.
        terms: name → contribution. They add up to ``total`` or, with ``combine="root_sum_square"``, their squares do.
        eta: step size that the bound holds for.
        beta: momentum that the bound holds for.
        status: ``"applies"`` or ``"not_applicable"``.
        reason: why the bound applies or does not.
        combine: how the terms add up to the total.
    """

    total: float
    terms: Mapping[str, float]
    eta: float
    beta: float
    status: BoundStatus
    reason: str
    combine: Literal["sum", "root_sum_square"] = "sum"

    @property
    def dominant(self) -> str:
        """Name of the largest term ("" when there is none)."""
        return max(self.terms, key=lambda name: self.terms[name], default="")

    @classmethod
    def none(cls, reason: str, *, eta: float, beta: float) -> Bound:
        """Return the answer "no bound", with its reason."""
        return cls(math.inf, MappingProxyType({}), eta, beta, "not_applicable", reason)

    @classmethod
    def of(cls, terms: Mapping[str, float], reason: str, *, eta: float, beta: float, rss: bool = False) -> Bound:
        """Combine named terms into a bound that applies."""
        total = math.hypot(*terms.values()) if rss else math.fsum(terms.values())
        combine: Literal["sum", "root_sum_square"] = "root_sum_square" if rss else "sum"
        return cls(total, MappingProxyType(dict(terms)), eta, beta, "applies", reason, combine)


@dataclass(frozen=True)
class ProblemConstants:
    """The constants of all theorems, checked once (Kim & Oh 2026, Assumptions 1 and 2, Definition 5)."""

    L: float
    D: float
    sigma: float
    r: int
    B: int
    T: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "L", _checks.positive("L", self.L))
        object.__setattr__(self, "D", _checks.non_negative("D", self.D))
        object.__setattr__(self, "sigma", _checks.non_negative("sigma", self.sigma))
        for name in ("r", "B", "T"):
            object.__setattr__(self, name, _checks.integer(name, getattr(self, name), at_least=1))

    @property
    def noise(self) -> float:
        """``σ √(r/B)``: bound on the nuclear norm of a batch's noise (Kim & Oh 2026, Lemma 8, Proposition 2)."""
        return self.sigma * math.sqrt(self.r / self.B)

    def descent_term(self, eta: float) -> float:
        """``D/(T η)``, zero when there is nothing to descend."""
        return self.D / (self.T * eta) if self.D else 0.0


def checked_beta(beta: float) -> float:
    """Return a momentum in [0, 1)."""
    return _checks.real("beta", beta, low=0.0, high=1.0, high_open=True)
