"""What all optimizers here share: checked groups, state from the start, guarded loading, the update of a weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT

from muonlab.optim.finite import raise_nonfinite, unless_skipped, with_finite
from muonlab.optim.layout import Block, Job, Layouts, Local, local, placed_like
from muonlab.optim.momentum import MomentumForm, advance
from muonlab.optim.options import COMMON, Check, checked, refuse_slips
from muonlab.optim.part import Member, Part, named

BUFFER = "momentum_buffer"
"""Key of the momentum in a parameter's state, as in torch's own optimizers."""


class MomentumOptimizer(Optimizer):
    """Momentum, decoupled weight decay and what goes wrong around them; a subclass says which direction to follow."""

    checks: ClassVar[Mapping[str, Check]] = COMMON
    """Every option of a parameter group with its check."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any], layouts: Layouts | None = None) -> None:
        self._layouts = layouts or Layouts()
        self._finite: dict[Tensor, Tensor | None] = {}
        self._planned: list[Any] | None = None
        self._order = ""
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
            self._layouts.of(p, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over unpickled or loaded state, after it was checked; what an older dictionary lacks stays as it is."""
        if "_layouts" not in self.__dict__:  # a process group cannot be unpickled: a copy works for itself
            self._layouts, self._finite, self._planned = Layouts(**state.get("distribution", {})), {}, None
        self._order = getattr(self, "_order", "")
        state = {key: value for key, value in state.items() if key != "distribution"}
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
                else:
                    states[p][BUFFER] = placed_like(buffer, p)
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

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "distribution": self._layouts.plain_values()}

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
        parts = with_finite(self._parts(members))
        raise_nonfinite(parts)
        if not torch.compiler.is_compiling():
            self._finite = {part.param: part.finite for part in parts}
        self._update(parts)
        for part in parts:
            if not part.layout.shares_memory:
                part.layout.settle(part.param, part.weight)
                part.layout.settle(self._buffer(part.param), part.momentum)
        self._finite = {}
        return loss

    def skipped(self, param: Tensor) -> bool:
        """Tell, within a step, whether it leaves a parameter alone because of ``nonfinite="skip"``."""
        finite = self._finite.get(param)
        return finite is not None and not bool(finite)

    @property
    def grids(self) -> list[Any]:
        """The groups of processes that share the work, each once; empty where this one works for itself."""
        layouts = (self._layouts.of(p, name) for group in self.param_groups for name, p in named(group))
        found = {layout.grid.group: layout.grid for layout in layouts if hasattr(layout, "grid")}
        return list(found.values())

    def share(self, param: Tensor, block: int = 0) -> range:
        """Return which matrices of a block of a parameter this process orthogonalizes, from its first step on."""
        group = next(group for group in self.param_groups if any(p is param for p in group["params"]))
        layout = self._layouts.of(param, "a parameter")
        return layout.share(param, layout.blocks(param, group["matrix_view"])[block], block)

    @property
    def rounds_messages(self) -> bool:
        """Whether processes send each other matrices with fewer digits than they have."""
        dtype = self._layouts.comm_dtype
        sent = (p.dtype for group in self.param_groups for p in group["params"])
        return dtype is not None and any(torch.finfo(dtype).bits < torch.finfo(has).bits for has in sent)

    @torch.no_grad()
    def momentum_squares(self) -> list[float]:
        """Return this process's share of the squared norm of each momentum: all shares add up to it."""
        everyone = math.prod(grid.ranks for grid in self.grids)
        shares = []
        for _, _, p, layout in self._members():
            copies = everyone if type(layout) is Local else layout.copies(p)
            shares.append(float(local(self._buffer(p)).double().square().sum()) / copies)
        return shares

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
        layouts = dict.fromkeys((self._layouts.plain, *(member.layout for member in members)))
        if all(type(layout) is Local for layout in layouts):
            return
        decides = [(id(m.param), m.name, m.param.shape, self._decides(m.group)) for m in members]
        changed = decides != self._planned
        if changed:  # also what no layout can see for itself: in which order they take turns
            places = list(layouts)
            self._order = repr([(m.name, tuple(m.param.shape), places.index(m.layout)) for m in members])
        options = self._order + repr([[_told(group[name]) for name in self.checks] for group in self.param_groups])
        for layout in layouts:
            mine = [m for m in members if m.layout is layout]
            layout.prepare([job for m in mine for job in self._jobs(m)] if changed else None, options)
        self._planned = decides

    def _decides(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what of a group decides who does what."""
        return (group["nonfinite"],)

    def _jobs(self, member: Member) -> Iterator[Job]:
        """Yield what a step has to do for a parameter."""
        block = Block(tuple(member.param.shape), (), 0, ())  # entry by entry: there is nothing to share out
        yield Job(member.param, 0, block, 0.0, f"{member.name} {getattr(member.param, 'placements', None)}")

    def _parts(self, members: Sequence[Member]) -> Iterator[Part]:
        """Yield the parameters that have, on some process at least, a gradient."""
        present: dict[Tensor, bool] = {}
        for layout in dict.fromkeys((self._layouts.plain, *(member.layout for member in members))):
            mine = [member for member in members if member.layout is layout]
            flags = layout.agree([m.param.grad is not None for m in mine], [m.name for m in mine])
            present.update(zip((m.param for m in mine), flags, strict=True))
        for group, name, p, layout in members:
            if not present[p]:
                continue
            weight, momentum = layout.held(p), layout.held(self._buffer(p))
            grad = layout.held(torch.zeros_like(p) if p.grad is None else _dense(p.grad, p, name))
            yield Part(p, group, layout, weight, grad.to(momentum.dtype), momentum)


def _told(option: Any) -> Any:
    """Return an option as ranks compare it; a tensor on a device is not read for that."""
    return float(option) if isinstance(option, Tensor) and option.device.type == "cpu" else str(option)


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


def scalar(lr: float | Tensor) -> float | Tensor:
    """Return a learning rate as a number where that costs nothing, as a tensor without dimensions elsewhere."""
    if not isinstance(lr, Tensor):
        return lr
    if lr.device.type == "cpu" and not torch.compiler.is_compiling():
        return float(lr)
    return lr.reshape(())
