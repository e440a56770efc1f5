"""Exchange plain values between the processes of a distributed optimizer, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from muonlab.optim import Muon

T = TypeVar("T")


def gather_from_ranks(muon: Muon, values: Iterable[T]) -> list[T]:
    """Return the values of all ranks in rank order, or the given ones on a single process; a collective call."""
    gathered: list[Any] = list(values)
    grids = muon.grids
    if grids:
        from muonlab.optim.distributed.agreement import gathered_text  # needs torch.distributed
    for grid in grids:
        texts = gathered_text(json.dumps(gathered), grid)
        gathered = [value for text in texts for value in json.loads(text)]
    return gathered
