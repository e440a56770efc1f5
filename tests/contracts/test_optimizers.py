"""What every optimizer must do: refuse what is wrong, go the right way, and touch nothing else.

The properties are those of PyTorch's TestOptimRenewed that exist on a CPU, and more; wrong optimizers at the end show
that the checks can fail. State dictionaries, copies and hooks are in test_optimizer_state.py.
"""

from __future__ import annotations

import math
import re
from copy import deepcopy
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from muonlab.optim import SGDM, optimizers
from muonlab.optim.registry import register
from muonlab.optim.saved_state import BUFFER
from tests.contracts.optimizer_cases import (
    BAD_OPTIONS,
    LAYOUTS,
    LR,
    MATRICES,
    MOMENTUM,
    SCHEDULES,
    Case,
    SGDMWithUpdate,
    broken,
    close_weights,
    descend,
    every_momentum_optimizer,
    every_optimizer,
    frozen,
    gradients,
    laid_out,
    loss_of,
    parameters,
    refused,
    run,
    same,
    same_weights,
    trained,
)


def test_every_registered_recipe_names_its_source_descends_and_goes_on_from_its_state_in_every_bit():
    assert set(optimizers()) > {"muon", "muon.paper", "muon.torch", "sgdm"}
    for name, entry in optimizers().items():
        case = Case(name, entry.build, entry.any_shape)
        assert (entry.name, len(entry.source.strip()) >= 10) == (name, True)
        with pytest.raises(ValueError, match=rf"an optimizer named '{name}' is registered already: choose another"):
            register(name, SGDM, source="a test that tries to take the name")
        params = parameters(case)
        optimizer = case.build(params.values())
        losses = descend(params, optimizer, steps=12)
        assert losses[-1] < 0.8 * losses[0], name
        twin = {key: Parameter(p.detach().clone()) for key, p in params.items()}
        other = case.build(twin.values(), lr=0.5, momentum=0.1)
        other.load_state_dict(deepcopy(optimizer.state_dict()))
        assert same(other.state_dict(), optimizer.state_dict()), name
        for ps, o in ((params, optimizer), (twin, other)):
            run(o, ps, range(3))
        assert same_weights(params, twin), name


# ------------------------------------------------------------------------------------- parameters that are refused


def matrix(**options):
    return Parameter(torch.ones(4, 3, **options))


def twice_in_groups():
    p = matrix()
    return [{"params": [p]}, {"params": [matrix(), p]}]


WHOLE = torch.ones(4, 3, dtype=torch.int64)
DENSE = r"must be dense tensors of float16, bfloat16, float32 or float64, got "
BAD_PARAMETERS = {
    "none": (list, ValueError, r"an optimizer needs parameters, got none: if split_params found no hidden matrix"),
    "a model": (
        lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)),
        TypeError,
        r"params must be parameters or groups of parameters, got Sequential.*pass split_params\(model\)\.matrices",
    ),
    "nothing": (
        lambda: None,
        TypeError,
        r"must be parameters or groups of parameters, got NoneType: pass",
    ),
    "twice": (lambda: [matrix()] * 2, ValueError, r"must be given once, got one of shape \(4, 3\) twice"),
    "twice in a group": (lambda: [{"params": [("w", p := matrix()), ("v", p)]}], ValueError, r"must be given once"),
    "too few names": (
        lambda: [{"params": [matrix(), matrix()], "param_names": ["w"]}],
        ValueError,
        r"a name for each parameter, got 1 names for 2 parameters: pass \(name, parameter\) pairs",
    ),
    "sparse": (
        lambda: [Parameter(matrix().detach().to_sparse())],
        TypeError,
        DENSE + r".* of layout torch\.sparse_coo",
    ),
    "8 bits": (
        lambda: [Parameter(torch.zeros(4, 3, dtype=torch.float8_e4m3fn), requires_grad=False)],
        TypeError,
        DENSE + r".* of torch\.float8_e4m3fn",
    ),
    "a tensor": (matrix, TypeError, r"should be an iterable of Tensors or dicts, but got torch\.FloatTensor"),
    "a number": (lambda: [1.0], TypeError, r"can only optimize Tensors, but one of the params is float"),
    "a set": (lambda: [{"params": {matrix()}}], TypeError, r"ordered collections.*use a list instead"),
    "not a leaf": (lambda: [matrix() * 2], ValueError, r"can't optimize a non-leaf Tensor"),
    "in two groups": (twice_in_groups, ValueError, r"some parameters appear in more than one parameter group"),
    "half with names": (lambda: [("w", matrix()), matrix()], ValueError, r"Some param names are missing"),
    "groups half with names": (
        lambda: [{"params": [matrix()]}, {"params": [("w", matrix())]}],
        ValueError,
        r"cannot add param group with names to the optimizer",
    ),
    "integers": (
        lambda: [Parameter(WHOLE, requires_grad=False)],
        TypeError,
        DENSE + r"parameter 0 of its group of torch\.int64: give it to",
    ),
    "booleans": (
        lambda: [("mask", Parameter(WHOLE.bool(), requires_grad=False))],
        TypeError,
        DENSE + r"mask of torch\.bool: give it to",
    ),
    "complex": (
        lambda: [("waves", matrix(dtype=torch.complex64))],
        TypeError,
        DENSE + r"waves of torch\.complex64: give it to",
    ),
}


