"""Muon and an auxiliary optimizer as one torch optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from muonlab.optim.base import MomentumOptimizer, drop_stale_states
from muonlab.optim.foreign import from_muon_with_aux_adam
from muonlab.optim.muon import Muon
from muonlab.optim.saved_state import explain_mismatch, fitted_state_dict


class MuonWithAux(Optimizer):
    """Muon for the hidden matrices and another optimizer for the other parameters, as one torch optimizer.

    ``param_groups`` are the groups of both, the same dictionaries in the same order (Muon's first), so that schedulers
    and gradient scalers act on both (OneCycleLR and CyclicLR with ``cycle_momentum=False``, since the two may have
    different kinds of momentum). ``state_dict()`` holds both states.

    Args:
        muon: optimizer of the hidden matrices.
        aux: optimizer of all other parameters.

    Example:
        >>> from muonlab import split_params
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> split = split_params(model)
        >>> opt = MuonWithAux(Muon(split.matrices, lr=0.02), torch.optim.AdamW(split.rest, lr=3e-3))
        >>> [group["lr"] for group in opt.param_groups]
        [0.02, 0.003, 0.003]
    """

    def __init__(self, muon: Muon, aux: Optimizer) -> None:
        for role, optimizer, kind in (("muon", muon, Muon), ("aux", aux, Optimizer)):
            if not isinstance(optimizer, kind):
                given = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
                raise TypeError(
                    f"{role} must be a {'muonlab.Muon' if kind is Muon else 'torch optimizer'}, got {given}: "
                    f"MuonWithAux(Muon(split.matrices), AdamW(split.rest)); Muon.torch replaces torch's own"
                )
        shared = {p for group in muon.param_groups for p in group["params"]}
        twice = [p for group in aux.param_groups for p in group["params"] if p in shared]
        if twice:
            raise ValueError(
                f"a parameter must belong to one of the two optimizers, got {len(twice)} in both, the first of shape "
                f"{tuple(twice[0].shape)}: split_params(model) takes each once"
            )
        self.muon, self.aux = muon, aux
        self.defaults: dict[str, Any] = {}
        Optimizer.__setstate__(self, {})  # sets up hooks; groups and state belong to the two optimizers

    # torch keeps groups and state in attributes; here they are always those of the two optimizers.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Groups of both optimizers, Muon's first; :meth:`add_param_group` of either adds one."""
        return self.muon.param_groups + self.aux.param_groups

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """State of both optimizers by parameter."""
        return _JoinedState(self.muon, self.aux)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise: the group must be added to one of the two optimizers."""
        raise TypeError(
            f"a group of {len(list(param_group.get('params', ())))} parameters must say which optimizer takes it: "
            f"call .muon.add_param_group or .aux.add_param_group"
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step both optimizers; a closure is called once, before them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            drop_stale_states(self.aux)
        self.muon.step()
        self.aux.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return both states and the groups of both, for the parameters that are in a group now."""
        self.follow_params()
        return super().state_dict()

    def follow_params(self) -> None:
        """Make the states of both optimizers those of the parameters that are in their groups now."""
        self.muon.follow_params()
        if isinstance(self.aux, MomentumOptimizer):
            self.aux.follow_params()
        else:
            drop_stale_states(self.aux)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, or of muon-optimizer's MuonWithAuxAdam."""
        with explain_mismatch(state_dict, self.param_groups):
            super().load_state_dict(fitted_state_dict(from_muon_with_aux_adam(state_dict, self.aux.defaults), self))

    def __getstate__(self) -> dict[str, Any]:
        self.follow_params()
        return {"muon": self.muon, "aux": self.aux, "defaults": self.defaults}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set unpickled state, or pass loaded groups and states to the optimizer that they belong to."""
        if "param_groups" not in state:
            super().__setstate__(state)
            return
        groups, states = state["param_groups"], dict(state["state"])
        count = len(self.muon.param_groups)
        for_aux: defaultdict[Tensor, Any] = defaultdict(dict)
        for group in groups[count:]:
            for_aux.update((p, states.pop(p)) for p in group["params"] if p in states)
        before = self.muon.param_groups, self.muon.state
        self.muon.__setstate__({"param_groups": groups[:count], "state": defaultdict(dict, states)})
        try:
            self.aux.__setstate__({"param_groups": groups[count:], "state": for_aux})
        except Exception:
            self.muon.param_groups, self.muon.state = before
            raise

    def __repr__(self) -> str:
        return f"MuonWithAux(\nmuon = {self.muon!r}\naux = {self.aux!r}\n)"


class _JoinedState(MutableMapping[Tensor, Any]):
    """The states of two optimizers as one mapping by parameter."""

    def __init__(self, muon: Optimizer, aux: Optimizer) -> None:
        self._muon, self._aux = muon, aux

    def _owner(self, param: Tensor) -> MutableMapping[Tensor, Any]:
        for optimizer in (self._muon, self._aux):
            if param in optimizer.state:
                return optimizer.state
        of_muon = any(p is param for group in self._muon.param_groups for p in group["params"])
        return self._muon.state if of_muon else self._aux.state

    def __getitem__(self, param: Tensor) -> Any:
        return self._owner(param)[param]

    def __setitem__(self, param: Tensor, value: Any) -> None:
        self._owner(param)[param] = value

    def __delitem__(self, param: Tensor) -> None:
        del self._owner(param)[param]

    def __contains__(self, param: object) -> bool:
        return (
            param in self._muon.state or param in self._aux.state
        )  # indexing torch's defaultdict would create an entry

    def __iter__(self) -> Iterator[Tensor]:
        yield from self._muon.state
        yield from self._aux.state

    def __bool__(self) -> bool:
        """Return whether both have state: checkpoint libraries check this before they allocate state."""
        return bool(self._muon.state) and bool(self._aux.state)

    def __len__(self) -> int:
        return len(self._muon.state) + len(self._aux.state)
