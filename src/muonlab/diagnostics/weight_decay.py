"""Weight decay of a Muon optimizer: its pull, compared with a step of unit gain, and the Frank-Wolfe gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from muonlab.diagnostics.matrix_spectra import inner, operator_norm, spectrum
from muonlab.diagnostics.optimizer_matrices import matrix_slices, parameters_of, present_gradient, step_length
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
    for name, p, group in _moving(muon):
        if not group["weight_decay"]:
            continue
        W = whole(p.detach() if weights is None else weights[p])
        for part, shape in matrix_slices(name, p.shape, group):
            unit = step_length({**group, "lr": 1.0}, *shape)
            pulls.append(float(group["weight_decay"]) * operator_norm(part.select(W)) / unit)
    return max(pulls) if any(group["weight_decay"] for group in muon.param_groups) else None


def _moving(muon: Muon) -> Iterator[tuple[str, Tensor, Mapping[str, Any]]]:
    """Yield name, parameter and group of all that a step moves; all at learning rate 1 if every rate is zero."""
    at_rest = not any(float(group["lr"]) for group in muon.param_groups)
    for name, p, group in parameters_of(muon):
        if p.numel() and (at_rest or float(group["lr"])):
            yield name, p, {**group, "lr": 1.0} if at_rest else group


@torch.no_grad()
def frank_wolfe_gap(muon: Muon, descent: float) -> float | None:
    """Return ``ρ Σ_l c_l ‖G_l‖_* + Σ_l (lr_l λ_l/η) ⟨G_l, W_l⟩`` of the present gradients and weights.

    It is λ times the Frank-Wolfe gap over ``‖W‖ ≤ ρ/λ`` in the norm of the network, negative only outside of that ball
    (docs/theory/theorem-b.md). None if a parameter has no gradient, or only zeros. In distributed training it is a
    collective call.

    Args:
        muon: the optimizer; η is the length of its longest step, at learning rate 1 if all are zero.
        descent: ρ.
    """
    longest = norm = inward = 0.0
    for name, p, group in _moving(muon):
        G, W = present_gradient(p), whole(p.detach())
        if G is None:
            return None
        for part, shape in matrix_slices(name, p.shape, group):
            length, M = step_length(group, *shape), part.select(G)
            longest = max(longest, length)
            norm += length * spectrum(M).nuclear
            inward += float(group["lr"]) * float(group["weight_decay"]) * float(inner(M, part.select(W)))
    return (descent * norm + inward) / longest if longest else None
