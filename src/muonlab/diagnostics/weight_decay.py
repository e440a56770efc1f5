"""How strongly weight decay pulls the matrices of a Muon optimizer, compared with a step of unit gain."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from muonlab.diagnostics.matrix_spectra import operator_norm
from muonlab.diagnostics.optimizer_matrices import matrix_slices, parameters_of, step_length
from muonlab.optim import Muon
from muonlab.optim.distributed.tensors import whole


@torch.no_grad()
def decay_pull(muon: Muon, weights: Mapping[Tensor, Tensor] | None = None) -> float | None:
    """Return the largest ``λ ‖W_l‖_op / scale_l`` over the matrices; None if no group has weight decay.

    Args:
        muon: the optimizer.
        weights: parameter → its weights at an earlier time; None takes the present ones.

    A step moves a matrix by ``lr·scale·O`` and decays it by ``lr·λ·W``, so this is ``λ ‖W‖`` in the norm of the
    network (docs/theory/theorem-b.md). In distributed training it is a collective call.
    """
    pulls = [0.0]
    for name, p, group in parameters_of(muon):
        if not group["weight_decay"] or not p.numel():
            continue
        W = whole(p.detach() if weights is None else weights[p])
        for part, shape in matrix_slices(name, p.shape, group):
            unit = step_length({**group, "lr": 1.0}, *shape)
            pulls.append(float(group["weight_decay"]) * operator_norm(part.select(W)) / unit)
    return max(pulls) if any(group["weight_decay"] for group in muon.param_groups) else None
