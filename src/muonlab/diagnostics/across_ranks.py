"""What is found on one rank, known to all: rows, names and numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from muonlab.optim import Muon

Found = TypeVar("Found")


def gathered(muon: Muon, found: Iterable[Found]) -> list[Found]:
    """Return plain values that the processes of an optimizer have found, rank by rank; all of them must ask."""
    values: list[Any] = list(found)
    grids = muon.grids
    if grids:
        from muonlab.optim.distributed.agreement import gathered_text  # needs torch.distributed
    for grid in grids:
        texts = gathered_text(json.dumps(values), grid)
        values = [value for text in texts for value in json.loads(text)]
    return values
