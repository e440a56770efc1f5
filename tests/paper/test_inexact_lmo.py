"""An additive error of the direction bounds its alignment, and there is no converse (docs/theory/other-analyses.md)."""

import math

import numpy as np
import pytest
import torch

from muonlab import newton_schulz
from muonlab.diagnostics import certify
from muonlab.polynomials import preset
from tests.paper.simulation import nuclear, operator, svd_polar, with_spectrum


def alignment(M, O):
    return float(np.sum(M * O)) / nuclear(M) / operator(O)


def guaranteed(delta):
    return (1 - delta) / (1 + delta)


def directions(rng, M, delta):
    """Directions whose distance from the polar factor is exactly δ: random, of rank one, and the worst for M."""
    P = svd_polar(M)
    for _ in range(20):
        E = rng.standard_normal(M.shape)
        yield P + delta * E / operator(E)
        u, v = rng.standard_normal(M.shape[0]), rng.standard_normal(M.shape[1])
        yield P + delta * np.outer(u, v) / np.linalg.norm(u) / np.linalg.norm(v)
    yield P - delta * P
    U, _, V = np.linalg.svd(M, full_matrices=False)
    signs = -np.ones(len(V))
    signs[-1] = 1.0
    yield P + delta * (U * signs) @ V  # shorter along every singular vector but the last


def test_an_additive_error_below_one_bounds_the_alignment():
    for rank in (1, 2, 4):
        rng = np.random.default_rng(rank)
        spectrum = np.append(10.0 ** -rng.uniform(0, 5, rank), np.zeros(4 - rank))
        M = with_spectrum(rng, spectrum, 4, 6)
        for delta in (0.01, 0.3, 0.9, 0.999):
            for O in directions(rng, M, delta):
                assert alignment(M, O) >= guaranteed(delta) - 1e-9


def test_no_larger_constant_is_true():
    for delta in (0.01, 0.3, 0.9):
        O = np.diag([1 - delta, 1 + delta])
        reached = [alignment(np.diag([1.0, x]), O) / guaranteed(delta) for x in (1e-2, 1e-4, 1e-6)]
        assert reached == sorted(reached, reverse=True)
        assert 1 < reached[-1] < 1.0001


def test_the_certificates_of_every_polynomial_obey_it():
    generator = torch.Generator().manual_seed(0)
    for name, steps in (("quintic", 1), ("quintic", 5), ("quintic", 9), ("jordan", 5), ("polar_express", 5)):
        for M in (torch.randn(8, 40, generator=generator), torch.randn(8, 8, generator=generator)):
            found = certify(M, name, steps=steps)
            if found.epsilon < 1:
                assert found.factor <= (1 + found.epsilon) / (1 - found.epsilon) * (1 + 1e-5)


def test_the_three_factors_are_ordered_and_the_best_scale_makes_the_last_two_equal():
    """1/alignment ≤ largest over smallest singular value of O ≤ (1+δ)/(1-δ)."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        values, length = rng.uniform(0.05, 1.6, 5), rng.uniform(0.7, 1.1)
        U, _, V = np.linalg.svd(rng.standard_normal((5, 7)), full_matrices=False)
        M, O = (U * rng.uniform(0, 1, 5) ** 3) @ V, (U * values * length) @ V
        delta = operator(O - svd_polar(M))
        spread = values.max() / values.min()
        assert 1 / alignment(M, O) <= spread * (1 + 1e-9)
        if delta < 1:
            assert spread <= (1 + delta) / (1 - delta) * (1 + 1e-9)
        best = O * 2 / (length * (values.max() + values.min()))
        delta = operator(best - svd_polar(M))
        assert (1 + delta) / (1 - delta) == pytest.approx(spread, rel=1e-6)


def test_there_is_no_converse():
    """One tiny singular value: the error tends to 1 and (1+δ)/(1-δ) to infinity while the alignment tends to 1."""
    found = [certify(torch.diag(torch.tensor([1.0, x], dtype=torch.float64)), "quintic", steps=3)
             for x in (1e-1, 1e-2, 1e-4, 1e-8)]  # fmt: skip
    errors, alignments = [one.epsilon for one in found], [one.alignment for one in found]
    assert errors == sorted(errors)
    assert alignments[1:] == sorted(alignments[1:])
    assert errors[-1] > 1 - 1e-6
    assert alignments[-1] > 1 - 1e-6
    assert (1 + errors[-1]) / (1 - errors[-1]) > 1e6


def test_an_error_of_one_or_more_says_nothing_but_the_alignment_does():
    M = np.diag([1.0, 0.1])
    assert operator(np.diag([2.0, 2.0]) - svd_polar(M)) == pytest.approx(1.0)
    assert alignment(M, np.diag([2.0, 2.0])) == pytest.approx(1.0)  # a multiple of the polar factor
    assert operator(np.diag([0.0, 1.0]) - svd_polar(M)) == pytest.approx(1.0)
    assert alignment(M, np.diag([0.0, 1.0])) < 0.1


def test_the_page_s_example_is_what_newton_schulz_does():
    M = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))
    O = newton_schulz(M, "quintic", steps=3).numpy()
    slope = float(preset("quintic").schedule(3)(1e-6)) / 1e-6
    assert O[1, 1] == pytest.approx(1e-3 * slope, rel=1e-3)
    assert slope == pytest.approx(1.875**3, rel=1e-6)
    assert math.isclose(O[0, 0], 1.0, abs_tol=1e-9)
