"""What every optimizer must do with its state: show, save, load and copy it, with hooks around."""

from __future__ import annotations

import io
import json
import math
import pickle
from copy import copy, deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from muonlab.optim import SGDM
from muonlab.optim.saved_state import BUFFER
from tests.contracts.optimizer_cases import (
    BAD_OPTIONS,
    LAYOUTS,
    LR,
    MATRICES,
    MOMENTUM,
    SCHEDULES,
    SGDMWithUpdate,
    broken,
    descend,
    every_momentum_optimizer,
    every_optimizer,
    frozen,
    laid_out,
    parameters,
    refused,
    run,
    same,
    same_weights,
    trained,
)

# -------------------------------------------------------------------------------------------------- what there is


@every_optimizer
def test_state_is_there_from_the_start_zero_and_like_its_parameter(case):
    for layout, dtype in product(LAYOUTS, (torch.float32, torch.float64, torch.bfloat16)):
        params = laid_out(parameters(case, dtype=dtype), layout)
        optimizer = case.build(params.values())
        for name in params if not case.joint else MATRICES:  # the rest is torch's, made in the first step
            p, state = params[name], optimizer.state[params[name]]
            assert list(state) == [BUFFER]
            assert not state[BUFFER].any()
            assert (state[BUFFER].shape, state[BUFFER].dtype, state[BUFFER].device) == (p.shape, p.dtype, p.device)
            assert state[BUFFER].stride() == torch.empty_like(p).stride()
            assert state[BUFFER].is_leaf
            assert not state[BUFFER].requires_grad


@every_optimizer
def test_every_parameter_that_stepped_has_state(case):
    params, optimizer = trained(case, 1)
    assert set(optimizer.state) == set(params.values())
    assert all(any(x.any() for x in optimizer.state[p].values()) for p in params.values())


@every_optimizer
def test_it_prints_every_option_of_every_group(case):
    params = list(parameters(case).values())
    optimizer = case.construct([{"params": params[:1]}, {"params": params[1:], "lr": 0.25}], lr=LR, momentum=MOMENTUM)
    text = repr(optimizer)
    assert f"{optimizer}" == str(optimizer) == text
    assert text.startswith(f"{type(optimizer).__name__} (" if not case.joint else "MuonWithAux(\nmuon = Muon (")
    for group in optimizer.param_groups:
        assert all(f"    {key}: {value}\n" in text for key, value in group.items() if key != "params")
    assert "Parameter Group 1\n" in text
    assert "lr: 0.05\n" in text
    assert "lr: 0.25\n" in text


def is_plain(value):
    if type(value) in (tuple, list):
        return all(map(is_plain, value))
    return type(value) in (int, float, str, bool, type(None))


@every_optimizer
def test_groups_hold_plain_values_whatever_they_were_given_as(case):
    given = {"lr": np.float64(0.05), "weight_decay": torch.tensor(0.5), "tag": ("a", 1)}
    for options in ({}, given, {"momentum": np.float32(0.5)}):
        _, optimizer = trained(case, 1, **options)
        groups = optimizer.state_dict()["param_groups"]
        assert all(is_plain(value) for group in groups[:1] for value in group.values())
        assert all(is_plain(group["params"]) for group in groups)
    assert not is_plain(torch.float32)
    assert not is_plain((1, np.float64(2.0)))


@every_optimizer
def test_equal_runs_have_equal_state_dictionaries_in_equal_order(case):
    dicts = [trained(case)[1].state_dict() for _ in range(2)]
    assert same(*dicts, ordered=True)
    assert list(dicts[0]) == ["state", "param_groups"]
    assert list(dicts[0]["state"]) == list(range(len(case.shapes)))
    assert not same(dicts[0], trained(case, 4)[1].state_dict())


# ------------------------------------------------------------------------------------------------------- round trips


def through_file(weights_only):
    def trip(state_dict):
        file = io.BytesIO()
        torch.save(state_dict, file)
        file.seek(0)
        return torch.load(file, weights_only=weights_only)

    return trip


