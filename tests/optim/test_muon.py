"""Muon where others go wrong: aliasing, scale, shapes, non-finite gradients, host reads, batches, groups, hooks."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from muonlab import SGDM, ExactPolar, Muon, NewtonSchulz
from muonlab.optim import layout
from muonlab.optim.orthogonalizer import from_plain
from muonlab.optim.step import check_finite
from muonlab.orthogonalize import PRESCALES, release
from muonlab.polynomials import taylor
from tests.optim.devices import OnDevice, OneDevice, Reads
from tests.reference.orthogonalize import tolerance

SHAPES = ((6, 10), (10, 6), (6, 10), (4, 3, 3, 3))
FORMS = list(product(("ema", "heavy_ball"), (False, True)))
FULL = NewtonSchulz()
"""The default without its leave to round as bfloat16 does."""

accurate = partial(Muon, lr=0.1, momentum=0.9, orthogonalizer=FULL)


def drawn(shapes=SHAPES, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def parameters(shapes=SHAPES, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """Return the weights that every test starts from."""
    return [Parameter(w) for w in drawn(shapes, seed=100, dtype=dtype)]


def gradients(steps: int, shapes=SHAPES, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """Return the gradients of each step."""
    return [drawn(shapes, seed=t, dtype=dtype) for t in range(steps)]


def step(optimizer: torch.optim.Optimizer, grads: list[Tensor | None]) -> None:
    """Take a step with copies of the given gradients, None where a parameter has none."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()
    optimizer.step()