@every_momentum_optimizer
def test_parameters_that_cannot_be_optimized_are_refused(case):
    for make, error, message in BAD_PARAMETERS.values():
        with pytest.raises(error, match=message):
            case.construct(make(), lr=LR, momentum=MOMENTUM)


# ------------------------------------------------------------------------------------------ options that are refused


@every_momentum_optimizer
def test_a_bad_option_is_refused_wherever_it_is_given(case):
    for option, value in BAD_OPTIONS:
        with refused(option, value):
            case.build([matrix()], **{option: value})
        optimizer = case.build([matrix()])
        with refused(option, value):
            optimizer.add_param_group({"params": [matrix()], option: value})
        optimizer.param_groups[0][option] = value
        with refused(option, value):
            optimizer.step()


@every_momentum_optimizer
def test_a_tensor_learning_rate_must_hold_one_real_number(case):
    for wrong in [torch.ones(2), torch.ones(0), torch.tensor(1), torch.tensor(True)]:
        message = (
            rf"^Tensor lr must be 1-element and floating-point, got shape {re.escape(str(tuple(wrong.shape)))} of "
        )
        with pytest.raises(ValueError, match=message + r".*: pass torch\.tensor\(0\.02\)"):
            case.build([matrix()], lr=wrong)
        with pytest.raises(ValueError, match=message):
            case.construct(None, lr=wrong, momentum=0.9)  # the learning rate is checked first, as in torch
        for value in (-1.0, math.nan, math.inf):
            with pytest.raises(
                ValueError, match=r"^lr must be a finite number in \[0, 1e\+30\], got .*: choose a value"
            ):
                case.build([matrix()], lr=torch.tensor(value))


@every_momentum_optimizer
def test_a_misspelt_option_is_refused_and_a_key_of_the_users_own_is_kept(case):
    for typo, near in {
        "momentun": "momentum",
        "weight_decy": "weight_decay",
        "maximise": "maximize",
        "wd": "weight_decay",
        "Lr": "lr",
        "learning_rate": "lr",
    }.items():
        optimizer = case.build([matrix()], tag="first", depth=3)
        for attempt in (
            lambda typo: case.build([matrix()], **{typo: 0.5}),
            lambda typo, optimizer=optimizer: optimizer.add_param_group({"params": [matrix()], typo: 0.5}),
        ):
            with pytest.raises(ValueError, match=rf"a parameter group has no option '{typo}': did you mean '{near}'\?"):
                attempt(typo)
        assert (optimizer.param_groups[0]["tag"], optimizer.param_groups[0]["depth"]) == ("first", 3)


# ------------------------------------------------------------------------------------------------ groups added later

BAD_GROUPS = {
    "a known parameter": lambda known: {"params": [matrix(), known]},
    "integers": lambda _: {"params": [matrix(), Parameter(WHOLE, requires_grad=False)]},
    "complex": lambda _: {"params": [matrix(), matrix(dtype=torch.complex64)]},
    "not a leaf": lambda _: {"params": [matrix(), matrix() * 2]},
    "a bad option": lambda _: {"params": [matrix()], "momentum": 2.0},
    "a misspelt option": lambda _: {"params": [matrix()], "momentun": 0.5},
    "names": lambda _: {"params": [("w", matrix())]},
    "no parameters named": lambda _: {"lr": 0.1},
    "not a group": lambda _: [matrix()],
    "a lazy parameter": lambda _: {"params": [matrix(), nn.UninitializedParameter()]},
}


