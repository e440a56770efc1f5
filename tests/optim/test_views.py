"""A parameter seen as several matrices steps as those matrices would as parameters of their own, bit by bit."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import ExactPolar, Muon, NewtonSchulz
from muonlab.optim.views import as_matrices, blocks
from muonlab.polynomials import taylor

STEPS = 4
OPTIONS = {
    "default": {},
    "momentum alone": {"nesterov": False},
    "heavy ball": {"momentum_form": "heavy_ball", "orthogonalizer": NewtonSchulz(taylor(2), prescale="paper")},
    "exact": {"orthogonalizer": ExactPolar()},
    "decay": {"weight_decay": 0.3, "maximize": True},
    "match_rms_adamw": {"scale": "match_rms_adamw"},
    "spectral": {"scale": "spectral"},
    "renormalize before": {"renormalize": "before", "weight_decay": 0.3},
    "renormalize after": {"renormalize": "after", "scale": "none"},
    "skip": {"nonfinite": "skip"},
}


def drawn(shape, seed: int) -> Tensor:
    """Return a standard normal tensor."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def trained(weights: list[Tensor], gradient_of, **options) -> tuple[list[Tensor], list[Tensor]]:
    """Return weights and momenta after some steps with the pieces that ``gradient_of(t)`` gives."""
    params = [Parameter(w.clone()) for w in weights]
    optimizer = Muon(params, 0.1, momentum=0.9, **options)
    for t in range(STEPS):
        for p, g in zip(params, gradient_of(t), strict=True):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params], [optimizer.state[p]["momentum_buffer"] for p in params]


def row_blocks(sizes, tensor: Tensor) -> list[Tensor]:
    """Return the blocks of rows of a tensor."""
    return [block.contiguous() for block in tensor.split(sizes)]


def assert_as_pieces(shape, view, pieces, options) -> None:
    """Compare a parameter under a view with its pieces as parameters of their own."""
    weight = drawn(shape, 100)
    whole = trained([weight], lambda t: [drawn(shape, t)], matrix_view=view, **options)
    apart = trained(pieces(weight), lambda t: pieces(drawn(shape, t)), **options)
    for (one,), several in zip(whole, apart, strict=True):
        for a, b in zip(pieces(one), several, strict=True):
            assert torch.equal(a, b)


def test_row_blocks_step_as_separate_parameters():
    for options, (shape, sizes) in product(
        OPTIONS.values(),
        (
            ((12, 6), (4, 4, 4)),
            ((12, 6), (1, 8, 3)),
            ((12, 30), (8, 2, 2)),
            ((12, 2, 3, 3), (4, 8)),
            ((12, 6), (12,)),
            ((6, 1), (1,) * 6),
        ),
    ):
        assert_as_pieces(shape, sizes, partial(row_blocks, sizes), options)


def test_a_batch_steps_as_a_parameter_per_slice():
    for options, shape in product(
        OPTIONS.values(), ((5, 6, 4), (5, 4, 6), (2, 3, 6, 4), (6, 4), (5, 1, 7), (5, 7, 1), (1, 6, 4))
    ):
        assert_as_pieces(
            shape, "batch", lambda t: list(t.flatten(0, -3).clone()) if t.ndim > 2 else [t.clone()], options
        )


def test_filters_step_as_the_matrix_out_by_rest():
    for options, shape in product(OPTIONS.values(), ((8, 3, 3, 3), (4, 2, 5), (30, 2, 2, 2, 2), (6, 4))):
        assert_as_pieces(shape, "flatten", lambda t: [t.flatten(1)], options)


def test_views_of_one_parameter_differ():
    results = [
        trained([drawn((4, 6, 8), 100)], lambda t: [drawn((4, 6, 8), t)], matrix_view=view)[0][0]
        for view in ("flatten", "batch", (2, 2), (1, 3))
    ]
    for i, a in enumerate(results):
        assert not any(torch.allclose(a, b, atol=1e-3) for b in results[:i])


def test_a_fused_projection_without_blocks_is_not_three_matrices():
    sizes, shape = (4, 4, 4), (12, 6)
    with pytest.raises(AssertionError):
        assert_as_pieces(shape, "flatten", partial(row_blocks, sizes), {})


def test_renormalization_gives_every_block_and_slice_the_norm_of_its_own_rows():
    build = partial(Muon, lr=1e-9, momentum=0.9, renormalize="before")
    fused, experts = Parameter(drawn((12, 6), 1)), Parameter(drawn((5, 6, 4), 2))
    optimizer = build([{"params": [fused], "matrix_view": (9, 3)}, {"params": [experts], "matrix_view": "batch"}])
    for p in (fused, experts):
        p.grad = torch.ones_like(p)
    optimizer.step()
    norms = [float(block.norm()) for block in (*fused.detach().split((9, 3)), *experts.detach())]
    assert norms == pytest.approx([3.0, 3**0.5, *[6**0.5] * 5], rel=1e-6)


def test_blocks_and_matrices_share_the_memory_of_a_contiguous_parameter():
    for view in ["flatten", "batch", (1, 3)]:
        tensor = torch.zeros(4, 3, 2)
        pieces = blocks(tensor, view)
        assert sum(piece.numel() for piece in pieces) == tensor.numel()
        for piece in pieces:
            as_matrices(piece, view).add_(1.0)
        assert bool((tensor == 1).all())


def test_a_view_that_makes_no_matrices_is_refused():
    for view, error, message in [
        ("rows", ValueError, "matrix_view must be one of 'flatten', 'batch', got 'rows': pick one of these"),
        (3, TypeError, r"matrix_view must be 'flatten', 'batch' or a tuple of row counts, got 3: for example \(768, 7"),
        (None, TypeError, "matrix_view must be 'flatten', 'batch' or a tuple of row counts, got None"),
        ((4, 0), ValueError, "matrix_view size must be at least 1, got 0: pass 1 or more"),
        ((2.5, 1.5), TypeError, "matrix_view size must be an integer, got 2.5 of type float: pass a whole number"),
        (
            (4, 4),
            ValueError,
            r"the sizes of a matrix_view must add up to the first dimension, got \(4, 4\), sum 8, for parameter 0 of "
            r"its group of shape \(12, 6\): give sizes that add up to 12",
        ),
    ]:
        with pytest.raises(error, match=message):
            Muon([Parameter(torch.zeros(12, 6))], matrix_view=view)


def test_a_list_of_sizes_is_taken_as_a_tuple():
    optimizer = Muon([Parameter(torch.zeros(12, 6))], matrix_view=[4, 8])
    assert optimizer.param_groups[0]["matrix_view"] == (4, 8)


def test_a_view_put_into_a_group_by_hand_is_checked_against_its_parameters():
    weight = Parameter(drawn((12, 6), 0))
    before = weight.detach().clone()
    optimizer = Muon([("attn.qkv", weight)])
    weight.grad = drawn((12, 6), 1)
    optimizer.param_groups[0]["matrix_view"] = (4, 4)
    with pytest.raises(ValueError, match=r"must add up to the first dimension, got \(4, 4\), sum 8, for attn.qkv"):
        optimizer.step()
    assert torch.equal(weight, before)
