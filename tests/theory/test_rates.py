"""The rates with explicit constants against naive formulas (Theorems 1, 3 and 4)."""

import itertools
import math
from itertools import product
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.theory import alignment_bound, muon_bound, sgdm_bound, tuned_muon, tuned_sgdm

BASE = {"L": 2.0, "D": 3.0, "sigma": 0.7, "r": 48, "B": 16, "T": 500}
PROBLEMS = [
    BASE,
    {**BASE, "sigma": 0.0},
    {**BASE, "sigma": 40.0, "T": 50_000},
    {**BASE, "L": 1e-3, "D": 1e4},
    {**BASE, "r": 1, "B": 1, "T": 1},
]
POSITIVE = st.floats(1e-3, 1e3)
ANY = st.fixed_dictionaries(
    {"L": POSITIVE, "D": POSITIVE, "sigma": POSITIVE}
    | {"r": st.integers(1, 4096), "B": st.integers(1, 4096), "T": st.integers(1, 10**6)}
)


def paper_muon(L, D, sigma, r, B, T, eps, eta, beta):
    """The line of Theorem 1 before tuning."""
    inner = D / (T * eta) + L * eta * (1 + eps) ** 2 / 2 + 2 * beta * L * eta * (1 + eps) / (1 - beta)
    inner += 2 * sigma * (r / B) ** 0.5 * ((1 - beta) / (1 + beta)) ** 0.5
    inner += 2 * beta * (2 * r * L * D) ** 0.5 / (T * (1 - beta))
    return inner / (1 - eps)


def sharp_muon(L, D, sigma, r, B, T, eps, eta, beta):
    """The alignment theorem with ρ = 1 - ε and s = 1."""
    rho = 1 - eps
    inner = D / (T * eta) + L * eta / 2 + (rho + 1) * L * eta * beta / (1 - beta)
    inner += (rho + 1) * sigma * (r / B) ** 0.5 * ((1 - beta) / (1 + beta)) ** 0.5
    inner += (rho + 1) * beta * (2 * L * D) ** 0.5 / (T * (1 - beta))
    return inner / rho


def paper_sgdm(L, D, sigma, r, B, T, eta, beta):
    """The line of Theorem 3 before tuning."""
    step, K = eta / (1 - beta), beta**2 + (1 - beta) ** 2
    theta = 4 * L**2 * step**2 * K / (1 - beta) ** 2
    square = 2 * (1 - 2 * theta) / (1 - 4 * theta) * (1 - beta) * D / (eta * T)
    square += (4 * beta * L * D / ((1 - beta) * T) + 2 * (1 - beta) / (1 + beta) * sigma**2 / B) / (1 - 4 * theta)
    return math.sqrt(r) * math.sqrt(square)


def sharp_sgdm(L, D, sigma, r, B, T, eta, beta):
    square = 2 * (1 - beta) * D / (eta * T) + 2 * beta**2 * L * D / ((1 - beta) * T) + (1 - beta) * sigma**2 / B
    return math.sqrt(r * square)


def test_muon_agrees_with_the_naive_formula():
    for problem, (constants, naive) in product(PROBLEMS, [("paper", paper_muon), ("sharp", sharp_muon)]):
        for eps, eta, beta in itertools.product((0.0, 0.3, 0.95), (1e-3, 0.2), (0.0, 0.9, 0.999)):
            bound = muon_bound(**problem, epsilon=eps, eta=eta, beta=beta, constants=constants)
            assert bound.total == pytest.approx(naive(**problem, eps=eps, eta=eta, beta=beta), rel=1e-12, abs=0)
            assert (bound.eta, bound.beta, bound.status) == (eta, beta, "applies")


@given(ANY)
def test_the_theorems_choice_of_beta_and_eta(problem):
    eta, beta = tuned_muon(**problem)
    L, D, sigma, r, B, T = (problem[k] for k in ("L", "D", "sigma", "r", "B", "T"))
    keep = min(math.sqrt(L * D * B) / (sigma * math.sqrt(r * T)), 1.0)
    assert 1 - beta == pytest.approx(keep, rel=1e-9, abs=0)
    assert eta == pytest.approx(math.sqrt(keep * D / (T * L)), rel=1e-9, abs=0)
    for constants in ("paper", "sharp"):
        bound = muon_bound(**problem, constants=constants)
        assert (bound.eta, bound.beta) == (eta, beta)


