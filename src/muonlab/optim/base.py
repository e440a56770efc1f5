"""What Muon and SGDM share: parameter groups with checked options, momentum state, loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT

from muonlab.optim.distributed.tensors import placed_like
from muonlab.optim.layout import GroupedParam, Layouts
from muonlab.optim.options import COMMON, Check, checked, named_params, refuse_misspelled

BUFFER = "momentum_buffer"
"""Key of the momentum in a parameter's state, as in torch's own optimizers."""


class MomentumOptimizer(Optimizer):
    """Base class: checks groups, creates momenta, loads state; a subclass implements ``step``."""

    checks: ClassVar[Mapping[str, Check]] = COMMON
    """Every option of a parameter group with its check."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any], layouts: Layouts) -> None:
        self._layouts = layouts
        given: Any = params if isinstance(params, Tensor) else list(params)  # torch has a message for a bare tensor
        if isinstance(given, list) and not given:
            raise ValueError(
                "an optimizer needs parameters, got none: if split_params found no hidden matrix, print its table; a "
                "single layer is taken for the output layer unless head=None"
            )
        super().__init__(given, {**defaults, **checked(defaults, self.checks)})

    def _begin_step(self, closure: Callable[[], float] | None) -> tuple[float | None, list[GroupedParam]]:
        """Call the closure and check the options of all groups; return the loss and the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            for group in self.param_groups:  # options assigned by hand are checked like any other
                group.update(checked(group, self.checks))
                self._check_group(group)
        return loss, self._grouped_params()

    # ---------------------------------------------------------------------------------------------- groups and state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked like one given at construction; on an error the optimizer does not change."""
        refuse_misspelled(param_group, self.checks)
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
        """Raise if the optimizer cannot update a parameter of the group."""
        for name, p in named_params(group):
            if is_lazy(p):
                raise ValueError(f"parameters must have a shape, got {name} uninitialized: run one forward pass first")
            if not p.is_floating_point():
                raise TypeError(f"parameters must be real floating-point tensors, got {name} of {p.dtype}: use float32")
            self._layouts.layout_of(p, name)

    def _grouped_params(self) -> list[GroupedParam]:
        """Return every parameter that has entries, with its group, name, momentum and layout."""
        return [
            GroupedParam(group, name, p, self._buffer(p), self._layouts.layout_of(p, name))
            for group in self.param_groups
            for name, p in named_params(group)
            if p.numel()
        ]

    def _buffer(self, p: Tensor) -> Tensor:
        """Return the momentum of a parameter, on its device and in its dtype; create it if the state has none."""
        state = self.state[p]
        buffer: Tensor | None = state.get(BUFFER)
        if buffer is None:
            buffer = state[BUFFER] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if buffer.device != p.device or buffer.dtype != p.dtype:
            buffer = state[BUFFER] = buffer.to(device=p.device, dtype=p.dtype)
        return buffer

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "distribution": self._layouts.constructor_arguments()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set unpickled or loaded state after checking it; options that an older state lacks keep their values."""
        if "_layouts" not in self.__dict__:  # unpickled: without the process group, which cannot be pickled
            self._layouts = Layouts(**state.get("distribution", {"options": tuple(self.checks)}))
        state = {key: value for key, value in state.items() if key != "distribution"}
        defaults = state.get("defaults", getattr(self, "defaults", {}))
        present = getattr(self, "param_groups", [])
        groups = [
            self._restored(group, {**defaults, **(present[i] if i < len(present) else {})})
            for i, group in enumerate(state.get("param_groups", ()))
        ]
        states = state.get("state", {})
        mismatches = []
        for group in groups:
            self._check_group(group)
            for name, p in named_params(group):
                buffer = states.setdefault(p, {}).get(BUFFER)
                if buffer is None:
                    states[p][BUFFER] = torch.zeros_like(p, memory_format=torch.preserve_format)
                elif buffer.shape != p.shape:
                    mismatches.append(f"{name} has shape {tuple(p.shape)}, its state {tuple(buffer.shape)}")
                else:
                    states[p][BUFFER] = placed_like(buffer, p)
        if mismatches:
            raise ValueError(
                f"a state must have the shape of its parameter: {'; '.join(mismatches)}: load the state of the same "
                f"model, with its parameters in the same order"
            )
        super().__setstate__({**state, "param_groups": groups} if groups else state)

    def _restored(self, group: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return a loaded group with all options, checked; its keys keep their order."""
        refuse_misspelled(group, self.checks)
        missing = {name: value for name, value in defaults.items() if name in self.checks and name not in group}
        filled = {**group, **missing}
        return {**filled, **checked(filled, self.checks)}
