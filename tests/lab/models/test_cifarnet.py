from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import muonlab
from muonlab.lab.models import build
from muonlab.lab.models.whitening import whitening_filters
from muonlab.lab.studies import studies


@pytest.fixture
def network():
    torch.manual_seed(0)
    return build("cifarnet")


def test_muon_gets_the_six_matrices(network):
    rows = [row for row in muonlab.split_params(network).table if row.goes_to == "Muon"]
    shapes = [(row.shape[0], row.shape[1] * row.shape[2] * row.shape[3]) for row in rows]
    assert shapes == [(64, 216), (64, 576), (256, 576), (256, 2304), (256, 2304), (256, 2304)]
    assert sum(m * n for m, n in shapes) == 1_967_616
    assert {row.matrix_view for row in rows} == {"flatten"}


def test_fit_sets_the_whitening_weight_and_nothing_else(network):
    images = torch.randn(40, 3, 32, 32)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    network.fit(images)
    after = network.state_dict()
    assert torch.equal(after["whiten.weight"], whitening_filters(images))
    assert [key for key in before if not torch.equal(before[key], after[key])] == ["whiten.weight"]
    assert not network.whiten.weight.requires_grad


def test_fit_refuses_other_images(network):
    with pytest.raises(ValueError, match=r"^images must have the shape \(n, 3, 32, 32\), got \(2, 1, 28, 28\): pass "):
        network.fit(torch.zeros(2, 1, 28, 28))


def test_the_first_filters_pass_their_channel_through(network):
    x = torch.randn(2, 24, 9, 9)
    conv = network.groups[0].conv1
    assert torch.equal(conv(x)[:, :24], x)
    assert conv.weight[24:].std() > 0.01
    assert torch.equal(network.groups[1].conv2(torch.ones(1, 256, 4, 4)), torch.ones(1, 256, 4, 4))


def test_batch_norms_keep_a_weight_of_one_and_forget_fast(network):
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 6
    for norm in norms:
        assert not norm.weight.requires_grad
        assert norm.bias.requires_grad
        assert torch.equal(norm.weight, torch.ones_like(norm.weight))
        assert norm.eps == 1e-12
    x = torch.randn(64, 64, 4, 4) + 5
    norms[0](x)
    assert torch.allclose(norms[0].running_mean, 0.4 * x.mean(dim=(0, 2, 3)), atol=1e-5, rtol=1e-5)


def test_logits_are_the_written_out_composition_over_256(network):
    network.eval()
    images = torch.randn(3, 3, 32, 32)
    x = functional.gelu(network.whiten(images))
    for group in network.groups:
        x = functional.gelu(group.norm1(functional.max_pool2d(group.conv1(x), 2)))
        x = functional.gelu(group.norm2(group.conv2(x)))
    assert x.shape == (3, 256, 3, 3)
    expected = x.amax(dim=(2, 3)) @ network.head.weight.T / 256
    assert torch.allclose(network(images), expected, atol=1e-5, rtol=1e-5)


def test_the_logit_scale_is_a_factor_and_follows_the_last_width():
    assert build("cifarnet-small").logit_scale == 1 / 64
    torch.manual_seed(0)
    images = torch.randn(3, 3, 32, 32)
    own = build("cifarnet-smoke").eval()
    other = build("cifarnet-smoke", logit_scale=0.5).eval()
    other.load_state_dict(own.state_dict())
    assert torch.allclose(other(images), own(images) * 12, atol=1e-6, rtol=1e-5)


def test_first_width_changes_the_watched_layer_and_what_touches_it():
    watched = studies()["rank"].base.watch
    own = {name: parameter.shape for name, parameter in build("cifarnet").named_parameters()}
    for width in (16, 64, 216):
        network = build("cifarnet", first_width=width)
        changed = {name: parameter.shape for name, parameter in network.named_parameters()}
        assert changed[watched] == (width, 24, 3, 3)
        assert changed["groups.0.conv2.weight"] == (64, width, 3, 3)
        touched = {watched, "groups.0.conv2.weight", "groups.0.norm1.weight", "groups.0.norm1.bias"}
        assert {name for name in own if own[name] != changed[name]} == (touched if width != 64 else set())
        assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_bad_options_are_refused_in_one_line():
    cases = [
        (
            {"shape": (1, 28, 28)},
            "shape of a CifarNet must be (3, 32, 32), got (1, 28, 28): resize the images or take ",
        ),
        ({"widths": (64, 256)}, "widths must be 3 integers such as (64, 256, 256), got (64, 256): pass that many"),
        ({"first_width": 0}, "first_width must be at least 1, got 0: pass 1 or more"),
        ({"logit_scale": 0}, "logit_scale must be a finite number in (0, inf), got 0.0: choose a value inside "),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match="must be") as caught:
            build("cifarnet", **options)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)
