"""What Muon and SGDM share: parameter groups with checked options, momentum state, loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT

from muonlab.optim.capture import check_capture
from muonlab.optim.distributed.tensors import placed_like
from muonlab.optim.layout import GroupedParam, Layouts
from muonlab.optim.options import COMMON, Check, as_param_list, checked, named_params, refuse_misspelled
from muonlab.optim.saved_state import BUFFER, explain_mismatch, fitted_state_dict
from muonlab.orthogonalize.matrices import FLOATING


def drop_stale_states(optimizer: Optimizer) -> None:
    """Remove the states of parameters that are in no group of the optimizer any more, so that their memory is freed."""
    present = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for p in [key for key in optimizer.state if isinstance(key, Tensor) and id(key) not in present]:
        del optimizer.state[p]


class MomentumOptimizer(Optimizer):
    """Base class: checks groups, creates momenta, loads state; a subclass implements ``step``."""

    checks: ClassVar[Mapping[str, Check]] = COMMON
    """Every option of a parameter group with its check."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any], layouts: Layouts) -> None:
        self._layouts = layouts
        defaults = {**defaults, **checked(defaults, self.checks)}
        given = as_param_list(params)
        if isinstance(given, list) and not given:
            raise ValueError(
                "an optimizer needs parameters, got none: if split_params found no hidden matrix, print its table; a "
                "single layer is taken for the output layer unless head=None"
            )
        super().__init__(given, defaults)

    def _begin_step(self, closure: Callable[[], float] | None) -> tuple[float | None, list[GroupedParam]]:
        """Call the closure and check the options of all groups; return the loss and the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        compiling = torch.compiler.is_compiling()
        if not compiling:
            for group in self.param_groups:  # options assigned by hand are checked like any other
                group.update(checked(group, self.checks))
                self._check_group(group)
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                self._check_capture()
        params = self._grouped_params()
        if not compiling and len(self.state) > sum(len(group["params"]) for group in self.param_groups):
            drop_stale_states(self)
        return loss, params

    def _check_capture(self) -> None:
        """Raise if a CUDA graph that is being captured would not repeat the step."""
        check_capture(self.param_groups, self._layouts)

    # ---------------------------------------------------------------------------------------------- groups and state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked like one given at construction; on an error the optimizer does not change."""
        refuse_misspelled(param_group, self.checks)
        group = {**param_group, **checked(param_group, self.checks)}
        if "params" in group:
            group["params"] = as_param_list(group["params"])
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
            if p.dtype not in FLOATING or p.layout != torch.strided:
                kind = p.dtype if p.dtype not in FLOATING else f"layout {p.layout}"
                raise TypeError(
                    f"parameters must be dense tensors of float16, bfloat16, float32 or float64, got {name} of {kind}: "
                    f"give it to another optimizer, or use float32"
                )
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the parameters that are in a group now, and the groups, like torch's optimizers."""
        self.follow_params()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`; Muon also loads those of torch.optim.Muon and muon-optimizer.

        Parameters are matched by name where both sides have names, else by position.

        Raises:
            ValueError: the groups or shapes of the state are others; the optimizer does not change.
        """
        with explain_mismatch(state_dict, self.param_groups):
            super().load_state_dict(fitted_state_dict(state_dict, self))

    def follow_params(self) -> None:
        """Drop the momenta of parameters that have left the groups, and create those of parameters that are new there.

        Libraries replace parameters inside of ``param_groups`` after construction, as Accelerate does for FSDP2.
        """
        drop_stale_states(self)
        for group in self.param_groups:
            for p in group["params"]:
                if BUFFER not in self.state[p]:
                    self._buffer(p)

    def __getstate__(self) -> dict[str, Any]:
        self.follow_params()
        return {**super().__getstate__(), "distribution": self._layouts.constructor_arguments()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set unpickled or loaded state after checking it; options that an older state lacks keep their values."""
        if "_layouts" not in self.__dict__:  # unpickled: without the process group, which cannot be pickled
            self._layouts = Layouts(**state.get("distribution", {"options": tuple(self.checks)}))
        state = {key: value for key, value in state.items() if key != "distribution"}
        defaults = {"capturable": False, **state.get("defaults", getattr(self, "defaults", {}))}
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
