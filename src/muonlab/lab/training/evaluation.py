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


def outputs_of(model: nn.Module, x: Tensor, spec: Spec) -> Tensor:
    """Return the outputs of a model in float32."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        outputs: Tensor = model(x)
    return outputs.float()


def logits_of(model: nn.Module, x: Tensor, spec: Spec) -> Tensor:
    """Return float32 logits with one row per label: (b, classes), or (b · block, vocabulary) for text."""
    return outputs_of(model, x, spec).flatten(0, -2)


def criterion(model: nn.Module, x: Tensor, y: Tensor, spec: Spec) -> Tensor:
    """Return the mean cross-entropy with smoothed labels, or the user's loss."""
    if isinstance(spec.loss, OwnLoss):
        return own_loss(spec.loss, outputs_of(model, x, spec), y)
    return cross_entropy(logits_of(model, x, spec), y.flatten(), label_smoothing=spec.smoothing)


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
    """Return the training criterion, the plain cross-entropy and the accuracy on held-out data; None if stopped.

    Each rank evaluates its part of the examples, and all ranks return the same numbers. All ranks make the same number
    of passes, because the parameters of a sharded model are gathered in each.
    """
    model.eval()
    if isinstance(spec.loss, OwnLoss):
        return _held_out_loss(spec.loss, model, examples, spec, stopping, ranks)
    smoothed = plain = correct = count = 0.0
    limit = _limit(examples, spec)
    shares = torch.tensor_split(torch.arange(len(examples)), ranks.size)
    for first in range(0, len(shares[0]), limit):  # the first share is the largest
        if any(ranks.any(stopping())):
            return None
        index = shares[ranks.rank][first : first + limit]
        x, y = examples.batch(index if len(index) else shares[0][:1])
        logits, labels = logits_of(model, x, spec), y.flatten()
        if not len(index):  # this pass was only for the all-gather
            continue
        plain += float(cross_entropy(logits, labels, reduction="sum"))
        smoothed += float(cross_entropy(logits, labels, reduction="sum", label_smoothing=spec.smoothing))
        correct += float((logits.argmax(-1) == labels).sum())
        count += labels.numel()
    sums = ranks.sum(torch.tensor([smoothed, plain, correct, count], dtype=torch.float64))
    smoothed, plain, correct, count = sums.tolist()
    return {"test_loss": smoothed / count, "test_cross_entropy": plain / count, "test_accuracy": correct / count}


def _held_out_loss(
    loss: OwnLoss, model: nn.Module, examples: Examples, spec: Spec, stopping: Callable[[], bool], ranks: Ranks
) -> dict[str, float] | None:
    """Return the mean of the user's loss over held-out examples, as :func:`held_out_numbers` does."""
    total = count = 0.0
    limit = _limit(examples, spec)
    shares = torch.tensor_split(torch.arange(len(examples)), ranks.size)
    for first in range(0, len(shares[0]), limit):
        if any(ranks.any(stopping())):
            return None
        index = shares[ranks.rank][first : first + limit]
        x, y = examples.batch(index if len(index) else shares[0][:1])
        value = float(own_loss(loss, outputs_of(model, x, spec), y))
        total, count = total + value * len(index), count + len(index)
    total, count = ranks.sum(torch.tensor([total, count], dtype=torch.float64)).tolist()
    return {"test_loss": total / count}


def _limit(examples: Examples, spec: Spec) -> int:
    """Return the number of examples in one pass of an evaluation."""
    default = min(spec.batch_size, EVALUATION_BATCH) if isinstance(examples, Tokens) else EVALUATION_BATCH
    return spec.micro_batch or default
