"""What all optimizers here share: checked groups, state from the start, guarded loading, the update of a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT

from muonlab.optim.layout import Layout, layout_of
from muonlab.optim.momentum import MomentumForm, advance
from muonlab.optim.options import COMMON, Check, checked, refuse_slips

BUFFER = "momentum_buffer"
"""Key of the momentum in a parameter's state, as in torch's own optimizers."""


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter, or a block of its rows, as the step sees it: plain tensors that share its memory."""

    param: Tensor
    group: dict[str, Any]
    layout: Layout
    weight: Tensor
    grad: Tensor
    momentum: Tensor
    finite: Tensor | None
    """Whether the parameter's gradient and momentum are in range, on its device; None where nobody asks."""


class MomentumOptimizer(Optimizer):
    """Momentum, decoupled weight decay and what goes wrong around them; a subclass says which direction to follow."""

    checks: ClassVar[Mapping[str, Check]] = COMMON
    """Every option of a parameter group with its check."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        given: Any = params if isinstance(params, Tensor) else list(params)  # torch has a message for a bare tensor
        if isinstance(given, list) and not given:
            raise ValueError(
                "an optimizer needs parameters, got none: if split_params found no hidden matrix, print its table; a "
                "single layer is taken for the output layer unless head=None"
            )
        super().__init__(given, {**defaults, **checked(defaults, self.checks)})

    # ---------------------------------------------------------------------------------------------- groups and state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked like one given at construction; on an error the optimizer stays as it was."""
        refuse_slips(param_group, self.checks)
        group = {**param_group, **checked(param_group, self.checks)}
        super().add_param_group(group)
        try:
            self._check_group(group)
        except Exception:
            self.param_groups.pop()
            raise
        for p in group["params"]:
            self._buffer(p)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Refuse parameters that the optimizer has no update for."""
        for name, p in named(group):
            if is_lazy(p):
                raise ValueError(f"parameters must have a shape, got {name} uninitialized: run one forward pass first")
            if not p.is_floating_point():
                raise TypeError(f"parameters must be real floating-point tensors, got {name} of {p.dtype}: use float32")
            layout_of(p)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over unpickled or loaded state, after it was checked; what an older dictionary lacks stays as it is."""
        defaults = state.get("defaults", getattr(self, "defaults", {}))
        present = getattr(self, "param_groups", [])
        groups = [
            self._restored(group, {**defaults, **(present[i] if i < len(present) else {})})
            for i, group in enumerate(state.get("param_groups", ()))
        ]
        states = state.get("state", {})
        wrong = []
        for group in groups:
            self._check_group(group)
            for name, p in named(group):
                buffer = states.setdefault(p, {}).get(BUFFER)
                if buffer is None:
                    states[p][BUFFER] = torch.zeros_like(p, memory_format=torch.preserve_format)
                elif buffer.shape != p.shape:
                    wrong.append(f"{name} has shape {tuple(p.shape)}, its state {tuple(buffer.shape)}")
        if wrong:
            raise ValueError(
                f"a state must have the shape of its parameter: {'; '.join(wrong)}: load the state of the same model, "
                f"with its parameters in the same order"
            )
        super().__setstate__({**state, "param_groups": groups} if groups else state)

    def _restored(self, group: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return a loaded group with all options, checked; its keys keep their order."""
        refuse_slips(group, self.checks)
        missing = {name: value for name, value in defaults.items() if name in self.checks and name not in group}
        filled = {**group, **missing}
        return {**filled, **checked(filled, self.checks)}

    def _buffer(self, p: Tensor) -> Tensor:
        """Return the momentum of a parameter, on its device; one that was swapped in by hand starts from zero."""
        state = self.state[p]
        buffer: Tensor | None = state.get(BUFFER)
        if buffer is None:
            buffer = state[BUFFER] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if buffer.device != p.device or buffer.dtype != p.dtype:
            buffer = state[BUFFER] = buffer.to(device=p.device, dtype=p.dtype)
        return buffer

    # ------------------------------------------------------------------------------------------------------ the step

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; the rest is left alone, decay included.

        Args:
            closure: computes the loss and its gradients again, once, before the update.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            for group in self.param_groups:  # a value that was put there by hand is checked like any other
                group.update(checked(group, self.checks))
                self._check_group(group)
        parts = list(self._parts())
        _raise_nonfinite(parts)
        self._update(parts)
        return loss

    def _update(self, parts: Sequence[Part]) -> None:
        """Move momenta and weights on; the subclass's part of the step."""
        raise NotImplementedError

    def _parts(self) -> Iterator[Part]:
        """Yield the parameters that have entries and, on some process at least, a gradient."""
        members = [(group, p, layout_of(p)) for group in self.param_groups for p in group["params"] if p.numel()]
        present: dict[Tensor, bool] = {}
        for layout in {layout: None for _, _, layout in members}:
            mine = [p for _, p, of_p in members if of_p is layout]
            present.update(zip(mine, layout.agree([p.grad is not None for p in mine]), strict=True))
        for group, p, layout in members:
            if not present[p]:
                continue
            weight, momentum = layout.held(p), layout.held(self._buffer(p))
            grad = torch.zeros_like(weight) if p.grad is None else layout.held(_dense(p.grad, group, p))
            grad = grad.to(momentum.dtype)
            watched = group["nonfinite"] != "propagate"
            finite = layout.everywhere(stays_finite(group, grad, momentum)) if watched else None
            yield Part(p, group, layout, weight, grad, momentum, finite)


def _dense(grad: Tensor, group: Mapping[str, Any], param: Tensor) -> Tensor:
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"gradients must be dense, got one of layout {grad.layout} for {name_of(group, param)}: "
            f"use sparse=False in its layer, or give it to torch.optim.SparseAdam"
        )
    return grad