def run(build, steps=3, shapes=SHAPES, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """Return the weights after some steps."""
    params = parameters(shapes, dtype)
    optimizer = build(params)
    for grads in gradients(steps, shapes, dtype):
        step(optimizer, grads)
    return params


def buffers(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return copies of the momenta."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return [optimizer.state[p]["momentum_buffer"].clone() for p in params]


def same_bits(actual, expected) -> bool:
    """Tell whether two lists of tensors agree bit by bit, NaN and signs of zero included."""
    pairs = [(a.detach().contiguous(), e.detach().contiguous()) for a, e in zip(actual, expected, strict=True)]
    return all(a.dtype == e.dtype and torch.equal(a.view(torch.uint8), e.view(torch.uint8)) for a, e in pairs)


def copies(tensors) -> list[Tensor]:
    """Return detached copies."""
    return [t.detach().clone() for t in tensors]


# ---------------------------------------------------------------------------------------------------------- aliasing


@pytest.fixture
def storages(monkeypatch):
    """Record the memory of every matrix that goes into an orthogonalizer and of what comes out."""
    seen: list[tuple[int, int]] = []
    real = NewtonSchulz.__call__

    def recorded(self: NewtonSchulz, M: Tensor) -> Tensor:
        O = real(self, M)
        seen.append((M.untyped_storage().data_ptr(), O.untyped_storage().data_ptr()))
        return O

    monkeypatch.setattr(NewtonSchulz, "__call__", recorded)
    return seen


def check_momentum(dtype: torch.dtype, form: str, nesterov: bool) -> None:
    """Compare the momenta with ``Σ μ^{T-t} g_t`` in float64, and see that gradients are left alone."""
    mu, steps = 0.75, 3
    params = parameters(dtype=dtype)
    optimizer = Muon(params, 0.1, momentum=mu, momentum_form=form, nesterov=nesterov, weight_decay=0.1)
    grads = gradients(steps, dtype=dtype)
    for now in grads:
        step(optimizer, now)
        assert same_bits([p.grad for p in params], now)
    share = 1 - mu if form == "ema" else 1.0
    expected = [
        sum(share * mu ** (steps - 1 - t) * grads[t][i].double() for t in range(steps)) for i in range(len(params))
    ]
    for M, e in zip(buffers(optimizer), expected, strict=True):
        assert M.dtype == dtype
        torch.testing.assert_close(M.double(), e, rtol=0, atol=8 * torch.finfo(dtype).eps * float(e.abs().max()))


def test_the_momentum_is_the_weighted_sum_of_gradients_and_gradients_are_untouched(storages):
    for dtype, (form, nesterov) in product((torch.float16, torch.bfloat16, torch.float32, torch.float64), FORMS):
        check_momentum(dtype, form, nesterov)
        assert len(storages) == 3 * len(SHAPES)
        assert all(M != O for M, O in storages)
        storages.clear()


def test_the_momentum_check_rejects_an_orthogonalizer_that_writes_into_its_input(monkeypatch):
    monkeypatch.setattr(NewtonSchulz, "__call__", lambda _, M: M.div_(M.norm()))
    with pytest.raises(AssertionError):
        check_momentum(torch.bfloat16, "ema", nesterov=False)
    check_momentum(torch.bfloat16, "ema", nesterov=True)  # there it is handed a copy


# ------------------------------------------------------------------------------------------------------------- scale


def test_gradients_times_a_power_of_two_give_the_same_update_bit_by_bit():
    for (dtype, powers), (form, nesterov) in product(
        (
            (torch.float16, (-3, 4)),
            (torch.bfloat16, (-60, -3, 1, 60)),
            (torch.float32, (-90, -30, -3, 1, 30, 90)),
            (torch.float64, (-800, -3, 60, 800)),
        ),
        FORMS,
    ):
        results = []
        for k in (0, *powers):
            params = parameters(dtype=dtype)
            optimizer = Muon(params, 0.1, momentum=0.75, momentum_form=form, nesterov=nesterov)
            for grads in gradients(3, dtype=dtype):
                step(optimizer, [g * 2.0**k for g in grads])
            results.append(copies(params))
        assert not same_bits(results[0], parameters(dtype=dtype))
        for k, result in zip(powers, results[1:], strict=True):
            assert same_bits(result, results[0]), f"2^{k}"


def test_a_step_leaves_no_trace_in_the_bits_of_steps_of_other_optimizers():
    expected = run(partial(Muon, lr=0.1, momentum=0.9))
    for factor in (2.0**-100, 2.0**100):
        step(Muon(parameters(), 0.1, momentum=0.9), [g * factor for g in drawn(seed=9)])
        assert same_bits(run(partial(Muon, lr=0.1, momentum=0.9)), expected), factor
    batch = partial(Muon, lr=0.1, momentum=0.9, matrix_view="batch", nesterov=False)
    for shape in ((5, 1, 7), (5, 7, 1), (3, 6, 4)):
        release()
        expected = run(batch, shapes=[shape])
        run(batch, shapes=[(5, 7, 1), (5, 1, 7), (3, 4, 6)])
        assert same_bits(run(batch, shapes=[shape]), expected), shape


def test_gradients_times_any_factor_give_the_same_update_up_to_rounding():
    for factor, (form, nesterov) in product((1e-30, 1e-10, 1e-3, 1e5, 1e20, 1e30), FORMS):
        build = partial(Muon, lr=1.0, momentum=0.75, momentum_form=form, nesterov=nesterov, orthogonalizer=FULL)
        params, expected = parameters(), run(build, steps=1)
        step(build(params), [g * factor for g in drawn(seed=0)])
        for p, e in zip(params, expected, strict=True):
            error = torch.linalg.matrix_norm((p - e).detach().double().flatten(1), 2)
            assert error <= 2 * tolerance(FULL.schedule) * math.sqrt(max(1, p.shape[0] / p[0].numel()))


def test_the_largest_singular_value_of_an_update_is_near_one_at_every_scale():
    for factor in (1e-35, 1e-10, 1.0, 1e20, 1e35):
        params = [Parameter(torch.zeros(6, 10))]
        step(Muon(params, 1.0, momentum=0.0, nesterov=False), [drawn([(6, 10)])[0] * factor])
        assert 0.8 < torch.linalg.matrix_norm(params[0].detach(), 2) < 1.2, factor


def test_twice_the_identity_is_orthogonalized():
    params = [Parameter(torch.zeros(8, 8))]
    step(
        Muon(params, 1.0, momentum=0.0, nesterov=False, orthogonalizer=NewtonSchulz(taylor(2), steps=6)),
        [2 * torch.eye(8)],
    )
    W = params[0].detach()
    torch.testing.assert_close(W @ W.T, torch.eye(8), rtol=0, atol=1e-3)


def test_singular_values_of_an_update_are_as_far_from_one_as_the_schedule_says():
    for orthogonalizer, low, high in ((NewtonSchulz("jordan"), 0.1, 0.33), (FULL, 0.05, 0.13), (ExactPolar(), 0, 1e-5)):
        params = [Parameter(torch.zeros(8, 12))]
        step(Muon(params, 1.0, momentum=0.0, nesterov=False, orthogonalizer=orthogonalizer), drawn([(8, 12)]))
        error = (torch.linalg.svdvals(params[0].detach()) - 1).abs().max()
        assert low <= error < high


ORTHOGONALIZERS = [NewtonSchulz(taylor(2), steps=5, prescale=p) for p in PRESCALES] + [NewtonSchulz(), ExactPolar()]


def test_zero_gradients_give_a_zero_update_and_no_nan():
    for orthogonalizer, renormalize in product(ORTHOGONALIZERS, [None, "before", "after"]):
        params = [*parameters(), Parameter(torch.zeros(3, 5))]
        optimizer = Muon(params, 0.1, momentum=0.9, orthogonalizer=orthogonalizer, renormalize=renormalize)
        before = copies(params)
        step(optimizer, [torch.zeros_like(p) for p in params])
        assert not any(M.any() for M in buffers(optimizer))
        for p, w in zip(params, before, strict=True):
            norm = w.norm()
            expected = w * math.sqrt(len(w)) / norm if renormalize and norm > 0 else w
            torch.testing.assert_close(p.detach(), expected, rtol=1e-6 if renormalize else 0, atol=0)


# ------------------------------------------------------------------------------------------------------------ shapes


def test_an_empty_parameter_is_left_alone_and_the_others_step_as_without_it():
    for shape, options in product(
        ((4, 0), (0, 4), (0, 0), (3, 0, 5)),
        [{}, {"renormalize": "before"}, {"nonfinite": "skip"}, {"nonfinite": "raise"}, {"matrix_view": "batch"}],
    ):
        empty, (other,), (alone,) = Parameter(torch.empty(shape)), parameters([(6, 10)]), parameters([(6, 10)])
        optimizer = Muon([empty, other], 0.1, momentum=0.9, **options)
        step(optimizer, [torch.empty(shape), *drawn([(6, 10)])])
        step(Muon([alone], 0.1, momentum=0.9, **options), drawn([(6, 10)]))
        assert same_bits([other], [alone])
        assert empty.shape == shape
        assert optimizer.orthogonalized == 1


def test_the_update_of_a_row_or_column_is_its_unit_vector():
    for shape in [(1, 9), (9, 1), (1, 1)]:
        params, (g,) = [Parameter(torch.zeros(shape))], drawn([shape])
        options = {"momentum": 0.0, "nesterov": False, "scale": "none"}
        step(Muon(params, 1.0, **options, orthogonalizer=NewtonSchulz(taylor(2), steps=5)), [g])
        torch.testing.assert_close(params[0].detach(), -g / g.norm(), rtol=1e-6, atol=1e-6)


def strided(kind: str, values: Tensor) -> Tensor:
    """Return the values of a (8, 6, 3, 2) tensor in other strides."""
    if kind == "channels_last":
        return values.contiguous(memory_format=torch.channels_last)
    if kind == "transposed":
        return values.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    room = torch.full((16, 6, 3, 5), 7.0)
    room[::2, :, :, 1:5:2] = values
    return room[::2, :, :, 1:5:2]


def test_strides_of_weights_and_gradients_change_nothing():
    for kind, of, view in product(
        ("channels_last", "transposed", "every second"), ("weight", "gradient", "both"), ("flatten", "batch", (3, 5))
    ):
        shape = (8, 6, 3, 2)
        results = []
        for strides in (False, True):
            weight = drawn([shape], seed=100)[0]
            weight = strided(kind, weight) if strides and of != "gradient" else weight
            p = Parameter(weight)
            assert p.stride() == weight.stride()
            optimizer = accurate([p], matrix_view=view, renormalize="before", weight_decay=0.1)
            for (g,) in gradients(3, [shape]):
                p.grad = strided(kind, g) if strides and of != "weight" else g
                optimizer.step()
            assert p.stride() == weight.stride()
            results.append(p.detach())
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_a_view_leaves_the_memory_around_it_alone():
    room = torch.full((16, 6, 3, 5), 7.0)
    p = Parameter(room[::2, :, :, 1:5:2])
    step(Muon([p], 0.1, momentum=0.9, renormalize="after", nonfinite="skip"), drawn([p.shape]))
    changed = room != 7.0
    assert changed[::2, :, :, 1:5:2].all()
    assert int(changed.sum()) == p.numel()


# ----------------------------------------------------------------------------------------------- non-finite gradients

BAD = [math.nan, math.inf, -math.inf]


def with_bad_entry(grads: list[Tensor], which: int, value: float) -> list[Tensor]:
    """Return the gradients with one entry replaced."""
    grads = [g.clone() for g in grads]
    grads[which].view(-1)[-1] = value
    return grads


def test_propagate_lets_a_bad_gradient_into_its_own_weight_and_no_other():
    for build, value in product((Muon, SGDM), BAD):
        clean, params = parameters(), parameters()
        step(build(clean, 0.1, momentum=0.9), drawn())
        step(build(params, 0.1, momentum=0.9), with_bad_entry(drawn(), 1, value))
        assert not torch.isfinite(params[1]).all()
        assert same_bits(params[:1] + params[2:], clean[:1] + clean[2:])


def test_raise_names_the_parameters_and_leaves_all_weights_and_states_as_they_were():
    for build, value in product((Muon, SGDM), BAD):
        params = parameters()
        named = zip(("first", "second", "third", "filters"), params, strict=True)
        optimizer = build(named, 0.1, momentum=0.9, weight_decay=0.1, nonfinite="raise")
        step(optimizer, drawn())
        weights, momenta = copies(params), buffers(optimizer)
        bad = with_bad_entry(with_bad_entry(drawn(seed=1), 1, value), 3, value)
        with pytest.raises(ValueError, match=r"gradients must be finite .* got NaN or infinity for second, filters: "):
            step(optimizer, bad)
        assert same_bits(params, weights)
        assert same_bits(buffers(optimizer), momenta)


def test_raise_also_guards_the_groups_that_let_bad_gradients_through():
    tolerant, strict = parameters([(3, 4)]), parameters([(4, 5)])
    optimizer = Muon([{"params": tolerant}, {"params": strict, "nonfinite": "raise"}], 0.1, momentum=0.9)
    grads = drawn([(3, 4), (4, 5)])
    with pytest.raises(ValueError, match="finite"):
        step(optimizer, with_bad_entry(grads, 1, math.nan))
    assert same_bits([*tolerant, *strict], [*parameters([(3, 4)]), *parameters([(4, 5)])])
    step(optimizer, with_bad_entry(grads, 0, math.nan))
    assert tolerant[0].isnan().any()
    assert torch.isfinite(strict[0]).all()


SKIPPING = {
    "muon": accurate,
    "momentum alone": partial(accurate, nesterov=False),
    "heavy ball": partial(accurate, momentum_form="heavy_ball"),
    "decay": partial(accurate, weight_decay=0.2),
    "renormalize before": partial(accurate, renormalize="before"),
    "renormalize after": partial(accurate, renormalize="after", weight_decay=0.2),
    "exact": partial(accurate, orthogonalizer=ExactPolar()),
    "rows": partial(accurate, matrix_view=(1, 3), weight_decay=0.2, renormalize="before"),
    "batch": partial(accurate, matrix_view="batch", renormalize="before"),
    "tensor lr": lambda params, **kw: accurate(params, lr=torch.tensor(0.1), weight_decay=0.2, **kw),
    "sgdm": partial(SGDM, lr=0.1, momentum=0.9, weight_decay=0.2, nesterov=True),
}
FOURS = ((4, 6), (4, 6), (4, 3, 3, 3), (4, 2))


def test_skip_leaves_its_parameter_as_if_the_step_had_not_been():
    for value, build in product(BAD, SKIPPING.values()):
        params, never = parameters(FOURS), parameters(FOURS)
        skipping, reference = build(params, nonfinite="skip"), build(never)
        for t, grads in enumerate(gradients(5, FOURS)):
            bad = {1: 0, 2: 2}.get(t)  # the second step is bad for one, the third for another
            weights, momenta = copies(params), buffers(skipping)
            step(skipping, grads if bad is None else with_bad_entry(grads, bad, value))
            step(reference, [None if i == bad else g for i, g in enumerate(grads)])
            assert same_bits(params, never)
            assert same_bits(buffers(skipping), buffers(reference))
            if bad is not None:
                assert same_bits([params[bad], buffers(skipping)[bad]], [weights[bad], momenta[bad]])
                assert not same_bits(params, weights)


def test_skip_with_finite_gradients_changes_no_bit():
    for build in SKIPPING.values():
        assert same_bits(run(partial(build, nonfinite="skip"), shapes=FOURS), run(build, shapes=FOURS))


# ---------------------------------------------------------------------------------------------- parameters on a device


@pytest.fixture
def _capability_by_index(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index - 100, 0))


ON_DEVICE = {
    **{name: build for name, build in SKIPPING.items() if name != "tensor lr"},
    "tensor lr": lambda params, **kw: accurate(params, lr=torch.tensor([0.1]), weight_decay=0.2, **kw),
    "paper": partial(Muon.paper, lr=0.1, momentum=0.9),
    **{
        f"prescale {p}": partial(accurate, orthogonalizer=NewtonSchulz(taylor(2), prescale=p))
        for p in ("schatten4", "schatten8", "spectral")
    },
}


@pytest.mark.usefixtures("_capability_by_index")
def test_a_step_on_a_device_reads_nothing_back_and_one_number_to_raise():
    for nonfinite, build in product(("propagate", "skip", "raise"), ON_DEVICE.values()):
        params, here = parameters(FOURS), parameters(FOURS)
        optimizer, reference = (build(p, nonfinite=nonfinite) for p in (params, here))
        for grads in gradients(2, FOURS):
            step(reference, grads)
            for p, g in zip(params, grads, strict=True):
                p.grad = g.clone()
            with OnDevice(), Reads() as reads:
                optimizer.step()
            assert reads.count == (nonfinite == "raise")
        for p, h in zip(params, here, strict=True):
            torch.testing.assert_close(p, h, rtol=1e-5, atol=1e-5)


def test_the_check_of_finiteness_takes_a_process_that_holds_only_empty_shards():
    param = Parameter(torch.empty(0, 6))
    group = {"nonfinite": "skip", "momentum": 0.9, "nesterov": False}
    piece = layout.Piece(param, group, "w", layout.LOCAL, param.detach(), param.detach(), param.detach())
    [checked] = check_finite([piece, piece][:1])
    assert bool(checked.finite)


@pytest.mark.usefixtures("_capability_by_index")
def test_skip_on_a_device_spares_the_bad_parameter_and_no_other():
    for build in SKIPPING.values():
        results = []
        for bad in (False, True):
            params = parameters(FOURS)
            optimizer = build(params, nonfinite="skip")
            grads = drawn(FOURS)
            for p, g in zip(params, with_bad_entry(grads, 0, math.nan) if bad else grads, strict=True):
                p.grad = g
            with OnDevice():
                optimizer.step()
            results.append([*params, *buffers(optimizer)])
        clean, skipped = results
        mine = (0, len(FOURS))
        assert same_bits([skipped[0]], parameters(FOURS)[:1])
        assert not skipped[len(FOURS)].any()
        assert same_bits(*([t for i, t in enumerate(r) if i not in mine] for r in (skipped, clean)))


@pytest.mark.usefixtures("_capability_by_index")
def test_on_a_device_the_matrices_of_a_shape_and_its_transpose_are_one_call_up_to_a_number_of_bytes(monkeypatch):
    stacks = []
    real = NewtonSchulz.into
    monkeypatch.setattr(NewtonSchulz, "into", lambda self, M, *rest: (stacks.append(M.shape), real(self, M, *rest))[1])
    shapes = ((4, 6), (6, 4), (6, 2, 2), (4, 3, 2), (4, 6), (6, 4), (6, 4))
    for chunk_bytes, counts in ((1 << 20, [7]), (3 * 24 * 4, [3, 3, 1]), (1, 7 * [1])):
        monkeypatch.setattr(layout, "DEVICE_CHUNK_BYTES", chunk_bytes)
        stacks.clear()
        params, here = parameters(shapes), parameters(shapes)
        optimizer, reference = (accurate(p, weight_decay=0.1) for p in (params, here))
        for grads in gradients(2, shapes):
            step(reference, grads)
            for p, g in zip(params, grads, strict=True):
                p.grad = g.clone()
            with OnDevice():
                optimizer.step()
        assert stacks == 2 * [(count, 4, 6) for count in counts]
        assert optimizer.orthogonalized == 7
        for p, h in zip(params, here, strict=True):
            torch.testing.assert_close(p, h, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_capability_by_index")
def test_float16_is_chosen_on_a_device_with_tensor_cores_and_nowhere_else():
    M = drawn([(6, 10)])[0]
    wide, double = FULL(M), FULL(M.double())
    errors = {}
    for capability in (6, 7, 8):
        with OnDevice(capability):
            O, wider, dtype = FULL(M), FULL(M.double()), FULL.dtype_for(M)
        assert O.dtype == torch.float32
        assert dtype == (torch.float32 if capability == 6 else torch.float16)
        torch.testing.assert_close(wider, double, rtol=1e-10, atol=1e-10)
        errors[capability] = float((O - wide).abs().max())
    assert errors[6] < 1e-5
    assert errors[7] == errors[8]
    assert 1e-4 < errors[8] < 0.02
    assert FULL.dtype_for(M) == FULL.dtype_for(M.to("meta")) == torch.float32


@pytest.mark.usefixtures("_capability_by_index")
def test_schedules_that_diverge_in_float16_stay_in_float32_and_sums_in_float16_bring_bfloat16(monkeypatch):
    M = drawn([(6, 10)])[0]
    raw = NewtonSchulz("polar_express", steps=7)  # without its safety factor it diverges just above 1
    with pytest.raises(ValueError, match="diverges"):
        NewtonSchulz("polar_express", steps=7, compute_dtype=torch.float16)
    with OnDevice(8):
        assert raw.dtype_for(M) == torch.float32
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_fp16_accumulation=True))
    for capability, dtype in ((7, torch.float32), (8, torch.bfloat16)):
        with OnDevice(capability):
            assert FULL.dtype_for(M) == dtype


