"""The reports behind the command line: three methods side by side, and every registered polynomial."""

import json
import math

import pytest

from muonlab.polynomials import PRESETS, Schedule, preset, taylor
from muonlab.theory import (
    alignment_bound,
    alignment_floor,
    chi,
    iterations_for,
    muon_bound,
    polar_error,
    schedule_bound,
    schedule_error,
    sgdm_bound,
)
from muonlab.theory.summary import RANKS, polynomials, rates

BASE = {"L": 2.0, "D": 3.0, "sigma": 0.7, "r": 48, "B": 16, "T": 5000}


def rows(**arguments):
    return {row["method"]: row for row in rates(**{**BASE, **arguments})["methods"]}


def test_every_row_is_the_bound_of_its_theorem():
    for constants in ["sharp", "paper"]:
        table = rows(delta_0=0.9, kappa=1, q=4, constants=constants)
        assert list(table) == ["SGD-M", "Muon (SVD)", "Muon (kappa=1, q=4)"]
        assert table["SGD-M"]["bound"] == sgdm_bound(**BASE, constants=constants).total
        epsilon = polar_error(0.9, 1, 4)
        if constants == "paper":
            exact, expected = (muon_bound(**BASE, epsilon=e, constants="paper") for e in (0.0, 1 - (1 - epsilon)))
        else:
            exact, expected = (alignment_bound(**BASE, alignment=a) for a in (1.0, 1 - epsilon))
        assert table["Muon (SVD)"]["bound"] == exact.total
        row = table["Muon (kappa=1, q=4)"]
        assert row["bound"] == expected.total
        assert (row["eta"], row["beta"], row["dominant"]) == (expected.eta, expected.beta, expected.dominant)
        assert row["terms"] == dict(expected.terms)
        assert f"{1 - epsilon:.4g}" in row["basis"]


def test_an_inexact_polar_factor_is_never_rated_better_than_the_exact_one():
    for q in (1, 3, 10):
        table = rows(r=4, q=q)
        assert table["Muon (SVD)"]["bound"] <= table[f"Muon (kappa=2, q={q})"]["bound"]


def test_without_a_residual_muon_is_rated_by_its_floor():
    floor = alignment_floor(Schedule.repeat(taylor(2), 3), BASE["r"])
    row = rows()["Muon (kappa=2, q=3)"]
    assert row["bound"] == alignment_bound(**BASE, alignment=floor).total
    assert f"{floor:.4g}" in row["basis"]
    assert "rank <= 48" in row["basis"]


def test_the_papers_constants_ask_for_a_residual():
    row = rows(constants="paper", target=20.0)["Muon (kappa=2, q=3)"]
    assert row["bound"] is None
    assert row["iterations"] is None
    assert "need delta_0" in row["reason"]


def test_a_target_adds_iteration_counts():
    table = rows(delta_0=0.5, target=0.8)
    constants = {k: v for k, v in BASE.items() if k != "T"}
    expected = {
        "SGD-M": iterations_for(0.8, "sgdm", **constants),
        "Muon (SVD)": iterations_for(0.8, "svd", **constants),
        "Muon (kappa=2, q=3)": iterations_for(0.8, "muon", **constants, chi=chi(0.5)),
    }
    for method, needed in expected.items():
        assert table[method]["iterations"] == needed.total
        assert table[method]["order_terms"] == dict(needed.order)
        assert table[method]["order_dominant"] == needed.dominant
    assert all("iterations" not in row for row in rows().values())


def test_with_a_schedule_the_rows_of_muon_are_corollary_a1_and_that_of_sgdm_does_not_change():
    constants = {k: v for k, v in BASE.items() if k != "T"}
    options = {"lr_schedule": "cosine", "nesterov": True}
    report = rates(**BASE, delta_0=0.5, target=0.8, **options)
    assert (report["lr_schedule"], report["nesterov"]) == ("cosine", True)
    table = {row["method"]: row for row in report["methods"]}
    assert table["SGD-M"] == rows(delta_0=0.5, target=0.8)["SGD-M"]
    for method, a in (("Muon (SVD)", 1.0), ("Muon (kappa=2, q=3)", 1 - polar_error(0.5))):
        expected = schedule_bound(**BASE, alignment=a, **options)
        assert (table[method]["bound"], table[method]["eta"]) == (expected.total, expected.eta)
        needed = iterations_for(0.8, "muon", **constants, chi=1 / a, **options)
        assert table[method]["iterations"] == needed.total


def test_an_infinite_bound_becomes_none_with_its_reason():
    report = rates(**{**BASE, "sigma": 0.0}, delta_0=1 - 1e-12, constants="paper")
    json.dumps(report, allow_nan=False)
    assert report["problem"] == {**BASE, "sigma": 0.0}
    row = report["methods"][0]
    assert row["bound"] is None
    assert row["status"] == "not_applicable"
    assert "not below 1/4" in row["reason"]


def test_every_registered_polynomial_is_listed_with_what_it_guarantees():
    for steps in [1, 5]:
        listed = {row["name"]: row for row in polynomials(steps)["polynomials"]}
        assert sorted(listed) == sorted(PRESETS)
        for name, row in listed.items():
            schedule = preset(name).schedule(steps)
            assert row["steps"] == steps
            assert row["slope"] == pytest.approx(math.prod(p.coefficients[0] for p in schedule), rel=1e-12, abs=0)
            assert row["s_max"] == schedule_error(schedule, 0.0).s_max
            assert row["alignment_floor"] == {str(r): alignment_floor(schedule, r) for r in RANKS}
            assert row["coefficients"] == [list(p.coefficients) for p in preset(name).table]
            assert row["safety"] == float(preset(name).safety)
            assert row["source"] == preset(name).source
            assert row["covered_by_paper"] == (name in ("cubic", "quintic"))
        json.dumps(polynomials(steps), allow_nan=False)


def test_bad_arguments_are_refused_by_rule_and_value():
    for changes, error, message in [
        (
            {"constants": "best"},
            ValueError,
            r"constants must be one of 'paper', 'sharp', got 'best': pick one of these",
        ),
        ({"kappa": 0}, ValueError, r"kappa must be at least 1, got 0: pass 1 or more"),
        ({"q": -1}, ValueError, r"steps must be at least 0, got -1: pass 0 or more|q must be at least 0, got -1"),
        ({"delta_0": 1.0}, ValueError, r"delta_0 must be a finite number in \[0, 1\), got 1\.0: choose a value inside"),
        ({"target": 0.0}, ValueError, r"target must be a finite number in \(0, inf\), got 0\.0: choose a value inside"),
        ({"T": 0}, ValueError, r"T must be at least 1, got 0: pass 1 or more"),
        ({"L": "1"}, TypeError, r"L must be a real number, got '1' of type str"),
    ]:
        with pytest.raises(error, match=message):
            rates(**{**BASE, **changes})
