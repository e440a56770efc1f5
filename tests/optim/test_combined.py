"""Two optimizers that behave as one: groups, state, schedulers, scalers, hooks, checkpoints."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

from muonlab import SGDM, Muon, MuonWithAux, split_params
from muonlab.optim import NewtonSchulz

AUXILIARIES = {
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adamw foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "adamw fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "adamw amsgrad": partial(torch.optim.AdamW, lr=0.01, amsgrad=True, weight_decay=0.1),
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "sgd momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "sgdm": partial(SGDM, lr=0.01, momentum=0.9, weight_decay=0.1),
}


def network() -> nn.Module:
    """Return the network that every test starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def joined(model: nn.Module, aux=AUXILIARIES["adamw"], **options) -> MuonWithAux:
    """Return the optimizer of a network."""
    split = split_params(model)
    return MuonWithAux(Muon(split.matrices, 0.02, **options), aux(split.rest))


def loss_of(model: nn.Module, t: int) -> Tensor:
    """Return the loss on the data of step t."""
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(t))
    return (model(x) - x[:, :3].sin()).square().mean()


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps=range(4)) -> None:
    """Take steps on fixed data."""
    for t in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, t).backward()
        for optimizer in optimizers:
            optimizer.step()


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Tell whether two networks agree bit by bit."""
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def through_a_file(state_dict: dict) -> dict:
    """Return a state dictionary after a trip through a file of tensors and plain values."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ------------------------------------------------------------------------------------------------------------ as one


@pytest.mark.parametrize("name", AUXILIARIES)
def test_joined_is_the_two_by_hand_bit_by_bit(name):
    one, two = network(), network()
    optimizer = joined(one, AUXILIARIES[name])
    split = split_params(two)
    by_hand = Muon(split.matrices, 0.02), AUXILIARIES[name](split.rest)
    train(one, optimizer)
    train(two, *by_hand)
    assert same_weights(one, two)
    assert not any(torch.equal(p, q) for p, q in zip(one.parameters(), network().parameters(), strict=True))


def test_it_is_a_torch_optimizer_with_the_groups_of_both_as_the_same_objects():
    optimizer = joined(network())
    assert isinstance(optimizer, torch.optim.Optimizer)
    both = [*optimizer.muon.param_groups, *optimizer.aux.param_groups]
    assert len(optimizer.param_groups) == len(both) == 3
    assert all(group is own for group, own in zip(optimizer.param_groups, both, strict=True))
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.param_groups[2]["lr"] = 0.25
    assert optimizer.muon.param_groups[0]["lr"] == 0.5
    assert optimizer.aux.param_groups[1]["lr"] == 0.25


def test_the_state_is_that_of_both():
    model = network()
    optimizer = joined(model)
    train(model, optimizer)
    params = list(model.parameters())
    assert len(optimizer.state) == len(params) == len(list(optimizer.state))
    for p in params:
        owner = optimizer.muon if p in optimizer.muon.state else optimizer.aux
        assert optimizer.state[p] is owner.state[p]
    weight, bias = model[0].weight, model[0].bias
    assert set(optimizer.state[weight]) == {"momentum_buffer"}
    optimizer.state[bias] = {"step": torch.tensor(0.0)}
    assert optimizer.aux.state[bias] == {"step": torch.tensor(0.0)}
    del optimizer.state[bias]
    assert bias not in optimizer.aux.state
    assert bias not in optimizer.state
    assert bias not in optimizer.aux.state  # asking made no entry


def test_zero_grad_reaches_every_parameter():
    model = network()
    optimizer = joined(model)
    loss_of(model, 0).backward()
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_closure_is_evaluated_once_with_gradients_enabled_and_its_loss_returned():
    model, expected = network(), network()
    optimizer = joined(model)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    before = float(loss_of(model, 0).detach())
    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    assert float(loss.detach()) == before
    train(expected, joined(expected), steps=[0])
    assert same_weights(model, expected)


def test_its_repr_shows_both():
    text = repr(joined(network()))
    assert text.startswith("MuonWithAux(\nmuon = Muon (")
    assert "aux = AdamW (" in text


