"""Certificates of single matrices: numbers against an SVD, verdicts that can fail, words that repeat the numbers."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch

from muonlab import ExactPolar, NewtonSchulz, newton_schulz
from muonlab.diagnostics import certify
from muonlab.diagnostics.certificates.matrix_certification import certify_matrix, rounding_allowance
from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.theory import alignment_floor, chi, polar_error, residual_after, schedule_error
from muonlab.theory.floor import taylor_floor
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo
from tests.paper.simulation import observed_error, observed_residual, svd_polar
from tests.reference.orthogonalize import scale_of

JORDAN, EXPRESS = preset("jordan").schedule(5), preset("polar_express").schedule(5, safety="1.01")
SCHEDULES = {
    **{f"taylor{k} x{q}": Schedule.repeat(taylor(k), q) for k in (1, 2, 3) for q in (0, 1, 3, 6)},
    "jordan x5": JORDAN,
    "polar_express x5": EXPRESS,
    "mixed degrees": Schedule((taylor(1), taylor(2))),
    "express then taylor": EXPRESS + Schedule.repeat(taylor(2), 2),
}
LARGE = ("a long row", "few long rows", "gaussian 511x513")
SMALL = [name for name in zoo() if name not in LARGE]
GOOD = with_spectrum(12, 20, np.linspace(1, 0.4, 12))
"""Well conditioned, so that the paper's bounds are not vacuous."""


def worst_of_rank(r):
    """The matrix of rank r whose own direction is aligned worst: one large singular value, the others x times it."""
    return with_spectrum(r, 20, np.r_[1.0, np.full(r - 1, 1 / (1 + math.sqrt(r)))])


def oracle(M):
    A = M.detach().double().numpy()
    power = 2.0 ** np.frexp(np.abs(A).max(initial=0.0))[1] if A.size else 1.0
    return np.linalg.svd(A / power, compute_uv=False) * power


def verdict(c, statement):
    (found,) = [v for v in c.verdicts if v.statement == statement]
    return found.status


# ------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_every_number_is_that_of_an_svd_and_of_the_direction(shape):
    for name in SCHEDULES:
        check_numbers(name, shape)


def check_numbers(name, shape):
    F, M = SCHEDULES[name], with_spectrum(*shape, np.geomspace(3, 0.2, 12)).double()
    c, sigma = certify(M, F), oracle(M)
    O = newton_schulz(M, F)
    gain = float(oracle(O)[0])
    assert c.shape == shape
    assert c.rank == 12
    assert (c.nuclear, c.operator, c.frobenius) == pytest.approx((sigma.sum(), sigma[0], np.linalg.norm(sigma)))
    share = sigma / sigma.sum()
    assert c.effective_rank == pytest.approx(math.exp(-np.sum(share * np.log(share))))
    assert c.scale == pytest.approx(scale_of(torch.from_numpy(sigma), "frobenius", M))
    assert c.lambda_min == pytest.approx((sigma[-1] / c.scale) ** 2)
    assert c.delta_0 == pytest.approx(1 - c.lambda_min)
    assert c.delta == pytest.approx(observed_residual(M.numpy(), O.numpy()), abs=1e-9)
    assert c.epsilon == pytest.approx(observed_error(M.numpy(), O.numpy()), abs=1e-9)
    assert c.chi == pytest.approx(1 / (1 - c.epsilon))
    assert c.descent == pytest.approx(float(torch.sum(M * O)) / sigma.sum())
    assert c.op_norm == pytest.approx(gain)
    assert c.alignment == pytest.approx(float(torch.sum(M * O)) / sigma.sum() / gain)
    assert c.factor == pytest.approx(1 / c.alignment)
    assert c.alignment_floor == alignment_floor(F, 12)
    assert c.largest_gain == schedule_error(F, 0.0).s_max
    assert c.alignment >= c.alignment_floor
    assert c.status == "holds", c.reason
    assert c.rounding < c.rounding_allowed < 1e-10


