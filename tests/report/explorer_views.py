"""Settings of the explorer's controls, and what the library says each must show."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from muonlab.diagnostics.matrix_spectra import factor_of, respond, taylor_degree
from muonlab.orthogonalize.prescale import SCHATTEN
from muonlab.report.explore import data as explorer_data
from muonlab.theory import (
    alignment_floor,
    chi,
    flops,
    polar_error,
    residual_after,
    schedule_bound,
    schedule_error,
    wall_clock_ratio,
)
from muonlab.theory.lr_schedules import schedule_sums

RANKS = (64, 768)
"""Fewer than on the real page: its floors are compared in test_explore.py."""

Numbers = dict[str, int | float | None]
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")


@dataclass(frozen=True)
class View:
    """A setting of all controls; lists by place."""

    name: str = "taylor2"
    q: int = 3
    lambda0: int = 14
    kind: str = "gaussian"
    shape: tuple[int, int] = (768, 768)
    prescale: Any = "frobenius"
    norm: int = 8
    rank: int = 1
    m: int = 768
    n: int = 768
    ratio: int = 8
    lr_schedule: Any = "cosine"
    nesterov: bool = True
    beta: int = 5
    noise: int = 3

    @property
    def controls(self) -> dict[str, str]:
        kappa = {"kappa": self.name[-1]} if self.name.startswith("taylor") else {}
        return {
            "polynomial": "taylor" if kappa else self.name, **kappa, "q": str(self.q), "lambda0": str(self.lambda0),
            "spectrum": self.kind, "shape": f"{self.shape[0]}x{self.shape[1]}", "prescale": self.prescale,
            "norm": str(self.norm), "rank": str(self.rank), "m": str(self.m), "n": str(self.n),
            "ratio": str(self.ratio), "lr_schedule": self.lr_schedule, "nesterov": "yes" if self.nesterov else "no",
            "beta": str(self.beta), "noise": str(self.noise),
        }  # fmt: skip


def views() -> list[View]:
    """Return 56 settings in which every polynomial, q, spectrum, shape and prescale takes part, and all of δ_0."""
    names, kinds, prescales = (
        explorer_data.polynomial_names(),
        list(explorer_data.SPECTRA),
        list(explorer_data.PRESCALES),
    )
    return [
        View(
            names[j % len(names)], (5 * j) % 11, (17 * j) % 45, kinds[(j + j // 6) % 6],
            explorer_data.SHAPES[(j + j // 4) % 4], prescales[(2 * j + j // 5) % 5], (5 * j) % 11, j % 2,
            1 + (977 * j) % 4096, 1 + (331 * j * j) % 16384, (3 * j) % 17,
            list(explorer_data.LR_TITLES)[j % 5], j % 2 == 0, j % 9, j % 7,
        )
        for j in range(56)
    ]  # fmt: skip


def expected(view: View) -> Numbers:
    """Return every number of the page by the library; None where it has no answer."""
    schedule = explorer_data.schedule_of(view.name, view.q)
    lam = explorer_data.LAMBDAS[view.lambda0]
    degree = taylor_degree(schedule)
    kappa = explorer_data.schedule_of(view.name, 1).polynomials[0].kappa
    found: Numbers = {}
    if degree is not None:
        for end, bound in (("", False), ("-bound", True)):
            at: dict[str, Any] = {"kappa": kappa, "q": view.q, "lambda_0": lam, "bound": bound}
            found |= {f"delta{end}": residual_after(**at), f"epsilon{end}": polar_error(**at), f"chi{end}": chi(**at)}
    else:
        epsilon = schedule_error(schedule, math.sqrt(lam)).epsilon
        found |= {
            "delta": float(explorer_data.residual_on(schedule, math.sqrt(lam))),
            "epsilon": epsilon,
            "chi": factor_of(epsilon),
        }
        found |= dict.fromkeys(("delta-bound", "epsilon-bound", "chi-bound"))
    return {**found, **_of_the_matrix(view, degree is not None, kappa), **_of_the_cost(view, kappa)}


def _of_the_matrix(view: View, covered: bool, kappa: int) -> Numbers:
    schedule = explorer_data.schedule_of(view.name, view.q)
    norm = explorer_data.NORMS[view.norm] if view.prescale == "paper" else 1.0
    of = explorer_data.spectrum_of(view.kind, view.shape, norm)
    seen = respond(of, schedule, view.prescale)
    least = min(1.0, float(of.support[-1]) / seen.alpha)
    power = SCHATTEN[view.prescale] if view.q <= explorer_data.SHARP_STEPS else 2
    unscaled = view.prescale == "paper" and of.frobenius < 1
    floor = None if unscaled else alignment_floor(schedule, RANKS[view.rank], schatten=power)
    at_rank = next(r for r in RANKS if r >= of.rank)
    return {
        "m-chi-bound": chi(kappa=kappa, q=view.q, bound=True, sigma_min=least) if covered else None,
        "m-chi": seen.chi, "m-delta0": seen.deltas[0], "m-delta": seen.delta, "m-epsilon": seen.epsilon,
        "rho": seen.descent, "gain": seen.gain, "alignment": seen.alignment, "alignment-again": seen.alignment,
        "factor": 1 / seen.alignment if seen.alignment > 0 else None,
        "floor": floor, "floor-factor": 1 / floor if floor else None,
        "m-floor": None if unscaled else alignment_floor(schedule, at_rank, schatten=power),
        **_of_the_run(view, seen.alignment, seen.gain),
    }  # fmt: skip


def _of_the_run(view: View, alignment: float, gain: float) -> Numbers:
    if alignment <= 0:
        return dict.fromkeys(("run-total", "run-eta", "run-still", "run-noise", "run-cost"))
    bound = schedule_bound(
        L=1.0, D=1.0, sigma=explorer_data.NOISES[view.noise], r=1, B=1, T=explorer_data.RUN_STEPS,
        alignment=min(alignment, 1.0),
        op_norm=gain, lr_schedule=view.lr_schedule, nesterov=view.nesterov, beta=explorer_data.BETAS[view.beta],
    )  # fmt: skip
    noise = bound.terms["noise"]
    cost = schedule_sums(view.lr_schedule, explorer_data.RUN_STEPS).cost(explorer_data.RUN_STEPS)
    return {
        "run-total": bound.total, "run-eta": bound.eta, "run-still": bound.total - noise, "run-noise": noise,
        "run-cost": cost,
    }  # fmt: skip


def _of_the_cost(view: View, kappa: int) -> Numbers:
    counts: Numbers = {
        f"flops-{method}": flops(view.m, view.n, method, kappa, view.q)
        for method in ("svd", "horner", "standard", "gram")
    }
    both: dict[str, Any] = {"kappa": kappa, "q": view.q, "svd_throughput": 1.0}
    ratio = explorer_data.RATIOS[view.ratio]
    counts["ratio-of-flops"] = wall_clock_ratio(view.m, view.n, gemm_throughput=1.0, **both) if view.q else None
    counts["ratio-of-times"] = wall_clock_ratio(view.m, view.n, gemm_throughput=ratio, **both) if view.q else None
    return counts


SET = """(values) => {
  for (const [name, value] of Object.entries(values)) {
    const control = document.getElementById(name);
    if (control.value === value) continue;
    control.value = value;
    control.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
FRAME = "new Promise(requestAnimationFrame)"
"""Drawings follow with the next frame, before whoever asks for it later."""

READ = """() => Object.fromEntries([...document.querySelectorAll("[data-number]")].map(
  (place) => [place.dataset.number, [place.dataset.value, place.textContent]]))"""


def parsed(text: str) -> float | None:
    """Return the number that a reader sees."""
    if text == "not applicable":
        return None
    if text.startswith("1 − "):
        rest = parsed(text[4:])
        assert rest is not None
        return 1 - rest
    found = re.fullmatch(r"(?:([−\d.,]+)·?)??(?:10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", text)
    assert found, text
    mantissa, power = found[1] or "1", found[2] or "0"
    return float(mantissa.replace(",", "").translate(SUPERSCRIPTS)) * 10.0 ** int(power.translate(SUPERSCRIPTS))


def differences(shown: dict[str, tuple[str, str]], view: View) -> list[str]:
    """Return what is not the library's: whole numbers to be equal, others to 1e-9, visible ones to their four digits.

    Doubles do not allow 1e-9 of δ and ε where the steps of another polynomial have come within rounding of 1, as
    1 - F² and 1 - F cancel there: those are compared to 1e-15 absolutely.
    """
    wrong = []
    for name, value in expected(view).items():
        full, text = shown[name]
        if value is None or math.isinf(value):
            same = full == "" and text == "not applicable"
        elif isinstance(value, int):
            same = int(full) == value and text == f"{value:,}"
        else:
            slack = 1e-15 if name in ("m-delta", "m-epsilon") and not view.name.startswith("taylor") else 0.0
            seen = parsed(text) if full else None
            same = seen is not None and math.isclose(float(full), value, rel_tol=1e-9, abs_tol=slack)
            same = same and seen is not None and math.isclose(seen, value, rel_tol=6e-4, abs_tol=slack)
        if not same:
            wrong.append(f"{name} of {view}: shown {full} as {text!r}, expected {value}")
    return wrong
