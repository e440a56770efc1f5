"""The loss of a run, and its evaluation on held-out data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from muonlab.lab.data.batches import Examples, Tokens
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.own.part import OwnLoss
from muonlab.lab.spec import Spec

EVALUATION_BATCH = 1_000
"""Images in one pass of an evaluation, unless the spec sets ``micro_batch``."""
HELD_OUT_NUMBERS = ("test_loss", "test_cross_entropy", "test_accuracy")
"""The training criterion, the cross-entropy without smoothing, and the accuracy."""


def outputs_of(model: nn.Module, x: Tensor, spec: Spec) -> Tensor:
    """Return the outputs of a model in float32."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        outputs: Tensor = model(x)
    return outputs.float()


def criterion(model: nn.Module, x: Tensor, y: Tensor, spec: Spec) -> Tensor:
    """Return the mean cross-entropy with smoothed labels, or the user's loss."""
    outputs = outputs_of(model, x, spec)
    if isinstance(spec.loss, OwnLoss):
        return own_loss(spec.loss, outputs, y)
    logits, labels = per_label(outputs, y)
    return cross_entropy(logits, labels, label_smoothing=spec.smoothing)


def per_label(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and labels with one row per label: (b, classes), or (b · block, vocabulary) for text."""
    return outputs.flatten(0, -2), y.flatten()


def own_loss(loss: OwnLoss, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the user's loss of a batch; raise TypeError if it is not one number."""
    assert callable(loss.target)
    value: Tensor = loss.target(outputs, y, **loss.options)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(f"a loss must be a tensor of one number, got {type(value).__name__} from {loss.name}: average")
    return value.reshape(())


@torch.no_grad()
def held_out_numbers(
    model: nn.Module, examples: Examples, spec: Spec, stopping: Callable[[], bool], ranks: Ranks = ALONE
) -> dict[str, float] | None:
    """Return the means of :data:`HELD_OUT_NUMBERS`, with a loss of the user only the first; None if stopped.

    Each rank evaluates its part of the examples, and all ranks return the same numbers. All ranks make the same number
    of passes, because the parameters of a sharded model are gathered in each.
    """
    model.eval()
    names = HELD_OUT_NUMBERS[:1] if isinstance(spec.loss, OwnLoss) else HELD_OUT_NUMBERS
    sums = torch.zeros(len(names) + 1, dtype=torch.float64)
    limit = _limit(examples, spec)
    shares = torch.tensor_split(torch.arange(len(examples)), ranks.size)
    for first in range(0, len(shares[0]), limit):  # the first share is the largest
        if any(ranks.any(stopping())):
            return None
        index = shares[ranks.rank][first : first + limit]
        x, y = examples.batch(index if len(index) else shares[0][:1])
        outputs = outputs_of(model, x, spec)
        if len(index):  # otherwise this pass was only for the all-gather
            sums += torch.tensor(_batch_sums(outputs, y, spec), dtype=torch.float64)
    *totals, count = ranks.sum(sums).tolist()
    return {name: total / count for name, total in zip(names, totals, strict=True)}


def _batch_sums(outputs: Tensor, y: Tensor, spec: Spec) -> list[float]:
    """Return the sums of :data:`HELD_OUT_NUMBERS` over a batch, and how many terms they have."""
    if isinstance(spec.loss, OwnLoss):
        return [float(own_loss(spec.loss, outputs, y)) * len(y), len(y)]
    logits, labels = per_label(outputs, y)
    return [
        float(cross_entropy(logits, labels, reduction="sum", label_smoothing=spec.smoothing)),
        float(cross_entropy(logits, labels, reduction="sum")),
        float((logits.argmax(-1) == labels).sum()),
        labels.numel(),
    ]


def _limit(examples: Examples, spec: Spec) -> int:
    """Return the number of examples in one pass of an evaluation."""
    default = min(spec.batch_size, EVALUATION_BATCH) if isinstance(examples, Tokens) else EVALUATION_BATCH
    return spec.micro_batch or default
