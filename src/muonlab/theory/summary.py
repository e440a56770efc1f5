"""Rows for people: the three methods side by side, and every registered polynomial with what it guarantees."""

from __future__ import annotations

import math
from typing import Any

from muonlab import _checks
from muonlab.polynomials import PRESETS, Schedule, analyse, taylor
from muonlab.theory.alignment import alignment_bound
from muonlab.theory.bound import Bound
from muonlab.theory.floor import alignment_floor
from muonlab.theory.iterations import Method, iterations_for
from muonlab.theory.rates import CONSTANTS, Constants, muon_bound, sgdm_bound
from muonlab.theory.residual import chi, polar_error, schedule_error

RANKS = (64, 256, 768)


def finite(x: float) -> float | None:
    """Return a number that JSON can hold: None for what is not finite."""
    return x if math.isfinite(x) else None


def rates(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    T: int,
    kappa: int = 2,
    q: int = 3,
    delta_0: float | None = None,
    target: float | None = None,
    constants: Constants = "sharp",
) -> dict[str, Any]:
    """Compare SGD-M, Muon with SVD and Muon with q Newton-Schulz steps at one set of constants (Table 1, with numbers).

    Muon's row uses ε_q from ``delta_0`` where that is given (Theorem 2); without it the alignment floor of rank r,
    which holds for every matrix (and is the sharp theorem, whatever ``constants`` says).
    """
    problem: dict[str, Any] = {"L": L, "D": D, "sigma": sigma, "r": r, "B": B, "T": T}
    _checks.one_of("constants", constants, CONSTANTS)
    schedule = Schedule.repeat(taylor(kappa), _checks.integer("q", q, at_least=0))
    if delta_0 is not None:
        factor = chi(delta_0, kappa, q)
        muon = muon_bound(**problem, epsilon=polar_error(delta_0, kappa, q), constants=constants)
        basis = f"chi_{q} = {factor:.6g} from delta_0 = {delta_0:g}"
    else:
        floor = alignment_floor(schedule, r)
        factor = 1 / floor if floor else math.inf
        muon = alignment_bound(**problem, alignment=floor)
        basis = f"alignment at least {floor:.4g} for every matrix of rank <= {r}"
    rows = [
        _row("SGD-M", sgdm_bound(**problem, constants=constants), "Theorem 3"),
        _row("Muon (SVD)", muon_bound(**problem, constants=constants), "Theorem 4"),
        _row(f"Muon (kappa={kappa}, q={q})", muon, basis),
    ]
    if target is not None:
        of_muon: Constants = constants if delta_0 is not None else "sharp"
        methods: tuple[tuple[Method, float, Constants], ...] = (
            ("sgdm", 1.0, constants),
            ("svd", 1.0, constants),
            ("muon", factor, of_muon),
        )
        for row, (method, chi_q, used) in zip(rows, methods, strict=True):
            needed = iterations_for(target, method, L=L, D=D, sigma=sigma, r=r, B=B, chi=chi_q, constants=used)
            row["iterations"] = needed.total
            row["order_terms"] = dict(needed.order)
            row["order_dominant"] = needed.dominant
    return {"problem": problem, "constants": constants, "target": target, "methods": rows}


def _row(method: str, bound: Bound, basis: str) -> dict[str, Any]:
    return {
        "method": method,
        "bound": finite(bound.total),
        "dominant": bound.dominant,
        "terms": {name: finite(value) for name, value in bound.terms.items()},
        "eta": finite(bound.eta),
        "beta": bound.beta,
        "status": bound.status,
        "reason": bound.reason,
        "basis": basis,
    }


def polynomials(steps: int = 5) -> dict[str, Any]:
    """List every registered preset with its source, its numbers and what ``steps`` steps of it guarantee."""
    rows = []
    for name, entry in sorted(PRESETS.items()):
        schedule = entry.schedule(steps)
        rows.append(
            {
                "name": name,
                "kappa": max(p.kappa for p in entry.table),
                "coefficients": [list(p.coefficients) for p in entry.table],
                "safety": float(entry.safety),
                "steps": steps,
                "slope": float(schedule.slope),
                "s_max": finite(schedule_error(schedule, 0.0).s_max),
                "alignment_floor": {str(r): alignment_floor(schedule, r) for r in RANKS},
                "covered_by_paper": all(analyse(p).covered for p in entry.table),
                "source": entry.source,
            }
        )
    return {"polynomials": rows, "any_degree": "taylor(kappa) gives p_kappa for every kappa >= 1"}