def through_json_and_tensors(state_dict):
    """Take the numbers through JSON, as formats do that store tensors alone."""
    states = {key: {k: v.clone() for k, v in state.items()} for key, state in state_dict["state"].items()}
    return {"state": states, "param_groups": json.loads(json.dumps(state_dict["param_groups"]))}


TRIPS = {
    "a copy": deepcopy,
    "torch.save": through_file(False),
    "weights_only": through_file(True),
    "json and tensors": through_json_and_tensors,
}


@every_optimizer
def test_a_loaded_optimizer_goes_on_in_every_bit(case):
    for trip, named in product(TRIPS, (False, True)):
        params = parameters(case)
        optimizer = case.build(params.items() if named else params.values(), weight_decay=0.1)
        run(optimizer, params, range(3))
        saved = optimizer.state_dict()
        loaded = TRIPS[trip](saved)
        assert trip.startswith("json") or same(loaded, saved)
        kept = deepcopy(loaded)

        twin = {name: Parameter(p.detach().clone()) for name, p in params.items()}
        other = case.build(twin.values(), lr=0.5, momentum=0.1)
        other.load_state_dict(loaded)
        assert same(loaded, kept)
        ours = 1 if case.joint else None  # torch's own keeps the lists that JSON makes of tuples
        assert same(other.state_dict()["param_groups"][:ours], saved["param_groups"][:ours])
        for o, ps in ((optimizer, params), (other, twin)):
            run(o, ps, range(3, 6))
        assert same_weights(twin, params)
        assert same(other.state_dict()["state"], optimizer.state_dict()["state"])


@every_optimizer
def test_names_are_kept_if_either_side_has_them(case):
    for named_before, named_after in product((False, True), repeat=2):
        params = parameters(case)
        first = case.build(params.items() if named_before else params.values())
        second = case.build([(f"new.{n}", p) for n, p in params.items()] if named_after else params.values())
        second.load_state_dict(first.state_dict())
        found = [name for group in second.param_groups for name in group.get("param_names", ())]
        expected = list(params) if named_before else [f"new.{name}" for name in params] if named_after else []
        assert found == expected
        run(second, params, [0])


@every_optimizer
def test_a_saved_state_is_matched_by_name_whatever_its_order(case):
    params, optimizer = trained(case)
    there = {name: Parameter(p.detach().clone()) for name, p in params.items()}
    other = case.build(dict(reversed(there.items())).items())
    named = case.build(params.items())
    named.load_state_dict(optimizer.state_dict())
    other.load_state_dict(deepcopy(named.state_dict()))
    for ps, o in ((params, named), (there, other)):
        run(o, ps, range(3))
    assert same_weights(there, params)
    wrapped = case.build({f"module.{name}": p for name, p in reversed(there.items())}.items())
    wrapped.load_state_dict(deepcopy(named.state_dict()))
    found = [wrapped.state[there[name]][BUFFER] for name in MATRICES]
    assert all(torch.equal(M, named.state[params[name]][BUFFER]) for M, name in zip(found, MATRICES, strict=True))
    by_position = case.build(dict(reversed(there.items())).values())
    with pytest.raises(ValueError, match="must have the shape of its parameter"):
        by_position.load_state_dict(deepcopy(named.state_dict()))


@every_optimizer
def test_state_follows_the_dtype_of_the_model_that_loads_it(case):
    for dtype in [torch.float64, torch.bfloat16, torch.float16]:
        params, optimizer = trained(case)
        there, back = parameters(case, dtype=dtype), {name: Parameter(p.detach().clone()) for name, p in params.items()}
        changed, restored = case.build(there.values()), case.build(back.values())
        changed.load_state_dict(deepcopy(optimizer.state_dict()))
        for name in MATRICES:
            expected = optimizer.state[params[name]][BUFFER].to(dtype)
            assert same(changed.state[there[name]][BUFFER], expected)
        restored.load_state_dict(deepcopy(changed.state_dict()))
        assert all(restored.state[back[name]][BUFFER].dtype == torch.float32 for name in MATRICES)
        if dtype == torch.float64:
            assert same(restored.state_dict(), optimizer.state_dict())
        run(changed, there, [3])
        run(restored, back, [3])
        assert all(torch.isfinite(p).all() and p.dtype == dtype for p in there.values())
        assert all(changed.state[there[name]][BUFFER].dtype == dtype for name in MATRICES)