@every_momentum_optimizer
def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was(case):
    for bad_group in BAD_GROUPS.values():
        params, optimizer = trained(case)
        before, groups, known = frozen(params, optimizer), list(map(id, optimizer.param_groups)), set(optimizer.state)
        with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)):
            optimizer.add_param_group(bad_group(params["wide"]))
        assert list(map(id, optimizer.param_groups)) == groups
        assert set(optimizer.state) == known
        assert same(frozen(params, optimizer), before)


@every_momentum_optimizer
def test_a_group_added_later_steps_like_one_given_at_construction(case):
    paths = []
    for later in (False, True):
        params = parameters(case)
        first, second = {"params": [params["square"]]}, {"params": [params["wide"]], "lr": 0.02, "momentum": 0.5}
        optimizer = case.construct([first] if later else [first, second], lr=LR, momentum=MOMENTUM)
        if later:
            optimizer.add_param_group(second)
        run(optimizer, params, range(3))
        paths.append(frozen(params, optimizer))
    assert same(*paths)


# ------------------------------------------------------------------------------------------------ the right direction


@every_optimizer
def test_the_loss_falls_whatever_the_strides(case):
    for layout in LAYOUTS:
        params = laid_out(parameters(case), layout)
        strides = {name: p.stride() for name, p in params.items()}
        losses = descend(params, case.build(params.values()), steps=12)
        assert losses[-1] < 0.8 * losses[0]
        assert {name: p.stride() for name, p in params.items()} == strides


@every_optimizer
def test_the_loss_falls_under_every_schedule(case):
    for schedule, lr in product(SCHEDULES, (LR, torch.tensor(LR))):
        params = parameters(case)
        optimizer = case.build(params.values(), lr=lr if lr is LR else lr.clone())
        losses = descend(params, optimizer, SCHEDULES[schedule](optimizer), steps=7)
        assert losses[-1] < 0.95 * losses[0], schedule


@every_optimizer
def test_a_schedule_moves_the_learning_rate_of_each_group_by_the_same_factor(case):
    for schedule in SCHEDULES:
        params = list(parameters(case).items())
        named = [{"params": params[:2]}, {"params": params[2:], "lr": LR / 10}]
        optimizer = case.construct(named, lr=LR, momentum=MOMENTUM)
        started = [group["lr"] for group in optimizer.param_groups]
        losses = descend(dict(params), optimizer, SCHEDULES[schedule](optimizer), steps=6)
        assert losses[-1] < losses[0]
        if "Cycl" not in schedule:  # these two take rates, not factors
            now = [group["lr"] for group in optimizer.param_groups]
            assert now[0] != started[0] or schedule == "warm-up"
            assert [b / a for a, b in zip(started, now, strict=True)] == pytest.approx([now[0] / started[0]] * len(now))


@every_optimizer
def test_strides_do_not_change_the_result(case):
    plain = trained(case, weight_decay=0.1)[0]
    for layout, of_gradient in product(LAYOUTS, ("contiguous", "transposed", "every other entry")):
        strided = laid_out(parameters(case), layout)
        optimizer = case.build(strided.values(), weight_decay=0.1)
        for step in range(3):
            for name, g in gradients(strided, step).items():
                strided[name].grad = LAYOUTS[of_gradient](g)
            optimizer.step()
        assert close_weights(strided, plain), (layout, of_gradient)


@every_optimizer
def test_maximize_climbs_and_is_descent_along_the_negative_gradient(case):
    up, down = parameters(case), parameters(case)
    optimizer, mirror = case.build(up.values(), maximize=True), case.build(down.values())
    first = loss_of(up).item()
    for _ in range(4):
        for params, opt, sign in ((up, optimizer, 1), (down, mirror, -1)):
            opt.zero_grad()
            (sign * loss_of(params)).backward()
            opt.step()
    assert loss_of(up).item() > first
    assert close_weights(up, down)


@every_optimizer
def test_a_closure_is_evaluated_once_with_gradients_and_its_value_comes_back(case):
    params, twin = parameters(case), parameters(case)
    optimizer, other, calls = case.build(params.values()), case.build(twin.values()), []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        calls.append(loss)
        return loss

    losses = descend(twin, other, steps=3)
    for expected in losses[:3]:
        assert optimizer.step(closure) is calls[-1]
        assert calls[-1].item() == expected
    assert len(calls) == 3
    assert optimizer.step() is None
    with torch.no_grad():
        optimizer.step(closure)
    other.step()
    descend(twin, other, steps=1)
    assert same_weights(params, twin)


