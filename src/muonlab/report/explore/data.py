"""The data of the explorer: coefficients, spectra and guarantees, computed by the library.

The page evaluates polynomials itself, in the library's order of operations. Ranges on intervals and the floor of each
rank are computed here and embedded in the page.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from muonlab.polynomials import PRESETS, Schedule, analyse, taylor
from muonlab.polynomials.base import Array
from muonlab.polynomials.ranges import schedule_range
from muonlab.theory import alignment_floor, schedule_error
from muonlab.theory.cost import products
from muonlab.theory.lr_schedules import LrSchedule, schedule_sums
from muonlab.theory.summary import finite

if TYPE_CHECKING:
    from muonlab.diagnostics.matrix_spectra import Spectrum
    from muonlab.orthogonalize.prescale import Prescale

KAPPAS = (1, 2, 3, 4, 5)
MOST_STEPS = 10
LAMBDAS = tuple(float(f"{digit}e-{power}") for power in range(1, 10) for digit in (5, 4, 3, 2, 1))
"""Values of 1 - δ_0 on the page: δ_0 from 0.5 to 1 - 1e-9."""

SHAPES = ((64, 576), (256, 2304), (768, 768), (768, 3072))
NORMS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Values of ‖M‖_F; they matter only with the paper's prescale."""

RATIOS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0, 200.0, 500.0)
"""Values of Φ_gemm/Φ_svd."""

RANKS = (16, 64, 256, 768, 2048, 4096)
"""Ranks whose floor is computed; each value takes about 20 ms."""

SHARP_STEPS = 3
"""Largest q for which the floor is also computed for the Schatten prescales. For larger q the floor of the Frobenius
norm is shown, which is also valid for them because ``Σ s_i² ≥ Σ s_i^p = 1``."""

