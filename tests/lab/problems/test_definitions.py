"""Problems of known constants: each constant is attained, and a smaller one is refuted."""

import math

import numpy as np
import pytest
import torch

from muonlab.lab.problems.definitions import (
    FAMILIES,
    NOISES,
    PARETO_INDEX,
    PARETO_MOMENT,
    KnownProblem,
    canyon,
    draw_noise,
    quadratic,
    random_quadratic,
    random_wells,
    scaled_wells,
    wells,
)
from tests.paper import simulation


def huber(start, width):
    """Return the entrywise Huber function of slope 1 beyond ``width``: ``L_F = 1/width``, ``L = r/width``."""

    def value(W):
        return torch.where(W.abs() < width, W * W / (2 * width), W.abs() - width / 2).sum(dim=(-2, -1))

    return KnownProblem(
        "huber", value, lambda W: (W / width).clamp(-1, 1), start, L=min(start.shape) / width, L_F=1 / width
    )


PROBLEMS = {
    "wells": random_wells(),
    "wells, tall": random_wells((5, 3), seed=1),
    "quadratic": random_quadratic(),
    "huber": huber(torch.full((3, 4), 2.0, dtype=torch.float64), 0.5),
    **{name: family(4) for name, family in FAMILIES.items()},
    "canyon": canyon(4),
}


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generators(count, seed=0):
    return [torch.Generator().manual_seed(seed + i) for i in range(count)]


def stretch(problem, W, V, smooth):
    """Largest ``‖∇f(W) - ∇f(V)‖/‖W - V‖`` over a batch, in the norms of L or of L_F."""
    change, step = problem.gradient(W) - problem.gradient(V), W - V
    if smooth == "L":
        ratio = torch.linalg.matrix_norm(change, "nuc") / torch.linalg.matrix_norm(step, 2)
    else:
        ratio = torch.linalg.matrix_norm(change) / torch.linalg.matrix_norm(step)
    return float(ratio.max())


def test_no_pair_of_points_stretches_more_than_the_constant_and_one_comes_close():
    for name, problem in PROBLEMS.items():
        for smooth in ("L", "L_F"):
            m, n = problem.start.shape
            limit = getattr(problem, smooth)
            probes = [(size * normal(1, 300, m, n), size * normal(2, 300, m, n)) for size in (0.01, 0.3, 1.0, 3.0)]
            centre = problem.start if name == "quadratic" else torch.zeros(m, n, dtype=torch.float64)
            if smooth == "L":  # an orthogonal step at the point of largest curvature attains it
                frames = torch.linalg.qr(normal(3, 300, max(m, n), min(m, n))).Q
                steps = [frames if m >= n else frames.mT, torch.eye(m, n, dtype=torch.float64)]
            else:  # so does the steepest direction there, found by power iteration
                step = normal(3, m, n)
                for _ in range(200):
                    step = problem.gradient(centre + 1e-4 * step) - problem.gradient(centre - 1e-4 * step)
                    step /= torch.linalg.matrix_norm(step)
                steps = [step]
            probes += [(centre + 1e-4 * step, centre - 1e-4 * step) for step in steps]
            largest = max(stretch(problem, W, V, smooth) for W, V in probes)
            assert 0.95 * limit < largest <= limit * (1 + 1e-6), (name, smooth)


def test_the_gradient_is_that_of_autograd_and_the_infimum_is_zero():
    for name, problem in PROBLEMS.items():
        W = normal(5, 7, *problem.start.shape).requires_grad_()
        values = problem.value(W)
        assert values.shape == (7,)
        (automatic,) = torch.autograd.grad(values.sum(), W)
        torch.testing.assert_close(problem.gradient(W.detach()), automatic, rtol=1e-12, atol=1e-12)
        assert float(values.detach().min()) > 0, name
        path = problem.start.clone()
        for _ in range(2000):
            path -= problem.gradient(path) / problem.L_F
        assert float(problem.value(path)) < 1e-6 * problem.D, name


def test_an_independent_twin_in_numpy_has_the_same_values_gradients_and_constants():
    W = normal(6, 3, 5)
    A, centre = normal(7, 4, 3), normal(8, 3, 5)
    for ours, twin in (
        (wells(W), simulation.wells(3)),
        (quadratic(A, centre, W), simulation.quadratic(A.numpy(), centre.numpy())),
        (quadratic(torch.eye(3, dtype=torch.float64), 0 * centre, W), simulation.bowl(3)),
        (huber(W, 0.3), simulation.huber(3, 0.3)),
    ):
        assert float(ours.value(W)) == pytest.approx(twin.value(W.numpy()), rel=1e-12, abs=0.0)
        assert np.allclose(ours.gradient(W).numpy(), twin.gradient(W.numpy()), rtol=1e-12, atol=1e-14)
        for constant in ("L", "L_F"):
            assert getattr(ours, constant) == pytest.approx(getattr(twin, constant), rel=1e-12, abs=0.0)


def test_a_family_has_one_l_and_one_d_at_every_rank():
    for family in FAMILIES.values():
        for r in (1, 2, 5, 16):
            problem = family(r)
            assert (problem.L, problem.D, problem.r) == pytest.approx((4.0, 1.0, r), rel=1e-12, abs=0.0)
        other = family(3, L=10.0, D=2.0)
        assert (other.L, other.D, other.r) == pytest.approx((10.0, 2.0, 3), rel=1e-12, abs=0.0)


