"""Algorithm 3: SGD with momentum (Kim & Oh 2026, Algorithm 3)."""

from functools import partial
from itertools import product

import numpy as np

from muonlab import SGDM
from tests.paper.simulation import gaussian, quadratic, sgdm, trained, wells

T = 40


def test_the_optimizer_walks_the_path_of_the_printed_algorithm():
    for shape, sigma, beta, convex in product([(3, 3), (2, 6)], [0.0, 1.0], [0.0, 0.9], [True, False]):
        rng = np.random.default_rng([2, *shape])
        bowl = quadratic(rng.standard_normal((4, shape[0])) / 2, rng.standard_normal(shape))
        objective, start = bowl if convex else wells(shape[0]), rng.standard_normal(shape)
        noise = gaussian(sigma, 2) if sigma else None
        values, _ = trained(partial(SGDM, lr=0.02, momentum=beta), objective, start, T=T, noise=noise)
        printed = sgdm(objective, start, eta=0.02, beta=beta, T=T, noise=noise)
        np.testing.assert_allclose(values, printed.values, rtol=1e-11, atol=1e-13)


def test_any_other_setting_leaves_the_path():
    for other in [{"nesterov": True}, {"weight_decay": 0.01}, {"momentum": 0.8}, {"maximize": True}]:
        objective, start = wells(3), np.random.default_rng(3).standard_normal((3, 3))
        values, _ = trained(partial(SGDM, **{"lr": 0.02, "momentum": 0.9, **other}), objective, start, T=T)
        assert np.max(np.abs(values - sgdm(objective, start, eta=0.02, beta=0.9, T=T).values)) > 1e-4