# -------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", AUXILIARIES)
def test_a_checkpoint_through_a_file_goes_on_bit_by_bit(name):
    one, two = network(), network()
    optimizer = joined(one, AUXILIARIES[name], weight_decay=0.1, orthogonalizer=NewtonSchulz("jordan", steps=4))
    train(one, optimizer)
    resumed = joined(two, AUXILIARIES[name])
    two.load_state_dict(one.state_dict())
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    for model, o in ((one, optimizer), (two, resumed)):
        train(model, o, steps=range(4, 8))
    assert same_weights(one, two)
    assert resumed.param_groups[0]["weight_decay"] == 0.1


def test_one_state_dict_numbers_the_parameters_of_both():
    model = network()
    optimizer = joined(model)
    train(model, optimizer)
    state_dict = optimizer.state_dict()
    numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
    assert numbers == list(range(6)) == sorted(state_dict["state"])
    assert [set(state_dict["state"][i]) == {"momentum_buffer"} for i in numbers] == [True, True] + [False] * 4


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("name", ["adamw", "sgdm"])
def test_a_copy_goes_on_bit_by_bit_on_its_own(duplicate, name):
    model = network()
    optimizer = joined(model, AUXILIARIES[name])
    train(model, optimizer)
    model_2, optimizer_2 = duplicate((model, optimizer))
    assert isinstance(optimizer_2, MuonWithAux)
    train(model_2, optimizer_2, steps=range(4, 6))
    assert not same_weights(model, model_2)
    train(model, optimizer, steps=range(4, 6))
    assert same_weights(model, model_2)
    handle = optimizer_2.register_step_pre_hook(lambda *_: None)
    handle.remove()


def test_parts_still_save_and_load_and_the_whole_sees_it():
    one, two = network(), network()
    optimizer, other = joined(one), joined(two)
    train(one, optimizer)
    two.load_state_dict(one.state_dict())
    other.muon.load_state_dict(copy.deepcopy(optimizer.muon.state_dict()))
    other.aux.load_state_dict(copy.deepcopy(optimizer.aux.state_dict()))
    other.muon.param_groups[0]["lr"] = 0.125
    assert other.param_groups[0]["lr"] == 0.125
    assert other.param_groups[0] is other.muon.param_groups[0]
    assert torch.equal(other.state[two[0].weight]["momentum_buffer"], optimizer.state[one[0].weight]["momentum_buffer"])
    assert torch.equal(other.state[two[0].bias]["exp_avg"], optimizer.state[one[0].bias]["exp_avg"])
    optimizer.param_groups[0]["lr"] = 0.125
    for model, o in ((one, optimizer), (two, other)):
        train(model, o, steps=range(4, 6))
    assert same_weights(one, two)


def test_loading_keeps_groups_shared_with_the_parts():
    model = network()
    optimizer = joined(model)
    scheduler = LambdaLR(optimizer, lambda t: 0.5**t)
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    train(model, optimizer, steps=[0])
    scheduler.step()
    assert [group["lr"] for group in optimizer.muon.param_groups] == [0.01]
    assert [group["lr"] for group in optimizer.aux.param_groups] == [0.005, 0.005]


def test_a_refused_state_changes_neither_part():
    model = network()
    optimizer = joined(model, AUXILIARIES["sgdm"])
    train(model, optimizer)
    for number, shape in ((0, (2, 2)), (5, (2, 2))):  # a matrix of Muon, then a parameter of the other part
        before = copy.deepcopy(optimizer.state_dict())
        wrong = copy.deepcopy(before)
        for entry in wrong["state"].values():
            entry["momentum_buffer"].zero_()
        wrong["state"][number]["momentum_buffer"] = torch.zeros(shape)
        wrong["param_groups"][0]["lr"] = 0.5
        with pytest.raises(ValueError, match="a state must have the shape of its parameter"):
            optimizer.load_state_dict(wrong)
        after = optimizer.state_dict()
        assert after["param_groups"] == before["param_groups"]
        for key, entry in before["state"].items():
            assert torch.equal(after["state"][key]["momentum_buffer"], entry["momentum_buffer"]), key


