"""Options of parameter groups: one check for each, used at construction, for new groups, on loading and in steps."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from muonlab import _checks

Check = Callable[[str, Any], Any]
"""Takes an option's name and value, returns the value in plain form, raises if it breaks the rule."""


def one_of(choices: Collection[Any]) -> Check:
    """Return the check that a value is one of ``choices``."""
    return lambda name, value: _checks.one_of(name, value, choices)


def learning_rate(name: str, value: Any) -> Any:
    """Return a learning rate of zero or more; a tensor of one element stays a tensor, and is read only on a CPU."""
    if not isinstance(value, Tensor):
        return _checks.real(name, value, low=0.0, high=_checks.LARGEST_RATE)
    if value.numel() != 1 or not value.is_floating_point():
        raise ValueError(
            f"Tensor {name} must be 1-element and floating-point, got shape {tuple(value.shape)} of {value.dtype}: "
            f"pass torch.tensor(0.02)"
        )
    if value.device.type == "cpu":
        _checks.real(name, float(value), low=0.0, high=_checks.LARGEST_RATE)
    return value


def decay(name: str, value: Any) -> float:
    """Return a factor of weight decay."""
    return _checks.real(name, value, low=0.0, high=_checks.LARGEST_RATE)


def below_one(name: str, value: Any) -> float:
    """Return a number in [0, 1)."""
    return _checks.real(name, value, low=0.0, high=1.0, high_open=True)


COMMON: Mapping[str, Check] = {
    "lr": learning_rate,
    "momentum": below_one,
    "nesterov": _checks.boolean,
    "weight_decay": decay,
    "maximize": _checks.boolean,
    "nonfinite": one_of(("propagate", "raise", "skip")),
    "capturable": _checks.boolean,
}
"""Options of every optimizer of muonlab."""


def checked(group: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the options of a group in plain form; other keys belong to the user or to a scheduler and are ignored."""
    return {name: check(name, group[name]) for name, check in checks.items() if name in group}


OTHER_NAMES = {"wd": "weight_decay", "learning_rate": "lr", "beta": "momentum", "mu": "momentum"}
"""What options are called elsewhere."""
SCHEDULER_KEYS = {"initial_lr", "min_lr", "max_lr", "base_momentum", "max_momentum"}
"""Keys that torch's schedulers add to parameter groups."""


def refuse_misspelled(group: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Raise for a key of a group that looks like a misspelled option."""
    if not isinstance(group, Mapping):
        raise TypeError(
            f"a parameter group must be a dictionary, got {type(group).__name__}: pass {{'params': [...], 'lr': ...}}"
        )
    for key in set(group) - set(checks) - SCHEDULER_KEYS:
        name = str(key).lower()
        near = [OTHER_NAMES[name]] if name in OTHER_NAMES else difflib.get_close_matches(name, checks, n=1, cutoff=0.8)
        if near:
            raise ValueError(f"a parameter group has no option {key!r}: did you mean {near[0]!r}?")


def as_param_list(params: Any) -> Any:
    """Return the parameters of an optimizer or a group as a list; raise for None and for one that is given twice.

    What torch reads in another way, or has a message for, is returned unchanged: a tensor, a set.
    """
    if isinstance(params, Tensor | set | str):
        return params
    if not isinstance(params, Iterable) or isinstance(params, nn.Module):  # a Sequential can be iterated
        raise TypeError(
            f"params must be parameters or groups of parameters, got {type(params).__name__}: pass "
            f"split_params(model).matrices, or a list of parameters"
        )
    listed = list(params)
    seen: set[int] = set()
    for entry in listed:
        p = entry[1] if isinstance(entry, tuple) and len(entry) > 1 else entry
        if id(p) in seen:
            raise ValueError(
                f"a parameter must be given once, got one of shape {tuple(getattr(p, 'shape', ()))} twice, which would "
                f"update it twice in each step: pass each parameter once"
            )
        seen.add(id(p))
    return listed


def named_params(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Return the parameters of a group, each with a name for messages."""
    count = len(group["params"])
    names = group.get("param_names") or [f"parameter {i} of its group" for i in range(count)]
    if len(names) != count:
        raise ValueError(
            f"param_names must have a name for each parameter, got {len(names)} names for {count} parameters: pass "
            f"(name, parameter) pairs instead"
        )
    return zip(names, group["params"], strict=True)
