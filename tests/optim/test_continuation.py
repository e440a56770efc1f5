"""A training of AdamW goes on with Muon: the same learning rates, decay, and states."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from muonlab import Muon, split_params
from muonlab.optim import continue_adamw
from muonlab.optim.scaling import SCALES


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 4))


X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 4


def loss_of(model) -> torch.Tensor:
    return nn.functional.cross_entropy(model(X), Y)


def train(model, optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def trained(steps: int = 20):
    model = net()
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.startswith("2.")], "lr": 3e-3},
        {"params": [p for n, p in model.named_parameters() if n.startswith("2.")], "lr": 1e-3, "weight_decay": 0.3},
    ]
    adamw = AdamW(groups, weight_decay=0.1)
    return model, adamw, train(model, adamw, steps)


def test_other_parameters_step_as_adamw_would_to_the_bit():
    model, adamw, _ = trained()
    again, again_adamw, _ = trained()
    continued = continue_adamw(adamw, split_params(model))
    for network, optimizer in ((model, continued), (again, again_adamw)):
        optimizer.zero_grad()
        loss_of(network).backward()
        optimizer.step()
    rows = {row.name: row for row in split_params(again).table}
    ours, theirs = dict(model.named_parameters()), dict(again.named_parameters())
    same = {name: torch.equal(ours[name], theirs[name]) for name in ours}
    assert same == {name: rows[name].goes_to == "auxiliary" for name in ours}


def test_the_momentum_is_the_average_of_gradients_without_its_bias():
    model, adamw, _ = trained(steps=3)
    averages = {n: adamw.state[p]["exp_avg"] / (1 - 0.9**3) for n, p in model.named_parameters()}
    continued = continue_adamw(adamw, split_params(model))
    for name, p in model.named_parameters():
        if p in continued.muon.state:
            assert torch.allclose(continued.muon.state[p]["momentum_buffer"], averages[name], rtol=1e-6)
    assert len(continued.muon.state) == 2


def test_every_scale_rule_makes_the_updates_and_the_decay_of_match_rms_adamw():
    results = {}
    for scale in SCALES:
        model, adamw, _ = trained()
        train(model, continue_adamw(adamw, split_params(model), scale=scale), 5)
        results[scale] = torch.cat([p.detach().flatten() for p in model.parameters()])
    for scale, weights in results.items():
        torch.testing.assert_close(weights, results["match_rms_adamw"], rtol=1e-4, atol=1e-6, msg=scale)
    model, adamw, _ = trained()  # a learning rate that is not translated is noticed
    muon = continue_adamw(adamw, split_params(model)).muon
    for group in muon.param_groups:
        group["scale"] = "spectral"
    train(model, muon, 5)
    assert not torch.allclose(torch.cat([p.detach().flatten() for p in model.parameters()]), results["spectral"])


def test_updates_are_as_large_as_adamws_and_the_loss_goes_on_falling():
    model, adamw, losses = trained(steps=60)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    continued = continue_adamw(adamw, split_params(model))
    for group in continued.param_groups:
        group["weight_decay"] = 0.0
    lrs = {p: group["lr"] for group in continued.muon.param_groups for p in group["params"]}
    later = train(model, continued, 1)
    for name, p in model.named_parameters():
        if p in lrs:
            size = float((p.detach() - before[name]).square().mean().sqrt())
            assert 0.15 * lrs[p] < size < 0.25 * lrs[p], name  # AdamW's are 0.2 to 0.4 (Moonlight)
    later += train(model, continued, 60)
    assert abs(later[0] - losses[-1]) < 0.02
    assert later[-1] < losses[-1] < losses[0]


def test_a_scheduler_goes_on_from_the_translated_rates():
    model, adamw, _ = trained()
    scheduler = LambdaLR(adamw, lambda step: 1 / (1 + step))
    train(model, adamw, 1)
    scheduler.step()
    continued = continue_adamw(adamw, split_params(model), scale="spectral")
    for group in continued.param_groups:
        assert group["lr"] == pytest.approx(group["initial_lr"] / 2)


def test_what_does_not_fit_is_refused_with_the_way_out():
    model, adamw, _ = trained()
    other = net()
    head = nn.Linear(3, 3)
    for arguments, error, message in [
        (
            (Muon([torch.zeros(3, 3)], 0.1), split_params(model)),
            TypeError,
            r"takes a torch.optim.AdamW, got Muon: .*Muon.torch",
        ),
        ((adamw, split_params(other)), ValueError, "must have the same parameters, got 6 .*, the first 0.weight"),
        (
            (AdamW(head.parameters()), split_params(head)),
            ValueError,
            "both matrices and other parameters, got 0 groups of",
        ),
    ]:
        with pytest.raises(error, match=message):
            continue_adamw(*arguments)
    with pytest.raises(ValueError, match="scale must be one of"):
        continue_adamw(adamw, split_params(model), scale="adam")