@every_momentum_optimizer
def test_state_follows_a_model_that_is_converted_under_the_optimizer(case):
    for dtype in [torch.float64, torch.bfloat16]:
        params, optimizer = trained(case)
        twin = {name: Parameter(p.detach().to(dtype)) for name, p in params.items()}
        other = case.build(twin.values())
        other.load_state_dict(deepcopy(optimizer.state_dict()))
        for p in params.values():
            p.grad = None
            p.data = p.data.to(dtype)
        run(optimizer, params, range(3, 5))
        run(other, twin, range(3, 5))
        assert same(frozen(params, optimizer)[:2], frozen(twin, other)[:2])


@every_optimizer
def test_a_schedule_that_is_saved_and_loaded_goes_on_in_every_bit(case):
    for schedule in SCHEDULES:
        params = parameters(case)
        optimizer = case.build(params.values())
        scheduler = SCHEDULES[schedule](optimizer)
        descend(params, optimizer, scheduler, steps=4)
        twin = {name: Parameter(p.detach().clone()) for name, p in params.items()}
        other = case.build(twin.values())
        resumed = SCHEDULES[schedule](other)
        resumed.load_state_dict(deepcopy(scheduler.state_dict()))
        other.load_state_dict(deepcopy(optimizer.state_dict()))
        for ps, o, s in ((params, optimizer, scheduler), (twin, other, resumed)):
            descend(ps, o, s, steps=2)
        assert same(frozen(twin, other)[:2], frozen(params, optimizer)[:2])


# ------------------------------------------------------------------------------------ dictionaries from other times


@every_momentum_optimizer
def test_an_option_that_an_older_dictionary_lacks_stays_as_the_optimizer_has_it(case):
    keys = set(case.build(parameters(case).values()).param_groups[0]) - {"params", "param_names"}
    assert keys >= {"lr", "momentum", "weight_decay", "maximize", "nonfinite"}
    for key in sorted(keys):
        params, optimizer = trained(case)
        older = deepcopy(optimizer.state_dict())
        for group in older["param_groups"]:
            del group[key]
        twin = {name: Parameter(p.detach().clone()) for name, p in params.items()}
        other = case.build(twin.values())
        present = other.param_groups[0][key]
        for group in optimizer.param_groups:
            group[key] = present
        other.load_state_dict(older)
        assert same(other.param_groups[0][key], present)
        assert key not in older["param_groups"][0]
        run(optimizer, params, [3])
        run(other, twin, [3])
        assert same_weights(params, twin)


@every_optimizer
def test_a_momentum_that_a_dictionary_lacks_starts_at_zero(case):
    for left in ["no state", "no entry", "None"]:
        params, optimizer = trained(case)
        older = deepcopy(optimizer.state_dict())
        for key in range(len(MATRICES)):
            if left == "no state":
                del older["state"][key]
            else:
                older["state"][key] = {} if left == "no entry" else {BUFFER: None}
        optimizer.load_state_dict(older)
        assert all(not optimizer.state[params[name]][BUFFER].any() for name in MATRICES)
        run(optimizer, params, [3])
        assert all(optimizer.state[params[name]][BUFFER].any() for name in MATRICES)


@every_optimizer
def test_keys_of_the_users_own_survive_a_round_trip(case):
    params, optimizer = trained(case, tag="decoder")
    saved = deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["depth"] = (1, "two")
    saved["param_groups"][0]["initial_lr"] = 0.5
    other = case.build(params.values())
    other.load_state_dict(saved)
    found = other.param_groups[0]
    assert (found["tag"], found["depth"], found["initial_lr"]) == ("decoder", (1, "two"), 0.5)
    assert same(other.state_dict()["param_groups"], saved["param_groups"])


# -------------------------------------------------------------------------------------------- dictionaries refused


