"""What all optimizers here share: checked groups, state from the start, guarded loading, the update of a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT

from muonlab.optim.layout import Block, Job, Layout, Layouts, Local
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
    finite: Tensor | None = None
    """Whether the parameter's gradient and momentum are in range, on its device; None where nobody asks."""
    block: Block | None = None
    """What of the parameter is orthogonalized together with it; None where nothing is orthogonalized."""
    index: int = 0
    """Number of the block in the parameter."""


class MomentumOptimizer(Optimizer):
    """Momentum, decoupled weight decay and what goes wrong around them; a subclass says which direction to follow."""

    checks: ClassVar[Mapping[str, Check]] = COMMON
    """Every option of a parameter group with its check."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any], layouts: Layouts | None = None) -> None:
        self._layouts = layouts or Layouts()
        self._finite: dict[Tensor, Tensor | None] = {}
        given: Any = params if isinstance(params, Tensor) else list(params)  # torch has a message for a bare tensor
        if isinstance(given, list) and not given:
            self._layouts.plain.prepare(())  # ranks that wait for this one's plan are not to wait in vain
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
            self._layouts.of(p, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over unpickled or loaded state, after it was checked; what an older dictionary lacks stays as it is."""
        if "_layouts" not in self.__dict__:  # a process group cannot be unpickled: a copy works for itself
            self._layouts, self._finite = Layouts(), {}
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
        members = self._members()
        self._prepare(members)
        parts = _with_finite(self._parts(members))
        _raise_nonfinite(parts)
        if not torch.compiler.is_compiling():
            self._finite = {part.param: part.finite for part in parts}
        self._update(parts)
        for part in parts:
            part.layout.settle(part.param, part.weight)
            part.layout.settle(self._buffer(part.param), part.momentum)
        self._finite = {}
        return loss

    def skipped(self, param: Tensor) -> bool:
        """Tell, within a step, whether it leaves a parameter alone because of ``nonfinite="skip"``."""
        finite = self._finite.get(param)
        return finite is not None and not bool(finite)

    def _update(self, parts: Sequence[Part]) -> None:
        """Move momenta and weights on; the subclass's part of the step."""
        raise NotImplementedError

    def _members(self) -> list[Member]:
        return [
            Member(group, name, p, self._layouts.of(p, name))
            for group in self.param_groups
            for name, p in named(group)
            if p.numel()
        ]

    def _prepare(self, members: Sequence[Member]) -> None:
        """Let every layout share out the work; the one that was asked for takes part even if it has nothing to do."""
        for layout in dict.fromkeys((self._layouts.plain, *(member.layout for member in members))):
            if not isinstance(layout, Local):
                layout.prepare([job for member in members if member.layout is layout for job in self._jobs(member)])

    def _jobs(self, member: Member) -> Iterator[Job]:
        """Yield what a step has to do for a parameter, as far as ranks have to agree on it."""
        for block in member.layout.blocks(member.param, "flatten"):
            yield Job(member.param, block, 0.0, str(member.group["nonfinite"]))

    def _parts(self, members: Sequence[Member]) -> Iterator[Part]:
        """Yield the parameters that have, on some process at least, a gradient."""
        present: dict[Tensor, bool] = {}
        for layout in dict.fromkeys(member.layout for member in members):
            mine = [member for member in members if member.layout is layout]
            flags = layout.agree([m.param.grad is not None for m in mine], [m.name for m in mine])
            present.update(zip((m.param for m in mine), flags, strict=True))
        for group, name, p, layout in members:
            if not present[p]:
                continue
            weight, momentum = layout.held(p), layout.held(self._buffer(p))
            grad = layout.held(torch.zeros_like(p) if p.grad is None else _dense(p.grad, p, name))
            yield Part(p, group, layout, weight, grad.to(momentum.dtype), momentum)


class Member(NamedTuple):
    """A parameter of an optimizer, with the group, the name and the layout that it has there."""

    group: dict[str, Any]
    name: str
    param: Tensor
    layout: Layout


def _dense(grad: Tensor, param: Tensor, name: str) -> Tensor:
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"gradients must be dense, got one of layout {grad.layout} for {name}: "
            f"use sparse=False in its layer, or give it to torch.optim.SparseAdam"
        )
    placed, placed_there = getattr(grad, "placements", None), getattr(param, "placements", None)
    if placed != placed_there:
        raise TypeError(
            f"a gradient must be placed like its parameter, got {placed} for {name} with {placed_there}: leave p.grad "
            f"as backward() made it, or redistribute it"
        )
    return grad


def named(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a group with a name for messages."""
    names = group.get("param_names") or [f"parameter {i} of its group" for i in range(len(group["params"]))]
    return zip(names, group["params"], strict=True)


def name_of(group: Mapping[str, Any], param: Tensor) -> str:
    """Return the name of one parameter of a group."""
    return next(name for name, p in named(group) if p is param)


def _with_finite(parts: Iterable[Part]) -> list[Part]:
    """Return the parts, those that somebody watches with the word whether they stay in range on all processes."""
    found = list(parts)
    watched: dict[tuple[Any, ...], list[int]] = {}
    for i, part in enumerate(found):
        if part.group["nonfinite"] != "propagate":
            watched.setdefault((part.layout, part.grad.device, _wide(part.grad)), []).append(i)
    for (layout, *_), numbers in watched.items():
        largest = layout.largest(torch.stack([_largest_entries(found[i]) for i in numbers]))
        for i, of_both in zip(numbers, largest.unbind(), strict=True):
            found[i] = replace(found[i], finite=_stays_finite(found[i], *of_both.unbind()))
    return found


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _largest_entries(part: Part) -> Tensor:
    """Return the largest entry, in size, of the gradient and of the momentum, as far as this process holds them."""
    both = (part.grad, part.momentum)
    if not part.grad.numel():
        return part.grad.new_zeros(2, dtype=_wide(part.grad))
    return torch.stack([torch.linalg.vector_norm(t, torch.inf, dtype=_wide(part.grad)) for t in both])


def _stays_finite(part: Part, grad: Tensor, momentum: Tensor) -> Tensor:
    """Return, on its device, whether a gradient is finite and leaves the momentum in the range of its dtype."""
    largest = grad
    if part.group.get("momentum_form", "heavy_ball") == "heavy_ball":
        # an average cannot leave the range of what it averages; this sum can
        mu = part.group["momentum"]
        moved = mu * momentum + largest
        largest = largest + mu * moved if part.group["nesterov"] else moved
    in_range: Tensor = largest <= torch.finfo(part.grad.dtype).max
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