def test_bounds_of_theorem_2_are_the_papers_and_hold():
    for kappa in (1, 2, 3):
        for q in (0, 1, 3, 6):
            check_bounds(kappa, q)


def check_bounds(kappa, q):
    c = certify(GOOD, taylor(kappa), steps=q)
    sigma = float(oracle(GOOD)[-1]) / c.scale
    options = {"kappa": kappa, "q": q, "sigma_min": sigma}
    assert c.deltas == pytest.approx(tuple(residual_after(kappa=kappa, q=j, sigma_min=sigma) for j in range(q + 1)))
    assert c.delta_bound == pytest.approx((1 - sigma**2) ** ((kappa + 1) ** q), rel=1e-6)
    assert c.epsilon_bound == pytest.approx(polar_error(**options, bound=True), rel=1e-6)
    assert c.chi_bound == pytest.approx(chi(**options, bound=True))
    assert c.delta <= c.delta_bound * (1 + 1e-12)
    assert c.chi <= c.chi_bound * (1 + 1e-12)
    assert verdict(c, "Theorem 2") == c.status == "holds"
    assert c.theorem == "alignment theorem"


@pytest.mark.parametrize(
    ("schedule", "prescale"),
    [
        ("taylor2 x3", "frobenius"),
        ("jordan x5", "frobenius"),
        ("polar_express x5", "schatten4"),
        ("taylor2 x6", "spectral"),
        ("mixed degrees", "schatten8"),
        ("taylor3 x6", "paper"),
    ],
)
def test_every_specimen_holds_but_zero_and_its_certificate_is_json(schedule, prescale):
    F = SCHEDULES[schedule]
    for name in [*SMALL, "few long rows"] if schedule == "jordan x5" else SMALL[::2]:
        M = zoo()[name]
        c, sigma = certify(M, F, prescale=prescale), oracle(M)
        assert c.status == ("not_applicable" if name == "zero" else "holds"), (name, c.reason)
        if name != "zero":
            assert c.scale == pytest.approx(scale_of(torch.from_numpy(sigma), prescale, M), rel=1e-6), name
            assert c.nuclear == pytest.approx(sigma.sum(), rel=3e-8 * len(sigma)), name
            unscaled = prescale == "paper" and np.linalg.norm(sigma) < 1
            if unscaled and schedule == "taylor3 x6":
                assert c.alignment_floor == taylor_floor(min(M.shape)) <= c.alignment * (1 + 1e-6), name
            else:
                assert (c.alignment_floor is None) == unscaled, name
        found = json.loads(json.dumps(c.to_dict(), allow_nan=False))
        assert found["status"] == c.status
        assert c._repr_html_().startswith("<pre")
        assert str(c).endswith(c.explanation)


@pytest.mark.parametrize("prescale", ["frobenius", "spectral"])
@pytest.mark.parametrize("name", ["taylor1 x0", "polar_express x5"])
def test_float64_specimens_hold_although_the_reference_is_no_more_precise(name, prescale):
    for animal in [*SMALL[::4], "flat 64x576"]:
        c = certify(zoo()[animal].double(), SCHEDULES[name], prescale=prescale)
        assert c.status == ("not_applicable" if animal == "zero" else "holds"), (animal, c.reason)
        assert c.rounding_allowed < 1e-7


def test_partial_isometries_under_the_spectral_prescale_are_not_violations():
    # there Gram space loses more than the orthogonalizer guarantees: see tests/orthogonalize/test_rounding.py
    for rank in (16, 48):
        c = certify(with_spectrum(96, 400, np.ones(rank), seed=rank), steps=5, prescale="spectral")
        assert c.status == "holds", c.reason
    M = with_spectrum(384, 384, np.r_[np.ones(383), 0.1], seed=0)
    assert certify(M, "polar_express", prescale="spectral").status == "holds"


