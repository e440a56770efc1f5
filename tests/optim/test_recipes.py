"""Every recipe against its naive twin, and against wrong twins that the same check must reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import SGDM, ExactPolar, Muon, NewtonSchulz
from muonlab.optim.scaling import SCALES
from muonlab.polynomials import taylor
from tests.reference import optimizers as twins
from tests.reference.optimizers import JORDAN, TAYLOR, muon_step, newton_schulz

Twin = Callable[..., None]

SHAPES = ((16, 16), (33, 47), (5, 64), (64, 5), (9, 1), (8, 3, 3, 3), (12, 1, 2, 2), (1, 9))
STEPS, LOUD, LATE = 20, 10, 14
SILENT = (0, 7)
LATER = {"lr": 0.02, "momentum": 0.5}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14}
SCALE_TWINS = {
    "none": twins.no_scale,
    "original": twins.original_scale,
    "match_rms_adamw": twins.match_rms_adamw_scale,
    "spectral": twins.spectral_scale,
}


@cache
def problem(dtype: torch.dtype, shapes=SHAPES, steps=STEPS) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return weights, the last of them zero, and gradients by step.

    The gradients of the first and one later step are zero. Those before ``LOUD`` are so small that the momentum stays
    inside the unit ball, the others so large that it leaves it, since max{1, ·} of Algorithm 1 has two sides.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = [normal(shape).to(dtype) for shape in shapes]
    weights[-1].zero_()
    grads = []
    for t in range(steps):
        draws = [normal(shape) for shape in shapes]
        size = 0.0 if t in SILENT else 0.02 if t < LOUD else 30.0
        grads.append([(size * draw / draw.norm()).to(dtype) for draw in draws])
    return weights, grads


def twin_path(twin: Twin, weights: list[Tensor], grads: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the weights after each step of a twin; from step ``LATE`` on with another lr and momentum."""
    weights, state, path = list(weights), {}, []
    for t, now in enumerate(grads):
        twin(weights, now, state, **(LATER if t >= LATE else {}))
        path.append(list(weights))
    return path


