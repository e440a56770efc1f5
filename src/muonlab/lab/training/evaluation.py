"""The criterion of a run, and the numbers on its held-out data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from muonlab.lab.data import Examples
from muonlab.lab.data.batches import Tokens
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.spec import Spec

AT_ONCE = 1_000
"""Images in one pass of an evaluation, unless the spec allows fewer."""


def logits_of(model: nn.Module, x: Tensor, spec: Spec) -> Tensor:
    """Return float32 logits, a row for each label: (b, classes), or (b · block, vocabulary) of text."""
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
    """Return the criterion, the plain cross-entropy and the accuracy on held-out data, or None if asked to stop.

    Each rank takes its share of the examples, all make the same number of passes, and all return the same.
    """
    model.eval()
    smoothed = plain = correct = count = 0.0
    most = spec.micro_batch or (min(spec.batch_size, AT_ONCE) if isinstance(examples, Tokens) else AT_ONCE)
    share = torch.tensor_split(torch.arange(len(examples)), ranks.size)
    for first in range(0, len(share[0]), most):  # the first share is the largest
        if any(ranks.any(stopping())):
            return None
        index = share[ranks.rank][first : first + most]
        x, y = examples.batch(index if len(index) else share[0][:1])
        logits, labels = logits_of(model, x, spec), y.flatten()
        if not len(index):  # a pass for company: shards are gathered from all ranks
            continue
        plain += float(cross_entropy(logits, labels, reduction="sum"))
        smoothed += float(cross_entropy(logits, labels, reduction="sum", label_smoothing=spec.smoothing))
        correct += float((logits.argmax(-1) == labels).sum())
        count += labels.numel()
    sums = ranks.sum(torch.tensor([smoothed, plain, correct, count], dtype=torch.float64))
    smoothed, plain, correct, count = sums.tolist()
    return {"test_loss": smoothed / count, "test_cross_entropy": plain / count, "test_accuracy": correct / count}