def test_the_floor_is_that_of_the_prescale_and_for_smaller_matrices_that_of_concave_steps():
    """Without a division the direction of a small matrix is small: its alignment has a floor, its descent has none."""
    F = Schedule.repeat(taylor(2), 3)
    for prescale, power in (("frobenius", 2), ("schatten4", 4), ("schatten8", 8), ("spectral", 8)):
        assert certify(GOOD, F, prescale=prescale).alignment_floor == alignment_floor(F, 12, schatten=power)
    inside = with_spectrum(12, 20, np.full(12, 0.9))
    assert certify(inside, F, prescale="none").alignment_floor == alignment_floor(F, 12)
    for prescale, M in product(("none", "paper"), (0.1 * inside, 1e-6 * GOOD, worst_of_rank(12) / 40)):
        for steps in (F, Schedule((taylor(1), taylor(3)))):
            c = certify(M, steps, prescale=prescale)
            assert (c.scale, c.alignment_floor, c.descent_floor) == (1.0, 2 / (1 + math.sqrt(12)), None)
            assert c.alignment >= c.alignment_floor * (1 - 1e-6)
            assert verdict(c, "alignment floor") == verdict(c, "Theorem 2") == "holds" or steps != F
        assert certify([M, GOOD], F, prescale=prescale).alignment_floor is None
    assert certify(1e-9 * worst_of_rank(12), F, prescale="paper").alignment == pytest.approx(2 / (1 + math.sqrt(12)))
    small, large = certify(0.01 * GOOD, "jordan", prescale="paper"), certify(GOOD, prescale="paper")
    assert small.alignment_floor is None
    assert verdict(small, "alignment floor") == "not_applicable"
    assert "'paper' leaves norm" in small.reason
    assert large.alignment_floor is not None
    assert large.descent_floor == large.alignment_floor * large.largest_gain
    assert large.scale == pytest.approx(float(GOOD.norm()))


@pytest.mark.parametrize("size", [1.3, 40.0])
def test_no_prescale_outside_the_unit_ball_makes_theorem_2_and_the_floor_silent(size):
    c = certify(with_spectrum(12, 20, np.linspace(size, 0.4, 12)), "quintic", steps=5, prescale="none")
    assert c.status in ("holds", "not_applicable"), c.reason
    assert c.alignment_floor is None
    assert (c.delta_bound, c.epsilon_bound, c.chi_bound) == (math.inf,) * 3
    if size == 40.0:
        assert "NaN or infinity in the matrix or its direction" in c.reason
    else:
        assert verdict(c, "Theorem 2") == "not_applicable"
        assert f"the operator norm is {size:.4g} after the prescale, above 1" in c.reason
    json.dumps(c.to_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["taylor2 x3", "jordan x5", "polar_express x5"])
def test_other_dtypes_hold_within_their_own_rounding(name, dtype):
    M = gaussian(24, 40).to(dtype)
    c = certify(M, SCHEDULES[name])
    assert c.status == "holds", c.reason
    assert c.nuclear == pytest.approx(oracle(M).sum(), rel=1e-9)
    assert c.rounding <= c.rounding_allowed
    exact = certify(M.double(), SCHEDULES[name])
    assert c.alignment == pytest.approx(exact.alignment, abs=0.01)


def test_paragraphs_on_zero_empty_and_not_finite_matrices_say_why():
    for M, why in (
        (torch.zeros(3, 4), "zero"),
        (torch.zeros(0, 4), "zero"),
        (torch.full((3, 4), math.nan), "NaN or infinity"),
        (torch.tensor([[1.0, math.inf]]), "NaN or infinity"),
    ):
        c = certify(M, "jordan")
        assert c.status == "not_applicable"
        assert c.theorem == "none"
        assert why in c.explanation
        assert c.factor == math.inf
        json.dumps(c.to_dict(), allow_nan=False)
    zero = certify(torch.zeros(3, 4))
    assert (zero.rank, zero.delta, zero.epsilon, zero.chi, zero.alignment) == (0, 0.0, 0.0, 1.0, 0.0)