def named(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a group with a name for messages."""
    names = group.get("param_names") or [f"parameter {i} of its group" for i in range(len(group["params"]))]
    return zip(names, group["params"], strict=True)


def name_of(group: Mapping[str, Any], param: Tensor) -> str:
    """Return the name of one parameter of a group."""
    return next(name for name, p in named(group) if p is param)


def stays_finite(group: Mapping[str, Any], grad: Tensor, momentum: Tensor) -> Tensor:
    """Return, on its device, whether a gradient is finite and leaves the momentum in the range of its dtype."""
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    largest = torch.linalg.vector_norm(grad, torch.inf, dtype=wide)
    if group.get("momentum_form", "heavy_ball") == "heavy_ball":
        # an average cannot leave the range of what it averages; this sum can
        mu = group["momentum"]
        moved = mu * torch.linalg.vector_norm(momentum, torch.inf, dtype=wide) + largest
        largest = largest + mu * moved if group["nesterov"] else moved
    in_range: Tensor = largest <= torch.finfo(grad.dtype).max
    return in_range


def _raise_nonfinite(parts: Sequence[Part]) -> None:
    """Refuse NaN and infinity where a group asks for it, before anything has changed; reads one number per device."""
    watched = [part for part in parts if part.group["nonfinite"] == "raise"]
    by_device: dict[torch.device, list[Tensor]] = {}
    for part in watched:
        by_device.setdefault(part.grad.device, []).append(cast(Tensor, part.finite))
    if all(bool(torch.stack(flags).all()) for flags in by_device.values()):
        return
    bad = [name_of(part.group, part.param) for part in watched if not part.finite]
    raise ValueError(
        f"gradients must be finite (nonfinite='raise') and keep momenta so, got NaN or infinity for {', '.join(bad)}: "
        f"nothing was updated; lower the learning rate or the loss scale, or pass nonfinite='skip'"
    )


def by_group(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield neighbours of one group together."""
    for _, members in groupby(parts, key=lambda part: id(part.group)):
        yield list(members)


def move_momenta(parts: Sequence[Part], group: Mapping[str, Any], form: MomentumForm) -> list[Tensor]:
    """Move the momenta of parts of one group on, but those to skip, and return the directions to follow."""
    momenta = [part.momentum for part in parts]
    grads = [part.grad for part in parts]
    with unless_skipped(parts, momenta):
        return advance(momenta, grads, form=form, momentum=group["momentum"], nesterov=group["nesterov"])


def move_weights(parts: Sequence[Part], group: Mapping[str, Any], directions: Sequence[Tensor], scale: float) -> None:
    """Decay the weights by ``1 - lr·decay``, then step along the directions by ``lr·scale``."""
    weights = [part.weight for part in parts]
    lr = scalar(group["lr"])
    if group["weight_decay"]:
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
    factor = lr * (scale if group["maximize"] else -scale)
    if isinstance(factor, Tensor):  # reading it would wait for the device, or make it a constant of a compiled step
        factor = factor if factor.device == weights[0].device else factor.to(weights[0].device)
        torch._foreach_add_(weights, list(torch._foreach_mul(list(directions), factor)))
    else:
        torch._foreach_add_(weights, list(directions), alpha=factor)


@contextmanager
def unless_skipped(parts: Sequence[Part], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Undo, bit by bit and without reading a device, what happens to the tensors of parameters to skip."""
    skipping = [(part.finite, t) for part, t in zip(parts, tensors, strict=True) if part.group["nonfinite"] == "skip"]
    kept = [tensor.clone() for _, tensor in skipping]
    yield
    for (finite, tensor), before in zip(skipping, kept, strict=True):
        tensor.copy_(torch.where(cast(Tensor, finite), tensor, before))


def scalar(lr: float | Tensor) -> float | Tensor:
    """Return a learning rate as a number where that costs nothing, as a tensor without dimensions elsewhere."""
    if not isinstance(lr, Tensor):
        return lr
    if lr.device.type == "cpu" and not torch.compiler.is_compiling():
        return float(lr)
    return lr.reshape(())
