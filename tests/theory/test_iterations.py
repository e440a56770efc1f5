"""Steps to a target: the explicit bound reaches it at T, and no step size and momentum reach it at T - 1."""

import math
from itertools import pairwise, product

import numpy as np
import pytest

from muonlab.theory import iterations_for, muon_bound, schedule_factors, sgdm_bound
from muonlab.theory.lr_schedules import LR_SCHEDULES

BASE = {"L": 1.0, "D": 1.0, "sigma": 0.5, "r": 8, "B": 32}
CASES = [
    ("svd", 0.4, {}),
    ("svd", 0.1, {"sigma": 0.0}),
    ("muon", 0.8, {"chi": 3.0}),
    ("muon", 0.6, {"chi": 1.5, "L": 0.2, "D": 2.0}),
    ("sgdm", 0.5, {}),
    ("sgdm", 0.9, {"sigma": 2.0, "B": 64}),
    ("sgdm", 0.3, {"sigma": 0.0}),
]


def bounds(method, constants, chi, L, D, sigma, r, B, T, eta, beta):
    """The explicit bounds on arrays of η and β; infinite where the theorem gives none."""
    eps, keep = 1 - 1 / chi, 1 - beta
    if method != "sgdm":
        if constants == "paper":
            inner = D / (T * eta) + L * eta * (1 + eps) ** 2 / 2 + 2 * beta * L * eta * (1 + eps) / keep
            inner = inner + 2 * sigma * np.sqrt(r / B) * np.sqrt(keep / (1 + beta))
            return (inner + 2 * beta * np.sqrt(2 * r * L * D) / (T * keep)) / (1 - eps)
        inner = D / (T * eta) + L * eta / 2
        inner = inner + (2 - eps) * (L * eta * beta / keep + sigma * np.sqrt(r / B) * np.sqrt(keep / (1 + beta)))
        return (inner + (2 - eps) * beta * np.sqrt(2 * L * D) / (T * keep)) / (1 - eps)
    y = L * eta / keep
    if constants == "sharp":
        square = 2 * keep * D / (eta * T) + 2 * beta**2 * L * D / (keep * T) + keep * sigma**2 / B
        return np.where((beta * y / keep) ** 2 + y <= 1 + 1e-12, np.sqrt(r * square), np.inf)
    theta = 4 * y**2 * (beta**2 + keep**2) / keep**2
    safe = np.where(theta < 0.25, theta, 0.0)
    square = 2 * (1 - 2 * safe) / (1 - 4 * safe) * keep * D / (eta * T)
    square = square + (4 * beta * L * D / (keep * T) + 2 * keep / (1 + beta) * sigma**2 / B) / (1 - 4 * safe)
    return np.where((theta < 0.25) & (y <= 1), np.sqrt(r * square), np.inf)


def least_on_grids(method, constants, chi, problem, T, around):
    """Smallest bound over a wide grid of η and β, refined around its best point and around the answer's."""
    least = math.inf
    centres = [(0.0, 0.0, 9.0, 9.0), (math.log(around.eta), math.log1p(-around.beta), 0.05, 0.05)]
    for centre in centres:
        log_eta, log_keep, width_eta, width_keep = centre
        for _ in range(8):
            e = np.exp(np.linspace(log_eta - width_eta, log_eta + width_eta, 121))
            k = np.minimum(np.exp(np.linspace(log_keep - width_keep, log_keep + width_keep, 121)), 1.0)
            eta, keep = np.meshgrid(e, k, indexing="ij")
            values = bounds(method, constants, chi, **problem, T=T, eta=eta, beta=1 - keep)
            best = np.unravel_index(np.argmin(values), values.shape)
            least = min(least, float(values[best]))
            log_eta, log_keep = math.log(eta[best]), math.log(keep[best])
            width_eta, width_keep = width_eta / 8, width_keep / 8
    return least


