"""SVD-free brackets of the nuclear norm and of the descent: always valid, and as tight as their docstrings say."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab import newton_schulz
from muonlab.diagnostics.recording.brackets import (
    Bracket,
    descent_bracket,
    nuclear_bracket,
)
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory.bracket import bracket_gap
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo

JORDAN, EXPRESS = preset("jordan").schedule(5), preset("polar_express").schedule(5, safety="1.01")
LARGE = ("a long row", "few long rows", "gaussian 511x513")
SMALL = [name for name in zoo() if name not in LARGE]


def nuclear(M):
    A = M.double().numpy()
    power = 2.0 ** np.frexp(np.abs(A).max(initial=0.0))[1] if A.size else 1.0
    return float(np.sum(np.linalg.svd(A / power, compute_uv=False))) * power


def contains(bracket, truth):
    low, high = float(bracket.lower), float(bracket.upper)
    return 0 <= low <= truth * (1 + 1e-12) and truth * (1 - 1e-12) <= high


def test_the_nuclear_norm_of_every_specimen_lies_inside():
    for name, M in zoo().items():
        assert contains(nuclear_bracket(M), nuclear(M)), name


@pytest.mark.parametrize("accuracy", ["full", "half"])
@pytest.mark.parametrize("schedule", [JORDAN, EXPRESS, Schedule.repeat(taylor(2), 5)], ids=str)
def test_it_lies_inside_when_the_bracket_starts_from_an_optimizers_direction(schedule, accuracy):
    for name in SMALL:
        M = zoo()[name]
        O = newton_schulz(M, schedule, accuracy=accuracy)
        found, truth = nuclear_bracket(M, outcome=O, schedule=schedule), nuclear(M)
        assert contains(found, truth), name
        descent = descent_bracket(M, O, found)
        if truth:
            size = 2.0 ** float(np.frexp(truth)[1])
            rho = float(torch.sum(M.double() / size * O.double())) / (truth / size)
            assert float(descent.lower) <= rho * (1 + 1e-12) <= float(descent.upper) * (1 + 2e-12), name
        else:
            assert (float(descent.lower), float(descent.upper)) == (0.0, 0.0)


@settings(max_examples=40)
@given(
    sigma=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    power=st.sampled_from([1, 4, 10]),
    shape=st.sampled_from([(12, 12), (12, 30), (30, 12)]),
    scale=st.sampled_from([1.0, 1e-30, 1e25]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_no_spectrum_escapes_the_brackets(sigma, power, shape, scale, dtype):
    M = (with_spectrum(*shape, np.array(sigma) ** power, seed=len(sigma)) * scale).to(dtype)
    truth = nuclear(M)
    assert contains(nuclear_bracket(M), truth)


TIGHT = {
    **{name: M for name, M in zoo().items() if name not in LARGE and name != "zero"},
    "gaussian 256x512": gaussian(256, 512),
    "decay 256x512": gaussian(256, 512) / torch.arange(1, 513),
    "rank 1 400x400": with_spectrum(400, 400, [1.0]),
    "flat 256x256": with_spectrum(256, 256, np.ones(256)),
}


def test_the_bracket_is_as_tight_as_stated_on_every_spectrum():
    for name, M in TIGHT.items():
        found, truth, allowed = (
            nuclear_bracket(M),
            nuclear(M),
            8e-5 * min(M.shape) + 0.001 * max(2, max(M.shape) ** 0.5),
        )
        assert float(found.lower) >= truth * (1 - allowed), name
        assert float(found.upper) <= truth * (1 + allowed), name


def test_rank_one_nearly_reaches_the_stated_tightness():
    M = TIGHT["rank 1 400x400"]
    assert float(nuclear_bracket(M).upper) >= nuclear(M) * (1 + 0.85 * (8e-5 * 400))


@pytest.mark.parametrize("schedule", [JORDAN, EXPRESS], ids=str)
def test_an_optimizers_direction_serves_nearly_as_well(schedule):
    for M in (gaussian(64, 216), TIGHT["decay 256x512"]):
        found = nuclear_bracket(M, outcome=newton_schulz(M, schedule), schedule=schedule)
        assert 0.97 * nuclear(M) <= float(found.lower) <= float(found.upper) <= 1.06 * nuclear(M)


def test_a_smaller_gap_would_make_the_upper_bound_wrong():
    # one schedule, flat spectrum where it leaves most: the gap is attained, so nothing below it is valid
    F = Schedule.repeat(taylor(2), 2)
    s = np.linspace(0.01, 1, 100_000)
    level = s[np.argmax(s * (1 - F(s)))]
    count = round(1 / level**2)
    M = with_spectrum(count, count, np.ones(count)).double() * level  # Frobenius norm 1 up to the rounding of count
    found = nuclear_bracket(M, schedule=F)
    product = float(torch.sum(M * newton_schulz(M, F)))
    assert contains(found, nuclear(M))
    assert product + float(M.norm()) * count * 0.97 * bracket_gap(F) < nuclear(M)


def test_batches_give_each_matrix_and_what_is_not_finite_stays_alone():
    stack = torch.stack([gaussian(6, 9, seed=k) * 10.0 ** (5 * k) for k in range(6)])
    stack[2, 0, 0], stack[4, 1, 1] = math.nan, math.inf
    found = nuclear_bracket(stack.reshape(2, 3, 6, 9))
    assert found.lower.shape == found.upper.shape == (2, 3)
    for k, M in enumerate(stack):
        low, high = (float(x.flatten()[k]) for x in found)
        if k in (2, 4):
            assert math.isnan(low)
            assert math.isnan(high)
        else:
            assert low <= nuclear(M) <= high
            assert (low, high) == pytest.approx(tuple(map(float, nuclear_bracket(M))), rel=1e-6)


def test_nothing_and_zero_have_nuclear_norm_zero():
    for M in (torch.zeros(4, 6), torch.zeros(0, 3), torch.zeros(3, 0)):
        assert tuple(map(float, nuclear_bracket(M))) == (0.0, 0.0)
    assert nuclear_bracket(torch.zeros(2, 0, 3)).upper.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("schedule", [JORDAN, EXPRESS], ids=str)
def test_a_half_precision_direction_of_a_steep_schedule_promises_less_but_nothing_false(schedule, dtype):
    M = gaussian(20, 30)
    assert contains(nuclear_bracket(M, outcome=newton_schulz(M, schedule).to(dtype), schedule=schedule), nuclear(M))


def test_inputs_are_not_changed_and_no_random_number_is_drawn():
    M = gaussian(40, 90)[::2, 1::3].requires_grad_(True)
    O = newton_schulz(M, JORDAN)
    before, state = (M.detach().clone(), O.clone()), torch.get_rng_state()
    found = nuclear_bracket(M, outcome=O, schedule=JORDAN)
    assert torch.equal(M.detach(), before[0])
    assert torch.equal(O, before[1])
    assert torch.equal(torch.get_rng_state(), state)
    assert not found.upper.requires_grad


def test_a_bracket_of_the_descent_divides_by_both_ends():
    found = descent_bracket(torch.eye(2), torch.eye(2), Bracket(torch.tensor(1.0), torch.tensor(4.0)))
    assert (float(found.lower), float(found.upper)) == (0.5, 2.0)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"an outcome needs its schedule, got None: pass the one that made it"):
        nuclear_bracket(torch.eye(2), outcome=torch.eye(2))
    with pytest.raises(ValueError, match=r"outcome must have the shape of M, got \(3, 2\) for \(2, 3\): pass the dir"):
        nuclear_bracket(torch.ones(2, 3), outcome=torch.ones(3, 2), schedule=JORDAN)
    with pytest.raises(TypeError, match=r"M must be a torch\.Tensor, got list: use torch\.as_tensor"):
        nuclear_bracket([[1.0]])


def test_the_error_of_an_outcome_is_carried_through_the_polish_and_granted_to_both_bounds():
    """An outcome that is short by its whole error makes the product small; the upper bound has to make up for it."""
    F = preset("polar_express").schedule(5, safety="1.01")
    M = gaussian(24, 40, seed=5)
    truth, O = float(torch.linalg.svdvals(M.double()).sum()), newton_schulz(M, F)
    exact = nuclear_bracket(M, outcome=O, schedule=F)
    for error in (0.01, 0.05, 0.1):
        widened = nuclear_bracket(M, outcome=O, schedule=F, error=error)
        assert float(widened.upper) >= float(exact.upper) * (1 - 0.01) / (1 - 3.5 * error)
        assert float(widened.lower) <= float(exact.lower)
        assert float(widened.lower) <= truth <= float(widened.upper)
    with pytest.raises(ValueError, match=r"error is that of an outcome, got error = 0\.5 without one"):
        nuclear_bracket(M, error=0.5)