# --------------------------------------------------------------------------------------------------- groups and rates


@every_optimizer
def test_each_group_follows_its_own_options(case):
    params = parameters(case)
    second = {"lr": 0.01, "weight_decay": 0.5}
    order = list(params.values())
    optimizer = case.construct(
        [{"params": order[::2], "weight_decay": 0.0}, {"params": order[1::2], **second}], lr=LR, momentum=MOMENTUM
    )
    run(optimizer, params, range(3))
    alone = [parameters(case), parameters(case)]
    run(case.build(alone[0].values()), alone[0], range(3))
    run(case.build(alone[1].values(), **second), alone[1], range(3))
    expected = {name: alone[i % 2][name] for i, name in enumerate(params)}
    assert same_weights(params, expected)
    assert not any(torch.equal(alone[0][name], alone[1][name]) for name in params)


@every_optimizer
def test_a_group_with_learning_rate_zero_rests_while_its_momentum_moves(case):
    params = parameters(case)
    still, moving = {"square": params["square"], "conv": params["conv"]}, {"wide": params["wide"]}
    rest = [p for name, p in params.items() if name not in still | moving]
    optimizer = case.construct(
        [{"params": list(still.values()), "lr": 0.0, "weight_decay": 0.5}, {"params": [params["wide"], *rest]}],
        lr=LR,
        momentum=MOMENTUM,
    )
    expected, before = {name: p.detach().clone() for name, p in still.items()}, params["wide"].detach().clone()
    run(optimizer, params, range(3))
    assert same_weights(still, expected)
    assert not torch.equal(params["wide"], before)
    assert optimizer.state[params["square"]][BUFFER].norm() > 0


@every_optimizer
def test_weight_decay_shrinks_a_weight_whose_gradient_is_zero(case):
    params = parameters(case)
    optimizer = case.build(params.values(), weight_decay=0.5)
    expected = {name: p * (1 - LR * 0.5) for name, p in params.items()}
    for p in params.values():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert close_weights(params, expected)


@every_optimizer
def test_a_tensor_learning_rate_steps_like_the_number_it_holds(case):
    for shape in [(), (1,), (1, 1)]:
        for dtype in [torch.float32, torch.float64]:
            rate = torch.full(shape, 0.03, dtype=dtype)
            results = []
            for lr in (rate, float(rate)):
                params, optimizer = trained(case, lr=lr, weight_decay=0.1)
                results.append(params)
            assert same_weights(*results)
            assert same(rate, torch.full(shape, 0.03, dtype=dtype))
            assert torch.is_tensor(case.build(parameters(case).values(), lr=rate).param_groups[0]["lr"])
            assert not torch.is_tensor(optimizer.param_groups[0]["lr"])


# ------------------------------------------------------------------------------------------------------ what is inert


@every_optimizer
def test_a_step_without_gradients_changes_nothing(case):
    for steps in (0, 3):
        params, optimizer = trained(case, steps, weight_decay=0.5)
        optimizer.zero_grad()
        before = frozen(params, optimizer)
        optimizer.step()
        assert optimizer.step(lambda: 1.5) == 1.5
        assert same(frozen(params, optimizer), before)


@every_optimizer
def test_a_parameter_without_gradient_is_inert_beside_others_that_move(case):
    params, optimizer = trained(case, weight_decay=0.5)
    states = {name: optimizer.state[p] for name, p in params.items()}
    before = frozen(params, optimizer)[0]
    held = {name: {key: torch.as_tensor(v).clone() for key, v in state.items()} for name, state in states.items()}
    optimizer.zero_grad()
    params["wide"].grad = torch.ones_like(params["wide"])
    optimizer.step()
    for name, p in params.items():
        untouched = same(p.detach(), before[name]) and same(dict(states[name]), held[name])
        assert untouched == (name != "wide")


@every_optimizer
def test_zero_gradients_without_decay_leave_the_weights_at_rest(case):
    params = parameters(case)
    optimizer = case.build(params.values())
    for _ in range(3):
        for p in params.values():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert same_weights(params, parameters(case))
    assert all(not optimizer.state[params[name]][BUFFER].any() for name in MATRICES)


@every_optimizer
def test_gradients_are_never_modified(case):
    params = parameters(case)
    optimizer = case.build(params.values(), weight_decay=0.1)
    for step in range(3):
        given = gradients(params, step)
        for name, p in params.items():
            p.grad = given[name]
        before = {name: g.clone() for name, g in given.items()}
        optimizer.step()
        assert same_weights(given, before)
        assert all(params[name].grad is g for name, g in given.items())