RUN_STEPS = 1000
BETAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Steps, momenta and σ√(r/B) of the run on the page, where L = D = 1."""

LR_TITLES: dict[LrSchedule, str] = {
    "constant": "constant",
    "linear": "linear decay",
    "cosine": "cosine decay",
    "warmup_cosine": "warm-up 5 %, cosine decay",
    "wsd": "warm-up 5 %, constant, linear decay 15 %",
}
AHEAD = {"yes": "Nesterov's look-ahead", "no": "the momentum"}
LARGEST_SIDE = 16384
PRESCALES: dict[Prescale, str] = {
    "frobenius": "Frobenius norm ‖M‖",
    "paper": "max{1, ‖M‖}, as in Algorithm 1",
    "schatten4": "Schatten-4 norm",
    "schatten8": "Schatten-8 norm",
    "spectral": "operator norm",
}
SPECTRA = {
    "gaussian": "Gaussian matrix",
    "decaying": "decaying as 1/k",
    "decaying gaussian": "Gaussian, columns decaying as 1/k",
    "flat": "flat: all equal",
    "spike": "one spike: 1, the rest 0.01",
    "two values": "two values: half 1, half 0.1",
}
_AT_LEAST_ONE = 1 + 2.0**-50


@lru_cache(maxsize=1)
def polynomial_names() -> tuple[str, ...]:
    """Return the names of all polynomials of the page: the Taylor polynomials, and the presets that are not Taylor."""
    known = {(taylor(kappa),) for kappa in KAPPAS}
    return *(f"taylor{kappa}" for kappa in KAPPAS), *(
        name for name, entry in PRESETS.items() if entry.table not in known
    )


def schedule_of(name: str, q: int) -> Schedule:
    """Return the schedule of q steps of a polynomial of the page."""
    if name in PRESETS:
        return PRESETS[name].schedule(q)
    return Schedule.repeat(taylor(int(name.removeprefix("taylor"))), q)


def spectrum_of(kind: str, shape: tuple[int, int], norm: float = 1.0) -> Spectrum:
    """Return a spectrum of the page with the given Frobenius norm; a norm of 1 is rounded up, never down."""
    from muonlab.diagnostics.matrix_spectra import Spectrum

    values = _values(kind, shape)
    unit = values / Spectrum(values, shape, 0.0).frobenius * _AT_LEAST_ONE
    return Spectrum(unit * norm, shape, 0.0)


def _values(kind: str, shape: tuple[int, int]) -> Array:
    from muonlab.diagnostics.planning.candidates import typical_spectra

    r = min(shape)
    if kind == "flat":
        return np.ones(r)
    if kind == "spike":
        return np.concatenate([[1.0], np.full(r - 1, 0.01)])
    if kind == "two values":
        return np.concatenate([np.ones(r - r // 2), np.full(r // 2, 0.1)])
    return typical_spectra(*shape)[kind]


def page_data() -> dict[str, Any]:
    """Return all data of the page, for JSON."""
    from muonlab.orthogonalize.prescale import SCHATTEN

    return {
        "polynomials": {name: _polynomial(name) for name in polynomial_names()},
        "spectra": {f"{kind} {m}x{n}": _spectrum(kind, (m, n)) for kind in SPECTRA for m, n in SHAPES},
        "floors": {power: _floors(power) for power in (2, 4, 8)},
        "powers": {prescale: SCHATTEN[prescale] for prescale in PRESCALES},
        "lambdas": LAMBDAS,
        "norms": NORMS,
        "ratios": RATIOS,
        "ranks": RANKS,
        "most_steps": MOST_STEPS,
        "sharp_steps": SHARP_STEPS,
        "largest_side": LARGEST_SIDE,
        "run_steps": RUN_STEPS,
        "betas": BETAS,
        "noises": NOISES,
        "lr_schedules": {name: schedule_sums(name, RUN_STEPS)._asdict() for name in LR_TITLES},
    }


def _polynomial(name: str) -> dict[str, Any]:
    """Return a polynomial of the page; its reason says why Theorem 2 does not cover it, and is None if it does."""
    table = PRESETS[name].table if name in PRESETS else schedule_of(name, 1).polynomials
    is_taylor = table[-1:] == table and table[0] == taylor(table[0].kappa)
    kappa = max(p.kappa for p in table)
    return {
        "kappa": kappa,
        "taylor": is_taylor,
        "products": products(kappa),
        "steps": [{"u": p.coefficients_u, "phi": tuple(map(float, p.exact_phi))} for p in table],
        "reason": next((analysis.reason for analysis in map(analyse, table) if not analysis.covered), None),
        "errors": None if is_taylor else [_errors(schedule_of(name, q)) for q in range(MOST_STEPS + 1)],
    }


def _errors(schedule: Schedule) -> list[tuple[float | None, ...]]:
    """Return δ, 1 - δ and ε of a schedule on [√(1 - δ_0), 1] for each δ_0; None for infinity."""
    errors: list[tuple[float | None, ...]] = []
    for ell in map(math.sqrt, LAMBDAS):
        delta = residual_on(schedule, ell)
        errors.append((_float(delta), _float(1 - delta), finite(schedule_error(schedule, ell).epsilon)))
    return errors


def residual_on(schedule: Schedule, ell: float) -> Fraction:
    """Return ``max |1 - F²|`` on [ell, 1] from the enclosure of F (Kim & Oh 2026, Definition 3)."""
    low, high = schedule_range(schedule, Fraction(ell))
    least = Fraction(0) if low <= 0 <= high else min(low**2, high**2)
    return max(1 - least, max(low**2, high**2) - 1)


def _float(x: Fraction) -> float | None:
    try:
        return float(x)
    except OverflowError:
        return None


def _spectrum(kind: str, shape: tuple[int, int]) -> dict[str, Any]:
    spectrum = spectrum_of(kind, shape)
    alphas = {prescale: spectrum.scale(prescale) for prescale in PRESCALES if prescale != "paper"}
    return {"rank": spectrum.rank, "values": spectrum.values.tolist(), "alphas": alphas}


def _floors(power: int) -> dict[str, list[list[float] | None]]:
    """Return the floor at each rank by polynomial and number of steps; None if it is not computed."""
    return {
        name: [
            [alignment_floor(schedule_of(name, q), r, schatten=power) for r in RANKS]
            if power == 2 or q <= SHARP_STEPS
            else None
            for q in range(MOST_STEPS + 1)
        ]
        for name in polynomial_names()
    }