def test_a_learning_rate_on_another_device_is_moved_to_that_of_the_weights():
    with FakeTensorMode(), OneDevice() as seen:  # of SGDM, whose decay and move are those of Muon
        p = Parameter(torch.ones(3, 4, device="cuda:1"))
        p.grad = torch.ones_like(p)
        SGDM([p], lr=torch.tensor(0.1, device="cuda:0"), momentum=0.9, weight_decay=0.1).step()
    assert {"_foreach_mul_.Tensor", "_foreach_add_.List"} <= seen.names


def test_a_step_works_on_meta_tensors_which_have_no_numbers_to_read():
    for nonfinite, build in product(("propagate", "skip"), ON_DEVICE.values()):
        params = [Parameter(p.to("meta")) for p in parameters(FOURS)]
        optimizer = build(params, nonfinite=nonfinite)
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
        assert all(optimizer.state[p]["momentum_buffer"].device.type == "meta" for p in params)


def test_the_counter_of_reads_sees_a_read():
    tensor = torch.ones(3)
    with OnDevice(), Reads() as reads:
        assert bool(tensor.any())
        assert float(tensor[0]) == 1
    assert reads.count == 2


# ----------------------------------------------------------------------------------------------------- counts, batches


def test_orthogonalized_counts_the_matrices_of_the_last_step():
    for shapes, options, without, count in [
        (SHAPES, {}, (), 4),
        (SHAPES, {}, (0, 3), 2),
        (SHAPES, {}, (0, 1, 2, 3), 0),
        ([(4, 3, 5), (2, 2, 4, 6), (3, 4)], {"matrix_view": "batch"}, (), 4 + 4 + 1),
        ([(4, 3, 5), (2, 2, 4, 6), (3, 4)], {"matrix_view": "batch"}, (1,), 4 + 1),
        ([(9, 4), (9, 2, 2)], {"matrix_view": (2, 3, 4)}, (), 6),
        ([(6, 4), (0, 4), (4, 0)], {}, (), 1),
        ([(6, 4), (6, 4)], {"nonfinite": "skip"}, (), 2),
    ]:
        params = parameters(shapes)
        optimizer = Muon(params, 0.1, momentum=0.9, **options)
        assert optimizer.orthogonalized == 0
        for _ in range(2):
            step(optimizer, [None if i in without else g for i, g in enumerate(drawn(shapes))])
            assert optimizer.orthogonalized == count