def spoil_shape(saved):
    saved["state"][1][BUFFER] = torch.ones(5, 11)
    saved["state"][3][BUFFER] = torch.ones(4, 12)


def spoil_order(saved):
    state = saved["state"]
    state[1], state[2] = state[2], state[1]


def rename(saved):
    names = saved["param_groups"][0]["param_names"]
    names[names.index("wide")] = "other"


def respoil(momentum):
    """Return a change that makes the momentum of ``wide`` another object."""
    return lambda saved: saved["state"][1].update({BUFFER: momentum})


BAD_DICTIONARIES = [
    (
        lambda saved: saved["param_groups"].append(deepcopy(saved["param_groups"][0])),
        r"must have the groups of its optimizer",
    ),
    (lambda saved: saved["param_groups"][0]["params"].append(99), r"must have the groups of its optimizer"),
    (
        spoil_shape,
        r"must have the shape of its parameter: wide has shape \(5, 12\), its state \(5, 11\); "
        r"conv has shape \(4, 3, 2, 2\), its state \(4, 12\): load the state of the same model",
    ),
    (
        spoil_order,
        r"wide has shape \(5, 12\), its state \(12, 5\); tall has shape \(12, 5\), its state \(5, 12\)",
    ),
    (lambda saved: saved["param_groups"][0].update(lr=math.nan), r"lr must be a finite number in .* got nan"),
    (lambda saved: saved["param_groups"][-1].update(lr=math.nan), r"lr must be a finite number in .* got nan"),
    (rename, r"same parameters, got other where the optimizer has wide: load the state of the same model, or remove"),
    (respoil("x"), r"a momentum must be a tensor, got str: load what"),
    (
        respoil(torch.ones(5, 12).to_sparse()),
        r"must be dense, with memory for each entry, got one of layout .*sparse_coo",
    ),
    (respoil(torch.ones(1, 1).expand(5, 12)), r"must be dense, with memory for each entry, got an expanded tensor"),
    (respoil(torch.ones(5, 12, dtype=torch.complex64)), r"must be real and floating-point, got torch.complex64"),
    (
        respoil(torch.full((5, 12), -1e300, dtype=torch.float64)),
        r"in the range of its parameter's dtype, got an entry of size",
    ),
    (lambda saved: saved["param_groups"][0].update(momentun=0.5), r"no option 'momentun': did you mean 'momentum'\?"),
    (lambda saved: saved.pop("state"), r"must have the keys 'state' and 'param_groups', got \['param_groups'\]: pass"),
    (lambda saved: saved.clear(), r"must have the keys 'state' and 'param_groups', got \[\]: pass what"),
]


@every_optimizer
def test_a_dictionary_that_does_not_fit_is_refused_and_changes_nothing(case):
    for spoil, message in BAD_DICTIONARIES:
        params = parameters(case)
        optimizer = case.build(params.items())
        run(optimizer, params, range(3))
        saved = deepcopy(trained(case, 5, lr=0.5)[1].state_dict())
        for group in saved["param_groups"]:
            group["param_names"] = [list(params)[i] for i in group["params"]]
        spoil(saved)
        before, groups = frozen(params, optimizer), list(map(id, optimizer.param_groups))
        with pytest.raises((TypeError, ValueError, KeyError), match=message):
            optimizer.load_state_dict(saved)
        assert list(map(id, optimizer.param_groups)) == groups
        assert same(frozen(params, optimizer), before)


@every_momentum_optimizer
def test_a_bad_option_in_a_dictionary_is_refused_and_changes_nothing(case):
    params, optimizer = trained(case, 1)
    before = frozen(params, optimizer)
    for option, value in BAD_OPTIONS:
        saved = deepcopy(optimizer.state_dict())
        saved["param_groups"][0][option] = value
        with refused(option, value):
            optimizer.load_state_dict(saved)
        assert same(frozen(params, optimizer), before)


# ------------------------------------------------------------------------------------------------------------ copies


def public(optimizer):
    return {name: value for name, value in vars(optimizer).items() if not name.startswith("_")}


