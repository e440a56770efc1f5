"""CifarNet, the paper's main network, and narrower ones (Kim & Oh 2026, Appendix F)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from muonlab import _checks
from muonlab.lab.models.registry import Model, positive_integers, register
from muonlab.lab.models.whitening import whitening_filters

SHAPE = (3, 32, 32)

_PATCH = 2
_WHITENED = 2 * SHAPE[0] * _PATCH**2


class CifarNet(nn.Module):
    """Frozen whitening, three groups of convolutions, a linear head without bias (Kim & Oh 2026, Appendix F).

    The network is that of cifar10-airbench (K. Jordan), which the paper's text leaves open in places. Taken from there:
    GELU after the whitening; a BatchNorm before each GELU of a group (the text names the BatchNorms, not their places);
    the 3×3 max-pool before the head; logits over the number of the head's inputs; BatchNorm with eps 1e-12 and momentum
    0.4 in torch's sense, the weight of the new batch (airbench writes 1 - 0.6).

    Args:
        classes: the classes.
        widths: channels that each of the three groups puts out.
        first_width: channels that the first convolution of the first group puts out, all else fixed; by default the
            first of ``widths``.
        logit_scale: factor on the logits; by default one over the last of ``widths``, 1/256 in the full network.
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        widths: Sequence[int] = (64, 256, 256),
        first_width: int | None = None,
        logit_scale: float | None = None,
    ) -> None:
        super().__init__()
        a, b, c = positive_integers("widths", widths, like=(64, 256, 256))
        first = a if first_width is None else _checks.integer("first_width", first_width, at_least=1)
        self.logit_scale = 1 / c if logit_scale is None else _checks.positive("logit_scale", logit_scale)
        self.whiten = nn.Conv2d(SHAPE[0], _WHITENED, _PATCH)
        self.whiten.weight.requires_grad_(False)
        self.groups = nn.ModuleList([Group(_WHITENED, first, a), Group(a, b, b), Group(b, c, c)])
        self.head = nn.Linear(c, classes, bias=False)
        with torch.no_grad():
            self.head.weight.div_(self.head.weight.std())

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Set the whitening weight from normalised training images, ``(n, 3, 32, 32)``; until then it is random."""
        if tuple(images.shape[1:]) != SHAPE:
            raise ValueError(
                f"images must have the shape (n, 3, 32, 32), got {tuple(images.shape)}: pass normalised training images"
            )
        self.whiten.weight.copy_(whitening_filters(images, size=_PATCH))

    def forward(self, images: Tensor) -> Tensor:  # (b, 3, 32, 32) → (b, classes)
        """Return the logits of a batch."""
        x = functional.gelu(self.whiten(images))  # (b, 24, 31, 31)
        for group in self.groups:
            x = group(x)  # 31 → 15 → 7 → 3
        logits: Tensor = self.head(functional.max_pool2d(x, 3).flatten(1))
        return logits * self.logit_scale


class Group(nn.Module):
    """Convolution, 2×2 max-pool, BatchNorm, GELU, convolution, BatchNorm, GELU."""

    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, middle)
        self.norm1 = _norm(middle)
        self.conv2 = _convolution(middle, outputs)
        self.norm2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the images of the group, half as high and wide."""
        x = functional.gelu(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        return functional.gelu(self.norm2(self.conv2(x)))


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 3×3 convolution whose first ``inputs`` filters pass their channel through."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight[:inputs])
    return layer


def _norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)  # it starts at 1
    return norm


def _build(
    shape: tuple[int, ...],
    classes: int,
    *,
    widths: Sequence[int] = (64, 256, 256),
    first_width: int | None = None,
    logit_scale: float | None = None,
) -> nn.Module:
    if shape != SHAPE:
        raise ValueError(f"shape of a CifarNet must be {SHAPE}, got {shape}: resize the images or take another model")
    return CifarNet(classes, widths=widths, first_width=first_width, logit_scale=logit_scale)


register(Model(
    "cifarnet", _build, shape=SHAPE, classes=10, parameters=1_972_792,
    source="Kim & Oh 2026, Appendix F; K. Jordan, cifar10-airbench (airbench94_muon)",
))  # fmt: skip
register(Model(
    "cifarnet-small", partial(_build, widths=(32, 64, 64)), shape=SHAPE, classes=10, parameters=146_744,
    source="muonlab: CifarNet with widths 32, 64, 64",
))  # fmt: skip
register(Model(
    "cifarnet-smoke", partial(_build, widths=(16, 24, 24)), shape=SHAPE, classes=10, parameters=25_576,
    source="muonlab: CifarNet with widths 16, 24, 24",
))  # fmt: skip