def test_inputs_keep_their_bits_and_the_random_state_stays():
    base = gaussian(40, 90)
    M = base[::2, 1::3].requires_grad_(True)
    O = newton_schulz(M, "jordan")
    before, state = (base.clone(), O.clone()), torch.get_rng_state()
    assert certify(M, "jordan").status == "holds"
    assert certify(M, "jordan", outcome=O.requires_grad_(True)).status == "holds"
    assert torch.equal(base, before[0])
    assert torch.equal(O.detach(), before[1])
    assert torch.equal(torch.get_rng_state(), state)
    assert M.grad is None
    assert certify(base.T.contiguous().T[::2, 1::3], "jordan").alignment == pytest.approx(
        certify(M, "jordan").alignment
    )


# ------------------------------------------------------------------------------------------------------- exact polar


@pytest.mark.parametrize("method", ["svd", "gram"])
def test_an_exact_polar_factor_is_theorem_4_on_every_specimen(method):
    for name in SMALL:
        c = certify_matrix(zoo()[name], ExactPolar(method=method))
        if name == "zero":
            assert c.status == "not_applicable"
            continue
        assert (c.status, c.theorem) == ("holds", "Theorem 4"), (name, c.reason)
        assert (c.delta, c.epsilon, c.chi, c.chi_bound, c.alignment_floor) == (0.0, 0.0, 1.0, 1.0, 1.0)


def test_the_descent_floor_of_an_exact_polar_factor_is_attained_by_values_at_its_rank_tolerance():
    relative = 40 * torch.finfo(torch.float64).eps
    M = torch.diag(torch.tensor([1.0, *[relative * (1 - 1e-12)] * 39], dtype=torch.float64))
    c = certify_matrix(M, ExactPolar())
    assert c.rank == 1
    assert 1 - c.descent_floor == pytest.approx(39 * relative, rel=1e-3)
    given = certify_matrix(torch.diag(torch.tensor([4.0, *[2.0] * 7])), ExactPolar(rank_tol=3.0))
    assert given.alignment == pytest.approx(4 / 18)
    assert (given.alignment_floor, given.descent_floor, given.status) == (None, None, "holds")
    assert certify_matrix(M, ExactPolar(rank_tol=0.0)).descent_floor == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_theorem_4_is_not_granted_to_everything_in_half_precision(dtype):
    M = gaussian(64, 64).to(dtype)
    assert certify_matrix(M, ExactPolar()).theorem == "Theorem 4"
    assert rounding_allowance(ExactPolar(), M) < 0.2
    wrong = certify_matrix(M, ExactPolar(), outcome=M / M.float().norm().to(dtype))
    assert (verdict(wrong, "Theorem 4"), wrong.status) == ("violated", "violated")


# ----------------------------------------------------------------------------------------------------------- outcomes


def test_our_own_direction_as_outcome_gives_our_own_numbers():
    for name, F in SCHEDULES.items():
        own, given = certify(GOOD, F), certify(GOOD, F, outcome=newton_schulz(GOOD, F))
        for field in ("delta_0", "delta", "epsilon", "descent", "op_norm", "alignment"):
            assert getattr(given, field) == pytest.approx(getattr(own, field), abs=5e-5), (name, field)
        assert given.status == "holds", given.reason
        assert given.rounding is None
    exact = certify(GOOD, outcome=torch.from_numpy(svd_polar(GOOD.double().numpy(), 1e-6)))
    assert (exact.status, exact.alignment) == ("holds", pytest.approx(1.0, abs=1e-6))
    assert max(exact.delta, exact.epsilon) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "prescale"), [("taylor1 x0", "spectral"), ("taylor1 x1", "frobenius")])
def test_outcomes_that_attain_the_bound_of_theorem_2_are_not_violations(name, prescale, dtype):
    F = SCHEDULES[name]  # without a step, δ and ε equal their bounds
    for animal in SMALL[::2]:
        M = zoo()[animal].to(dtype)
        c = certify(M, F, prescale=prescale, outcome=newton_schulz(M, F, prescale=prescale))
        assert c.status == ("not_applicable" if animal == "zero" else "holds"), (animal, c.reason)


