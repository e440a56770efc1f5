"""Algorithm 2: Muon with the exact polar factor (Kim & Oh 2026, Algorithm 2)."""

from itertools import product

import numpy as np

from muonlab import Muon
from muonlab.theory import muon_bound, tuned_muon
from tests.paper.simulation import gaussian, quadratic, run, svd_polar, trained

T = 25


def problem(shape):
    rng = np.random.default_rng([1, *shape])
    return quadratic(rng.standard_normal((4, shape[0])) / 2, rng.standard_normal(shape)), rng.standard_normal(shape)


def test_the_optimizer_walks_the_path_of_the_printed_algorithm():
    for shape, sigma in product([(3, 3), (2, 6), (5, 2)], [0.0, 2.0]):
        objective, start = problem(shape)
        noise = gaussian(sigma, 3) if sigma else None
        values, _ = trained(
            lambda params: Muon.paper(params, lr=0.05, momentum=0.9, polar="svd"), objective, start, T=T, noise=noise
        )
        printed = run(objective, start, svd_polar, eta=0.05, beta=0.9, T=T, noise=noise)
        np.testing.assert_allclose(values, printed.values, rtol=1e-9, atol=1e-12)


def test_newton_schulz_steps_leave_the_path_and_more_of_them_come_back_to_it():
    objective, start = problem((2, 6))
    exact = run(objective, start, svd_polar, eta=0.05, beta=0.9, T=T).values
    apart = []
    for q in (1, 2, 3, 8):
        values, _ = trained(
            lambda p, q=q: Muon.paper(p, lr=0.05, momentum=0.9, q=q, variant="experiments", renormalize=None),
            objective, start, T=T,
        )  # fmt: skip
        apart.append(float(np.max(np.abs(values - exact))))
    assert apart[0] > apart[1] > apart[2] > apart[3]
    assert apart[0] > 1e-2
    assert apart[3] < 1e-12


def test_its_average_gradient_norm_obeys_theorem_4():
    objective, start = problem((3, 3))
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": 3, "B": 1, "T": T}
    eta, beta = tuned_muon(**given)
    _, gradients = trained(lambda p: Muon.paper(p, lr=eta, momentum=beta, polar="svd"), objective, start, T=T)
    assert np.mean(gradients) <= muon_bound(eta=eta, beta=beta, **given).total