CHECKPOINT = "torch.distributed.checkpoint.state_dict"
needs_dcp = pytest.mark.skipif(
    not torch.distributed.is_available() or importlib.util.find_spec(CHECKPOINT) is None,
    reason="this build of torch has no distributed checkpoints",
)


@needs_dcp
def test_distributed_checkpoint_reads_and_writes_its_state_by_name():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    one, two = network(), network()
    optimizer, other = joined(one), joined(two)
    train(one, optimizer)
    state = copy.deepcopy(get_optimizer_state_dict(one, optimizer))
    assert set(state["state"]) == {name for name, _ in one.named_parameters()}
    two.load_state_dict(one.state_dict())
    set_optimizer_state_dict(two, other, state)
    for model, o in ((one, optimizer), (two, other)):
        train(model, o, steps=range(4, 6))
    assert same_weights(one, two)


@needs_dcp
def test_distributed_checkpoint_finds_room_for_every_state_of_a_fresh_optimizer():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    trained, fresh = network(), network()
    optimizer = joined(trained)
    train(trained, optimizer)
    full = get_optimizer_state_dict(trained, optimizer)["state"]
    room = get_optimizer_state_dict(fresh, joined(fresh))["state"]  # a checkpoint is read into these tensors, in place
    assert {name: set(entry) for name, entry in room.items()} == {name: set(entry) for name, entry in full.items()}
    assert same_weights(fresh, network())


# ------------------------------------------------------------------------------------------------ schedulers, scalers


def test_a_list_of_lambdas_schedules_each_group():
    model = network()
    optimizer = joined(model)
    scheduler = LambdaLR(optimizer, [lambda t: 0.5**t, lambda t: 0.1**t, lambda t: 1.0 + t])
    train(model, optimizer, steps=[0])
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.001, 0.02])
    assert optimizer.muon.param_groups[0]["lr"] == pytest.approx(0.01)


def test_one_cycle_schedules_both_parts_as_it_would_each():
    one, two = network(), network()
    optimizer = joined(one)
    scheduler = OneCycleLR(optimizer, max_lr=[0.1, 0.01, 0.02], total_steps=5, cycle_momentum=False)
    split = split_params(two)
    parts = Muon(split.matrices, 0.02), AUXILIARIES["adamw"](split.rest)
    schedulers = [
        OneCycleLR(part, max_lr=top, total_steps=5, cycle_momentum=False)
        for part, top in zip(parts, ([0.1], [0.01, 0.02]), strict=True)
    ]
    for t in range(4):
        train(one, optimizer, steps=[t])
        train(two, *parts, steps=[t])
        scheduler.step()
        for each in schedulers:
            each.step()
        rates = [group["lr"] for part in parts for group in part.param_groups]
        assert [group["lr"] for group in optimizer.param_groups] == rates
    assert same_weights(one, two)


def test_one_cycle_cannot_cycle_momenta_of_two_kinds():
    with pytest.raises(ValueError, match="must support momentum or beta1"):
        OneCycleLR(joined(network()), max_lr=0.1, total_steps=5)


def test_schedulers_that_read_the_loss_or_follow_each_other_act_on_both_parts():
    model = network()
    optimizer = joined(model)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    train(model, optimizer, steps=[0])
    for loss in (1.0, 1.0, 1.0):
        plateau.step(loss)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.0025, 0.0025])
    optimizer = joined(model)
    warmup = LambdaLR(optimizer, lambda t: (1 + t) / 2)
    scheduler = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, 4)], milestones=[1])
    for t in range(5):
        train(model, optimizer, steps=[t])
        scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.0, 0.0, 0.0])


