"""Corollary 1: one factor serves the whole run, from the largest initial residual (Kim & Oh 2026, Corollary 1)."""

import math
from functools import cache
from itertools import pairwise, product

import numpy as np

from muonlab.polynomials import taylor
from muonlab.theory import chi, polar_error, residual_after
from tests.paper.simulation import (
    by_newton_schulz,
    gaussian,
    observed_error,
    observed_residual,
    run,
    wells,
)

Q = 4


def run_obeys(momenta, kappa, q, over=max, order=1):
    """Check the three bounds at every step with ``δ_0`` the largest initial residual (or another choice)."""
    start, steps = by_newton_schulz(taylor(kappa), 0), by_newton_schulz(taylor(kappa), q)
    delta_0 = over(observed_residual(M, start(M)) for M in momenta)
    delta = delta_0 ** ((kappa + order) ** q)
    worst = max(observed_error(M, steps(M)) for M in momenta)
    return (
        all(observed_residual(M, steps(M)) <= delta + 1e-10 for M in momenta)
        and worst <= 1 - math.sqrt(1 - delta) + 1e-10
        and 1 / (1 - worst) <= (1 - delta) ** -0.5 * (1 + 1e-9)
    )


@cache
def momenta(seed, shape=(3, 6)):
    objective = wells(min(shape))
    start = np.random.default_rng(seed).standard_normal(shape)
    direction = by_newton_schulz(taylor(2), 3)
    return run(objective, start, direction, eta=0.1, beta=0.7, T=25, noise=gaussian(0.5), seed=seed).momenta


def test_the_largest_initial_residual_bounds_every_step_of_a_run():
    for kappa, seed in product([1, 2, 3], range(3)):
        measured = momenta(seed)
        assert run_obeys(measured, kappa, 1)
        assert run_obeys(measured, kappa, Q)


def test_the_smallest_initial_residual_does_not():
    for kappa in [1, 2, 3]:
        assert not run_obeys(momenta(0), kappa, 1, over=min)


def test_the_exponent_of_the_next_degree_does_not():
    for kappa in [1, 2, 3]:
        assert not run_obeys(momenta(0), kappa, 2, order=2)


def test_the_bounds_of_the_library_grow_with_the_residual_so_the_supremum_decides():
    for kappa, q in product([1, 2, 3], [1, 2, 3]):
        grid = np.linspace(0.0, 0.999, 200)
        for f in (residual_after, polar_error, chi):
            values = [f(float(d), kappa, q, bound=True) for d in grid]
            assert all(a <= b for a, b in pairwise(values))
            assert all(f(float(d), kappa, q) <= v * (1 + 1e-12) for d, v in zip(grid, values, strict=True))
            assert values[-1] > values[0]
