from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from muonlab.lab.models import build, models


def expected_count(depth, widen, classes):
    """Return the parameters of a wide residual network without biases in its convolutions, from its description."""
    blocks = (depth - 4) // 6
    total, inputs = 3 * 16 * 9, 16
    for outputs in (16 * widen, 32 * widen, 64 * widen):
        for _ in range(blocks):
            total += 2 * inputs + 9 * inputs * outputs + 2 * outputs + 9 * outputs**2
            total += inputs * outputs if inputs != outputs else 0
            inputs = outputs
    return total + 2 * inputs + (inputs + 1) * classes


@pytest.mark.parametrize(("depth", "widen"), [(28, 10), (16, 2), (10, 1)])
def test_the_declared_count_is_that_of_the_description(depth, widen):
    assert models()[f"wrn-{depth}-{widen}"].parameters == expected_count(depth, widen, 200)


def test_the_counts_on_cifar_are_the_published_ones():
    """36.5M, as given by Zagoruyko & Komodakis; the digits are those of the common implementation."""
    with torch.device("meta"):
        for classes, count in ((10, 36_479_194), (100, 36_536_884)):
            network = build("wrn-28-10", shape=(3, 32, 32), classes=classes)
            assert sum(p.numel() for p in network.parameters()) == count


def test_convolutions_start_with_the_fan_out_variance_and_the_head_without_bias():
    torch.manual_seed(0)
    network = build("wrn-16-2")
    assert not network.fc.bias.any()
    for conv in (network.groups[1][1].conv1, network.groups[2][0].conv1, network.groups[2][0].shortcut):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


def test_at_32_by_32_the_pooling_is_that_of_the_common_implementation():
    torch.manual_seed(0)
    network = build("wrn-10-1", shape=(3, 32, 32), classes=10).eval()
    images = torch.randn(2, 3, 32, 32)
    x = network.conv1(images)
    for group in network.groups:
        x = group(x)
    assert x.shape == (2, 64, 8, 8)
    pooled = functional.avg_pool2d(functional.relu(network.bn(x)), 8).view(-1, 64)
    assert torch.allclose(network(images), network.fc(pooled), atol=1e-6, rtol=1e-5)


def test_the_shortcut_convolution_takes_the_normalised_input():
    torch.manual_seed(0)
    network = build("wrn-16-2").eval()
    x = torch.randn(2, 32, 8, 8)
    first, second = network.groups[1]
    active = functional.relu(first.bn1(x))
    branch = first.conv2(functional.relu(first.bn2(first.conv1(active))))
    expected = branch + functional.conv2d(active, first.shortcut.weight, stride=2)
    assert torch.allclose(first(x), expected, atol=1e-5, rtol=1e-5)
    assert second.shortcut is None
    branch = second.conv2(functional.relu(second.bn2(second.conv1(functional.relu(second.bn1(expected))))))
    assert torch.allclose(second(expected), branch + expected, atol=1e-5, rtol=1e-5)


def test_bad_options_are_refused_in_one_line():
    cases = [
        ({"depth": 20}, "depth must be 4 more than a multiple of 6, got 20: pass 16, say"),
        ({"depth": 4}, "depth must be at least 10, got 4: pass 10 or more"),
        ({"widen": 0}, "widen must be at least 1, got 0: pass 1 or more"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match="must be") as caught:
            build("wrn-28-10", **options)
        assert str(caught.value) == message