@given(ANY, st.floats(0, 0.99), st.floats(0, 0.999), st.floats(1e-4, 10))
def test_sharp_muon_is_the_alignment_theorem_at_the_same_step(problem, eps, beta, eta):
    muon = muon_bound(**problem, epsilon=eps, eta=eta, beta=beta, constants="sharp")
    general = alignment_bound(**problem, alignment=1 - eps, eta=eta, beta=beta)
    assert muon.total == pytest.approx(general.total, rel=1e-13, abs=0)
    assert dict(muon.terms) == pytest.approx(dict(general.terms), rel=1e-13, abs=0)


@given(ANY, st.floats(0.0, 0.98))
def test_a_smaller_polar_error_never_gives_a_larger_bound(problem, eps):
    for constants in ("paper", "sharp"):
        low, high = (muon_bound(**problem, epsilon=e, constants=constants).total for e in (eps, eps + 0.01))
        assert low < high


def test_a_polar_error_of_one_or_more_has_no_bound_and_says_why():
    for constants, epsilon in product(["paper", "sharp"], [1.0, 2.0]):
        bound = muon_bound(**BASE, epsilon=epsilon, constants=constants)
        assert bound.total == math.inf
        assert bound.status == "not_applicable"
        assert f"epsilon = {epsilon:g}" in bound.reason
        assert "below 1" in bound.reason
        assert dict(bound.terms) == {}
        assert bound.dominant == ""


def test_muon_terms_are_named_each_stands_for_its_cause_and_the_largest_is_dominant():
    expected = {"descent", "curvature", "drift", "noise", "start"}
    for constants in ("paper", "sharp"):
        bound = muon_bound(**BASE, epsilon=0.2, eta=0.01, beta=0.9, constants=constants)
        assert set(bound.terms) == expected
        assert bound.total == pytest.approx(sum(bound.terms.values()), rel=1e-14, abs=0)
        assert isinstance(bound.terms, MappingProxyType)
        assert bound.combine == "sum"
        cases = {
            "descent": {"eta": 1e-6},
            "curvature": {"eta": 1e3, "beta": 0.0},
            "drift": {"eta": 1e3, "beta": 0.99},
            "noise": {"sigma": 1e4},
            "start": {"beta": 0.999, "eta": 0.1, "L": 1e-3, "D": 1e-3, "sigma": 0.0, "T": 1},
        }
        for name, changes in cases.items():
            arguments = {**BASE, "eta": 0.01, "beta": 0.5, **changes}
            assert muon_bound(**arguments, constants=constants).dominant == name


def test_sgdm_agrees_with_the_naive_formula():
    for problem, (constants, naive) in product(PROBLEMS, [("paper", paper_sgdm), ("sharp", sharp_sgdm)]):
        for beta, share in itertools.product((0.0, 0.5, 0.9), (0.01, 0.1, 0.2)):
            eta = share * (1 - beta) ** 2 / problem["L"]
            bound = sgdm_bound(**problem, eta=eta, beta=beta, constants=constants)
            assert bound.total == pytest.approx(naive(**problem, eta=eta, beta=beta), rel=1e-12, abs=0)
            assert set(bound.terms) == {"descent", "start", "noise"}
            assert bound.combine == "root_sum_square"
            assert bound.total == pytest.approx(math.hypot(*bound.terms.values()), rel=1e-14, abs=0)
            assert bound.terms[bound.dominant] == max(bound.terms.values())


@given(ANY)
def test_sgdm_choices_of_step_and_momentum(problem):
    L, D, sigma, B, T = (problem[k] for k in ("L", "D", "sigma", "B", "T"))
    ratio = math.sqrt(L * D * B) / (sigma * math.sqrt(T))
    paper, sharp = tuned_sgdm(**problem, constants="paper"), tuned_sgdm(**problem)
    assert 1 - paper.beta == pytest.approx(min(ratio, 1), rel=1e-9, abs=0)
    assert paper.eta == pytest.approx(min((1 - paper.beta) / L, (1 - paper.beta) ** 2 / (4 * L)), rel=1e-12, abs=0)
    assert 1 - sharp.beta == pytest.approx(min(2 * ratio, 1), rel=1e-9, abs=0)
    assert sharp.eta == pytest.approx((1 - sharp.beta) ** 2 / L, rel=1e-12, abs=0)


def test_the_step_printed_in_the_proof_divides_by_zero_at_every_momentum():
    for beta in (0.0, 0.3, 0.9):
        K = beta**2 + (1 - beta) ** 2
        eta = (1 - beta) ** 2 / (4 * BASE["L"] * math.sqrt(K))
        bound = sgdm_bound(**BASE, eta=eta * (1 + 1e-12), beta=beta, constants="paper")
        assert bound.status == "not_applicable"
        assert "is not below 1/4" in bound.reason
        assert sgdm_bound(**BASE, eta=eta * 0.999, beta=beta, constants="paper").status == "applies"