def path_of(build, weights: list[Tensor], grads: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the same of an optimizer."""
    params = [Parameter(w.clone()) for w in weights]
    optimizer = build(params)
    path = []
    for t, now in enumerate(grads):
        if t == LATE:
            for group in optimizer.param_groups:
                group.update(LATER)
        for p, g in zip(params, now, strict=True):
            p.grad = g.clone()
        optimizer.step()
        path.append([p.detach().clone() for p in params])
    return path


def assert_same_path(actual, expected, tolerance: float) -> None:
    """Compare after every step, parameter by parameter; all of a parameter's steps at once."""
    for ours, theirs in zip(zip(*actual, strict=True), zip(*expected, strict=True), strict=True):
        a, e = torch.stack(ours), torch.stack(theirs)
        assert torch.isfinite(e).all()
        where = f"shape {tuple(a.shape[1:])}, indices (step, …): "
        torch.testing.assert_close(a, e, atol=tolerance, rtol=tolerance, msg=lambda m, where=where: where + m)


def assert_follows(name: str, twin: Twin, dtype: torch.dtype) -> None:
    """Compare a recipe of the table below with a twin."""
    assert_same_path(recipe_path(name, dtype), twin_path(twin, *problem(dtype)), TOLERANCE[dtype])


@cache
def recipe_path(name: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """Return the path of a recipe, computed once for its own twin and the wrong ones."""
    return path_of(RECIPES[name][0], *problem(dtype))


# ------------------------------------------------------------------------------------------- recipes and their twins


PAPER = {"lr": 0.1, "momentum": 0.9}
GRID = [(0, 1), (1, 1), (1, 4), (2, 3), (3, 1), (3, 2), (3, 3), (3, 4)]
"""q and κ; without steps κ says nothing."""

CROSS = [(0, 2), (1, 2), (3, 2), (3, 4)]
"""The path of the experiments is that of the algorithm but for the two scalings."""

RECIPES: dict[str, tuple[Callable, Twin]] = {
    **{
        f"algorithm 1, q={q}, kappa={kappa}": (
            partial(Muon.paper, **PAPER, q=q, kappa=kappa),
            partial(twins.algorithm_1, **PAPER, q=q, kappa=kappa),
        )
        for q, kappa in GRID
    },
    **{
        f"experiments, q={q}, kappa={kappa}": (
            partial(Muon.paper, **PAPER, q=q, kappa=kappa, variant="experiments"),
            partial(twins.experiments, **PAPER, q=q, kappa=kappa),
        )
        for q, kappa in CROSS
    },
    "algorithm 1": (partial(Muon.paper, **PAPER), partial(twins.algorithm_1, **PAPER, q=3, kappa=2)),
    "algorithm 2": (partial(Muon.paper, **PAPER, polar="svd"), partial(twins.algorithm_2, **PAPER)),
    "experiments, svd": (
        partial(Muon.paper, **PAPER, variant="experiments", polar="svd"),
        partial(twins.experiments, **PAPER, svd=True),
    ),
    "algorithm 3": (partial(SGDM, **PAPER), partial(twins.algorithm_3, **PAPER)),
    "airbench": (Muon.airbench, twins.airbench),
    "airbench, plain": (
        partial(Muon.airbench, nesterov=False, ns_steps=2),
        partial(twins.airbench, nesterov=False, ns_steps=2),
    ),
    "keller_jordan": (Muon.keller_jordan, twins.keller_jordan),
    "keller_jordan, decay": (
        partial(Muon.keller_jordan, weight_decay=0.3),
        partial(twins.keller_jordan, weight_decay=0.3),
    ),
    "torch": (Muon.torch, twins.torch_muon),
    **{
        f"torch, {rule}": (partial(Muon.torch, adjust_lr_fn=rule), partial(twins.torch_muon, adjust_lr_fn=rule))
        for rule in ("original", "match_rms_adamw", "spectral_unclamped")
    },
    "torch, plain, taylor": (
        partial(Muon.torch, nesterov=False, ns_coefficients=TAYLOR[2], ns_steps=4),
        partial(twins.torch_muon, nesterov=False, ns_coefficients=TAYLOR[2], ns_steps=4),
    ),
    "moonlight": (Muon.moonlight, twins.moonlight),
    "moonlight, plain": (
        partial(Muon.moonlight, nesterov=False, ns_steps=4),
        partial(twins.moonlight, nesterov=False, ns_steps=4),
    ),
}


def test_every_recipe_follows_its_naive_twin():
    for dtype, name in product(TOLERANCE, RECIPES):
        assert_follows(name, RECIPES[name][1], dtype)


# ------------------------------------------------------------------------------------------------------- wrong twins


def jordan(steps):
    return partial(newton_schulz, coefficients=JORDAN, steps=steps)


def quintic(steps):
    return partial(newton_schulz, coefficients=TAYLOR[2], steps=steps)


def paper_scaled(M, c_2=3 / 8):
    X = M / max(1.0, float(M.norm()))
    for _ in range(3):
        U = torch.eye(len(X), dtype=X.dtype) - X @ X.T
        X = X + 0.5 * U @ X + c_2 * U @ U @ X
    return X


def decaying_with_the_adjusted_lr(weights, grads, state, *, scale, lr, weight_decay, **options):
    for i, W in enumerate(weights):
        weights[i] = (1 - lr * scale(W.shape) * weight_decay) * W
    muon_step(weights, grads, state, scale=scale, lr=lr, **options)


def decaying_through_the_gradient(weights, grads, state, *, weight_decay, **options):
    grads = [g + weight_decay * w for g, w in zip(grads, weights, strict=True)]
    muon_step(weights, grads, state, **options)


def rescaling_to_inputs(weights, grads, state, **options):
    for i, W in enumerate(weights):
        weights[i] = twins.unit(W) * math.sqrt(W[0].numel())
    muon_step(weights, grads, state, **options)


def kernel_original_scale(shape):
    return math.sqrt(max(1, shape[-2] / shape[-1]))


def first_two_dimensions_scale(shape):
    return 0.2 * math.sqrt(max(shape[:2]))


EMA, HEAVY_BALL = {"momentum_form": "ema"}, {"momentum_form": "heavy_ball"}
AS_PAPER = {**PAPER, **HEAVY_BALL}
EMA_QUINTIC = {**EMA, "nesterov": True, "orthogonalize": jordan(5), "scale": twins.original_scale}
SPECIFIED = {
    "algorithm 1, q=3, kappa=2": {**AS_PAPER, "orthogonalize": paper_scaled},
    "algorithm 2": {**AS_PAPER, "orthogonalize": twins.polar},
    "experiments, q=3, kappa=2": {**AS_PAPER, "orthogonalize": quintic(3), "renormalize": "before"},
    "experiments, svd": {**AS_PAPER, "orthogonalize": twins.polar, "renormalize": "before"},
    "algorithm 3": {**AS_PAPER, "orthogonalize": lambda M: M},
    "airbench": {
        **{"lr": 0.24, "momentum": 0.6, **HEAVY_BALL, "nesterov": True},
        **{"orthogonalize": jordan(3), "renormalize": "before"},
    },
    "keller_jordan, decay": {**EMA_QUINTIC, "lr": 0.02, "momentum": 0.95, "weight_decay": 0.3},
    "torch": {**EMA_QUINTIC, "lr": 1e-3, "momentum": 0.95, "weight_decay": 0.1},
    "moonlight": {
        **{"lr": 1e-3, "momentum": 0.95, **HEAVY_BALL, "nesterov": True, "weight_decay": 0.1},
        **{"orthogonalize": jordan(5), "scale": twins.match_rms_adamw_scale},
    },
}
"""Each recipe once more, as options of the generic twin, so that a wrong twin is one option away."""

WRONG: dict[tuple[str, str], tuple[Twin, dict]] = {
    ("algorithm 1, q=3, kappa=2", "without max{1, ·}"): (muon_step, {"orthogonalize": quintic(3)}),
    ("algorithm 1, q=3, kappa=2", "c_2 = 1/4"): (muon_step, {"orthogonalize": partial(paper_scaled, c_2=1 / 4)}),
    ("algorithm 1, q=3, kappa=2", "EMA"): (muon_step, EMA),
    ("algorithm 1, q=3, kappa=2", "Nesterov"): (muon_step, {"nesterov": True}),
    ("algorithm 1, q=3, kappa=2", "rescaled weights"): (muon_step, {"renormalize": "before"}),
    ("algorithm 2", "EMA"): (muon_step, EMA),
    ("algorithm 2", "Nesterov"): (muon_step, {"nesterov": True}),
    ("algorithm 2", "three Newton-Schulz steps"): (muon_step, {"orthogonalize": quintic(3)}),
    ("experiments, q=3, kappa=2", "rescaled after"): (muon_step, {"renormalize": "after"}),
    ("experiments, q=3, kappa=2", "not rescaled"): (muon_step, {"renormalize": None}),
    ("experiments, q=3, kappa=2", "rescaled to inputs"): (rescaling_to_inputs, {"renormalize": None}),
    ("experiments, q=3, kappa=2", "max{1, ·}"): (muon_step, {"orthogonalize": paper_scaled}),
    ("experiments, q=3, kappa=2", "EMA"): (muon_step, EMA),
    ("experiments, q=3, kappa=2", "Nesterov"): (muon_step, {"nesterov": True}),
    ("experiments, q=3, kappa=2", "two steps"): (muon_step, {"orthogonalize": quintic(2)}),
    ("experiments, q=3, kappa=2", "Jordan's polynomial"): (muon_step, {"orthogonalize": jordan(3)}),
    ("experiments, svd", "rescaled after"): (muon_step, {"renormalize": "after"}),
    ("experiments, svd", "three Newton-Schulz steps"): (muon_step, {"orthogonalize": quintic(3)}),
    ("algorithm 3", "EMA"): (muon_step, EMA),
    ("algorithm 3", "Nesterov"): (muon_step, {"nesterov": True}),
    ("airbench", "rescaled after"): (muon_step, {"renormalize": "after"}),
    ("airbench", "rescaled to inputs"): (rescaling_to_inputs, {"renormalize": None}),
    ("airbench", "EMA"): (muon_step, EMA),
    ("airbench", "without Nesterov"): (muon_step, {"nesterov": False}),
    ("airbench", "five steps"): (muon_step, {"orthogonalize": jordan(5)}),
    ("airbench", "scaled"): (muon_step, {"scale": twins.original_scale}),
    ("keller_jordan, decay", "heavy ball"): (muon_step, HEAVY_BALL),
    ("keller_jordan, decay", "without Nesterov"): (muon_step, {"nesterov": False}),
    ("keller_jordan, decay", "not scaled"): (muon_step, {"scale": twins.no_scale}),
    ("keller_jordan, decay", "scale of the kernel"): (muon_step, {"scale": kernel_original_scale}),
    ("keller_jordan, decay", "scale √(rows/cols)"): (muon_step, {"scale": twins.spectral_scale}),
    ("keller_jordan, decay", "adjusted decay"): (decaying_with_the_adjusted_lr, {}),
    ("keller_jordan, decay", "without decay"): (muon_step, {"weight_decay": 0.0}),
    ("keller_jordan, decay", "three steps"): (muon_step, {"orthogonalize": jordan(3)}),
    ("torch", "heavy ball"): (muon_step, HEAVY_BALL),
    ("torch", "without Nesterov"): (muon_step, {"nesterov": False}),
    ("torch", "not scaled"): (muon_step, {"scale": twins.no_scale}),
    ("torch", "Moonlight's scale"): (muon_step, {"scale": twins.match_rms_adamw_scale}),
    ("torch", "adjusted decay"): (decaying_with_the_adjusted_lr, {}),
    ("torch", "coupled decay"): (decaying_through_the_gradient, {}),
    ("torch", "Taylor's quintic"): (muon_step, {"orthogonalize": quintic(5)}),
    ("moonlight", "EMA"): (muon_step, EMA),
    ("moonlight", "without Nesterov"): (muon_step, {"nesterov": False}),
    ("moonlight", "Jordan's scale"): (muon_step, {"scale": twins.original_scale}),
    ("moonlight", "scale of the first two dimensions"): (muon_step, {"scale": first_two_dimensions_scale}),
    ("moonlight", "adjusted decay"): (decaying_with_the_adjusted_lr, {}),
    ("moonlight", "without decay"): (muon_step, {"weight_decay": 0.0}),
}


def test_a_wrong_twin_fails_the_check_that_its_recipe_passes():
    assert {name for name, _ in WRONG} == set(SPECIFIED)
    assert {name.split(",")[0] for name in SPECIFIED} == {name.split(",")[0] for name in RECIPES}
    for (name, _), (step, options) in WRONG.items():
        with pytest.raises(AssertionError, match="not close"):
            assert_follows(name, partial(step, **{**SPECIFIED[name], **options}), torch.float32)


# ------------------------------------------------------------------------------------- the twins, judged by themselves


def test_a_twin_is_the_generic_twin_with_its_options_spelled_out():
    for name, options in SPECIFIED.items():
        weights, grads = problem(torch.float64)
        spelled_out = twin_path(partial(muon_step, **options), weights, grads)
        assert_same_path(twin_path(RECIPES[name][1], weights, grads), spelled_out, TOLERANCE[torch.float64])


def test_the_polynomials_multiplied_out_by_hand_are_the_papers():
    for kappa in TAYLOR:
        u = [Fraction(math.factorial(2 * s), 4**s * math.factorial(s) ** 2) for s in range(kappa + 1)]
        in_powers = [sum((-1) ** k * math.comb(s, k) * c for s, c in enumerate(u)) for k in range(kappa + 1)]
        assert [Fraction(a) for a in TAYLOR[kappa]] == in_powers
        assert [twins.central(s) for s in range(kappa + 1)] == [float(c) for c in u]


def test_algorithm_1_maps_singular_values_as_scalars():
    for kappa, q in list(product(TAYLOR, range(4))):
        generator = torch.Generator().manual_seed(1)
        G = torch.randn(5, 8, generator=generator, dtype=torch.float64)
        U, sigma, Vh = torch.linalg.svd(G, full_matrices=False)
        s = sigma / sigma.norm()
        for _ in range(q):
            s = s * sum(twins.central(k) * (1 - s**2) ** k for k in range(kappa + 1))
        weights = [torch.zeros_like(G)]
        twins.algorithm_1(weights, [G], {}, lr=1.0, momentum=0.0, q=q, kappa=kappa)
        torch.testing.assert_close(weights[0], -(U * s) @ Vh, atol=1e-14, rtol=0)


def test_the_polar_twin_counts_singular_values_at_rounding_as_zero():
    sigma = torch.tensor([1.0, 1e-3, 1e-8, 0.0], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(twins.polar(torch.diag(sigma)), torch.diag(expected), atol=1e-14, rtol=0)
    assert torch.equal(twins.polar(torch.zeros(3, 2)), torch.zeros(3, 2))


# ------------------------------------------------------------------------------------------------ torch.optim.Muon

REAL = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
MATRICES = ((8, 12), (12, 8), (6, 6), (1, 9), (7, 7))
TORCH_OPTIONS = [
    {},
    {"weight_decay": 0.0, "lr": 0.02},
    {"nesterov": False},
    {"adjust_lr_fn": "original", "momentum": 0.8},
    {"adjust_lr_fn": "match_rms_adamw"},
    {"ns_coefficients": TAYLOR[2], "ns_steps": 3},
]


@pytest.fixture
def no_bfloat16(monkeypatch):
    """Let torch.optim.Muon compute in the dtype that it is given; all else in it stays."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)


@REAL
@pytest.mark.usefixtures("no_bfloat16")
def test_twin_and_recipe_are_torch_optim_muon_without_its_bfloat16():
    for dtype, options in product(TOLERANCE, TORCH_OPTIONS):
        weights, grads = problem(dtype, MATRICES)
        theirs = path_of(partial(torch.optim.Muon, **options), weights, grads)
        assert_same_path(twin_path(partial(twins.torch_muon, **options), weights, grads), theirs, TOLERANCE[dtype])
        assert_same_path(path_of(partial(Muon.torch, **options), weights, grads), theirs, TOLERANCE[dtype])


@REAL
def test_the_torch_twin_is_torch_optim_muon_as_it_comes_within_bfloat16():
    for adjust_lr_fn in [None, "match_rms_adamw"]:
        weights, grads = problem(torch.float32, MATRICES, steps=LATE)
        options = {"lr": 0.02, "adjust_lr_fn": adjust_lr_fn}
        theirs = path_of(partial(torch.optim.Muon, **options), weights, grads)
        ours = twin_path(partial(twins.torch_muon, **options), weights, grads)
        assert_same_path(ours, theirs, 3e-3)  # 14 steps of at most 0.25, each entry with an error of a few times 2⁻⁹


# ------------------------------------------------------------------------------------------------------- every option

QUINTIC = NewtonSchulz(taylor(2), steps=3)


def test_every_scale_rule_has_a_twin():
    assert set(SCALE_TWINS) == set(SCALES)


def test_every_combination_of_options_follows_the_generic_twin():
    for renormalize, scale, nesterov, momentum_form in product(
        [None, "before", "after"], SCALE_TWINS, (False, True), ("ema", "heavy_ball")
    ):
        weights, grads = problem(torch.float64, ((5, 9), (9, 5), (4, 2, 3)), steps=6)
        for weight_decay, maximize in [(0.0, False), (0.3, True)]:
            options = {
                "lr": 0.05,
                "momentum": 0.9,
                "momentum_form": momentum_form,
                "nesterov": nesterov,
                "renormalize": renormalize,
                "weight_decay": weight_decay,
                "maximize": maximize,
            }
            ours = path_of(partial(Muon, **options, scale=scale, orthogonalizer=QUINTIC), weights, grads)
            twin = partial(muon_step, **options, scale=SCALE_TWINS[scale], orthogonalize=quintic(3))
            assert_same_path(ours, twin_path(twin, weights, grads), TOLERANCE[torch.float64])


def test_momentum_buffers_are_those_of_the_twin():
    for name in ["algorithm 1, q=3, kappa=2", "airbench", "keller_jordan, decay", "torch", "moonlight"]:
        build, twin = RECIPES[name]
        weights, grads = problem(torch.float64, steps=LATE)
        params, state = [Parameter(w.clone()) for w in weights], {}
        optimizer = build(params)
        for now in grads:
            for p, g in zip(params, now, strict=True):
                p.grad = g.clone()
            optimizer.step()
            twin(list(weights), now, state)
        for i, p in enumerate(params):
            buffer = optimizer.state[p]["momentum_buffer"].reshape(state[i].shape)
            torch.testing.assert_close(buffer, state[i], atol=1e-14, rtol=1e-14)


# --------------------------------------------------------------------------------------------------- laws of momentum


def test_ema_and_heavy_ball_give_the_same_updates_while_momentum_is_constant():
    for nesterov, orthogonalizer in product((False, True), (QUINTIC, NewtonSchulz("jordan", steps=5), ExactPolar())):
        weights, grads = problem(torch.float64, steps=LATE)
        options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "orthogonalizer": orthogonalizer}
        ema = path_of(partial(Muon, **options, momentum_form="ema"), weights, grads)
        heavy_ball = path_of(partial(Muon, **options, momentum_form="heavy_ball"), weights, grads)
        assert_same_path(ema, heavy_ball, TOLERANCE[torch.float64])


def test_ema_and_heavy_ball_part_where_momentum_changes_or_the_prescale_sees_its_size():
    for prescale, steps in [("frobenius", STEPS), ("paper", LATE)]:
        weights, grads = problem(torch.float64, steps=steps)
        orthogonalizer = NewtonSchulz(taylor(2), steps=3, prescale=prescale)
        options = {"lr": 0.1, "momentum": 0.9, "orthogonalizer": orthogonalizer}
        ema = path_of(partial(Muon, **options, momentum_form="ema"), weights, grads)
        heavy_ball = path_of(partial(Muon, **options, momentum_form="heavy_ball"), weights, grads)
        with pytest.raises(AssertionError, match="not close"):
            assert_same_path(ema, heavy_ball, 1e-6)


IDENTITY = NewtonSchulz(taylor(2), steps=0, prescale="none")
"""No steps and no scaling: the momentum itself."""


def test_without_orthogonalization_ema_with_lr_2_is_sgd_with_lr_1_at_momentum_one_half():
    weights, grads = problem(torch.float32, steps=LATE)
    plain = {"momentum": 0.5, "nesterov": False}
    ema = partial(Muon, lr=2.0, **plain, momentum_form="ema", scale="none", orthogonalizer=IDENTITY)
    sgd = path_of(partial(torch.optim.SGD, lr=1.0, **plain), weights, grads)
    assert_same_path(path_of(ema, weights, grads), sgd, 1e-6)
    with pytest.raises(AssertionError, match="not close"):
        assert_same_path(path_of(partial(ema, lr=1.0), weights, grads), sgd, 1e-3)


def test_without_orthogonalization_heavy_ball_is_bitwise_sgd():
    for nesterov in [False, True]:
        weights, grads = problem(torch.float32)
        options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov}
        muon = partial(Muon, **options, momentum_form="heavy_ball", scale="none", orthogonalizer=IDENTITY)
        assert_same_path(
            path_of(muon, weights, grads), path_of(partial(torch.optim.SGD, **options), weights, grads), 0.0
        )


def test_sgdm_is_bitwise_torch_optim_sgd():
    for nesterov in [False, True]:
        weights, grads = problem(torch.float32, (*SHAPES, (7,), (), (3,)))
        options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov}
        theirs = path_of(partial(torch.optim.SGD, **options, dampening=0), weights, grads)
        assert_same_path(path_of(partial(SGDM, **options), weights, grads), theirs, 0.0)