@every_optimizer
def test_a_copy_has_every_public_attribute(case):
    _, optimizer = trained(case)
    copied, pickled = deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    assert set(public(copied)) == set(public(pickled)) == set(public(optimizer))
    for name, value in public(optimizer).items():
        if isinstance(value, (int, float, str)):
            assert public(copied)[name] == public(pickled)[name] == value


@every_optimizer
def test_a_copy_together_with_its_parameters_goes_on_alone_in_every_bit(case):
    for how in [deepcopy, lambda x: pickle.loads(pickle.dumps(x))]:
        params, optimizer = trained(case, weight_decay=0.1)
        twin, other = how((params, optimizer))
        assert type(other) is type(optimizer)
        assert same(frozen(twin, other)[:2], frozen(params, optimizer)[:2])
        before = frozen(params, optimizer)
        run(other, twin, range(3, 5))
        assert same(frozen(params, optimizer), before)
        run(optimizer, params, range(3, 5))
        assert same(frozen(twin, other)[:2], frozen(params, optimizer)[:2])


@every_optimizer
def test_a_copy_takes_groups_and_dictionaries_like_the_original_but_no_hooks(case):
    for how in [deepcopy, lambda x: pickle.loads(pickle.dumps(x))]:
        params, optimizer = trained(case)
        calls, other_calls = [], []
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("step"))
        optimizer.register_state_dict_pre_hook(lambda *_, calls=calls: calls.append("save"))
        optimizer.register_load_state_dict_post_hook(lambda *_, calls=calls: calls.append("load"))
        twin, other = how((params, optimizer))
        other.register_step_pre_hook(lambda *_, calls=other_calls: calls.append("step"))
        other.load_state_dict(other.state_dict())
        run(other, twin, [3])
        (other.muon if case.joint else other).add_param_group({"params": [Parameter(torch.ones(2, 2))]})
        assert (calls, other_calls) == ([], ["step"])
        run(optimizer, params, [3])
        assert calls == ["step"]


# ------------------------------------------------------------------------------------------------------------- hooks


@every_optimizer
def test_step_hooks_are_called_around_each_step_until_removed(case):
    params = parameters(case)
    optimizer, calls = case.build(params.values()), []
    start = params["square"].detach().clone()

    def note(what):
        return lambda opt, *_: calls.append((what, opt is optimizer, torch.equal(params["square"], start)))

    pre, post = optimizer.register_step_pre_hook(note("pre")), optimizer.register_step_post_hook(note("post"))
    run(optimizer, params, [0])
    assert calls == [("pre", True, True), ("post", True, False)]
    optimizer.load_state_dict(optimizer.state_dict())
    run(optimizer, params, [1])
    assert len(calls) == 4
    pre.remove()
    run(optimizer, params, [2])
    assert [what for what, *_ in calls[4:]] == ["post"]
    post.remove()
    run(optimizer, params, [3])
    assert len(calls) == 5


@every_optimizer
def test_hooks_on_all_optimizers_come_first_and_last(case):
    params = parameters(case)
    optimizer, plain, calls = case.build(params.values()), SGD([Parameter(torch.ones(2))], lr=0.1), []

    def note(what):
        return lambda opt, *_: calls.append(what) if opt is optimizer or opt is plain else None

    handles = [register_optimizer_step_pre_hook(note("all pre")), register_optimizer_step_post_hook(note("all post"))]
    for o in (optimizer, plain):
        handles += [o.register_step_pre_hook(note("pre")), o.register_step_post_hook(note("post"))]
    once = ["all pre", "pre", "post", "all post"]
    optimizer.step()
    assert calls == once
    plain.step()
    optimizer.step()
    assert calls == once * 3
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert calls == once * 3


@every_optimizer
def test_hooks_on_saving_are_called_in_order_and_may_change_what_is_saved(case):
    _, optimizer = trained(case)
    calls = []

    def before(opt):
        calls.append("pre")
        opt.state["test"] = 1

    def after(_, state_dict):
        calls.append("post")
        return {**state_dict, "seen": state_dict["state"].pop("test", None)}

    optimizer.register_state_dict_pre_hook(before)
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("first"), prepend=True)
    assert optimizer.state_dict()["state"]["test"] == 1
    handle = optimizer.register_state_dict_post_hook(after)
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("between"), prepend=True)
    assert optimizer.state_dict()["seen"] == 1
    assert calls == ["first", "pre", "first", "pre", "between", "post"]
    handle.remove()
    assert "seen" not in optimizer.state_dict()


