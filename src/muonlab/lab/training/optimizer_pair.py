"""Two optimizers as one, for the training loop: that of the hidden matrices and that of the other parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer


class OptimizerPair(Optimizer):
    """An optimizer that steps two others, which hold its groups and states; :class:`muonlab.MuonWithAux` is for Muon.

    Args:
        main: optimizer of the hidden matrices.
        rest: optimizer of the other parameters.
    """

    def __init__(self, main: Optimizer, rest: Optimizer) -> None:
        self.main, self.rest = main, rest
        self.defaults: dict[str, Any] = {}
        Optimizer.__setstate__(self, {})  # sets up hooks; groups and states belong to the two optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Groups of both optimizers."""
        return self.main.param_groups + self.rest.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """State of both optimizers by parameter."""
        return {**self.main.state, **self.rest.state}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step both optimizers; a closure is called by the first of them."""
        loss = self.main.step(closure) if closure is not None else self.main.step()
        self.rest.step()
        return loss
