"""The loss of a run, and its evaluation on held-out data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from muonlab.lab.data import Examples
from muonlab.lab.data.batches import Tokens
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.spec import Spec

EVALUATION_BATCH = 1_000
"""Images in one pass of an evaluation, unless the spec sets ``micro_batch``."""


def logits_of(model: nn.Module, x: Tensor, spec: Spec) -> Tensor:
    """Return float32 logits with one row per label: (b, classes), or (b · block, vocabulary) for text."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        logits: Tensor = model(x)
    return logits.float().flatten(0, -2)


def criterion(model: nn.Module, x: Tensor, y: Tensor, spec: Spec) -> Tensor:
    """Return the mean cross-entropy with smoothed labels."""
    return cross_entropy(logits_of(model, x, spec), y.flatten(), label_smoothing=spec.smoothing)


@torch.no_grad()
def held_out_numbers(
    model: nn.Module, examples: Examples, spec: Spec, stopping: Callable[[], bool], ranks: Ranks = ALONE
) -> dict[str, float] | None:
    """Return the training criterion, the plain cross-entropy and the accuracy on held-out data; None if stopped.

    Each rank evaluates its part of the examples, and all ranks return the same numbers. All ranks make the same number
    of passes, because the parameters of a sharded model are gathered in each.
    """
    model.eval()
    smoothed = plain = correct = count = 0.0
    default = min(spec.batch_size, EVALUATION_BATCH) if isinstance(examples, Tokens) else EVALUATION_BATCH
    limit = spec.micro_batch or default
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