@pytest.mark.parametrize("wrong", ["jordan", "polar_express"])
def test_another_polynomial_than_the_one_named_is_caught_by_theorem_2(wrong):
    c = certify(GOOD, taylor(2), outcome=newton_schulz(GOOD, preset(wrong).schedule(5, safety=preset(wrong).safety)))
    assert verdict(c, "Theorem 2") == c.status == "violated"
    assert verdict(c, "alignment theorem") == "holds"  # violated beats holds
    assert c.reason.startswith("Theorem 2: violated: ")
    assert "contradict what can be proved" in c.explanation
    assert f"{c.chi:.4g} exceeds the bound {c.chi_bound:.4g}" in c.explanation


def test_too_few_steps_are_caught_too():
    assert certify(GOOD, taylor(2), steps=5, outcome=newton_schulz(GOOD, steps=2)).status == "violated"
    assert certify(GOOD, taylor(2), steps=2, outcome=newton_schulz(GOOD, steps=5)).status == "holds"


def test_the_opposite_direction_is_violated_or_not_applicable_but_never_holds():
    O = newton_schulz(GOOD)
    c = certify(GOOD, outcome=-O)
    assert c.status == "violated"
    assert verdict(c, "alignment theorem") == "not_applicable"
    assert (c.factor, c.chi) == (math.inf, math.inf)
    assert c.alignment == pytest.approx(-certify(GOOD).alignment, abs=1e-6)
    no_promise = certify(0.01 * GOOD, JORDAN, prescale="paper", outcome=-O)
    assert no_promise.status == "not_applicable"
    assert "need not descend" in no_promise.explanation


def test_garbage_is_not_certified():
    noise = certify(GOOD, outcome=gaussian(12, 20, seed=5))
    assert noise.status == "violated"
    for bad in (math.nan, math.inf):
        c = certify(GOOD, outcome=torch.full_like(GOOD, bad))
        assert c.status == "not_applicable"
        assert "NaN or infinity" in c.reason
        json.dumps(c.to_dict(), allow_nan=False)
    assert certify(GOOD, outcome=torch.zeros_like(GOOD)).status == "violated"