def test_the_bound_reaches_the_target_at_t_and_nothing_reaches_it_one_step_earlier():
    for constants, (method, target, changes) in product(["sharp", "paper"], CASES):
        problem = {**BASE, **changes}
        chi = problem.pop("chi", 1.0)
        needed = iterations_for(target, method, **problem, chi=chi, constants=constants)
        T, bound = needed.total, needed.bound
        assert T > 3
        assert bound.total <= target
        at = {"eta": bound.eta, "beta": bound.beta, "constants": constants, "T": T, **problem}
        again = sgdm_bound(**at) if method == "sgdm" else muon_bound(**at, epsilon=1 - 1 / chi)
        assert again.total == pytest.approx(bound.total, rel=1e-12, abs=0)
        assert least_on_grids(method, constants, chi, problem, T - 1, bound) > target * (1 - 1e-9)
        reached = least_on_grids(method, constants, chi, problem, T, bound)
        assert reached == pytest.approx(bound.total, rel=1e-6, abs=0)  # the grids are fine enough to have found it


def least_with_schedule(name, nesterov, chi, T, L, D, sigma, r, B):
    """Least bound of Corollary A1 at ``s = 1`` over a grid of β; over η the least ``aη + b/η`` is ``2√(ab)``."""
    k = np.geomspace(1e-6, 1, 50_001)
    beta, ahead, rho, h = 1 - k, 1 - k if nesterov else 1.0, 1 / chi, schedule_factors(name, T)
    current = np.sqrt(1 + 2 * beta - 2 * beta**3) if nesterov else 1.0
    falling = D / h.sum()
    rising = L * (h @ h) / h.sum() * (1 / 2 + (rho + 1) * ahead * beta / k)
    noise = sigma * np.sqrt(r / B) * (rho * ahead * beta + current) * np.sqrt(k / (1 + beta))
    start = (rho + 1) * np.sqrt(2 * L * D) * ahead * beta / k / h.sum()
    return float(np.min(2 * np.sqrt(falling * rising) + noise + start)) / rho


def test_with_a_schedule_the_steps_are_those_of_corollary_a1():
    problem = {"L": 1.3, "D": 0.7, "sigma": 2.0, "r": 6, "B": 24}
    found = {}
    for name, nesterov in product(LR_SCHEDULES, [False, True]):
        needed = iterations_for(0.5, **problem, chi=1.6, lr_schedule=name, nesterov=nesterov)
        found[name, nesterov] = T = needed.total
        at, before = (least_with_schedule(name, nesterov, 1.6, steps, **problem) for steps in (T, T - 1))
        assert needed.bound.total == pytest.approx(at, rel=1e-6, abs=0)
        assert needed.bound.total <= 0.5 < before
        assert needed.bound.beta > 0.5
    constant, wsd, linear, cosine = (found[name, True] for name in ("constant", "wsd", "linear", "cosine"))
    assert constant < wsd < linear < cosine
    assert found["constant", False] < iterations_for(0.5, **problem, chi=1.6).total  # ρβ + s in place of ρ + s


def test_a_smaller_target_never_needs_fewer_steps():
    for constants, method in product(["sharp", "paper"], ["muon", "svd", "sgdm"]):
        counts = [iterations_for(t, method, **BASE, constants=constants).total for t in (3.0, 0.8)]
        assert counts == sorted(counts)
        assert counts[-1] > counts[0]


def test_more_noise_worse_factors_and_papers_constants_never_need_fewer_steps():
    by_noise = [iterations_for(0.2, "svd", **{**BASE, "sigma": s}).total for s in (0.0, 0.1, 0.5, 1.0)]
    by_factor = [iterations_for(0.2, "muon", **BASE, chi=c).total for c in (1.0, 1.2, 2.0, 10.0)]
    by_constants = [iterations_for(0.2, "svd", **BASE, constants=c).total for c in ("sharp", "paper")]
    for counts in (by_noise, by_factor, by_constants):
        assert all(a < b for a, b in pairwise(counts))


def test_without_noise_the_counts_have_their_closed_forms():
    quiet = {**BASE, "sigma": 0.0}
    for target in (0.03, 0.11, 0.7):
        # alignment theorem: χ √(2LD/T); SGD-M: √(2rLD/T)
        assert iterations_for(target, "svd", **quiet).total == math.ceil(2 / target**2 * (1 - 1e-12))
        assert iterations_for(target, "muon", **quiet, chi=2.0).total == math.ceil(8 / target**2 * (1 - 1e-12))
        assert iterations_for(target, "sgdm", **quiet).total == math.ceil(16 / target**2 * (1 - 1e-12))