@pytest.mark.parametrize("name", ["adamw", "adamw fused", "sgdm"])
def test_a_gradient_scaler_unscales_for_both_and_leaves_both_alone_after_an_overflow(name):
    plain, scaled = network(), network()
    optimizers = joined(plain, AUXILIARIES[name]), joined(scaled, AUXILIARIES[name])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
    for t in range(5):
        overflows = t in (1, 3)
        if not overflows:
            train(plain, optimizers[0], steps=[t])
        before = copy.deepcopy(optimizers[1].state_dict())
        optimizers[1].zero_grad()
        scaler.scale(loss_of(scaled, t)).backward()
        if overflows:
            scaled[2].weight.grad[0, 0] = torch.inf
        scaler.step(optimizers[1])
        scaler.update()
        if overflows:
            after = optimizers[1].state_dict()
            for key, entry in before["state"].items():
                assert all(
                    torch.equal(torch.as_tensor(after["state"][key][k]), torch.as_tensor(v)) for k, v in entry.items()
                )
        assert same_weights(plain, scaled)
    assert scaler.get_scale() == 2.0**6


# ------------------------------------------------------------------------------------------------------------- hooks


def test_hooks_of_the_whole_and_of_the_parts_are_called_in_turn():
    model = network()
    optimizer = joined(model)
    calls: list[str] = []
    handles = []
    for name, o in (("whole", optimizer), ("muon", optimizer.muon), ("aux", optimizer.aux)):
        handles += [
            o.register_step_pre_hook(lambda *_, n=name: calls.append(f"before {n}")),
            o.register_step_post_hook(lambda *_, n=name: calls.append(f"after {n}")),
        ]
    train(model, optimizer, steps=[0])
    assert calls == ["before whole", "before muon", "after muon", "before aux", "after aux", "after whole"]
    for handle in handles:
        handle.remove()
    train(model, optimizer, steps=[1])
    assert len(calls) == 6


def test_hooks_around_saving_and_loading_are_those_of_the_whole():
    optimizer = joined(network())
    calls: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": "kept"})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: calls.append(f"before loading, {state['note']}"))
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("after loading"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before saving", "before loading, kept", "after loading"]


def test_the_orthogonalize_hook_is_that_of_the_muon_part():
    model = network()
    optimizer = joined(model)
    seen: list[int] = []
    optimizer.muon.register_orthogonalize_hook(lambda params, M, O: seen.append(len(params)))  # noqa: ARG005
    train(model, optimizer, steps=[0])
    assert sum(seen) == optimizer.muon.orthogonalized == 2


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_parameter_in_both_parts_is_refused():
    model = network()
    split = split_params(model)
    message = (
        r"a parameter must belong to one of the two optimizers, got 1 in both, the first of shape \(8, 8\): split_"
    )
    with pytest.raises(ValueError, match=message):
        MuonWithAux(Muon(split.matrices), torch.optim.AdamW([model[2].weight, model[0].bias]))


@pytest.mark.parametrize(
    ("muon", "aux", "message"),
    [
        (torch.optim.SGD, torch.optim.SGD, "muon must be a muonlab.Muon, got torch.optim.sgd.SGD"),
        (Muon, list, "aux must be a torch optimizer, got builtins.list: MuonWithAux"),
        (
            torch.optim.Muon,
            torch.optim.SGD,
            "muon must be a muonlab.Muon, got torch.optim.Muon: .*Muon.torch replaces",
        ),
    ],
)
def test_anything_but_muon_and_an_optimizer_is_refused(muon, aux, message):
    with pytest.raises(TypeError, match=message):
        MuonWithAux(muon([nn.Parameter(torch.zeros(2, 2))]), aux([nn.Parameter(torch.zeros(2, 2))]))


def test_a_group_goes_to_a_part_and_is_seen_by_the_whole():
    model = network()
    optimizer = joined(model)
    more = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(
        TypeError, match=r"a group of 1 parameters must say which .* call \.muon\.add_param_group or \.aux"
    ):
        optimizer.add_param_group({"params": [more]})
    optimizer.muon.add_param_group({"params": [("more", more)], "lr": 0.5})
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.5, 0.01, 0.01]
    more.grad = torch.eye(4)
    optimizer.step()
    assert not torch.equal(more, torch.ones(4, 4))
    state_dict = through_a_file(optimizer.state_dict())
    assert len(state_dict["state"]) == 3
    optimizer.load_state_dict(state_dict)
