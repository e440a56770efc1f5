"""Rules that decide claims about the theory: residuals and factors, bounds on known problems, costs, polynomials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muonlab.lab.slopes import log_log_slope
from muonlab.report.claims.evidence import Evidence, MissingEvidenceError, RuleOutcome
from muonlab.report.claims.rules import TOLERANCE, Rule

ROUNDING = 1e-6
"""Relative rounding error of the float32 singular values that certificates start from."""


def residual_stays_below(evidence: Evidence) -> RuleOutcome:
    """In every recorded step ``δ_q ≤ δ_0^{(κ+1)^q}``."""

    def margin(spec: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
        delta_0, delta = row.get("delta_0"), row.get("delta")
        if delta_0 is None or delta is None:
            return None
        if delta > 1 + ROUNDING:  # no bound allows it, because δ_0 ≤ 1
            return math.inf
        return _least_eigenvalue(delta_0, spec["kappa"], row["q"]) / max(1 - float(delta), math.ulp(0.0))

    return _every_recorded(evidence, margin, "λ_q of the bound over that measured")


def factor_stays_below(evidence: Evidence) -> RuleOutcome:
    """In every recorded step ``χ_q ≤ (1 - δ_0^{(κ+1)^q})^{-1/2}``."""

    def margin(spec: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
        delta_0, chi = row.get("delta_0"), row.get("chi")
        if delta_0 is None or chi is None:
            return None
        bound = _least_eigenvalue(delta_0, spec["kappa"], row["q"]) ** -0.5 if delta_0 < 1 else math.inf
        return float(chi) / bound

    return _every_recorded(evidence, margin, "χ_q over its bound")


def alignment_stays_above_floor(evidence: Evidence) -> RuleOutcome:
    """In every recorded step the alignment is at least the floor that its rank guarantees."""

    def margin(_: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
        alignment, floor = row.get("alignment"), row.get("alignment_floor")
        if row.get("status") == "violated":
            return math.inf
        if alignment is None or floor is None or row.get("status") == "not_applicable":  # such as a zero matrix
            return None
        return float(floor) / alignment if alignment > 0 else math.inf

    return _every_recorded(evidence, margin, "floor over alignment")


def _least_eigenvalue(delta_0: float, kappa: int, q: int) -> float:
    """Return ``1 - δ_0^{(κ+1)^q}``, digits kept where it is small."""
    power = math.exp(min(q * math.log(kappa + 1), 700.0))  # a larger power makes every residual zero
    return -math.expm1(power * math.log(delta_0)) if delta_0 > 0 else 1.0


def _every_recorded(
    evidence: Evidence, margin: Callable[[Mapping[str, Any], Mapping[str, Any]], float | None], what: str
) -> RuleOutcome:
    """Decide whether a ratio is at most 1, up to rounding, in each recorded row that has it."""
    margins = [
        margin(cell.spec, row)
        for cell, row in evidence.certificates()
        if cell.spec.get("optimizer") == "muon" and cell.spec.get("polynomial") == "taylor"
    ]
    ratios = [ratio for ratio in margins if ratio is not None]
    if not ratios:
        raise MissingEvidenceError("no step was recorded")
    broken = sum(not ratio <= 1 + ROUNDING for ratio in ratios)
    ours = f"{len(ratios) - broken:,} of {len(ratios):,} recorded matrices"
    why = f"{what}: at most {max(ratios):.6g}, median {statistics.median(ratios):.3g}"
    return RuleOutcome(not broken, ours, why)


def inequalities_hold(names: Sequence[str], methods: Callable[[str], bool], *, kind: str) -> Rule:
    """Each of these inequalities holds on every run and problem."""

    def decide(evidence: Evidence) -> RuleOutcome:
        rows = [
            (cell, row)
            for cell, row in evidence.rows("inequality")
            if (not names or row["name"] in names) and methods(str(cell.spec["method"])) and row["kind"] == kind
        ]
        if not rows:
            raise MissingEvidenceError("no such inequality was checked")
        broken = [f"{row['name']} on {cell.label}" for cell, row in rows if not row["held"]]
        slack = min((row["slack"] for _, row in rows if row["slack"] is not None), default=math.nan)
        why = (
            f"violated: {', '.join(broken[:3])}"
            if broken
            else f"least relative slack {slack:.2g}, rounding allowed for"
        )
        return RuleOutcome(not broken, f"{len(rows) - len(broken):,} of {len(rows):,} inequalities", why)

    return decide


def sgdm_pays_root_of_rank(evidence: Evidence) -> RuleOutcome:
    """On canyon the exponent of r in the mean of ``‖∇f‖_*`` is at least 1/4 larger for SGD-M than for Muon."""
    exponents = {}
    for method in ("sgdm_L_F", "muon_svd"):
        points = [
            (float(cell.spec["rank"]), float(cell.summary["measured"]))
            for cell in evidence.finished
            if (cell.spec.get("problem"), cell.spec.get("method")) == ("canyon", method)
        ]
        if len({rank for rank, _ in points}) < 2:
            raise MissingEvidenceError(f"{method} was not run on canyon at two ranks")
        exponents[method] = log_log_slope(*zip(*points, strict=True))
    sgdm, muon = exponents.values()
    ranks = sorted({int(rank) for rank, _ in points})
    why = f"difference {sgdm - muon:.2f}, ranks {', '.join(map(str, ranks))}"
    return RuleOutcome(sgdm - muon >= 0.25, f"r^{sgdm:.2f} for SGD-M, r^{muon:.2f} for Muon", why)


def lemma_predicts(evidence: Evidence) -> RuleOutcome:
    """At every shape the measured ratio of times is within 5 % of the predicted one."""
    ratios = sorted((float(summary["measured_over_predicted"]), label) for label, summary in _costs(evidence))
    (least, narrow), (most, wide) = ratios[0], ratios[-1]
    ours = f"measured over predicted: {least:.2f} ({narrow}) to {most:.2f} ({wide})"
    outside = {label for ratio, label in ratios if not abs(ratio - 1) <= TOLERANCE}
    shapes = {label for _, label in ratios}
    return RuleOutcome(not outside, ours, f"{len(shapes - outside)} of {len(shapes)} shapes within 5 %")


def products_are_faster(evidence: Evidence) -> RuleOutcome:
    """Products run at a higher measured throughput than SVDs; on a GPU the median ratio is between 4 and 10."""
    ratios = [cost["gemm_flops_per_second"] / cost["svd_flops_per_second"] for _, cost in _costs(evidence)]
    median = statistics.median(ratios)
    on_gpu = any(str(cell.spec.get("device", "")).startswith("cuda") for cell in evidence.finished)
    held = min(ratios) > 1 and (4 <= median <= 10 or not on_gpu)
    where = "on a GPU" if on_gpu else "on a CPU, where the range of 4 to 10 is not claimed"
    return RuleOutcome(held, f"median ratio {median:.3g}, at least {min(ratios):.3g}", where)


def steps_beat_svd(evidence: Evidence) -> RuleOutcome:
    """At every shape the steps, in the paper's form and in ours, take less time than the SVD."""
    ratios = [(min(cost["measured_ratio"], cost["ratio_to_ours"]), label) for label, cost in _costs(evidence)]
    worst, where = min(ratios)
    slower = dict.fromkeys(label for ratio, label in ratios if not ratio > 1)
    why = f"not at {', '.join(slower)}" if slower else f"at all {len({label for _, label in ratios})} shapes"
    return RuleOutcome(not slower, f"SVD over steps at least {worst:.2f} ({where})", why)


def _costs(evidence: Evidence) -> list[tuple[str, Mapping[str, Any]]]:
    costs = [(label, summary) for label, summary in evidence.timed_summaries() if "measured_ratio" in summary]
    if not costs:
        raise MissingEvidenceError("no shape was timed")
    return costs


def adhoc_is_not_monotone(_: Evidence) -> RuleOutcome:
    """``τ = λ p(λ)²`` of the ad-hoc polynomial decreases somewhere on [0, 1]; decided in exact arithmetic."""
    from muonlab.polynomials import analyse, preset

    analysis = analyse(preset("jordan").polynomial)
    ours = f"τ'(1) = {analysis.dtau_at_one:.6f}"
    return RuleOutcome(not analysis.tau_increasing, ours, "by the sign of τ' in exact fractions")
