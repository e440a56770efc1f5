"""SGD with momentum (Kim & Oh 2026, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim.optimizer import ParamsT

from muonlab.optim.base import MomentumOptimizer, move_momenta, move_weights
from muonlab.optim.finite import unless_skipped
from muonlab.optim.layout import Layouts
from muonlab.optim.part import Part, by_group
from muonlab.optim.registry import register

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class SGDM(MomentumOptimizer):
    r"""SGD with heavy-ball momentum (Kim & Oh 2026, Algorithm 3).

    .. math:: M_t = \beta M_{t-1} + G_t, \qquad W_t = W_{t-1} - \eta M_t

    Args:
        params: parameters of any shape, or groups of them.
        lr: step size η; a number or a tensor of one element.
        momentum: β in [0, 1).
        nesterov: follow ``G + βM`` instead of M.
        weight_decay: decoupled, ``W ← (1 - η·decay)·W`` before the step (torch.optim.SGD adds it to the gradient).
        maximize: climb instead of descending.
        nonfinite: what a gradient does that has NaN or infinity, or would carry the momentum out of range:
            ``"propagate"``, ``"raise"`` before anything changes, or ``"skip"`` its parameter for this step.
        process_group: processes that have copies of the parameters and must agree on which gradients there are and are
            finite; None has each work for itself. Parameters of fully_shard bring their own processes.

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> opt = SGDM([w], lr=0.1, momentum=0.9)
        >>> (w**2).sum().backward(); opt.step(); w.data
        tensor([0.8000, 0.8000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        nonfinite: str = "propagate",
        process_group: ProcessGroup | None = None,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        # every update is entry by entry, however a tensor is cut; only Partial ones are refused
        layouts = Layouts(process_group, entrywise=True)
        super().__init__(params, {**options, "maximize": maximize, "nonfinite": nonfinite}, layouts)

    def _update(self, parts: Sequence[Part]) -> None:
        for members in by_group(parts):
            group = members[0].group
            with unless_skipped(members, [part.weight for part in members]):
                move_weights(members, group, move_momenta(members, group, "heavy_ball"), 1.0)


register("sgdm", SGDM, source="Kim & Oh 2026, Algorithm 3", any_shape=True)