def test_the_families_span_all_frobenius_constants():
    harmonic = sum(1 / k for k in range(1, 9))
    expected = {"scaled_wells": 4 / 8, "bowl": 4 / 8, "decaying": 4 / harmonic, "ravine": 4.0, "target": 4 / 8}
    assert {name: family(8).L_F for name, family in FAMILIES.items()} == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_the_canyon_has_one_l_l_f_and_d_at_every_rank_and_gentle_slopes_that_last_t_steps():
    for r in (2, 5, 16):
        for L, D, T in ((4.0, 1.0, 200), (10.0, 0.3, 100)):
            problem = canyon(r, L, D, T)
            known = (problem.L, problem.L_F, problem.D, problem.r)
            assert known == pytest.approx((L, L / 2, D, r), rel=1e-12, abs=0.0)
            path, slope = problem.start.clone(), math.sqrt(D * L / 2 / ((r - 1) * T))
            for _ in range(T // 2):  # halfway, no gentle slope has ended
                path -= problem.gradient(path) / problem.L_F
            assert problem.gradient(path).diagonal()[1:].tolist() == pytest.approx(
                [slope] * (r - 1), rel=1e-12, abs=0.0
            )


# ------------------------------------------------------------------------------------------------------------ noise


def test_noise_has_mean_zero_and_exactly_the_variance_announced():
    count = 2000
    for kind in ("gaussian", "signs", "two_point"):
        for B in (1, 4):
            xi = draw_noise(random_wells((3, 5)).with_noise(2.0, kind), generators(count), B)
            square = xi.square().sum(dim=(-2, -1))
            assert float(square.mean()) == pytest.approx(4.0 / B, rel=0.08, abs=0.0)
            assert float(torch.linalg.matrix_norm(xi.mean(dim=0))) < 4 * 2.0 / math.sqrt(B * count)
            if kind != "gaussian" and B == 1:
                assert square.tolist() == pytest.approx([4.0] * count, rel=1e-12, abs=0.0)
    xi = draw_noise(random_wells((3, 5)).with_noise(2.0, "two_point"), generators(5), 1)
    nuclear = torch.linalg.matrix_norm(xi, "nuc")
    assert nuclear.tolist() == pytest.approx([2 * math.sqrt(3)] * 5, rel=1e-12, abs=0.0)  # the largest there can be
    assert not draw_noise(random_wells(), generators(2), 1).any()


def test_pareto_noise_has_the_moment_announced_a_flat_spectrum_and_the_tail_of_its_index():
    """``P(‖ξ‖_F > x) = (x_0/x)^α``: the sizes are compared with that law, the moment with the law's integral."""
    sigma, count = 2.0, 20_000
    problem = random_wells((3, 5)).with_noise(sigma, "pareto")
    xi = torch.cat([draw_noise(problem, [generator], 1) for generator in generators(count)])
    sizes = np.sort(torch.linalg.matrix_norm(xi).numpy())
    least = sigma * (1 - PARETO_MOMENT / PARETO_INDEX) ** (1 / PARETO_MOMENT)
    law = 1 - (least / sizes) ** PARETO_INDEX
    assert np.abs(law - np.arange(1, count + 1) / count).max() < 1.63 / math.sqrt(count)  # Kolmogorov, 1 %
    moment = (
        PARETO_INDEX * least**PARETO_INDEX * (least ** (PARETO_MOMENT - PARETO_INDEX)) / (PARETO_INDEX - PARETO_MOMENT)
    )  # the integral of x^p times the density
    assert moment == pytest.approx(sigma**problem.tail, rel=1e-12, abs=0.0)
    assert torch.linalg.matrix_norm(xi, "nuc").numpy() == pytest.approx(
        math.sqrt(3) * torch.linalg.matrix_norm(xi).numpy(), rel=1e-12, abs=0.0
    )
    assert abs(float((xi[:, 0, 0] > 0).double().mean()) - 0.5) < 0.02
    with pytest.raises(ValueError, match=r"known for one sample, got a batch of 2: use a batch size of 1"):
        draw_noise(problem, generators(1), 2)


def test_the_noise_of_a_seed_does_not_depend_on_the_other_seeds():
    for kind in NOISES:
        problem = random_wells().with_noise(1.0, kind)
        B = 1 if kind == "pareto" else 2
        together, alone = draw_noise(problem, generators(3), B), draw_noise(problem, generators(1, seed=2), B)
        assert torch.equal(together[2:], alone)
        assert not torch.equal(together[1], together[2])


# ----------------------------------------------------------------------------------------------------------- errors


def test_errors_name_the_rule_the_value_and_the_way_out():
    good = random_wells()

    def problem(L, L_F):
        return KnownProblem("x", good.value, good.gradient, good.start, L=L, L_F=L_F)

    for make, message in (
        (lambda: wells(good.start.float()), r"one float64 matrix, got shape \(4, 6\) of torch.float32: pass W_0"),
        (lambda: wells(good.start.repeat(2, 1, 1)), r"one float64 matrix, got shape \(2, 4, 6\)"),
        (lambda: problem(9.0, 1.0), r"L_F <= L <= r L_F always holds, got L_F = 1.0, L = 9.0, r = 4"),
        (lambda: problem(2.0, 3.0), r"L_F <= L <= r L_F always holds, got L_F = 3.0, L = 2.0"),
        (lambda: good.with_noise(1.0, "cauchy"), r"noise must be one of 'gaussian'.* got 'cauchy': pick"),
        (lambda: good.with_noise(-1.0), r"sigma must be a finite number"),
        (lambda: quadratic(*(normal(1, 5, n) for n in (5, 3, 3))), r"no taller than wide, got W of shape \(5, 3\)"),
        (lambda: canyon(1), r"r must be at least 2, got 1"),
        (lambda: scaled_wells(3, L=4.0, D=2.0), r"hold less than L/2, got D = 2.0 with L = 4.0: take D < L/2"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