def test_parameters_without_gradients_keep_weight_and_state_decay_and_norm_included():
    params = parameters()
    optimizer = Muon(params, 0.1, momentum=0.9, weight_decay=0.5, renormalize="before")
    step(optimizer, drawn())
    weights, momenta = copies(params), buffers(optimizer)
    step(optimizer, [None, *drawn(seed=1)[1:]])
    assert same_bits([params[0], buffers(optimizer)[0]], [weights[0], momenta[0]])
    assert not any(torch.equal(p, w) for p, w in zip(params[1:], weights[1:], strict=True))


def test_a_matrix_gets_the_same_bits_among_others_of_its_shape_as_alone():
    for dtype in [torch.float16, torch.bfloat16, torch.float32, torch.float64]:
        for shape in ((16, 40), (33, 17), (1, 5), (5, 1), (7, 7)):
            shapes = [shape] * 5
            together = run(partial(Muon, lr=0.1, momentum=0.9), shapes=shapes, dtype=dtype)
            for i, p in enumerate(together):
                alone = [parameters(shapes, dtype)[i]]
                optimizer = Muon(alone, 0.1, momentum=0.9)
                for grads in gradients(3, shapes, dtype):
                    step(optimizer, [grads[i]])
                assert same_bits([p], alone)


PER_GROUP = {
    "lr": (0.1, 0.03),
    "momentum": (0.9, 0.5),
    "orthogonalizer": (NewtonSchulz(), ExactPolar()),
    "momentum_form": ("ema", "heavy_ball"),
    "nesterov": (True, False),
    "weight_decay": (0.0, 0.3),
    "scale": ("original", "match_rms_adamw"),
    "renormalize": (None, "after"),
    "matrix_view": ("flatten", (2, 2)),
    "maximize": (False, True),
    "nonfinite": ("propagate", "skip"),
    "capturable": (False, True),
}


