"""Checkpoints of torch.optim.Muon and of the muon-optimizer package load, and training goes on as theirs would."""

from __future__ import annotations

import copy
import io
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from muonlab import ExactPolar, Muon, MuonWithAux
from tests.reference import optimizers as twins
from tests.reference.optimizers import JORDAN, TAYLOR

MATRICES = ((4, 6), (6, 4), (5, 5), (4, 6))
VECTORS = ((6,), (3, 2))
STEPS = 5


def drawn(shapes, seed: int) -> list[Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def parameters(shapes=MATRICES) -> list[Parameter]:
    """Return the weights that every test starts from."""
    return [Parameter(w) for w in drawn(shapes, 100)]


def step(optimizer: torch.optim.Optimizer, params, grads) -> None:
    """Take a step with copies of the gradients."""
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    optimizer.step()


def saved(state_dict: dict) -> dict:
    """Return a state dictionary after a trip through a file that may hold tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def copies(tensors) -> list[Tensor]:
    """Return detached copies."""
    return [t.detach().clone() for t in tensors]


def assert_goes_on_as(twin, optimizer, params, momenta: list[Tensor], tolerance: float = 1e-6) -> None:
    """Take further steps with the optimizer and with the twin, from the same weights and momenta."""
    weights, state = copies(params), dict(enumerate(copies(momenta)))
    for t in range(STEPS):
        grads = drawn([p.shape for p in params], 1000 + t)
        step(optimizer, params, grads)
        twin(weights, grads, state)
        for p, w in zip(params, weights, strict=True):
            torch.testing.assert_close(p.detach(), w, rtol=tolerance, atol=tolerance)


# -------------------------------------------------------------------------------------------------- torch.optim.Muon

TORCH = {
    "defaults": {},
    "original": {"adjust_lr_fn": "original", "lr": 0.02},
    "match_rms_adamw": {"adjust_lr_fn": "match_rms_adamw", "lr": 0.01, "weight_decay": 0.3},
    "momentum alone": {"nesterov": False, "momentum": 0.8, "lr": 0.02},
    "three steps": {"ns_steps": 3, "lr": 0.02},
    "taylor": {"ns_coefficients": TAYLOR[2], "ns_steps": 6, "lr": 0.02},
    "cubic": {"ns_coefficients": (1.5, -0.5, 0.0), "ns_steps": 7, "lr": 0.02},
    "everything": {
        "lr": 0.03, "weight_decay": 0.2, "momentum": 0.6, "nesterov": False, "ns_coefficients": (2.0, -1.5, 0.5),
        "eps": 1e-5, "ns_steps": 4, "adjust_lr_fn": "match_rms_adamw",
    },
}  # fmt: skip


def torch_checkpoint(options: dict, params: list[Parameter]) -> dict:
    """Train with the real torch.optim.Muon and return its state."""
    theirs = torch.optim.Muon(params, **options)
    for t in range(3):
        step(theirs, params, drawn([p.shape for p in params], t))
    return copy.deepcopy(theirs.state_dict())


def test_a_torch_muon_goes_on_under_ours():
    for options in TORCH.values():
        params = parameters()
        checkpoint = saved(torch_checkpoint(options, params))
        momenta = [checkpoint["state"][i]["momentum_buffer"] for i in range(len(params))]
        ours = Muon(
            params, 0.5, momentum=0.1, momentum_form="heavy_ball", scale="none", renormalize="after", weight_decay=0.7
        )
        ours.load_state_dict(checkpoint)
        for p, m in zip(params, momenta, strict=True):
            assert torch.equal(ours.state[p]["momentum_buffer"], m)
        of_twin = {key: value for key, value in options.items() if key != "eps"}
        assert_goes_on_as(partial(twins.torch_muon, **of_twin), ours, params, momenta)


def test_the_unclamped_rule_of_newer_torch_is_the_spectral_rule():
    params = parameters()
    checkpoint = torch_checkpoint({"lr": 0.02}, params)
    checkpoint["param_groups"][0]["adjust_lr_fn"] = "spectral_unclamped"
    momenta = [checkpoint["state"][i]["momentum_buffer"] for i in range(len(params))]
    ours = Muon(params)
    ours.load_state_dict(saved(checkpoint))
    assert ours.param_groups[0]["scale"] == "spectral"
    twin = partial(twins.torch_muon, lr=0.02, adjust_lr_fn="spectral_unclamped")
    assert_goes_on_as(twin, ours, params, momenta)
    with pytest.raises(ValueError, match=r"scale must be one of .*, got 'clamped'"):
        Muon.torch(params, adjust_lr_fn="clamped")


def test_the_comparison_sees_a_setting_that_was_not_carried_over():
    for slip in [
        {"nesterov": False},
        {"ns_steps": 4},
        {"ns_coefficients": TAYLOR[2]},
        {"adjust_lr_fn": "match_rms_adamw"},
        {"momentum": 0.9},
        {"lr": 0.021},
        {"weight_decay": 0.0},
    ]:
        params = parameters()
        checkpoint = torch_checkpoint({"lr": 0.02}, params)
        momenta = [checkpoint["state"][i]["momentum_buffer"].clone() for i in range(len(params))]
        ours = Muon(params)
        ours.load_state_dict(checkpoint)
        with pytest.raises(AssertionError):
            assert_goes_on_as(partial(twins.torch_muon, **{"lr": 0.02, **slip}), ours, params, momenta)


def test_groups_of_torch_muon_keep_their_own_settings():
    halves = [parameters(MATRICES[:2]), parameters(MATRICES[2:])]
    options = [{"lr": 0.02, "ns_steps": 3}, {"lr": 0.04, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}]
    theirs = torch.optim.Muon([{"params": p, **o} for p, o in zip(halves, options, strict=True)])
    step(theirs, halves[0] + halves[1], drawn(MATRICES, 0))
    ours = Muon([{"params": p} for p in halves])
    ours.load_state_dict(saved(theirs.state_dict()))
    apart = []
    for half, option in zip(halves, options, strict=True):
        alone = [Parameter(p.detach().clone()) for p in half]
        optimizer = Muon.torch(alone, **option)
        for p, q in zip(half, alone, strict=True):
            optimizer.state[q]["momentum_buffer"].copy_(ours.state[p]["momentum_buffer"])
        apart.append((alone, optimizer))
    grads = drawn(MATRICES, 1)
    step(ours, halves[0] + halves[1], grads)
    for (alone, optimizer), half, own in zip(apart, halves, (grads[:2], grads[2:]), strict=True):
        step(optimizer, alone, own)
        assert all(torch.equal(p, q) for p, q in zip(half, alone, strict=True))


def test_what_comes_from_torch_muon_is_saved_in_our_terms_and_loads_again():
    params, again = parameters(), parameters()
    ours = Muon(params)
    ours.load_state_dict(torch_checkpoint({"ns_steps": 3, "lr": 0.02}, params))
    group = ours.param_groups[0]
    assert not {"ns_coefficients", "ns_steps", "adjust_lr_fn", "eps"} & set(group)
    assert set(Muon.checks) <= set(group)
    other = Muon(again, 0.5)
    other.load_state_dict(saved(ours.state_dict()))
    assert {k: v for k, v in other.param_groups[0].items() if k != "params"} == {
        k: v for k, v in group.items() if k != "params"
    }
    for p, q in zip(params, again, strict=True):
        assert torch.equal(ours.state[p]["momentum_buffer"], other.state[q]["momentum_buffer"])


def test_options_that_others_do_not_have_stay_as_they_are_in_the_group():
    params = parameters([(4, 6)])
    own = {"nonfinite": "skip", "matrix_view": "rows(2, 2)", "maximize": True}
    for checkpoint in (torch_checkpoint({}, parameters([(4, 6)])), muon_optimizer_checkpoint(parameters([(4, 6)]))):
        for optimizer in (Muon(params, **own), Muon([{"params": params, **own}])):
            optimizer.load_state_dict(copy.deepcopy(checkpoint))
            assert {key: optimizer.param_groups[0][key] for key in own} == own


def test_shapes_that_do_not_fit_are_refused_with_names_and_nothing_is_loaded():
    checkpoint = torch_checkpoint({"lr": 0.3}, parameters([(4, 6), (6, 4)]))
    for params, message in (
        ([("mlp.up", parameters([(4, 6)])[0]), ("mlp.down", parameters([(4, 6)])[0])], r"mlp.down has shape \(4, 6\)"),
        (parameters([(6, 4), (4, 6)]), r"parameter 0 of its group has shape \(6, 4\), its state \(4, 6\); parameter 1"),
    ):
        ours = Muon(params, 0.1, momentum=0.9)
        before = copy.deepcopy(ours.state_dict())
        with pytest.raises(ValueError, match=f"a state must have the shape of its parameter: .*{message}"):
            ours.load_state_dict(checkpoint)
        after = ours.state_dict()
        assert after["param_groups"] == before["param_groups"]
        for key, entry in before["state"].items():
            assert torch.equal(after["state"][key]["momentum_buffer"], entry["momentum_buffer"])


def test_coefficients_that_diverge_are_refused_on_loading():
    checkpoint = torch_checkpoint({}, parameters())
    checkpoint["param_groups"][0]["ns_coefficients"] = (5.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="diverges on"):
        Muon(parameters()).load_state_dict(checkpoint)


def test_the_state_of_an_optimizer_that_is_no_muon_is_refused():
    for other in [torch.optim.SGD, torch.optim.AdamW]:
        params = parameters()
        theirs = other(params, lr=0.1)
        step(theirs, params, drawn(MATRICES, 0))
        with pytest.raises(ValueError, match=r"torch\.optim\.Muon"):  # the way out names what can be loaded
            Muon(params).load_state_dict(theirs.state_dict())


# ----------------------------------------------------------------------------------------------------- muon-optimizer


def muon_optimizer_checkpoint(params: list[Parameter], **options) -> dict:
    """Return a state as SingleDeviceMuon of muon-optimizer 0.1.0 writes it."""
    group = {"lr": 0.02, "weight_decay": 0, "momentum": 0.95, **options, "params": list(range(len(params)))}
    state = {i: {"momentum_buffer": m} for i, m in enumerate(drawn([p.shape for p in params], 50))}
    return {"state": state, "param_groups": [group]}


def test_a_single_device_muon_goes_on_under_ours():
    for options in [{}, {"lr": 0.05, "weight_decay": 0.3, "momentum": 0.8}]:
        shapes = (*MATRICES, (4, 2, 2, 2))
        params = parameters(shapes)
        checkpoint = saved(muon_optimizer_checkpoint(params, **options))
        momenta = [checkpoint["state"][i]["momentum_buffer"].flatten(1) for i in range(len(params))]
        ours = Muon(
            params, 0.5, momentum=0.1, orthogonalizer=ExactPolar(), nesterov=False, scale="none", renormalize="before"
        )
        ours.load_state_dict(checkpoint)
        for p, m in zip(params, momenta, strict=True):
            assert torch.equal(ours.state[p]["momentum_buffer"].flatten(1), m)
        assert_goes_on_as(partial(twins.keller_jordan, **options), ours, params, momenta)


def test_what_schedulers_wrote_into_a_group_does_not_hide_where_it_is_from():
    params = parameters()
    theirs = torch.optim.SGD(params, 0.02, momentum=0.9)  # for the keys that a scheduler adds alone
    own = set(theirs.param_groups[0])
    for scheduler in (partial(OneCycleLR, max_lr=0.1, total_steps=9), partial(CyclicLR, base_lr=0.01, max_lr=0.1)):
        scheduler(theirs)
        added = {key: value for key, value in theirs.param_groups[0].items() if key not in own}
        assert {"initial_lr", "max_lr", "base_momentum"} <= set(added)
        ours = Muon(params)
        ours.load_state_dict(muon_optimizer_checkpoint(params, **added))
        assert ours.param_groups[0]["orthogonalizer"] == Muon.keller_jordan(params).param_groups[0]["orthogonalizer"]
        assert added.items() <= ours.param_groups[0].items()


def test_parameters_that_the_distributed_muon_sorted_are_refused_in_another_order():
    checkpoint = muon_optimizer_checkpoint(parameters([(6, 4), (4, 6)]))  # sorted by shape, the largest first
    with pytest.raises(ValueError, match="load the state of the same model, with its parameters in the same order"):
        Muon(parameters([(4, 6), (6, 4)])).load_state_dict(checkpoint)


# --------------------------------------------------------------------------------------------------- with its Adam


def adam_twin(weights, grads, state, *, lr=3e-4, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0) -> None:
    """Take a step of the Adam inside MuonWithAuxAdam; ``state[i]`` holds two averages and a count."""
    for i, g in enumerate(grads):
        mean, square, count = state[i]
        mean, square, count = mean + (1 - betas[0]) * (g - mean), square + (1 - betas[1]) * (g * g - square), count + 1
        state[i] = mean, square, count
        update = (mean / (1 - betas[0] ** count)) / ((square / (1 - betas[1] ** count)).sqrt() + eps)
        weights[i] = (1 - lr * weight_decay) * weights[i] - lr * update


MUON_GROUPS = [{"lr": 0.02, "momentum": 0.95, "weight_decay": 0}, {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1}]
ADAM_GROUPS = [
    {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0},
    {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.3},
]


def aux_adam_checkpoint(order: str) -> dict:
    """Return a state as (SingleDevice)MuonWithAuxAdam writes it: parameters are numbered in the order of the groups."""
    muon, adam = iter(MUON_GROUPS), iter(ADAM_GROUPS)
    moments = {"m": iter(drawn(MATRICES, 50)), "a": iter(drawn(VECTORS, 60))}
    state, groups = {}, []
    for letter in order:
        numbers = list(range(len(state), len(state) + (2 if letter == "m" else 1)))
        for number in numbers:
            moment = next(moments[letter])
            state[number] = {"momentum_buffer": moment}
            if letter == "a":
                state[number] = {"exp_avg": moment, "exp_avg_sq": moment.square() + 0.5, "step": 7}
        groups.append({**next(muon if letter == "m" else adam), "use_muon": letter == "m", "params": numbers})
    return {"state": state, "param_groups": groups}


def combined() -> tuple[MuonWithAux, list[Parameter], list[Parameter]]:
    """Return ours, with two groups for each part."""
    matrices, vectors = parameters(MATRICES), parameters(VECTORS)
    muon = Muon([{"params": matrices[:2]}, {"params": matrices[2:]}], 0.7, momentum=0.3, scale="none")
    aux = torch.optim.AdamW([{"params": vectors[:1]}, {"params": vectors[1:]}], lr=0.7)
    return MuonWithAux(muon, aux), matrices, vectors


def test_a_muon_with_aux_adam_goes_on_under_ours_whatever_the_order_of_its_groups():
    for order in ["mmaa", "aamm", "mama", "amam", "amma"]:
        optimizer, matrices, vectors = combined()
        optimizer.load_state_dict(saved(aux_adam_checkpoint(order)))
        momenta, averages = drawn(MATRICES, 50), drawn(VECTORS, 60)
        for p, m in zip(matrices, momenta, strict=True):
            assert torch.equal(optimizer.state[p]["momentum_buffer"], m)
        for p, a in zip(vectors, averages, strict=True):
            assert torch.equal(optimizer.state[p]["exp_avg"], a)
            assert torch.equal(optimizer.state[p]["exp_avg_sq"], a.square() + 0.5)
        weights, of_muon = copies(matrices), [{0: momenta[0], 1: momenta[1]}, {0: momenta[2], 1: momenta[3]}]
        rest, of_adam = copies(vectors), [{0: (a, a.square() + 0.5, 7)} for a in averages]
        for t in range(STEPS):
            grads, others = drawn(MATRICES, 1000 + t), drawn(VECTORS, 2000 + t)
            step(optimizer, matrices + vectors, grads + others)
            for i, options in enumerate(MUON_GROUPS):
                half, two = weights[2 * i : 2 * i + 2], grads[2 * i : 2 * i + 2]
                twins.keller_jordan(half, two, of_muon[i], **options)
                weights[2 * i : 2 * i + 2] = half
            for i, options in enumerate(ADAM_GROUPS):
                one = [rest[i]]
                adam_twin(one, [others[i]], of_adam[i], **options)
                rest[i] = one[0]
            for p, w in zip(matrices + vectors, weights + rest, strict=True):
                torch.testing.assert_close(p.detach(), w, rtol=1e-6, atol=1e-6)


def test_what_comes_from_muon_with_aux_adam_is_saved_in_our_terms():
    optimizer, _, _ = combined()
    checkpoint = aux_adam_checkpoint("amma")
    before = copy.deepcopy(checkpoint)
    optimizer.load_state_dict(checkpoint)
    assert checkpoint["param_groups"] == before["param_groups"]
    assert all(checkpoint["state"][i].keys() == before["state"][i].keys() for i in before["state"])
    assert not any("use_muon" in group for group in optimizer.param_groups)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.05, 3e-4, 0.01]
    other, matrices, vectors = combined()
    other.load_state_dict(saved(optimizer.state_dict()))
    step(other, matrices + vectors, drawn((*MATRICES, *VECTORS), 3))


def test_other_numbers_of_groups_or_shapes_are_refused():
    optimizer, _, _ = combined()
    checkpoint = aux_adam_checkpoint("mmaa")
    with pytest.raises(ValueError, match=r"got 3 groups .* expected 4 groups .*: load the state of the same model"):
        optimizer.load_state_dict({**checkpoint, "param_groups": checkpoint["param_groups"][:3]})
    checkpoint["state"][1]["momentum_buffer"] = torch.zeros(4, 6)
    with pytest.raises(ValueError, match=r"parameter 1 of its group has shape \(6, 4\), its state \(4, 6\)"):
        optimizer.load_state_dict(checkpoint)


def test_jordans_coefficients_of_another_package_are_our_preset():
    params = parameters()
    ours = Muon(params)
    ours.load_state_dict(torch_checkpoint({"ns_coefficients": JORDAN}, params))
    assert ours.param_groups[0]["orthogonalizer"] == Muon.torch(params).param_groups[0]["orthogonalizer"]


def test_eps_of_torch_is_taken_in_its_place_and_has_no_effect():
    arguments = (1e-3, 0.1, 0.95, True, (3.4445, -4.775, 2.0315))
    with_eps, without = Muon.torch(parameters(), *arguments, 1e-3, 4), Muon.torch(parameters(), *arguments, ns_steps=4)
    assert with_eps.param_groups[0]["orthogonalizer"] == without.param_groups[0]["orthogonalizer"]
    with pytest.raises(ValueError, match=r"eps must be a finite number in \(0, inf\), got -1\.0"):
        Muon.torch(parameters(), eps=-1.0)


def test_options_of_torch_in_a_group_are_refused_with_the_way_out():
    for key in ["ns_steps", "ns_coefficients", "adjust_lr_fn", "eps"]:
        with pytest.raises(
            ValueError, match=rf"no option '{key}', which belongs to torch\.optim\.Muon: pass orthogonalizer="
        ):
            Muon.torch([{"params": parameters(), key: 1}])
