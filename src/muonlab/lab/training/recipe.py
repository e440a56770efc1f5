"""The optimizer of a spec, the main one on hidden matrices and Nesterov SGD on the rest, and the learning rates."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.spec import Spec
from muonlab.optim import SGDM, Muon, MuonWithAux, NewtonSchulz, split_params


def build_optimizer(spec: Spec, model: nn.Module, ranks: Ranks = ALONE) -> Optimizer:
    """Return the optimizer of a run; the auxiliary updates do not depend on the main optimizer.

    With DDP, Muon divides its work over the process group; with sharded models it reads the group from the parameters.
    """
    head = "auto" if spec.main_on == "hidden" else None
    split = split_params(model, rules=getattr(model, "matrix_rules", {}), head=head)
    main: dict[str, Any] = {"lr": spec.lr, "momentum": spec.momentum, "weight_decay": spec.weight_decay}
    rest = [_auxiliary(group, spec) for group in split.rest]
    if spec.optimizer == "sgdm":
        matrices = [{"params": group["params"], **main} for group in split.matrices]
        return SGDM([*matrices, *rest], spec.lr, spec.momentum)
    main["process_group"] = ranks.group if ranks.parallel == "ddp" else None
    muon = Muon.paper(split.matrices, variant="experiments", **main, **_orthogonalizer(spec))
    return MuonWithAux(muon, SGDM(rest, spec.lr, spec.momentum)) if rest else muon


def _auxiliary(group: dict[str, Any], spec: Spec) -> dict[str, Any]:
    lr = spec.lr if spec.aux_lr is None else spec.aux_lr
    if group["role"] == "head" and spec.head_lr is not None:
        lr = spec.head_lr
    momentum = spec.momentum if spec.aux_momentum is None else spec.aux_momentum
    return {"params": group["params"], "lr": lr, "momentum": momentum, "nesterov": True}


def _orthogonalizer(spec: Spec) -> dict[str, Any]:
    if spec.optimizer == "svd":
        return {"polar": "svd"}
    if spec.polynomial == "taylor":
        return {"q": spec.q, "kappa": spec.kappa}
    return {"orthogonalizer": NewtonSchulz(spec.polynomial, steps=spec.q, prescale="frobenius", compute_dtype=None)}


def learning_rate_factor(update: int, updates: int, warmup: float) -> float:
    """Return the factor on all learning rates: linear warmup, then cosine decay to 0.

    Args:
        update: index of the update, from 0.
        updates: updates of the whole run.
        warmup: fraction of the updates that the warmup takes.

    Example:
        >>> [round(learning_rate_factor(t, 8, 0.25), 3) for t in range(8)]
        [0.5, 1.0, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    """
    rise = math.ceil(warmup * updates)
    if update < rise:
        return (update + 1) / rise
    return (1.0 + math.cos(math.pi * (update - rise) / (updates - rise))) / 2.0
