from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from muonlab.lab.models import build


def norm(name, channels):
    vectors = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (channels,))
    return {f"{name}.{key}": shape for key, shape in {**vectors, "num_batches_tracked": ()}.items()}


def torchvision_state(width=64, classes=1000):
    """Return the names and shapes in the state of ``torchvision.models.resnet18``, in its order."""
    state = {"conv1.weight": (width, 3, 7, 7), **norm("bn1", width)}
    inputs = width
    for stage in (1, 2, 3, 4):
        outputs = width * 2 ** (stage - 1)
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            state |= {f"{at}.conv1.weight": (outputs, inputs, 3, 3), **norm(f"{at}.bn1", outputs)}
            state |= {f"{at}.conv2.weight": (outputs, outputs, 3, 3), **norm(f"{at}.bn2", outputs)}
            if inputs != outputs:
                state |= {f"{at}.downsample.0.weight": (outputs, inputs, 1, 1), **norm(f"{at}.downsample.1", outputs)}
            inputs = outputs
    return state | {"fc.weight": (classes, 8 * width), "fc.bias": (classes,)}


@pytest.mark.parametrize("classes", [100, 1000])
def test_resnet18_has_the_names_and_shapes_of_torchvision(classes):
    with torch.device("meta"):
        state = build("resnet18", shape=(3, 224, 224), classes=classes).state_dict()
    expected = torchvision_state(classes=classes)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected
    assert list(state) == list(expected)


def test_convolutions_start_with_the_fan_out_variance():
    torch.manual_seed(0)
    convolutions = [module for module in build("resnet18").modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 20
    for conv in convolutions:
        fan_out = conv.out_channels * math.prod(conv.kernel_size)
        assert conv.bias is None
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.03)


def test_a_block_is_the_written_out_composition():
    torch.manual_seed(0)
    network = build("resnet18-smoke").eval()
    x = torch.randn(2, 8, 8, 8)
    first, second = network.layer2

    def norm_of(layer, y):
        return (y - layer.running_mean[:, None, None]) / (layer.running_var[:, None, None] + 1e-5).sqrt()

    y = functional.conv2d(x, first.conv1.weight, stride=2, padding=1)
    y = functional.conv2d(norm_of(first.bn1, y).clamp(min=0), first.conv2.weight, padding=1)
    shortcut = functional.conv2d(x, first.downsample[0].weight, stride=2)
    expected = (norm_of(first.bn2, y) + norm_of(first.downsample[1], shortcut)).clamp(min=0)
    assert torch.allclose(first(x), expected, atol=1e-5, rtol=1e-5)
    y = functional.conv2d(expected, second.conv1.weight, padding=1)
    y = functional.conv2d(norm_of(second.bn1, y).clamp(min=0), second.conv2.weight, padding=1)
    again = (norm_of(second.bn2, y) + expected).clamp(min=0)
    assert torch.allclose(second(expected), again, atol=1e-5, rtol=1e-5)


def test_the_first_layers_are_those_for_large_images():
    torch.manual_seed(0)
    network, seen = build("resnet18-smoke").eval(), []
    network.layer1.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    images = torch.randn(2, 3, 32, 32)
    network(images)
    x = functional.conv2d(images, network.conv1.weight, stride=2, padding=3) / math.sqrt(1 + 1e-5)
    windows = functional.unfold(x.clamp(min=0), 3, padding=1, stride=2).unflatten(1, (8, 9))
    assert torch.allclose(seen[0], windows.amax(dim=2).unflatten(-1, (8, 8)), atol=1e-5, rtol=1e-5)
