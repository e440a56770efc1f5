"""The optimizer of a spec, the main one on hidden matrices and Nesterov SGD on the rest, and the learning rates."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.own.optimizers import OwnOptimizer
from muonlab.lab.spec import Spec
from muonlab.lab.training.optimizer_pair import OptimizerPair
from muonlab.optim import SGDM, Muon, MuonWithAux, NewtonSchulz, split_params


def build_optimizer(spec: Spec, model: nn.Module, ranks: Ranks = ALONE) -> Optimizer:
    """Return the optimizer of a run; the auxiliary updates do not depend on the main optimizer.

    With DDP, Muon divides its work over the process group; with sharded models it reads the group from the parameters.
    """
    if isinstance(spec.optimizer, OwnOptimizer):
        return build_own(spec, spec.optimizer, model, ranks)
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


def build_own(spec: Spec, chosen: OwnOptimizer, model: nn.Module, ranks: Ranks = ALONE) -> Optimizer:
    """Return an optimizer of the user: of all parameters, or of the hidden matrices and another one of the rest."""
    more = {"process_group": ranks.group} if chosen.is_muon and ranks.parallel == "ddp" else {}
    if chosen.trains == "all":
        return chosen.build([p for p in model.parameters() if p.requires_grad], spec.lr, **more)
    head = "auto" if spec.main_on == "hidden" else None
    split = split_params(model, rules=getattr(model, "matrix_rules", {}), head=head)
    if not split.matrices:
        raise ValueError(
            f"{chosen.name} trains hidden matrices, got a model without any: use another optimizer, or main_on='all'"
        )
    # the views of matrices are options of Muon; other optimizers take parameters as they are
    matrices = [group if chosen.is_muon else {"params": group["params"]} for group in split.matrices]
    main = chosen.build(matrices, spec.lr, **more)
    if not split.rest:
        return main
    groups = [{"params": group["params"], **_rate_of_rest(group, spec, chosen.of_rest)} for group in split.rest]
    rest = chosen.of_rest.build(groups, spec.aux_lr or spec.lr)
    return MuonWithAux(main, rest) if isinstance(main, Muon) else OptimizerPair(main, rest)


def _rate_of_rest(group: dict[str, Any], spec: Spec, rest: OwnOptimizer) -> dict[str, float]:
    """Return the learning rate of the output layer, where the spec has one for it."""
    own = group["role"] == "head" and spec.head_lr is not None and "lr" not in rest.options
    return {"lr": spec.head_lr} if own and spec.head_lr is not None else {}


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


def learning_rate_factor(update: int, updates: int, warmup: float, schedule: str = "cosine") -> float:
    """Return the factor on all learning rates: linear warmup, then decay to 0, or none.

    Args:
        update: index of the update, from 0.
        updates: updates of the whole run.
        warmup: fraction of the updates that the warmup takes.
        schedule: ``"cosine"``, ``"linear"`` or ``"constant"`` after the warmup.

    Example:
        >>> [round(learning_rate_factor(t, 8, 0.25), 3) for t in range(8)]
        [0.5, 1.0, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    """
    rise = math.ceil(warmup * updates)
    if update < rise:
        return (update + 1) / rise
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return (updates - update) / (updates - rise)
    return (1.0 + math.cos(math.pi * (update - rise) / (updates - rise))) / 2.0
