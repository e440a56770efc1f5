"""ResNet-18 with torchvision's names, and narrower ones (Kim & Oh 2026, Appendix G)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from muonlab import _checks
from muonlab.lab.models.registry import Model, register


class ResNet18(nn.Module):
    """The residual network of He et al. 2016 with 18 layers, as torchvision has it (Kim & Oh 2026, Appendix G).

    Parameters and buffers have torchvision's names, shapes and initialisation, so that its weights load. The first
    layers are those for large images: 32×32 are down to 8×8 before the first block, 1×1 after the last.

    Args:
        channels: of the images.
        classes: the classes.
        width: channels of the first stage; each later one doubles them.
    """

    def __init__(self, channels: int = 3, classes: int = 100, *, width: int = 64) -> None:
        super().__init__()
        width = _checks.integer("width", width, at_least=1)
        self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:  # (b, c, h, w) → (b, classes)
        """Return the logits of a batch."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        logits: Tensor = self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's images."""
        branch = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(branch + self.downsample(x))


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))


def _build(shape: tuple[int, ...], classes: int, *, width: int = 64) -> nn.Module:
    return ResNet18(shape[0], classes, width=width)


register(Model(
    "resnet18", _build, shape=(3, 32, 32), classes=100, parameters=11_227_812,
    source="Kim & Oh 2026, Appendix G; He et al. 2016, as in torchvision",
))  # fmt: skip
register(Model(
    "resnet18-small", partial(_build, width=16), shape=(3, 32, 32), classes=100, parameters=714_996,
    source="muonlab: ResNet-18 that starts with 16 channels",
))  # fmt: skip
register(Model(
    "resnet18-smoke", partial(_build, width=8), shape=(3, 32, 32), classes=100, parameters=183_212,
    source="muonlab: ResNet-18 that starts with 8 channels",
))  # fmt: skip