@every_optimizer
def test_hooks_on_loading_are_called_in_order_and_may_change_what_is_loaded(case):
    params, optimizer = trained(case)
    calls = []

    def in_place(_, state_dict):
        calls.append("in place")
        state_dict["param_groups"][0]["lr"] = 0.002

    def anew(_, state_dict):
        calls.append("anew")
        fresh = deepcopy(state_dict)
        fresh["param_groups"][0]["lr"] = 0.003
        return fresh

    def rate():
        optimizer.load_state_dict(optimizer.state_dict())
        return optimizer.param_groups[0]["lr"]

    optimizer.register_load_state_dict_pre_hook(in_place)
    assert rate() == 0.002
    optimizer.register_load_state_dict_pre_hook(anew, prepend=True)
    assert rate() == 0.002
    optimizer.register_load_state_dict_pre_hook(anew)
    optimizer.register_load_state_dict_post_hook(lambda opt: calls.append(opt.param_groups[0]["lr"]))
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("first"), prepend=True)
    assert rate() == 0.003
    assert calls == ["in place", "anew", "in place", "anew", "in place", "anew", "first", 0.003]
    run(optimizer, params, [3])


@every_momentum_optimizer
def test_hooks_are_not_called_for_a_load_that_fails(case):
    _, optimizer = trained(case)
    calls = []
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("post"))
    saved = deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["momentum"] = 2.0
    with refused("momentum", 2.0):
        optimizer.load_state_dict(saved)
    assert calls == []
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["post"]


# ------------------------------------------------------------------------------------------- the checks have teeth


class LateState(SGDM):
    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        self.state.clear()


class HiddenCounter(SGDMWithUpdate):
    _steps = 0

    def _update(self, params):
        self._steps += 1
        for p in (p.param for p in params if p.param.grad is not None):
            p.sub_(p.grad, alpha=0.1 / self._steps)


class UncheckedLoad(SGDM):
    def __setstate__(self, state):
        Optimizer.__setstate__(self, state)


class NothingFilledIn(SGDM):
    def _restored(self, group, defaults):  # noqa: ARG002
        return group


class ObjectsInGroups(SGDM):
    def add_param_group(self, param_group):
        super().add_param_group({**param_group, "kept_in": torch.float32})


class SharedBuffer(SGDM):
    def __deepcopy__(self, memo):
        other = copy(self)
        other.__dict__.update(deepcopy({"param_groups": self.param_groups}, memo))
        other.state = {deepcopy(p, memo): state for p, state in self.state.items()}
        return other


class NeverConverts(SGDM):
    def _buffer(self, p: Tensor):
        return self.state[p][BUFFER]


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (LateState, test_state_is_there_from_the_start_zero_and_like_its_parameter),
        (HiddenCounter, test_a_loaded_optimizer_goes_on_in_every_bit),
        (HiddenCounter, test_a_copy_together_with_its_parameters_goes_on_alone_in_every_bit),
        (SharedBuffer, test_a_copy_together_with_its_parameters_goes_on_alone_in_every_bit),
        (UncheckedLoad, test_a_dictionary_that_does_not_fit_is_refused_and_changes_nothing),
        (UncheckedLoad, test_a_bad_option_in_a_dictionary_is_refused_and_changes_nothing),
        (NothingFilledIn, test_an_option_that_an_older_dictionary_lacks_stays_as_the_optimizer_has_it),
        (ObjectsInGroups, test_groups_hold_plain_values_whatever_they_were_given_as),
        (NeverConverts, test_state_follows_a_model_that_is_converted_under_the_optimizer),
    ],
)
def test_a_wrong_optimizer_is_found_out(wrong, check):
    check(broken(SGDM))
    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError, RuntimeError)):
        check(broken(wrong))
