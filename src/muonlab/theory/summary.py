"""Tables: the three methods side by side, and every registered polynomial with its guarantees."""

from __future__ import annotations

import math
from typing import Any

from muonlab import _checks
from muonlab.polynomials import PRESETS, Schedule, analyse, taylor
from muonlab.theory.alignment import alignment_bound
from muonlab.theory.bound import Bound
from muonlab.theory.floor import alignment_floor
from muonlab.theory.iterations import RateMethod, check_schedule, iterations_for
from muonlab.theory.lr_schedules import LrSchedule, schedule_bound
from muonlab.theory.rates import CONSTANTS, Constants, muon_bound, sgdm_bound
from muonlab.theory.residual import polar_error, schedule_error

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
    lr_schedule: LrSchedule | None = None,
    nesterov: bool = False,
) -> dict[str, Any]:
    """Compare SGD-M, Muon with SVD and Muon with q Newton-Schulz steps at one set of constants (Table 1, with numbers).

    Muon's row uses ε_q from ``delta_0`` where that is given (Theorem 2), else the alignment floor of rank r, which
    holds for every matrix. With sharp constants both rows of Muon are the alignment theorem at its best step size, or,
    with a schedule of the learning rate, Corollary A1 at its best peak rate.
    """
    problem: dict[str, Any] = {"L": L, "D": D, "sigma": sigma, "r": r, "B": B, "T": T}
    _checks.one_of("constants", constants, CONSTANTS)
    check_schedule(lr_schedule, nesterov, constants)
    schedule = Schedule.repeat(taylor(kappa), _checks.integer("q", q, at_least=0))
    alignment, basis = alignment_floor(schedule, r), f"for every matrix of rank <= {r}"
    if delta_0 is not None:
        alignment, basis = 1 - polar_error(delta_0, kappa, q), f"1 - epsilon_{q} from delta_0 = {delta_0:g}"

    def muon(a: float) -> Bound:
        if lr_schedule is not None:
            return schedule_bound(**problem, alignment=a, lr_schedule=lr_schedule, nesterov=nesterov)
        if constants == "sharp":
            return alignment_bound(**problem, alignment=a)
        if a < 1 and delta_0 is None:
            return Bound.none("the paper's constants need delta_0: pass it", eta=0.0, beta=0.0)
        return muon_bound(**problem, epsilon=1 - a, constants="paper")

    rows = [
        _row("SGD-M", sgdm_bound(**problem, constants=constants), "-"),
        _row("Muon (SVD)", muon(1.0), "alignment 1"),
        _row(f"Muon (kappa={kappa}, q={q})", muon(alignment), f"alignment {alignment:.4g}, {basis}"),
    ]
    if target is not None:
        methods: tuple[tuple[RateMethod, float], ...] = (("sgdm", 1.0), ("svd", 1.0), ("muon", alignment))
        for row, (method, a) in zip(rows, methods, strict=True):
            if row["status"] != "applies" and method == "muon":
                row["iterations"] = None
                continue
            scheduled: dict[str, Any] = {"lr_schedule": lr_schedule, "nesterov": nesterov} if method != "sgdm" else {}
            given: dict[str, Any] = {"L": L, "D": D, "sigma": sigma, "r": r, "B": B, "constants": constants}
            needed = iterations_for(target, method, **given, chi=1 / a, **scheduled)
            row["iterations"] = needed.total
            row["order_terms"] = dict(needed.order)
            row["order_dominant"] = needed.dominant
    schedules = {"lr_schedule": lr_schedule, "nesterov": nesterov}
    return {"problem": problem, "constants": constants, "target": target, **schedules, "methods": rows}


def _row(method: str, bound: Bound, basis: str) -> dict[str, Any]:
    return {
        "method": method,
        "bound": finite(bound.total),
        "dominant": bound.dominant,
        "terms": {name: finite(value) for name, value in bound.terms.items()},
        "eta": finite(bound.eta),
        "beta": bound.beta,
        "one_minus_beta": 1 - bound.beta,
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
