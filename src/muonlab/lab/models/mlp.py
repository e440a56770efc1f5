"""The multilayer perceptron for MNIST and a narrower one (Kim & Oh 2026, Appendix G)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from muonlab.lab.models.registry import Model, positive_integers, register


class MLP(nn.Module):
    """Linear layers with biases and ReLU between them, over the entries of an example (Kim & Oh 2026, Appendix G).

    The paper gives the widths only; ReLU, biases and torch's own initialisation are choices made here.

    Args:
        inputs: entries of one example.
        classes: the classes.
        widths: outputs of each hidden layer.
    """

    def __init__(self, inputs: int, classes: int, *, widths: Sequence[int] = (512, 256)) -> None:
        super().__init__()
        sizes = (inputs, *positive_integers("widths", widths, like=(512, 256), any_length=True))
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, images: Tensor) -> Tensor:  # (b, ...) → (b, classes)
        """Return the logits of a batch."""
        x = images.flatten(1)
        for layer in self.hidden:
            x = functional.relu(layer(x))
        logits: Tensor = self.head(x)
        return logits


def _build(shape: tuple[int, ...], classes: int, *, widths: Sequence[int] = (512, 256)) -> nn.Module:
    return MLP(math.prod(shape), classes, widths=widths)


register(Model(
    "mlp", _build, shape=(1, 28, 28), classes=10, parameters=535_818,
    source="784-512-256-10 on MNIST, Kim & Oh 2026, Appendix G",
))  # fmt: skip
register(Model(
    "mlp-small", partial(_build, widths=(128, 64)), shape=(1, 28, 28), classes=10, parameters=109_386,
    source="muonlab: the MLP of Kim & Oh 2026, narrower",
))  # fmt: skip