def test_every_option_of_a_group_is_followed_as_by_an_optimizer_of_its_own():
    assert set(PER_GROUP) == set(Muon.checks)
    for option in [*PER_GROUP, "all"]:
        pairs = PER_GROUP if option == "all" else {option: PER_GROUP[option]}
        base = {"lr": 0.1, "momentum": 0.9, "orthogonalizer": NewtonSchulz(taylor(2), steps=5, prescale="paper")}
        settings = [{name: values[i] for name, values in pairs.items()} for i in (0, 1)]
        shapes = [(4, 6), (4, 6), (4, 2)]
        halves = [parameters(shapes), parameters(shapes)]
        apart = [parameters(shapes), parameters(shapes)]
        together = Muon([{"params": p, **s} for p, s in zip(halves, settings, strict=True)], **base)
        alone = [Muon(p, **{**base, **s}) for p, s in zip(apart, settings, strict=True)]
        for grads in gradients(3, shapes):
            step(together, grads * 2)
            for optimizer in alone:
                step(optimizer, grads)
        assert same_bits(halves[0] + halves[1], apart[0] + apart[1])
        assert same_bits(halves[0], halves[1]) == (option in ("nonfinite", "capturable"))


def test_equal_shapes_of_different_groups_share_a_batch_unless_orthogonalized_differently():
    halves = [parameters([(4, 6), (4, 6)]), parameters([(4, 6), (6, 4)])]
    optimizer = Muon([{"params": halves[0]}, {"params": halves[1], "lr": 0.5, "momentum": 0.3, "nesterov": False}])
    seen: list[tuple[Tensor, ...]] = []
    optimizer.register_orthogonalize_hook(lambda params, M, O: seen.append(params))  # noqa: ARG005
    grads = drawn([(4, 6), (4, 6), (4, 6), (6, 4)])
    step(optimizer, grads)
    assert [len(params) for params in seen] == [3, 1]
    assert all(a is b for a, b in zip(seen[0], [*halves[0], halves[1][0]], strict=True))
    seen.clear()
    optimizer.param_groups[1]["orthogonalizer"] = ExactPolar()
    step(optimizer, grads)
    assert [len(params) for params in seen] == [2, 1, 1]


