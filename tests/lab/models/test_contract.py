"""What every registered model must do; a newcomer is picked up by itself."""

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


def test_the_counted_parameters_are_the_declared_ones():
    counted = {row["name"]: row["parameters"] for row in describe()["models"]}
    assert counted == {name: model.parameters for name, model in models().items()}


@pytest.mark.parametrize("name", EVERY)
def test_the_logits_have_the_declared_classes(name):
    with torch.device("meta"):
        batch, labels = examples(name, 2)
        logits = build(name)(batch)
    assert logits.shape == (*labels.shape, models()[name].classes)


@pytest.mark.parametrize("name", EVERY)
def test_shape_and_classes_can_be_chosen(name):
    model = models()[name]
    shape = model.shape if "cifarnet" in name else tuple(max(size // 2, 1) for size in model.shape)
    with torch.device("meta"):
        batch = torch.zeros(2, *shape, dtype=torch.long if len(shape) == 1 else torch.float32)
        logits = build(name, shape=list(shape), classes=7)(batch)
    assert logits.shape[-1] == 7


@pytest.mark.parametrize("name", NARROW)
def test_a_seed_decides_the_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return build(name).state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", NARROW)
def test_every_trainable_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    network = build(name)
    loss(network, *examples(name, 4)).backward()
    for key, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), key
            assert parameter.grad.any(), key
        else:
            assert parameter.grad is None, key


@pytest.mark.parametrize("name", NARROW)
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


@pytest.mark.parametrize("name", EVERY)
def test_muon_gets_the_hidden_matrices_and_nothing_else(name):
    with torch.device("meta"):
        network = build(name)
    for row in split(network).table:
        outside = row.name.startswith(("head.", "fc.", "token_embedding.", "position_embedding.", "whiten."))
        assert (row.goes_to == "Muon") == (len(row.shape) > 1 and not outside), row.name


@pytest.mark.parametrize("name", EVERY)
def test_no_two_names_share_a_tensor(name):
    """So that the state can be stored in a format that refuses shared memory."""
    with torch.device("meta"):
        network = build(name)
    assert len(list(network.named_parameters(remove_duplicate=False))) == len(list(network.parameters()))


@pytest.mark.parametrize("name", EVERY)
def test_an_option_that_a_model_does_not_know_is_refused_in_one_line(name):
    with pytest.raises(TypeError) as caught:
        build(name, colour="red")
    accepted = ", ".join(models()[name].options)
    assert str(caught.value) == f"model {name!r} takes the options {accepted}, got 'colour': use one of these"


@pytest.mark.parametrize("name", EVERY)
def test_an_option_at_its_default_changes_nothing(name):
    with torch.device("meta"):
        network = build(name, **models()[name].options)
    assert sum(math.prod(p.shape) for p in network.parameters()) == models()[name].parameters
