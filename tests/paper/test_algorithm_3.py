"""Algorithm 3: SGD with momentum (Kim & Oh 2026, Algorithm 3)."""

import numpy as np
import pytest

from muonlab import SGDM
from tests.paper.simulation import gaussian, quadratic, sgdm, trained, wells

T = 40


@pytest.mark.parametrize("shape", [(3, 3), (2, 6)])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("convex", [True, False])
def test_the_optimizer_walks_the_path_of_the_printed_algorithm(shape, sigma, beta, convex):
    rng = np.random.default_rng([2, *shape])
    bowl = quadratic(rng.standard_normal((4, shape[0])) / 2, rng.standard_normal(shape))
    objective, start = bowl if convex else wells(shape[0]), rng.standard_normal(shape)
    noise = gaussian(sigma, 2) if sigma else None
    values, _ = trained(lambda params: SGDM(params, lr=0.02, momentum=beta), objective, start, T=T, noise=noise)
    printed = sgdm(objective, start, eta=0.02, beta=beta, T=T, noise=noise)
    np.testing.assert_allclose(values, printed.values, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("other", [{"nesterov": True}, {"weight_decay": 0.01}, {"momentum": 0.8}, {"maximize": True}])
def test_any_other_setting_leaves_the_path(other):
    objective, start = wells(3), np.random.default_rng(3).standard_normal((3, 3))
    values, _ = trained(lambda p: SGDM(p, **{"lr": 0.02, "momentum": 0.9, **other}), objective, start, T=T)
    assert np.max(np.abs(values - sgdm(objective, start, eta=0.02, beta=0.9, T=T).values)) > 1e-4
