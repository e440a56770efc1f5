"""What an optimizer does that the theorems do not cover, and what they assume that no optimizer shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics.optimizer_matrices import muon_of
from muonlab.optim import MuonWithAux

ASSUMED = (
    "gradients are unbiased (batches drawn independently, not in shuffled epochs; no clipping)",
    "updates are not masked",
    "nothing else moves the weights (parameters outside of the optimizer do not change)",
)
"""Conditions of the theorems that an optimizer does not show."""


def uncovered_options(group: Mapping[str, Any]) -> list[str]:
    """Return the options in use of a Muon group that the theorems do not cover."""
    options = {"renormalised weights": group.get("renormalize"), "maximize=True": group.get("maximize")}
    return [name for name, used in options.items() if used]


def not_covered_by(optimizer: Optimizer) -> tuple[str, ...]:
    """Return what an optimizer does that the theorems do not cover, each once."""
    muon = muon_of(optimizer)
    groups = muon.param_groups
    parts = {option: True for group in groups for option in uncovered_options(group)}
    momenta = {(float(group["momentum"]), group["momentum_form"], bool(group["nesterov"])) for group in groups}
    parts["groups that differ in momentum or its form"] = len(momenta) > 1
    half = any(torch.finfo(p.dtype).bits < 32 for group in groups for p in group["params"])
    parts["weights of half precision, which round short steps away"] = half
    parts["directions sent at lower precision"] = muon.rounds_messages
    if isinstance(optimizer, MuonWithAux):
        count = sum(len(group["params"]) for group in optimizer.aux.param_groups)
        parts[f"{count} auxiliary parameters ({type(optimizer.aux).__name__})"] = True
    return tuple(name for name, applies in parts.items() if applies)
