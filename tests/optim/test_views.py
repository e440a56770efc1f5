"""A parameter seen as several matrices steps as those matrices would as parameters of their own, bit by bit."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import ExactPolar, Muon, NewtonSchulz
from muonlab.optim import views
from muonlab.optim.views import chunk_sizes, matrix_blocks, parse_view, split_tensor
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


def cut(dim, sizes):
    return lambda t: [part.clone() for part in t.split(sizes, dim)]


def turns(dim, count, each):
    """Return the blocks with interleaved rows or columns, by indices."""

    def pieces(t):
        owner = torch.arange(t.shape[dim]) // each % count
        return [t.index_select(dim, (owner == i).nonzero().flatten()) for i in range(count)]

    return pieces


def unequal_turns(dim, *sizes):
    """Return the blocks with interleaved rows or columns in several sizes, by indices."""

    def pieces(t):
        turn = [i for i, size in enumerate(sizes) for _ in range(size)]
        owner = torch.tensor([turn[k % len(turn)] for k in range(t.shape[dim])])
        return [t.index_select(dim, (owner == i).nonzero().flatten()) for i in range(len(sizes))]

    return pieces


def slices(pieces):
    """Return the matrices of every piece of a stack."""
    return lambda t: [matrix.clone() for piece in pieces(t) for matrix in piece.flatten(0, -3)]


def transposed(pieces):
    return lambda t: [piece.mT.contiguous() for piece in pieces(t)]


CUTS = [
    ((6, 12), "columns(4, 5, 3)", cut(1, (4, 5, 3))),
    ((12, 6), "row_heads(4)", cut(0, 4)),
    ((6, 12), "column_heads(3)", cut(1, 3)),
    ((12, 5), "interleaved_rows(3, 2)", turns(0, 3, 2)),
    ((5, 12), "interleaved_columns(2, 1)", turns(1, 2, 1)),
    ((5, 12), "interleaved_columns(2, 3)", turns(1, 2, 3)),
    ((15, 6), "interleaved_rows(2, 2, 3)", unequal_turns(0, 2, 3)),
    ((6, 18), "interleaved_columns(3, 3, 2, 1)", unequal_turns(1, 3, 2, 1)),
    ((3, 8, 5), "batch rows(3, 5)", slices(cut(1, (3, 5)))),
    ((3, 5, 8), "batch columns(3, 5)", slices(cut(2, (3, 5)))),
    ((3, 8, 5), "batch row_heads(4)", slices(cut(1, 4))),
    ((3, 5, 8), "batch column_heads(4)", slices(cut(2, 4))),
    ((2, 3, 8, 5), "batch interleaved_rows(2, 2)", slices(turns(2, 2, 2))),
    ((3, 5, 8), "batch interleaved_columns(2, 1)", slices(turns(2, 2, 1))),
    ((3, 10, 4), "batch interleaved_rows(2, 3, 2)", slices(unequal_turns(1, 3, 2))),
]


def test_every_kind_of_cut_steps_as_separate_parameters():
    assert {parse_view(view).cut for _, view, _ in CUTS} | {"rows"} == {*views.CUTS}
    for options, (shape, view, pieces) in product(OPTIONS.values(), CUTS):
        assert_as_pieces(shape, view, pieces, options)


def test_a_transposed_parameter_steps_as_its_transpose():
    """Up to rounding: the direction is orthogonalized as it is stored."""
    names = ("default", "match_rms_adamw", "spectral", "renormalize before")
    for options, (shape, view, pieces) in product([OPTIONS[name] for name in names], CUTS):
        apart, weight = transposed(pieces), drawn(shape, 100)
        word = f"transposed {view}" if "batch" not in view else view.replace("batch", "batch transposed")
        whole = trained([weight], lambda t, shape=shape: [drawn(shape, t)], matrix_view=word, **options)
        other = trained(apart(weight), lambda t, shape=shape, apart=apart: apart(drawn(shape, t)), **options)
        for (one,), several in zip(whole, other, strict=True):
            for a, b in zip(apart(one), several, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    square = [
        trained([drawn((6, 12), 1)], lambda t: [drawn((6, 12), t)], matrix_view=view)
        for view in ("flatten", "transposed")
    ]
    assert not torch.allclose(square[0][0][0], square[1][0][0], atol=1e-3)  # the scale is another


def test_another_cut_gives_another_step():
    for shape, view, pieces in CUTS:
        with pytest.raises((AssertionError, ValueError)):
            assert_as_pieces(shape, "batch" if len(shape) > 2 else "flatten", pieces, {})
        del view


def test_views_of_one_parameter_differ():
    results = [
        trained([drawn((4, 6, 8), 100)], lambda t: [drawn((4, 6, 8), t)], matrix_view=view)[0][0]
        for view in ("flatten", "batch", (2, 2), "batch rows(2, 4)", "batch columns(4, 4)")
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


def test_blocks_cover_a_parameter_once_and_share_its_memory():
    for shape, view in [*((shape, view) for shape, view, _ in CUTS), ((4, 3, 2), "flatten"), ((4, 3, 2), "batch")]:
        tensor = torch.zeros(shape)
        blocks = matrix_blocks(tensor.shape, view)
        pieces = split_tensor(tensor, view, blocks)
        assert [tuple(piece.shape) for piece in pieces] == [block.shape for block in blocks]
        for piece in pieces:
            piece.add_(1.0)
        assert bool((tensor == 1).all()), view


def test_shards_of_a_parameter_hold_the_pieces_of_its_blocks():
    for (shape, view, _), shards in product(CUTS, (1, 2, 3)):
        tensor = drawn(shape, 3)
        whole = split_tensor(tensor, view, matrix_blocks(shape, view))
        for dim in range(len(shape)):
            parsed = parse_view(view)
            cut_along = parsed.interleaved and dim == parsed.cut_dim(len(shape))
            if cut_along and any(size % parsed.unit for size in chunk_sizes(shape[dim], shards)):
                with pytest.raises(ValueError, match="shards must hold whole rounds of interleaved blocks"):
                    matrix_blocks(shape, view, dim, shards)
                continue
            blocks = matrix_blocks(shape, view, dim, shards)
            chunks = list(tensor.chunk(shards, dim))
            chunks += [tensor.narrow(dim, 0, 0)] * (shards - len(chunks))
            parts = [split_tensor(chunk, view, blocks, shard) for shard, chunk in enumerate(chunks)]
            for i, block in enumerate(blocks):
                assert [tuple(part[i].shape) for part in parts] == [block.piece_shape(s) for s in range(shards)]
                assert torch.equal(torch.cat([part[i] for part in parts], block.dim), whole[i]), (view, dim, shards)


def test_a_view_that_makes_no_matrices_is_refused():
    words = "matrix_view must be made of the words flatten, batch, transposed, rows"
    once = "matrix_view must have each word once, at most one that cuts, and 'flatten' alone"
    for shape, view, error, message in [
        ((12, 6), "lines", ValueError, words),
        ((12, 6), "", ValueError, words),
        ((12, 6), "rows(4 8)", ValueError, "give sizes of 1 or more"),
        ((12, 6), "rows(4; 8)", ValueError, "give sizes of 1 or more"),
        ((12, 6), "rows(4, 8", ValueError, words),
        ((12, 6), "batch(3)", ValueError, "have sizes only in what cuts"),
        ((12, 6), "rows(6, 6) columns(3, 3)", ValueError, once),
        ((12, 6), "batch batch", ValueError, once),
        ((12, 6), "flatten rows(6, 6)", ValueError, once),
        ((12, 6), "rows", ValueError, "give sizes of 1 or more to what cuts, and one size to heads, got 'rows'"),
        ((12, 6), "rows(0, 12)", ValueError, "give sizes of 1 or more"),
        ((12, 6), "row_heads(4, 8)", ValueError, "one size to heads"),
        ((12, 6), "interleaved_rows(3)", ValueError, "give the number of matrices, 2 or more"),
        ((12, 6), "interleaved_rows(1, 4)", ValueError, "give the number of matrices, 2 or more"),
        ((12, 6), "interleaved_rows(3, 4, 8)", ValueError, "one size for all or one for each"),
        ((12, 6), "interleaved_rows(2, 3, 2)", ValueError, r"got 'interleaved_rows\(2, 3, 2\)', .* multiples of 5"),
        ((12, 6), 3, TypeError, r"matrix_view must be a string such as 'flatten', .* got 3: for example \(768, 7"),
        ((12, 6), None, TypeError, "or a tuple of row counts, got None"),
        ((12, 6), (4, 0), ValueError, "matrix_view size must be at least 1, got 0: pass 1 or more"),
        ((12, 6), (2.5, 1.5), TypeError, "matrix_view size must be an integer, got 2.5 of type float"),
        (
            (12, 6),
            (4, 4),
            ValueError,
            r"must add up to the first dimension, got \(4, 4\), sum 8, for parameter 0 of its group of shape "
            r"\(12, 6\): give sizes that add up to 12",
        ),
        ((2, 12, 6), "batch rows(4, 4)", ValueError, r"add up to the rows, got \(4, 4\), sum 8, .* add up to 12"),
        ((12, 6), "columns(4, 4)", ValueError, "add up to the columns"),
        (
            (12, 6),
            "row_heads(5)",
            ValueError,
            r"must divide the first dimension, got 'row_heads\(5\)', .* divisor of 12",
        ),
        ((12, 6), "interleaved_columns(2, 2)", ValueError, "must divide the columns, .* multiples of 4"),
        ((3, 4, 6), "columns(3, 3)", ValueError, r"takes two dimensions, or 'batch', .* write 'batch columns\(3, 3\)'"),
        ((3, 4, 6), (1, 1, 1), ValueError, "single rows of its slices: 'batch' reads each slice as a matrix"),
        ((3, 4, 6), "row_heads(1)", ValueError, "single rows of its slices"),
    ]:
        with pytest.raises(error, match=message):
            Muon([Parameter(torch.zeros(shape))], matrix_view=view)


def test_equal_turns_have_one_form():
    optimizer = Muon([Parameter(torch.zeros(12, 6))], matrix_view="interleaved_rows(3, 2, 2, 2)")
    assert optimizer.param_groups[0]["matrix_view"] == "interleaved_rows(3, 2)"


def test_a_list_of_sizes_is_taken_as_a_tuple():
    optimizer = Muon([Parameter(torch.zeros(12, 6))], matrix_view=[4, 8])
    assert optimizer.param_groups[0]["matrix_view"] == "rows(4, 8)"


def test_a_view_put_into_a_group_by_hand_is_checked_against_its_parameters():
    weight = Parameter(drawn((12, 6), 0))
    before = weight.detach().clone()
    optimizer = Muon([("attn.qkv", weight)])
    weight.grad = drawn((12, 6), 1)
    optimizer.param_groups[0]["matrix_view"] = (4, 4)
    with pytest.raises(ValueError, match=r"must add up to the first dimension, got \(4, 4\), sum 8, for attn.qkv"):
        optimizer.step()
    assert torch.equal(weight, before)
