"""Wide residual networks: WRN-28-10 for Tiny-ImageNet and small ones (Kim & Oh 2026, Appendix G)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from muonlab import _checks
from muonlab.lab.models.registry import Model, register


class WideResNet(nn.Module):
    """The wide residual network of Zagoruyko & Komodakis 2016, with pre-activation blocks (Kim & Oh 2026, Appendix G).

    No convolution has a bias. A 1×1 convolution is the shortcut of a block that changes the channels, and takes the
    normalised input. The common implementation ends with an 8×8 average-pool, made for images of 32×32; this one
    averages over the whole map, which is the same there and right at 64×64, where the map is 16×16.

    Args:
        channels: of the images.
        classes: the classes.
        depth: layers, 4 more than a multiple of 6.
        widen: channels of the three groups over 16, 32 and 64.
    """

    def __init__(self, channels: int = 3, classes: int = 200, *, depth: int = 28, widen: int = 10) -> None:
        super().__init__()
        blocks, left_over = divmod(_checks.integer("depth", depth, at_least=10) - 4, 6)
        if left_over:
            raise ValueError(f"depth must be 4 more than a multiple of 6, got {depth}: pass {6 * blocks + 4}, say")
        widen = _checks.integer("widen", widen, at_least=1)
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.groups = nn.ModuleList()
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            first = PreActivationBlock(inputs, outputs, 1 if index == 0 else 2)
            later = [PreActivationBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
            self.groups.append(nn.Sequential(first, *later))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:  # (b, c, h, w) → (b, classes)
        """Return the logits of a batch."""
        x = self.conv1(images)
        for group in self.groups:
            x = group(x)
        x = functional.adaptive_avg_pool2d(functional.relu(self.bn(x)), 1)
        logits: Tensor = self.fc(x.flatten(1))
        return logits


class PreActivationBlock(nn.Module):
    """BatchNorm, ReLU, 3×3 convolution, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's images."""
        active = functional.relu(self.bn1(x))
        branch: Tensor = self.conv2(functional.relu(self.bn2(self.conv1(active))))
        return branch + (x if self.shortcut is None else self.shortcut(active))


def _build(shape: tuple[int, ...], classes: int, *, depth: int = 28, widen: int = 10) -> nn.Module:
    return WideResNet(shape[0], classes, depth=depth, widen=widen)


register(Model(
    "wrn-28-10", _build, shape=(3, 64, 64), classes=200, parameters=36_600_984,
    source="Kim & Oh 2026, Appendix G; Zagoruyko & Komodakis 2016",
))  # fmt: skip
register(Model(
    "wrn-16-2", partial(_build, depth=16, widen=2), shape=(3, 64, 64), classes=200, parameters=716_184,
    source="muonlab: the wide residual network with depth 16 and widening 2",
))  # fmt: skip
register(Model(
    "wrn-10-1", partial(_build, depth=10, widen=1), shape=(3, 64, 64), classes=200, parameters=90_200,
    source="muonlab: the wide residual network with depth 10 and widening 1",
))  # fmt: skip
