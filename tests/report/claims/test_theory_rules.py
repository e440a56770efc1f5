"""Rules on what the proofs say, at their boundaries: slopes, recorded residuals, inequalities, costs, polynomials."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muonlab import polynomials
from muonlab.lab import paper
from muonlab.report.claims import rules, theory_rules
from muonlab.report.claims.evidence import Evidence, MissingEvidenceError
from muonlab.theory import chi, residual_after
from tests.report.made import cell, certified, clocks, evidence, ranked

# -------------------------------------------------------------------------------------------------------------- slopes


def test_a_slope_lies_between_its_ends():
    for omega, held in [(0.251, True), (0.349, True), (0.249, False), (0.351, False)]:
        for normalised in [False, True]:
            shift = 0.5 if normalised else 0.0
            made = evidence(*ranked({"a": omega, "b": 0.3}).cells, study="rank")
            found = rules.slope_between("ab", 0.25 - shift, 0.35 - shift, normalised=normalised)(made)
            assert found.held is held
            assert found.ours == f"a {omega - shift:.3f} ± 0.000, b {0.3 - shift:.3f} ± 0.000"


def test_flatter_is_a_smaller_slope_of_each():
    for omega, held in [(0.29, True), (0.31, False)]:
        assert (
            rules.flatter("ab", "c")(evidence(*ranked({"a": -0.1, "b": omega, "c": 0.3}).cells, study="rank")).held
            is held
        )


def scattered(**scatter):
    """The study of ranks with two seeds: norms r^ω (1 + s) and r^ω / (1 + s) at every rank, for these ω and s."""
    cells = []
    for label, (omega, s) in scatter.items():
        for seed, factor in enumerate((1 + s, 1 / (1 + s))):
            made = ranked({label: omega}).cells
            cells += [
                replace(
                    one,
                    spec={**one.spec, "seed": seed},
                    metrics=tuple(
                        {**row, "gradient_nuclear_norm": row["gradient_nuclear_norm"] * factor}
                        if "gradient_nuclear_norm" in row
                        else row
                        for row in one.metrics
                    ),
                )
                for one in made
            ]
    return evidence(*cells, study="rank")


def error_of(s):
    """The standard error of the slope of ``scattered``, by numpy."""
    x = [math.log(r) for r in paper.RANKS] * 2
    y = [math.log(1 + s)] * len(paper.RANKS) + [-math.log(1 + s)] * len(paper.RANKS)
    return float(np.sqrt(np.polyfit(x, y, 1, cov=True)[1][0, 0]))


def test_a_slope_closer_to_an_end_than_its_standard_error_decides_nothing():
    for side in [-1, 1]:
        for end in [0.25, 0.35]:
            error, rule = error_of(0.1), rules.slope_between("a", 0.25, 0.35)
            near, far = (end + side * by * error for by in (0.9, 1.1))
            with pytest.raises(
                MissingEvidenceError,
                match=rf"^the slopes are a {near:.3f} ± {error:.3f}; the slope of a is closer than one standard error",
            ):
                rule(scattered(a=(near, 0.1)))
            assert rule(scattered(a=(far, 0.1))).held is (0.25 < far < 0.35)


def test_a_slope_clearly_outside_decides_though_another_is_near_an_end():
    found = rules.slope_between("ab", 0.25, 0.35)(scattered(a=(0.9, 0.1), b=(0.35, 0.1)))
    assert not found.held
    assert found.ours.startswith("a 0.900 ± ")
    assert not rules.flatter("ab", "c")(scattered(a=(0.9, 0.1), b=(0.3, 0.1), c=(0.3, 0.1))).held


def test_two_slopes_that_differ_by_less_than_the_error_of_the_difference_decide_nothing():
    for side in [-1, 1]:
        of_difference, rule = math.hypot(error_of(0.1), error_of(0.05)), rules.flatter("a", "b")
        with pytest.raises(
            MissingEvidenceError, match="of a differs from that of b by less than the standard error of the diff"
        ):
            rule(scattered(a=(0.3 + side * 0.9 * of_difference, 0.1), b=(0.3, 0.05)))
        assert rule(scattered(a=(0.3 + side * 1.1 * of_difference, 0.1), b=(0.3, 0.05))).held is (side < 0)


def test_a_slope_of_two_runs_has_no_standard_error_and_decides_nothing():
    with pytest.raises(
        MissingEvidenceError, match=r"^the slope of a, 0\.300, has no standard error: it needs three or more"
    ):
        rules.slope_between("a", 0, 1)(evidence(*ranked({"a": 0.3}).cells[:2], study="rank"))


def test_slopes_need_a_finished_study_with_that_optimizer_and_two_ranks():
    whole = ranked({"a": 0.3})
    with pytest.raises(MissingEvidenceError, match=r"^b has no slope$"):
        rules.slope_between("b", 0, 1)(evidence(*whole.cells))
    with pytest.raises(MissingEvidenceError, match=r"^a has no slope$"):
        rules.slope_between("a", 0, 1)(evidence(*whole.cells[:1]))
    with pytest.raises(MissingEvidenceError, match=r"^the study is not finished$"):
        rules.slope_between("a", 0, 1)(evidence(*whole.cells[1:], replace(whole.cells[0], status="open")))


# --------------------------------------------------------------------------------------------- residuals and factors

RESIDUAL, FACTOR = theory_rules.residual_stays_below, theory_rules.factor_stays_below
FLOOR = theory_rules.alignment_stays_above_floor


def recorded(delta_0, kappa, q, **other):
    """What the recorder writes of exact Taylor steps on a matrix with this residual."""
    found = {"delta": residual_after(delta_0, kappa=kappa, q=q), "chi": chi(delta_0, kappa=kappa, q=q)}
    return {"q": q, "delta_0": delta_0, **found, **other}


def bound(delta_0, kappa, q):
    return delta_0 ** ((kappa + 1) ** q)


def judged(rule, folder, *rows, **spec):
    return rule(evidence(certified(folder, "Muon", rows, spec=spec)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(-9.0, -0.01), st.integers(1, 5), st.integers(0, 4))
def test_residuals_and_factors_of_real_taylor_steps_hold(tmp_path, digits, kappa, q):
    row = recorded(1 - 10**digits, kappa, q)
    assert judged(RESIDUAL, tmp_path, row, kappa=kappa).held
    assert judged(FACTOR, tmp_path, row, kappa=kappa).held


def test_a_residual_1_percent_off_in_the_eigenvalue_violates_and_rounding_does_not(tmp_path):
    for kappa in [1, 2, 5]:
        for q in [0, 1, 3]:
            for delta_0 in [0.3, 0.9, 0.999, 1 - 1e-6, 1 - 1e-9]:
                least = -math.expm1((kappa + 1) ** q * math.log(delta_0))  # 1 - δ_0^((κ+1)^q)
                for factor, held in ((1.0, True), (1 - 1e-7, True), (1 - 1e-5, False), (0.99, False), (1.01, True)):
                    row = recorded(delta_0, kappa, q, delta=1 - least * factor)
                    assert judged(RESIDUAL, tmp_path, row, kappa=kappa).held is held
                    row = recorded(delta_0, kappa, q, chi=least**-0.5 / factor)
                    assert judged(FACTOR, tmp_path, row, kappa=kappa).held is held


def test_it_is_the_degree_and_the_steps_of_the_run_that_make_the_bound(tmp_path):
    row = {"q": 2, "delta_0": 0.99, "delta": bound(0.99, 2, 2)}
    assert judged(RESIDUAL, tmp_path, row, kappa=2).held
    assert not judged(RESIDUAL, tmp_path, row, kappa=3).held
    assert not judged(RESIDUAL, tmp_path, {**row, "q": 3}, kappa=2).held


def test_one_violation_among_many_is_counted(tmp_path):
    rows = [recorded(0.9, 2, 1) for _ in range(999)]
    found = judged(RESIDUAL, tmp_path, *rows, recorded(0.9, 2, 1, delta=0.8), kappa=2)
    assert not found.held
    assert found.ours == "999 of 1,000 recorded matrices"


def test_a_residual_above_1_violates_even_the_weakest_bound(tmp_path):
    for delta_0 in [0.9, 1.0]:
        for delta in [1.5, 1.001]:
            assert not judged(RESIDUAL, tmp_path, {"q": 1, "delta_0": delta_0, "delta": delta}).held


def test_a_residual_of_1_or_0_is_within_a_bound_of_as_much(tmp_path):
    assert judged(
        RESIDUAL, tmp_path, {"q": 1, "delta_0": 1.0, "delta": 1.0}, {"q": 1, "delta_0": 0.0, "delta": 0.0}
    ).held
    assert judged(FACTOR, tmp_path, {"q": 1, "delta_0": 1.0, "chi": 1e9}, {"q": 1, "delta_0": 0.0, "chi": 1.0}).held
    assert not judged(RESIDUAL, tmp_path, {"q": 1, "delta_0": 0.9, "delta": 1.0}).held
    assert not judged(FACTOR, tmp_path, {"q": 1, "delta_0": 0.0, "chi": 1.01}).held


def test_alignment_must_reach_its_floor(tmp_path):
    for alignment, held in [(0.5, True), (0.6, True), (0.4999999, True), (0.49999, False), (0.0, False), (-0.9, False)]:
        row = {"q": 1, "alignment": alignment, "alignment_floor": 0.5, "status": "holds"}
        assert judged(FLOOR, tmp_path, row).held is held


def test_a_zero_matrix_has_no_alignment_to_judge(tmp_path):
    zero = {"q": 1, "alignment": 0.0, "alignment_floor": 0.5, "status": "not_applicable"}
    assert judged(FLOOR, tmp_path, zero, {"alignment": 0.7, "alignment_floor": 0.5}).ours == "1 of 1 recorded matrices"


def test_other_polynomials_and_optimizers_are_not_covered(tmp_path):
    for rule in [RESIDUAL, FACTOR, FLOOR]:
        wrong = {"q": 1, "delta_0": 0.5, "delta": 0.9, "chi": 9.0, "alignment": 0.1, "alignment_floor": 0.5}
        assert not judged(rule, tmp_path, wrong).held
        for other in ({"polynomial": "jordan"}, {"optimizer": "svd"}):
            with pytest.raises(MissingEvidenceError, match=r"^no step was recorded$"):
                judged(rule, tmp_path, wrong, **other)
        with pytest.raises(MissingEvidenceError, match=r"^no step was recorded$"):
            judged(rule, tmp_path, {"q": 1, "delta_0": None, "alignment": None})
        with pytest.raises(MissingEvidenceError, match=r"^no step was recorded$"):
            judged(rule, tmp_path, {**wrong, "event": "whole"})


# ------------------------------------------------------------------------------------------------------- inequalities


def checked(method, *rows):
    made = [{"event": "inequality", "kind": "expected", "slack": 0.1, "held": True, **row} for row in rows]
    return cell(f"bowl, {method}", made, spec={"method": method}, points={"problem": "bowl", "method": method})


def test_one_violated_inequality_is_found_and_named():
    rule = theory_rules.inequalities_hold(("paper", "sharp"), lambda method: method == "muon_svd", kind="expected")
    sound = checked("muon_svd", {"name": "paper", "slack": 0.5}, {"name": "sharp", "slack": 0.03})
    found = rule(evidence(sound))
    assert (found.held, found.ours, found.why) == (
        True,
        "2 of 2 inequalities",
        "least relative slack 0.03, rounding allowed for",
    )
    found = rule(evidence(sound, checked("muon_svd", {"name": "sharp", "held": False, "slack": -0.1})))
    assert (found.held, found.ours, found.why) == (False, "2 of 3 inequalities", "violated: sharp on bowl, muon_svd")


def test_inequalities_of_other_names_kinds_and_methods_do_not_count():
    rule = theory_rules.inequalities_hold(("paper",), lambda method: method == "muon_svd", kind="expected")
    broken = {"name": "paper", "held": False}
    others = [
        checked("sgdm", broken),
        checked("muon_svd", {**broken, "name": "sharp"}, {**broken, "kind": "certain"}),
        replace(checked("muon_svd", broken), status="failed"),
    ]
    assert rule(evidence(*others, checked("muon_svd", {"name": "paper"}))).ours == "1 of 1 inequalities"
    with pytest.raises(MissingEvidenceError, match=r"^no such inequality was checked$"):
        rule(evidence(*others))
    every = theory_rules.inequalities_hold((), lambda _: True, kind="certain")
    assert every(evidence(*others)).ours == "0 of 1 inequalities"


# -------------------------------------------------------------------------------------------------------------- costs


def timed(label="64×216", device="cpu", **summary):
    numbers = {
        "measured_over_predicted": 1.0, "measured_ratio": 5.0, "ratio_to_ours": 6.0,
        "gemm_flops_per_second": 6e9, "svd_flops_per_second": 1e9, **clocks(1.0),
    }  # fmt: skip
    return cell(label, spec={"device": device}, summary={**numbers, **summary})


def test_the_lemma_predicts_within_5_percent_at_every_shape():
    for ratio, held in [(0.951, True), (0.96, True), (1.04, True), (1.049, True), (1.06, False), (0.94, False)]:
        found = theory_rules.lemma_predicts(evidence(timed(), timed("2×2", measured_over_predicted=ratio)))
        assert found.held is held
        assert found.why == f"{1 + held} of 2 shapes within 5 %"


def test_every_run_of_a_shape_counts():
    # the last one must not hide those before it
    off = timed(measured_over_predicted=2.0, measured_ratio=0.5)
    found = theory_rules.lemma_predicts(evidence(off, timed()))
    assert (found.held, found.why) == (False, "0 of 1 shapes within 5 %")
    assert not theory_rules.steps_beat_svd(evidence(off, timed())).held


def test_products_are_faster_everywhere_and_on_a_gpu_4_to_10_times():
    for ratios, cpu, cuda in [
        ((5.0, 6.0, 7.0), True, True),
        ((4.0, 4.0), True, True),
        ((10.0, 10.0), True, True),
        ((3.9, 3.9), True, False),
        ((10.1, 10.1), True, False),
        ((1.0, 6.0, 7.0), False, False),
        ((0.9, 5.0, 5.0), False, False),
        ((2.0, 5.0, 12.0), True, True),  # the median decides
    ]:
        for device, held in (("cpu", cpu), ("cuda", cuda), ("cuda:1", cuda)):
            cells = [timed(f"{i}", device, gemm_flops_per_second=ratio * 1e9) for i, ratio in enumerate(ratios)]
            assert theory_rules.products_are_faster(evidence(*cells)).held is held


def test_steps_beat_the_svd_at_every_shape_in_both_forms():
    for name in ["measured_ratio", "ratio_to_ours"]:
        for ratio, held in [(1.01, True), (1.0, False), (0.99, False)]:
            found = theory_rules.steps_beat_svd(evidence(timed(), timed("2×2", **{name: ratio})))
            assert found.held is held
            assert found.why == ("at all 2 shapes" if held else "not at 2×2")


def test_without_a_timed_shape_costs_are_not_judged():
    for rule in [theory_rules.lemma_predicts, theory_rules.products_are_faster, theory_rules.steps_beat_svd]:
        with pytest.raises(MissingEvidenceError, match=r"^no shape was timed$"):
            rule(evidence(cell("64×216", summary=clocks(1.0))))
        with pytest.raises(MissingEvidenceError, match=r"^No times were measured\.$"):
            rule(evidence(cell("64×216")))


# -------------------------------------------------------------------------------------------------------- polynomials


def test_the_adhoc_polynomial_is_not_monotone_and_a_taylor_polynomial_is(monkeypatch):
    found = theory_rules.adhoc_is_not_monotone(Evidence(None, {}))
    assert found.held
    p, slope = 3.4445 - 4.7750 + 2.0315, -4.7750 + 2 * 2.0315
    assert found.ours == f"τ'(1) = {p * p + 2 * p * slope:.6f}"

    class Taylor:
        polynomial = polynomials.taylor(2)

    monkeypatch.setattr(polynomials, "preset", lambda _: Taylor)
    assert not theory_rules.adhoc_is_not_monotone(Evidence(None, {})).held