def test_an_easy_target_needs_one_step():
    assert iterations_for(1e6, "svd", **BASE).total == 1


def test_the_order_terms_are_those_of_the_paper():
    problem, target, chi = {"L": 2.0, "D": 3.0, "sigma": 0.5, "r": 10, "B": 4}, 0.3, 1.7
    variance = 0.25 / 4
    muon = iterations_for(target, "muon", **problem, chi=chi).order
    assert dict(muon) == pytest.approx(
        {
            "deterministic": chi**2 * 6 / target**2,
            "start": chi**2 * 100 * variance / target**2,
            "stochastic": chi**4 * 10 * variance * 6 / target**4,
        },
        rel=1e-13,
        abs=0,
    )
    sgdm = iterations_for(target, "sgdm", **problem).order
    assert dict(sgdm) == pytest.approx(
        {"deterministic": 10 * 6 / target**2, "stochastic": 100 * variance * 6 / target**4}, rel=1e-13, abs=0
    )


def test_a_huge_factor_scales_the_target_and_not_the_steps():
    for constants, chi in product(["sharp", "paper"], [1e8, 1e17, 1e40]):
        target = chi / 10
        needed = iterations_for(target, "muon", **{**BASE, "sigma": 0.0}, chi=chi, constants=constants)
        # χ √(2LD/T) in the alignment theorem, twice that in the paper's line as ε tends to 1
        assert needed.total == pytest.approx(200 if constants == "sharp" else 800, rel=0.02)


def test_bad_arguments_are_refused_by_rule_and_value():
    for changes, error, message in [
        ({"target": 0.0}, ValueError, r"target must be a finite number in \(0, inf\), got 0\.0: choose a value inside"),
        ({"target": -1.0}, ValueError, r"target must be a finite number in \(0, inf\), got -1\.0: choose a value"),
        ({"target": math.nan}, ValueError, r"target must be a finite number in \(0, inf\), got nan: choose a value"),
        ({"target": "1"}, TypeError, r"target must be a real number, got '1' of type str"),
        ({"target": True}, TypeError, r"target must be a real number, got True of type bool"),
        ({"target": 1e-30}, ValueError, r"target = 1e-30 needs more than 2\*\*100 steps: choose a larger target"),
        ({"method": "adam"}, ValueError, r"method must be one of 'muon', 'svd', 'sgdm', got 'adam': pick one of these"),
        ({"constants": "x"}, ValueError, r"constants must be one of 'paper', 'sharp', got 'x': pick one of these"),
        ({"chi": 0.5}, ValueError, r"chi must be a finite number in \[1, inf\), got 0\.5: choose a value inside"),
        ({"method": "svd", "chi": 2.0}, ValueError, r"chi belongs to method 'muon', got chi = 2 with 'svd': leave chi"),
        ({"L": 0.0}, ValueError, r"L must be a finite number in \(0, inf\), got 0\.0: choose a value inside"),
        ({"sigma": -1.0}, ValueError, r"sigma must be a finite number in \[0, inf\), got -1\.0: choose a value"),
        ({"B": 0}, ValueError, r"B must be at least 1, got 0: pass 1 or more"),
        ({"lr_schedule": "step"}, ValueError, r"lr_schedule must be one of None, 'constant', .*, got 'step': pick one"),
        ({"nesterov": True}, ValueError, r"nesterov needs a schedule, got lr_schedule = None: pass lr_schedule="),
        (
            {"lr_schedule": "cosine", "constants": "paper"},
            ValueError,
            r"the paper has no bound for schedules, got lr_schedule = 'cosine' with constants = 'paper': pass",
        ),
        (
            {"lr_schedule": "cosine", "method": "sgdm"},
            ValueError,
            r"SGD-M has no bound for schedules here, got lr_schedule = 'cosine': leave it out",
        ),
    ]:
        with pytest.raises(error, match=message):
            iterations_for(**{"target": 0.5, **BASE, **changes})
