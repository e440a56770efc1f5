"""Two optimizers that behave as one: groups, state, schedulers, scalers, hooks, checkpoints."""

from __future__ import annotations

import copy
import importlib.util
import io
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

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


def test_joined_is_the_two_by_hand_bit_by_bit():
    for aux in AUXILIARIES.values():
        one, two = network(), network()
        optimizer = joined(one, aux)
        split = split_params(two)
        by_hand = Muon(split.matrices, 0.02), aux(split.rest)
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


# -------------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_through_a_file_goes_on_bit_by_bit():
    for aux in AUXILIARIES.values():
        one, two = network(), network()
        optimizer = joined(one, aux, weight_decay=0.1, orthogonalizer=NewtonSchulz("jordan", steps=4))
        train(one, optimizer)
        resumed = joined(two, aux)
        two.load_state_dict(one.state_dict())
        resumed.load_state_dict(through_a_file(optimizer.state_dict()))
        for model, o in ((one, optimizer), (two, resumed)):
            train(model, o, steps=range(4, 8))
        assert same_weights(one, two)
        assert resumed.param_groups[0]["weight_decay"] == 0.1


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


def test_a_gradient_scaler_unscales_for_both_and_leaves_both_alone_after_an_overflow():
    for name in ["adamw", "adamw fused", "sgdm"]:
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
                        torch.equal(torch.as_tensor(after["state"][key][k]), torch.as_tensor(v))
                        for k, v in entry.items()
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


def test_anything_but_muon_and_an_optimizer_is_refused():
    for muon, aux, message in [
        (torch.optim.SGD, torch.optim.SGD, "muon must be a muonlab.Muon, got torch.optim.sgd.SGD"),
        (Muon, list, "aux must be a torch optimizer, got builtins.list: MuonWithAux"),
        (
            torch.optim.Muon,
            torch.optim.SGD,
            "muon must be a muonlab.Muon, got torch.optim.Muon: .*Muon.torch replaces",
        ),
    ]:
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
