"""Checks of a state dictionary before it is loaded: whose state it is, and whether it can be kept without loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from muonlab.optim.distributed.tensors import local_part
from muonlab.optim.options import learning_rate

BUFFER = "momentum_buffer"
"""Key of the momentum in a parameter's state, as in torch's own optimizers."""


def fitted_state_dict(state_dict: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return a state dictionary with the parameters of each group in the order of the optimizer; raise if it is unfit.

    Parameters are matched by name where both sides have the same names, else by position, as torch does. Momenta must
    be dense, real and within the range of their parameter's dtype; NaN and infinity that were saved are kept.
    """
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        if optimizer._optimizer_load_state_dict_pre_hooks:  # one of them may unpack it
            return dict(state_dict)
        given = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(
            f"a state dictionary must have the keys 'state' and 'param_groups', got {given}: pass what "
            f"optimizer.state_dict() returned"
        )
    present = optimizer.param_groups
    groups = list(state_dict["param_groups"])
    if [len(group["params"]) for group in groups] == [len(group["params"]) for group in present]:  # else torch raises
        groups = [in_order(*pair) for pair in zip(groups, present, strict=True)]
    for saved, group in zip(groups, present, strict=False):
        if "lr" in saved:
            learning_rate("lr", saved["lr"])
        for key, p in zip(saved["params"], group["params"], strict=False):
            momentum = state_dict["state"].get(key, {}).get(BUFFER)
            if momentum is not None:
                check_momentum(momentum, p)
    return {**state_dict, "param_groups": groups}


def in_order(saved: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved group with its parameters in the order of a group of the optimizer, matched by name."""
    names, wanted = _plain_names(saved), _plain_names(group)
    if names == wanted or not set(names) & set(wanted):
        return dict(saved)
    if sorted(names) != sorted(wanted) or len(names) != len(saved["params"]):
        unknown, missing = _list(set(names) - set(wanted)), _list(set(wanted) - set(names))
        raise ValueError(
            f"a state must be that of the same parameters, got {unknown} where the optimizer has {missing}: load "
            f"the state of the same model, or remove 'param_names' from its groups to load it by position"
        )
    keys = dict(zip(names, saved["params"], strict=True))
    return {**saved, "params": [keys[name] for name in wanted], "param_names": list(group["param_names"])}


def _plain_names(group: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters of a group without the prefixes of wrappers; empty if it has no names."""
    names = group.get("param_names") or ()
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"param_names must be a list of names, got {names!r}: remove it to load by position")
    return [name.removeprefix("module.").replace("_orig_mod.", "") for name in names]


def _list(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "") or "no others"


def check_momentum(momentum: Any, p: Tensor) -> None:
    """Raise unless a saved momentum can be kept as the momentum of a parameter."""
    if not isinstance(momentum, Tensor):
        raise TypeError(f"a momentum must be a tensor, got {type(momentum).__name__}: load what state_dict() returned")
    if momentum.layout != torch.strided or _is_expanded(momentum):
        kind = "an expanded tensor" if momentum.layout == torch.strided else f"one of layout {momentum.layout}"
        raise ValueError(f"a momentum must be dense, with memory for each entry, got {kind}: save a dense copy of it")
    if not momentum.is_floating_point():
        raise TypeError(f"a momentum must be real and floating-point, got {momentum.dtype}: convert it before loading")
    limit = torch.finfo(p.dtype).max
    if torch.finfo(momentum.dtype).max > limit:
        size = local_part(momentum).detach().abs()
        if bool(((size > limit) & torch.isfinite(size)).any()):
            raise ValueError(
                f"a momentum must be in the range of its parameter's dtype, got an entry of size "
                f"{float(size[torch.isfinite(size)].max()):.3g} for {p.dtype}: load it into parameters of "
                f"{momentum.dtype}, or scale it"
            )


def _is_expanded(tensor: Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


@contextmanager
def explain_mismatch(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Say what was loaded and expected, and what to do, where torch says only that the groups differ."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("loaded state dict"):
            raise
        loaded = state_dict["param_groups"]
        raise ValueError(
            f"a state dictionary must have the groups of its optimizer, got {_groups_in_words(loaded)}, expected "
            f"{_groups_in_words(groups)}: {_way_out(loaded, groups)}"
        ) from error


def _groups_in_words(groups: Sequence[Mapping[str, Any]]) -> str:
    kinds = ("Muon" if "orthogonalizer" in g else "Adam" if "betas" in g else "another optimizer" for g in groups)
    sizes = ", ".join(f"{len(g['params'])} of {kind}" for g, kind in zip(groups, kinds, strict=True))
    return f"{len(groups)} group{'s' if len(groups) > 1 else ''} (parameters: {sizes})"


def _way_out(loaded: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]) -> str:
    if all("betas" in group for group in loaded) and any("orthogonalizer" in group for group in groups):
        return "load a state of AdamW into AdamW, then call muonlab.optim.continue_adamw(adamw, split_params(model))"
    if sum(len(group["params"]) for group in loaded) == sum(len(group["params"]) for group in groups):
        return "call split_params with the arguments of the saved run, such as by='shape', rules and heads"
    return "load the state of the same model, with the same parameters frozen"
