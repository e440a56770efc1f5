"""SGD with momentum (Kim & Oh 2026, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, no_grad
from torch.optim.optimizer import ParamsT

from muonlab.optim.base import MomentumOptimizer
from muonlab.optim.layout import Layouts
from muonlab.optim.registry import register
from muonlab.optim.step import sgdm_step

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class SGDM(MomentumOptimizer):
    r"""SGD with heavy-ball momentum (Kim & Oh 2026, Algorithm 3).

    .. math:: M_t = \beta M_{t-1} + G_t, \qquad W_t = W_{t-1} - \eta M_t

    Args:
        params: parameters of any shape, or groups of them.
        lr: learning rate η; a number or a tensor of one element.
        momentum: β in [0, 1).
        nesterov: move along ``G + βM`` instead of M.
        weight_decay: decoupled, ``W ← (1 - η·decay)·W`` before the step (torch.optim.SGD adds it to the gradient).
        maximize: maximize the objective instead of minimizing it.
        nonfinite: how to handle gradients that are not finite, or that would make the momentum overflow:
            ``"propagate"`` them, ``"raise"`` before anything changes, or ``"skip"`` the parameter in this step.
        capturable: whether steps can be captured in a CUDA graph, as in torch.optim.Adam: ``lr`` must then be a tensor
            on the device of the parameters.
        process_group: processes that hold replicas of the parameters and must agree on which gradients exist and are
            finite; None: gradients are not compared between processes. Parameters of
            fully_shard need no group.

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
        capturable: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        # the update is entry by entry, so any sharding is accepted
        layouts = Layouts(tuple(self.checks), process_group, entrywise=True)
        options |= {"maximize": maximize, "nonfinite": nonfinite, "capturable": capturable}
        super().__init__(params, options, layouts)

    @no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; the others do not change, weight decay included.

        Args:
            closure: recomputes the loss and its gradients; called once, before the update.

        Returns:
            What the closure returned.
        """
        loss, params = self._begin_step(closure)
        sgdm_step(params, self._layouts)
        return loss


register("sgdm", SGDM, source="Kim & Oh 2026, Algorithm 3", any_shape=True)
