from __future__ import annotations

import pytest
import torch

from muonlab.lab.models import build


def test_the_mlp_is_relu_between_affine_maps():
    torch.manual_seed(0)
    network = build("mlp")
    images = torch.randn(5, 1, 28, 28)
    x = images.reshape(5, 784)
    for layer in network.hidden:
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    expected = x @ network.head.weight.T + network.head.bias
    assert torch.allclose(network(images), expected, atol=1e-5, rtol=1e-5)
    assert [layer.weight.shape for layer in network.hidden] == [(512, 784), (256, 512)]


@pytest.mark.parametrize("widths", [(7,), [9, 8, 7]])
def test_widths_are_the_outputs_of_the_hidden_layers(widths):
    assert [layer.out_features for layer in build("mlp", widths=widths).hidden] == list(widths)