def test_the_sharp_bound_applies_up_to_its_condition_and_not_beyond():
    for beta in [0.0, 0.5, 0.9, 0.99]:
        L, b = BASE["L"], beta / (1 - beta)
        largest = (1 - beta) / L * 2 / (1 + math.sqrt(1 + 4 * b * b))  # (b y)² + y = 1 with y = L η/(1-β)
        assert sgdm_bound(**BASE, eta=largest * (1 - 1e-9), beta=beta).status == "applies"
        refused = sgdm_bound(**BASE, eta=largest * (1 + 1e-6), beta=beta)
        assert refused.status == "not_applicable"
        assert "exceeds 1: take eta <= (1 - beta)^2/L" in refused.reason
        assert sgdm_bound(**BASE, eta=(1 - beta) ** 2 / L, beta=beta).status == "applies"


def test_sgdm_needs_only_its_frobenius_constant():
    for constants in ["paper", "sharp"]:
        smaller = BASE["L"] / 7
        with_both = sgdm_bound(**BASE, L_F=smaller, constants=constants)
        alone = sgdm_bound(**{**BASE, "L": smaller}, constants=constants)
        assert with_both == alone
        assert tuned_sgdm(**BASE, L_F=smaller, constants=constants) == tuned_sgdm(
            **{**BASE, "L": smaller}, constants=constants
        )
        assert sgdm_bound(**BASE, L_F=BASE["L"], constants=constants) == sgdm_bound(**BASE, constants=constants)


def test_muons_root_r_advantage_is_gone_when_the_frobenius_constant_is_r_times_smaller():
    quiet = {**BASE, "sigma": 0.0}
    muon = alignment_bound(**quiet, alignment=1.0).total  # √(2 L D/T)
    same, smallest = sgdm_bound(**quiet).total, sgdm_bound(**quiet, L_F=BASE["L"] / BASE["r"]).total
    assert same / muon == pytest.approx(math.sqrt(BASE["r"]), rel=1e-12, abs=0)
    assert smallest / muon == pytest.approx(1.0, rel=1e-12, abs=0)


FUNCTIONS = [muon_bound, sgdm_bound, tuned_muon, tuned_sgdm]


def test_bad_constants_are_refused_by_rule_and_value():
    for function, (changes, error, message) in product(
        FUNCTIONS,
        [
            ({"L": 0.0}, ValueError, r"L must be a finite number in \(0, inf\), got 0\.0: choose a value inside"),
            ({"L": math.inf}, ValueError, r"L must be a finite number in \(0, inf\), got inf: choose a value inside"),
            ({"D": -1e-9}, ValueError, r"D must be a finite number in \[0, inf\), got -1e-09: choose a value inside"),
            ({"D": math.nan}, ValueError, r"D must be a finite number in \[0, inf\), got nan: choose a value inside"),
            ({"sigma": -0.5}, ValueError, r"sigma must be a finite number in \[0, inf\), got -0\.5: choose a value"),
            ({"sigma": "1"}, TypeError, r"sigma must be a real number, got '1' of type str"),
            ({"r": 0}, ValueError, r"r must be at least 1, got 0: pass 1 or more"),
            ({"B": 2.0}, TypeError, r"B must be an integer, got 2\.0 of type float: pass a whole number"),
            ({"T": True}, TypeError, r"T must be an integer, got True: pass 1 if that is meant"),
        ],
    ):
        with pytest.raises(error, match=message):
            function(**{**BASE, **changes})


def test_bad_choices_are_refused_by_rule_and_value():
    frobenius = r"L_F is at most L \(L_F <= L <= r L_F\), got L_F = 3\.0 and L = 2\.0: check the two constants"
    for functions, changes, error, message in [
        ([muon_bound, sgdm_bound], {"beta": 1.0}, ValueError, r"beta must be .* in \[0, 1\), got 1\.0: choose a value"),
        ([muon_bound, sgdm_bound], {"beta": "0.9"}, TypeError, r"beta must be a real number, got '0\.9' of type str"),
        ([muon_bound, sgdm_bound], {"eta": 0.0}, ValueError, r"eta must be .* in \(0, inf\), got 0\.0: choose a value"),
        (
            [muon_bound, sgdm_bound],
            {"constants": "best"},
            ValueError,
            r"constants must be one of 'paper', 'sharp', got",
        ),
        ([muon_bound], {"epsilon": -0.1}, ValueError, r"epsilon must be a finite number in \[0, inf\), got -0\.1"),
        ([sgdm_bound, tuned_sgdm], {"L_F": 3.0}, ValueError, frobenius),
    ]:
        for function in functions:
            with pytest.raises(error, match=message):
                function(**BASE, **changes)
