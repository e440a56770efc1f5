"""What every registered model must do; new models are included automatically."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import muonlab
from muonlab.lab.models import build, describe, models

EVERY = list(models())
NARROW = [name for name, model in models().items() if model.parameters < 10_000_000]


def examples(name, count):
    """Return a batch for a model with its labels, short sequences for those that read tokens."""
    model = models()[name]
    if len(model.shape) == 1:
        tokens = torch.randint(model.classes, (count, 17))
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(count, *model.shape), torch.randint(model.classes, (count,))


def loss(network, batch, labels):
    return functional.cross_entropy(network(batch).flatten(0, -2), labels.flatten())


def split(network):
    return muonlab.split_params(network, rules=getattr(network, "matrix_rules", {}))


def test_every_large_model_has_a_narrow_one():
    families = {name.split("-")[0].rstrip("0123456789") for name in EVERY}
    assert families == {name.split("-")[0].rstrip("0123456789") for name in NARROW}


def test_the_counted_parameters_are_the_declared_ones_and_defaults_change_nothing():
    counted = {row["name"]: row["parameters"] for row in describe()["models"]}
    assert counted == {name: model.parameters for name, model in models().items()}
    with torch.device("meta"):
        for name, model in models().items():
            network = build(name, **model.options)
            assert sum(math.prod(p.shape) for p in network.parameters()) == model.parameters, name


def test_shape_and_classes_can_be_chosen_and_muon_gets_the_hidden_matrices_only():
    outside = ("head.", "fc.", "token_embedding.", "position_embedding.", "whiten.")
    with torch.device("meta"):
        for name, model in models().items():
            network = build(name)
            batch, labels = examples(name, 2)
            if model.parameters < 1e9:
                assert network(batch).shape == (*labels.shape, model.classes), name
                shape = model.shape if "cifarnet" in name else tuple(max(size // 2, 1) for size in model.shape)
                batch = torch.zeros(2, *shape, dtype=torch.long if len(shape) == 1 else torch.float32)
                assert build(name, shape=list(shape), classes=7)(batch).shape[-1] == 7, name
            for row in split(network).table:
                hidden = len(row.shape) > 1 and not row.name.startswith(outside)
                assert (row.goes_to == "Muon") == hidden, (name, row.name)
            # no two names share a tensor: safetensors refuses shared memory
            assert len(list(network.named_parameters(remove_duplicate=False))) == len(list(network.parameters())), name


def test_a_seed_decides_the_weights_and_every_trainable_parameter_gets_a_gradient():
    for name in NARROW:
        networks = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            networks.append(build(name))
        first, again, other = (network.state_dict() for network in networks)
        assert all(torch.equal(first[key], again[key]) for key in first), name
        assert any(not torch.equal(first[key], other[key]) for key in first), name
        loss(networks[0], *examples(name, 4)).backward()
        for key, parameter in networks[0].named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.isfinite().all(), (name, key)
                assert parameter.grad.any(), (name, key)
            else:
                assert parameter.grad is None, (name, key)


SMALLEST = ["mlp-small", "cifarnet-smoke", "resnet18-smoke", "wrn-10-1", "gpt-smoke"]


@pytest.mark.parametrize("name", SMALLEST)
def test_muon_on_the_matrices_and_sgd_on_the_rest_fit_one_batch(name):
    torch.manual_seed(0)
    network = build(name)
    batch, labels = examples(name, 4)
    parts = split(network)
    optimizers = [muonlab.Muon(parts.matrices, lr=0.02), torch.optim.SGD(parts.rest, lr=0.02)]
    losses = []
    for _ in range(6):
        losses.append(loss(network, batch, labels))
        network.zero_grad()
        losses[-1].backward()
        for optimizer in optimizers:
            optimizer.step()
    assert losses[-1] < losses[0]


def test_an_unknown_option_is_refused_in_one_line():
    for name, model in models().items():
        with pytest.raises(TypeError) as caught:
            build(name, colour="red")
        accepted = ", ".join(model.options)
        assert str(caught.value) == f"model {name!r} takes the options {accepted}, got 'colour': use one of these"