def test_an_orthogonalizer_put_into_a_group_by_hand_works_from_the_next_step_and_becomes_plain():
    params, expected = parameters(), parameters()
    optimizer = Muon(params, 0.1, momentum=0.9)
    reference = Muon(expected, 0.1, momentum=0.9)
    for o in (optimizer, reference):
        step(o, drawn())
    optimizer.param_groups[0]["orthogonalizer"] = ExactPolar()
    exact = Muon(expected, 0.1, momentum=0.9, orthogonalizer=ExactPolar())
    exact.state = reference.state
    for o in (optimizer, exact):
        step(o, drawn(seed=1))
    assert same_bits(params, expected)
    assert optimizer.param_groups[0]["orthogonalizer"] == ExactPolar().plain() == ("exact_polar", "auto", None)


def test_a_bad_value_put_into_a_group_by_hand_is_refused_before_anything_changes():
    for option, value, message in [
        ("momentum", 1.5, r"momentum must be a finite number in \[0, 1\)"),
        ("scale", "rms", "scale must be one of 'none', 'original'"),
        ("orthogonalizer", "svd", "orthogonalizer must be a NewtonSchulz or an ExactPolar, got 'svd'"),
    ]:
        params = parameters()
        optimizer = Muon(params, 0.1, momentum=0.9)
        optimizer.param_groups[0][option] = value
        with pytest.raises((TypeError, ValueError), match=message):
            step(optimizer, drawn())
        assert same_bits(params, parameters())
        assert not any(M.any() for M in buffers(optimizer))