@every_optimizer
def test_state_shares_no_memory_with_gradients_or_weights(case):
    for dtype in [torch.float32, torch.bfloat16]:
        for nesterov in [True, False]:
            params = parameters(case, dtype=dtype)
            optimizer = case.build(params.values(), momentum=0.0, nesterov=nesterov)
            for step in range(2):
                run(optimizer, params, [step])
                state = {
                    x.data_ptr() for p in params.values() for x in optimizer.state[p].values() if torch.is_tensor(x)
                }
                others = [x.data_ptr() for p in params.values() for x in (p, p.grad)]
                assert len(state) >= len(MATRICES)
                assert state.isdisjoint(others)


@every_optimizer
def test_parameters_and_state_stay_where_they_are_in_memory(case):
    params = parameters(case)
    optimizer = case.build(params.values(), weight_decay=0.1)
    run(optimizer, params, [0])  # torch's own make their state in the first step

    def places():
        held = [x for p in params.values() for x in optimizer.state[p].values() if torch.is_tensor(x)]
        return [(x.data_ptr(), x.stride(), x.dtype) for x in (*params.values(), *held)]

    before, versions = places(), [p._version for p in params.values()]
    run(optimizer, params, range(1, 3))
    assert places() == before
    assert all(p._version > v for p, v in zip(params.values(), versions, strict=True))


@every_momentum_optimizer
def test_a_sparse_gradient_is_refused_by_name_before_anything_changes(case):
    params = parameters(case)
    optimizer = case.build(params.items())
    run(optimizer, params, range(2))
    params["tall"].grad = params["tall"].grad.to_sparse()
    before = frozen(params, optimizer)
    with pytest.raises(
        RuntimeError, match=r"must be dense, got one of layout torch\.sparse_coo for tall: use sparse=F"
    ):
        optimizer.step()
    assert same(frozen(params, optimizer), before)


# ------------------------------------------------------------------------------------------------- where a step runs


@every_optimizer
def test_two_runs_agree_in_every_bit(case):
    results = []
    for _ in range(2):
        params = parameters(case)
        optimizer = case.build(params.values(), weight_decay=0.1)
        descend(params, optimizer, steps=5)
        results.append(frozen(params, optimizer))
    assert same(*results)


@every_optimizer
def test_autocast_and_the_grad_mode_around_a_step_change_no_bit(case):
    outside, twin = trained(case, weight_decay=0.1)
    contexts = [torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.float16), torch.enable_grad()]
    for context in [*contexts, *([] if case.joint else [torch.inference_mode()])]:
        params = parameters(case)
        optimizer = case.build(params.values(), weight_decay=0.1)
        with context:
            run(optimizer, params, range(2))
        run(optimizer, params, [2])
        assert same_weights(params, outside)
        assert case.joint or same(optimizer.state_dict(), twin.state_dict())


@every_optimizer
def test_the_default_dtype_changes_no_bit(case):
    for default in [torch.float64, torch.bfloat16]:
        expected = trained(case, weight_decay=0.1)[0]
        torch.set_default_dtype(default)
        try:
            params = trained(case, weight_decay=0.1)[0]
        finally:
            torch.set_default_dtype(torch.float32)
        assert same_weights(params, expected)


@every_optimizer
def test_gradients_with_a_graph_are_followed_without_joining_it(case):
    results = []
    for graph in (True, False):
        params = parameters(case)
        optimizer = case.build(params.values())
        for _ in range(2):
            loss = (loss_of(params) ** 2).sum()
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=graph)
            for p, g in zip(params.values(), grads, strict=True):
                p.grad = g
            assert all((p.grad.grad_fn is not None) == graph for p in params.values())
            optimizer.step()
        assert all(p.is_leaf and p.grad_fn is None for p in params.values())
        state = [x for p in params.values() for x in optimizer.state[p].values() if torch.is_tensor(x)]
        assert not any(x.requires_grad for x in state)
        results.append(params)
    assert same_weights(*results)