def zeropower(G, steps=5):
    """Orthogonalize as torch.optim.Muon and its relatives do: all in bfloat16."""
    a, b, c = preset("jordan").polynomial.coefficients
    X = G.bfloat16()
    X = X / (X.norm() + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


def test_the_bfloat16_loop_of_other_packages_holds():
    c = certify(GOOD, "jordan", outcome=zeropower(GOOD))
    assert c.status == "holds", c.reason
    exact = certify(GOOD, "jordan")
    assert c.alignment == pytest.approx(exact.alignment, abs=0.02)
    assert c.alignment != exact.alignment
    assert verdict(c, "Theorem 2") == "not_applicable"


# ---------------------------------------------------------------------------------------------- verdicts and rounding


def test_theorem_2_gives_a_reason_if_it_does_not_apply():
    for schedule, why in (
        (JORDAN, "p(1) = 0.701, not 1"),
        (Schedule((taylor(1), taylor(2))), "it is stated for steps of one degree"),
        (Schedule((Polynomial((2, "-1")),)), "is not a Taylor polynomial"),
    ):
        c = certify(GOOD, schedule)
        assert why in c.reason
        assert verdict(c, "Theorem 2") == "not_applicable"
        assert c.chi_bound == math.inf
        assert c.status == "holds"


def test_a_direction_that_is_not_what_exact_steps_give_is_a_violation():
    how = NewtonSchulz(taylor(2), steps=3)

    class Faulty(NewtonSchulz):
        def __call__(self, M):
            return super().__call__(M) + 1e-4 * torch.ones_like(M)

    c = certify_matrix(GOOD, Faulty(how.schedule))
    assert verdict(c, "Lemmas 9 and 10") == c.status == "violated"
    assert c.rounding == pytest.approx(1e-4 * math.sqrt(240), rel=0.01)
    assert certify_matrix(GOOD, how).status == "holds"


def test_a_certificate_of_steps_in_half_precision_can_fail():
    class Faulty(NewtonSchulz):
        fault = 0.0

        def __call__(self, M):
            return super().__call__(M) + self.fault * torch.eye(*M.shape)

    M = gaussian(64, 96)
    for dtype, name, fault in (
        (torch.float16, "quintic", 0.03),
        (torch.float16, "jordan", 0.2),
        (torch.bfloat16, "quintic", 0.2),
    ):
        right, wrong = (kind(name, steps=5, compute_dtype=dtype) for kind in (NewtonSchulz, Faulty))
        Faulty.fault = fault
        found = certify_matrix(M, right)
        assert found.status == "holds", found.reason
        assert found.rounding < found.rounding_allowed
        assert verdict(certify_matrix(M, wrong), "Lemmas 9 and 10") == "violated"
        # an embedding's gradient with few active rows may be rounded further, and a guarantee is for every matrix
        few = M * (torch.arange(64) < 2)[:, None]
        every = rounding_allowance(right, M, any_matrix=True)
        assert 2 * found.rounding_allowed < every
        assert found.rounding_allowed < certify_matrix(few, right).rounding_allowed <= every


@pytest.mark.parametrize("accuracy", ["full", "half"])
def test_the_rounding_allowed_is_that_of_the_precision_computed_in_and_of_the_result(accuracy):
    half = 2.0**-8 if accuracy == "half" else 0.0
    single = certify_matrix(GOOD, NewtonSchulz(JORDAN, accuracy=accuracy)).rounding_allowed
    assert 16 * torch.finfo(torch.float32).eps + half <= single < 1e-3 + half
    for compute, stored, least, most in (
        (torch.bfloat16, torch.float32, 1.0, math.inf),  # steep steps in bfloat16: nothing is known
        (None, torch.bfloat16, single + 2.0**-8, single + 2.0**-8 * 1.3 * math.sqrt(12)),
        (None, torch.float16, single + 2.0**-11, single + 2.0**-11 * 1.3 * math.sqrt(12)),
        (torch.float64, torch.float32, half, 1e-5 + half),
    ):
        c = certify_matrix(GOOD.to(stored), NewtonSchulz(JORDAN, compute_dtype=compute, accuracy=accuracy))
        assert least <= c.rounding_allowed <= most, (compute, stored)
        assert c.status == "holds", c.reason


# -------------------------------------------------------------------------------------------------------------- words


def test_the_paragraph_repeats_the_fields():
    c = certify(with_spectrum(33, 65, np.geomspace(1, 1e-3, 33)), "quintic", steps=3)
    words = c.explanation
    assert c.method == "quintic x3, frobenius prescale"
    assert f"The update direction of {c.method} for this" in words
    assert "33x65 matrix" in words
    assert f"descends {c.alignment:.1%} as fast" in words
    assert f"(alignment {c.alignment:.3g}; 1 is exact)" in words
    assert f"at most {c.factor:.3g} times" in words
    assert f"factor would be {c.chi:.3g}" in words
    assert f"{math.sqrt(c.lambda_min):.2g} of the scale" in words
    assert f"No matrix of rank 33 or less falls below {c.alignment_floor:.3g} with" in words
    assert c.chi > 2 * c.factor  # else that sentence is left out
    assert "factor would be" not in certify(GOOD, steps=5).explanation
    assert "falls below" not in certify_matrix(GOOD, ExactPolar()).explanation


def test_the_dictionary_repeats_the_fields_in_plain_values():
    c = certify(GOOD, "jordan")
    found = c.to_dict()
    assert found["chi_bound"] is None  # infinite
    assert found["deltas"] == list(c.deltas)
    assert found["shape"] == [12, 20]
    derived = ("delta", "delta_0", "factor", "status", "theorem", "reason", "explanation")
    assert all(found[name] == getattr(c, name) for name in derived)
    assert found["verdicts"][0] == {
        "statement": "alignment theorem",
        "status": "holds",
        "reason": c.verdicts[0].reason,
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found


# ------------------------------------------------------------------------------------------------------------- errors


BAD = [
    (lambda: certify(torch.zeros(3)), ValueError, r"at least two dimensions .*got shape \(3,\): reshape it"),
    (lambda: certify(torch.zeros(2, 3, 4)), ValueError, r"got shape \(2, 3, 4\): pass M\.unbind\(\) for a batch"),
    (lambda: certify([torch.zeros(2, 3, 4)]), ValueError, r"got shape \(2, 3, 4\): pass M\.unbind\(\) for a batch"),
    (lambda: certify({"a": None}), TypeError, r"M must be a torch\.Tensor, got NoneType: use torch\.as_tensor"),
    (lambda: certify(np.eye(2)), TypeError, r"certify takes a tensor, .*got ndarray: use torch\.as_tensor"),
    (lambda: certify("abc"), TypeError, r"certify takes a tensor, a mapping or sequence .*got str"),
    (lambda: certify(torch.eye(2, dtype=torch.int64)), TypeError, r"got torch\.int64: use M\.float\(\)"),
    (lambda: certify(GOOD, "newton"), ValueError, r"unknown preset 'newton': registered are 'cubic'"),
    (lambda: certify(GOOD, 3), TypeError, r"polynomial must be .*got 3 of type int: for example taylor\(2\)"),
    (lambda: certify(GOOD, JORDAN, steps=3), ValueError, r"got steps = 3 with a schedule of 5: leave steps out"),
    (lambda: certify(GOOD, steps=-1), ValueError, r"steps must be at least 0, got -1"),
    (
        lambda: certify(GOOD, prescale="l1"),
        ValueError,
        r"prescale must be one of 'frobenius', .*got 'l1': pick one",
    ),
    (
        lambda: certify(GOOD, outcome=GOOD.T),
        ValueError,
        r"got \(20, 12\) for \(12, 20\): pass the direction computed from M",
    ),
    (
        lambda: certify(GOOD, outcome=GOOD.numpy()),
        TypeError,
        r"outcome must be .*got ndarray: use torch\.as_tensor",
    ),
    (lambda: certify(GOOD, outcome=GOOD.int()), TypeError, r"outcome must be .*got torch\.int32: use torch"),
    (lambda: certify([GOOD], outcome=GOOD), ValueError, r"belongs to one matrix, got several .*one by one"),
    (lambda: certify([]), ValueError, r"nothing to certify, got no matrices: pass at least one matrix"),
    (lambda: certify({}), ValueError, r"nothing to certify, got no matrices: pass at least one matrix"),
]


def test_errors_name_the_rule_the_value_and_the_way_out():
    for call, error, message in BAD:
        with pytest.raises(error, match=message):
            call()


def test_a_direction_below_the_floor_is_a_violation():
    """Along the smallest singular vectors alone a direction descends, and less than any Polar Express steps would."""
    U, _, Vh = torch.linalg.svd(gaussian(16, 24, seed=4).double(), full_matrices=False)
    O = (U[:, -2:] @ Vh[-2:]).float()
    c = certify(gaussian(16, 24, seed=4), "polar_express", outcome=O)
    assert 0 < c.alignment < c.alignment_floor
    verdict = {v.statement: v.status for v in c.verdicts}
    assert verdict["alignment floor"] == "violated"
    assert c.status == "violated"
    assert c.theorem == "none"


@pytest.mark.parametrize("polynomial", ["quintic", "polar_express"])
def test_equal_rows_are_no_violation(polynomial):
    """The gradient of a layer whose outputs are added up has equal rows: rounding adds up, and nothing is wrong."""
    for n in (64, 256):
        assert certify(torch.ones(n, 1) @ gaussian(1, n, seed=n), polynomial).status == "holds"
        assert certify(torch.ones(n, n), polynomial).status == "holds"
