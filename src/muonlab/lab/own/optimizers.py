"""``optimizer(...)``: an optimizer for a spec: registered, of torch.optim, or any callable that takes parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from muonlab import _checks
from muonlab.lab.own.part import OwnPart, Target

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

Trains = Literal["auto", "all", "hidden"]
UNSUPPORTED = {
    "LBFGS": "it calls a closure several times in a step",
    "SparseAdam": "it takes sparse gradients only",
}
"""Classes of torch.optim that the training loop cannot use, and why."""


def optimizer(
    target: Target, *, on: Trains = "auto", rest: Target | OwnOptimizer | None = None, **options: Any
) -> OwnOptimizer:
    """Return an optimizer for ``Spec(optimizer=…)``.

    Its learning rate is ``Spec.lr``; the other fields of the spec about optimizers (``momentum``, ``weight_decay``,
    ``q``, …) are for the three of the paper.

    Args:
        target: a name of ``muonlab list optimizers`` or of a class of torch.optim; a class or recipe such as
            ``torch.optim.AdamW`` or ``muonlab.Muon.moonlight``; or a function that takes parameters, ``lr`` and the
            options.
        on: which parameters it trains: ``"all"``, or ``"hidden"`` (those that ``split_params`` gives to Muon), with
            ``rest`` on the others. ``"auto"`` is ``"hidden"`` for every Muon and if ``rest`` is given, else ``"all"``.
        rest: optimizer of the other parameters; None is ``torch.optim.AdamW``. Its learning rate is ``Spec.aux_lr``
            (``Spec.head_lr`` for the output layer), else ``Spec.lr``; or give it an option ``lr``.
        **options: keyword arguments: numbers, text, or tuples of these. A sweep varies them as ``"optimizer.NAME"``.

    Example:
        >>> optimizer("AdamW", betas=(0.9, 0.95)).identity
        {'name': 'torch.optim.AdamW', 'options': {'betas': [0.9, 0.95]}, 'on': 'all'}
        >>> optimizer("muon.moonlight", rest=optimizer("AdamW", lr=0.003)).identity["rest"]["options"]
        {'lr': 0.003}
    """
    return OwnOptimizer(_registered(target), options, _checks.one_of("on", on, ("auto", "all", "hidden")), _rest(rest))


def _rest(rest: Target | OwnOptimizer | None) -> OwnOptimizer | None:
    if rest is None or isinstance(rest, OwnOptimizer):
        return rest
    return OwnOptimizer(_registered(rest), {}, "all")


@dataclass(frozen=True, eq=False)
class OwnOptimizer(OwnPart):
    """An optimizer of a spec: see :func:`optimizer`."""

    on: Trains = "auto"
    rest: OwnOptimizer | None = None

    @property
    def trains(self) -> Literal["all", "hidden"]:
        """Which parameters it trains."""
        if self.on != "auto":
            return self.on
        matrices_only = self.is_muon or self.name == "torch.optim.Muon"
        return "hidden" if matrices_only or self.rest is not None else "all"

    @property
    def is_muon(self) -> bool:
        """Whether it is a registered Muon."""
        return isinstance(self.target, str) and self.target.startswith("muon")

    def _about(self) -> dict[str, Any]:
        about = {**super()._about(), "on": self.trains}
        return {**about, "rest": self.of_rest.identity} if self.trains == "hidden" else about

    @property
    def of_rest(self) -> OwnOptimizer:
        """The optimizer of the parameters that it does not train."""
        return self.rest or OwnOptimizer("torch.optim.AdamW", {}, "all")

    def check_hashable(self) -> None:
        """Raise ``ValueError`` if the source of one of the two does not determine what it does."""
        super().check_hashable()
        if self.rest is not None:
            self.rest.check_hashable()

    def accepts(self, name: str) -> bool:
        """Return whether it takes an option."""
        try:
            return name in inspect.signature(self.callable).parameters
        except (TypeError, ValueError):
            return False

    @property
    def callable(self) -> Callable[..., Optimizer]:
        """The class or function."""
        if not isinstance(self.target, str):
            return self.target
        import torch

        from muonlab.optim import optimizers

        if self.target in optimizers():
            return optimizers()[self.target].build
        found: Callable[..., Optimizer] = getattr(torch.optim, self.target.rpartition(".")[2])
        return found

    def build(self, params: Any, lr: float, **more: Any) -> Optimizer:
        """Return the torch optimizer of parameters or groups."""
        from torch.optim.optimizer import Optimizer

        made = self.callable(params, **{"lr": lr, **self.options, **more})
        if not isinstance(made, Optimizer) or not all("lr" in group for group in made.param_groups):
            raise TypeError(
                f"an optimizer must be a torch optimizer with lr in its groups, got {type(made).__name__} from "
                f"{self.name}: return one"
            )
        return made


def _registered(target: Target) -> Target:
    """Return the registered name of a known optimizer, so that its name and its class are the same; else the target."""
    import torch

    from muonlab.optim import optimizers

    known: Mapping[str, Any] = {
        **{name: entry.build for name, entry in optimizers().items()},
        **{f"torch.optim.{name}": value for name, value in vars(torch.optim).items() if _is_class(value)},
    }
    if isinstance(target, str):
        found = target if target in known else f"torch.optim.{target}"
        if found not in known:
            raise ValueError(
                f"an optimizer must be a name of muonlab list optimizers or a class of torch.optim, got {target!r}: "
                f"use one of {', '.join(optimizers())}, AdamW, …, or pass a class or function"
            )
        target = found
    elif not callable(target):
        raise TypeError(f"an optimizer must be a name, a class or a function, got {target!r}: pass the class")
    else:
        target = next((name for name, build in known.items() if build == target), target)
    if isinstance(target, str) and (short := target.rpartition(".")[2]) in UNSUPPORTED:
        raise ValueError(f"the training loop cannot use {target}, got it: {UNSUPPORTED[short]}; use another")
    return target


def _is_class(value: Any) -> bool:
    import torch

    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
