"""Lemma 8: a batch of B samples has variance σ²/B (Kim & Oh 2026, Lemma 8)."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from muonlab.theory import alignment_bound, muon_bound, sgdm_bound
from muonlab.theory.momentum import momentum_trace
from tests.paper.simulation import gaussian

SAMPLES = ((Fraction(3), Fraction(-1), Fraction(0)), (Fraction(-1), Fraction(2), Fraction(1)),
           (Fraction(-2), Fraction(-1), Fraction(-1)))  # fmt: skip


def square(v):
    return sum(x * x for x in v)


VARIANCE = sum(square(v) for v in SAMPLES) / 3


def batch_moments(B):
    """Second moment and mean norm of the average of B independent samples, over all 3^B batches."""
    batches = list(itertools.product(SAMPLES, repeat=B))
    squares = [square([sum(column) / B for column in zip(*batch, strict=True)]) for batch in batches]
    return sum(squares) / len(batches), sum(math.sqrt(s) for s in squares) / len(batches)


def shrinks(B, exponent=1):
    """Check ``E‖mean - ∇f‖_F² ≤ σ²/B^exponent`` and ``E‖·‖_F ≤ σ/B^(exponent/2)``."""
    second, first = batch_moments(B)
    return second <= VARIANCE / B**exponent and first <= math.sqrt(VARIANCE / B**exponent) * (1 + 1e-12)


def test_the_samples_are_unbiased():
    assert all(sum(column) == 0 for column in zip(*SAMPLES, strict=True))


def test_the_variance_of_a_batch_is_exactly_sigma_squared_over_its_size():
    for B in range(1, 7):
        assert batch_moments(B)[0] == VARIANCE / B
        assert shrinks(B)


def test_a_faster_decay_in_the_batch_size_is_rejected():
    for B in range(2, 7):
        assert not shrinks(B, exponent=2)
        assert not shrinks(B, exponent=Fraction(11, 10))


def test_the_gaussian_noise_of_the_simulations_has_the_variance_it_claims():
    for sigma, B in [(1.0, 1), (2.0, 4), (0.5, 16)]:
        rng, draw = np.random.default_rng(0), gaussian(sigma, B)
        mean = np.mean([np.sum(draw(rng, np.zeros((3, 5))) ** 2) for _ in range(4000)])
        assert mean == pytest.approx(sigma**2 / B, rel=0.04, abs=0.0)


def test_noise_terms_of_the_rates_fall_with_the_root_of_the_batch():
    for bound in [muon_bound, sgdm_bound, alignment_bound]:
        given = {"L": 1.0, "D": 1.0, "sigma": 3.0, "r": 5, "T": 40, "eta": 0.01, "beta": 0.5}
        if bound is alignment_bound:
            given["alignment"] = 0.7
        one, many = (bound(B=B, **given).terms["noise"] for B in (1, 9))
        assert one == pytest.approx(3 * many, rel=1e-12, abs=0.0)
        assert one != pytest.approx(9 * many, rel=1e-3, abs=0.0)


def test_the_noise_term_of_muon_without_momentum_is_twice_the_nuclear_noise_of_a_batch():
    given = {"L": 1.0, "D": 1.0, "sigma": 3.0, "r": 5, "B": 4, "T": 40, "eta": 0.01, "beta": 0.0}
    expected = 2 * 3.0 * math.sqrt(5 / 4)
    assert muon_bound(constants="paper", **given).terms["noise"] == pytest.approx(expected, rel=1e-12, abs=0.0)
    assert muon_bound(constants="sharp", **given).terms["noise"] == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_independent_batches_keep_the_noise_that_is_claimed_and_a_shuffled_epoch_keeps_more():
    """Two samples with errors ``±cos(πw/η)``, a first step of length η: without replacement both have one sign."""
    beta, eta = 0.9, 0.3
    trace = momentum_trace(np.zeros(2), np.full(2, beta), momentum_form="heavy_ball", nesterov=False)
    claimed = float(trace.noise[1] ** 2)  # σ = 1
    weights = np.array([beta, 1.0]) / (1 + beta)

    def second_moment(second_of):
        found = []
        for first in (1, -1):  # the sample whose error at 0 is this; its step leads to -first·η
            errors = [[first, second * math.cos(math.pi * -first * eta / eta)] for second in second_of(first)]
            found.append(np.mean([(weights @ pair) ** 2 for pair in errors]))
        return float(np.mean(found))

    assert second_moment(lambda _: [1, -1]) == pytest.approx(claimed)
    assert second_moment(lambda first: [-first]) == pytest.approx(1.0)
    assert claimed < 0.51