def test_a_vector_is_refused_at_construction_and_in_a_later_group():
    vector = Parameter(torch.zeros(3))
    message = r"Muon takes parameters of two or more dimensions, got bias of shape \(3,\): split_params\(model\) sends"
    with pytest.raises(ValueError, match=message):
        Muon([("bias", vector)])
    optimizer = Muon([("weight", parameters([(3, 4)])[0])])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [("bias", vector)]})
    assert len(optimizer.param_groups) == 1
    assert vector not in optimizer.state
    step(optimizer, drawn([(3, 4)]))


def test_a_step_needs_no_process_group(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process group was asked for")

    for name in ("get_world_size", "get_rank", "all_gather", "all_reduce"):
        monkeypatch.setattr(torch.distributed, name, refuse)
    params = run(partial(Muon, lr=0.1, momentum=0.9))
    assert not same_bits(params, parameters())


# ------------------------------------------------------------------------------------------------------------- hooks


def test_a_hook_sees_parameters_matrices_and_results_aligned():
    for (form, nesterov), (shapes, view, each) in product(
        FORMS,
        (
            ([(4, 6), (4, 6)], "flatten", lambda t: [t]),
            ([(4, 3, 2), (4, 3, 2)], "flatten", lambda t: [t.reshape(4, 6)]),
            ([(3, 4, 6), (3, 4, 6)], "batch", list),
            ([(8, 6), (8, 3, 2)], (4, 4), lambda t: list(t.reshape(2, 4, 6))),
        ),
    ):
        mu = 0.75
        params = parameters(shapes)
        optimizer = Muon(params, 0.1, momentum=mu, momentum_form=form, nesterov=nesterov, matrix_view=view)
        step(optimizer, drawn(shapes, seed=5))
        calls: list[tuple[tuple[Tensor, ...], Tensor, Tensor]] = []
        optimizer.register_orthogonalize_hook(lambda *call, calls=calls: calls.append(call))
        grads, before = drawn(shapes, seed=6), copies(params)
        step(optimizer, grads)
        ((owners, M, O),) = calls
        count = sum(len(each(p)) for p in params)
        assert len(owners) == len(M) == len(O) == count == optimizer.orthogonalized
        assert M.shape == O.shape == (count, 4, 6)
        share = 1 - mu if form == "ema" else 1.0
        orthogonalize = from_plain(optimizer.param_groups[0]["orthogonalizer"])
        at = 0
        for p, g, m, w in zip(params, grads, buffers(optimizer), before, strict=True):
            direction = share * g + mu * m if nesterov else m
            for D, change in zip(each(direction), each(w - p.detach()), strict=True):
                assert owners[at] is p
                torch.testing.assert_close(M[at], D, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(0.1 * O[at], change, rtol=1e-4, atol=1e-6)
                assert torch.equal(O[at], orthogonalize(M[at]))
                at += 1
        assert at == count


def test_what_a_hook_writes_changes_nothing():
    for view, nesterov in product(("flatten", "batch", (2, 2)), (False, True)):
        shapes = [(4, 6), (4, 6), (4, 2, 3)]
        results = []
        for writes in (False, True):
            params = parameters(shapes)
            optimizer = Muon(params, 0.1, momentum=0.9, matrix_view=view, nesterov=nesterov)
            if writes:
                optimizer.register_orthogonalize_hook(lambda _, M, O: (M.fill_(math.nan), O.fill_(math.nan)))
            for grads in gradients(3, shapes):
                step(optimizer, grads)
            results.append([*copies(params), *buffers(optimizer)])
        assert same_bits(*results)


def test_a_hook_is_called_before_the_weights_of_its_batch_change_and_not_after_its_removal():
    params = parameters()
    optimizer = Muon(params, 0.1, momentum=0.9)
    changed: list[bool] = []
    before = {p: p.detach().clone() for p in params}

    def hook(owners, M, O):  # noqa: ARG001
        changed.extend(not torch.equal(p, before[p]) for p in owners)

    handle = optimizer.register_orthogonalize_hook(hook)
    step(optimizer, drawn())
    assert changed == [False] * len(params)
    assert not any(torch.equal(p, w) for p, w in before.items())
    handle.remove()
    step(optimizer, drawn(seed=1))
    assert len(changed) == len(params)


def test_hooks_are_called_in_order_and_may_remove_themselves_while_they_are_called():
    optimizer = Muon(parameters([(4, 6)]), 0.1, momentum=0.9)
    calls: list[str] = []

    def once(*_):
        calls.append("once")
        handle.remove()

    handle = optimizer.register_orthogonalize_hook(once)
    optimizer.register_orthogonalize_hook(lambda *_: calls.append("always"))
    for seed in range(2):
        step(optimizer, drawn([(4, 6)], seed=seed))
    assert calls == ["once", "always", "always"]


# ------------------------------------------------------------------------------------- momenta that leave their range


def test_skip_and_raise_notice_finite_gradients_that_would_overflow_the_momentum():
    for (dtype, size), nesterov in product(((torch.float16, 5e3), (torch.float32, 5e37)), (False, True)):
        for build in (partial(Muon, momentum_form="heavy_ball", nesterov=nesterov), partial(SGDM, nesterov=nesterov)):
            p = Parameter(torch.ones(4, 4, dtype=dtype))
            optimizer = build([p], lr=1e-8 if build.func is Muon else 0.0, momentum=0.95, nonfinite="skip")
            for _ in range(60):
                p.grad = torch.full_like(p, size)
                optimizer.step()
            buffer = optimizer.state[p]["momentum_buffer"]
            assert bool(torch.isfinite(p).all())
            assert bool(torch.isfinite(buffer).all())
            assert float(buffer.max()) > 2 * size  # it had moved before it was stopped
            optimizer.param_groups[0]["nonfinite"] = "raise"
            p.grad = torch.full_like(p, 0.99 * torch.finfo(dtype).max)
            with pytest.raises(
                ValueError, match=r"keep momenta finite .*got NaN or infinity for parameter 0 of its group"
            ):
                optimizer.step()


def test_an_average_that_cannot_overflow_is_not_skipped():
    p = Parameter(torch.ones(4, 4, dtype=torch.float16))
    optimizer = Muon([p], 0.1, momentum=0.95, nonfinite="raise")
    for _ in range(60):
        p.grad = torch.full_like(p, 6e4)
        optimizer.step()
    assert bool(torch.isfinite(optimizer.state[p]["momentum_buffer"]).all())


# ----------------------------------------------------------------------------------- what wrappers do to an optimizer


def test_a_parameter_that_is_swapped_in_by_hand_starts_from_zero_momentum():
    first, second = parameters(((4, 6),)), parameters(((4, 6),))
    swapped, plain = Muon(first, 0.1, momentum=0.9), Muon(parameters(((4, 6),)), 0.1, momentum=0.9)
    swapped.param_groups[0]["params"] = second
    for optimizer in (swapped, plain):
        step(optimizer, drawn(((4, 6),)))
    assert same_bits(second, plain.param_groups[0]["params"])


def test_gradients_of_another_dtype_are_followed_in_that_of_the_momentum():
    p, twin = (Parameter(torch.ones(4, 6, dtype=torch.bfloat16)) for _ in range(2))
    g = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    p.grad_dtype = torch.float32
    p.grad, twin.grad = g, g.bfloat16()
    for q in (p, twin):
        Muon([q], 0.1, momentum=0.9).step()
    assert torch.equal(p, twin)


def test_a_group_with_learning_rate_zero_is_not_even_renormalized():
    p = Parameter(torch.ones(4, 6))
    optimizer = Muon.airbench([p], lr=0.0)
    p.grad = torch.ones(4, 6)
    optimizer.step()
    assert torch.equal(p, torch.ones(4, 6))