@every_optimizer
def test_dtypes_can_be_mixed_in_one_group(case):
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    sets = {dtype: {f"{name} {dtype}": p for name, p in parameters(case, dtype=dtype).items()} for dtype in dtypes}
    mixed = {name: p for params in sets.values() for name, p in params.items()}
    optimizer = case.build(mixed.values(), weight_decay=0.1)
    for step in range(3):
        for params in sets.values():
            for name, g in gradients(params, step).items():
                params[name].grad = g
        optimizer.step()
    for dtype, params in sets.items():
        alone = {f"{name} {dtype}": p for name, p in parameters(case, dtype=dtype).items()}
        run(case.build(alone.values(), weight_decay=0.1), alone, range(3))
        assert same_weights(params, alone)


@every_optimizer
def test_a_scaled_step_is_taken_if_finite_and_skipped_whole_if_not(case):
    params, twin = parameters(case), parameters(case)
    optimizer, other = case.build(params.values(), weight_decay=0.1), case.build(twin.values(), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # a power of two: unscaling is exact

    def scaled_step(spoil):
        optimizer.zero_grad()
        scaler.scale(loss_of(params)).backward()
        if spoil is not None:
            params["wide"].grad[2, 3] = spoil
        scaler.step(optimizer)
        scaler.update()

    for spoil in (None, math.inf, None, math.nan, None):
        before = frozen(params, optimizer)
        scaled_step(spoil)
        assert same(frozen(params, optimizer), before) == (spoil is not None)
    assert scaler.get_scale() == 256.0
    descend(twin, other, steps=3)
    assert same_weights(params, twin)


# ------------------------------------------------------------------------------------------- the checks have teeth


class ScribblesOnGradients(SGDMWithUpdate):
    def _update(self, params):
        for p in params:
            p.param.grad.mul_(2)
        super()._update(params)


class KeepsTheGradient(SGDMWithUpdate):
    def _update(self, params):
        super()._update(params)
        for p in params:
            self.state[p.param][BUFFER] = p.param.grad


class ReplacesWeights(SGDMWithUpdate):
    def _update(self, params):
        super()._update(params)
        for p in params:
            p.param.data = p.param.detach().clone()


class DecaysAll(SGDM):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
        return super().step(closure)


class OneRateForAll(SGDMWithUpdate):
    def _update(self, params):
        for group in self.param_groups[1:]:
            group.update({key: self.param_groups[0][key] for key in ("lr", "weight_decay")})
        super()._update(params)


class Noisy(SGDMWithUpdate):
    def _update(self, params):
        super()._update(params)
        for p in params:
            p.param.add_(torch.randn_like(p.param), alpha=1e-6)


class InBfloat16(SGDMWithUpdate):
    def _update(self, params):
        super()._update(params)
        for p in (p.param for p in params if p.param.ndim == 2):
            p.copy_(p @ torch.eye(p.shape[1], dtype=p.dtype))


class ByMemoryOrder(SGDMWithUpdate):
    def _update(self, params):
        for p in (p.param for p in params):
            p.add_(p.grad.as_strided(p.shape, p.detach().contiguous().stride()), alpha=-0.01)


class AnyMomentum(SGDM):
    checks = {name: check for name, check in SGDM.checks.items() if name != "momentum"}  # noqa: RUF012


class Climbs(SGDMWithUpdate):
    def _update(self, params):
        for group in self.param_groups:
            group["maximize"] = True
        super()._update(params)


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (ScribblesOnGradients, test_gradients_are_never_modified),
        (KeepsTheGradient, test_state_shares_no_memory_with_gradients_or_weights),
        (ReplacesWeights, test_parameters_and_state_stay_where_they_are_in_memory),
        (DecaysAll, test_a_step_without_gradients_changes_nothing),
        (DecaysAll, test_a_parameter_without_gradient_is_inert_beside_others_that_move),
        (OneRateForAll, test_each_group_follows_its_own_options),
        (OneRateForAll, test_a_group_with_learning_rate_zero_rests_while_its_momentum_moves),
        (Noisy, test_two_runs_agree_in_every_bit),
        (Noisy, test_zero_gradients_without_decay_leave_the_weights_at_rest),
        (InBfloat16, test_autocast_and_the_grad_mode_around_a_step_change_no_bit),
        (ByMemoryOrder, test_strides_do_not_change_the_result),
        (Climbs, test_the_loss_falls_whatever_the_strides),
        (Climbs, test_maximize_climbs_and_is_descent_along_the_negative_gradient),
        (AnyMomentum, test_a_bad_option_is_refused_wherever_it_is_given),
    ],
)
def test_a_wrong_optimizer_is_found_out(wrong, check):
    check(broken(SGDM))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(broken(wrong))
