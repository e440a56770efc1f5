"""What a parameter group may say: every option with its check, the same at construction, in a new group, on loading."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from muonlab import _checks

Check = Callable[[str, Any], Any]
"""Takes an option's name and value, returns the value in plain form, raises if it breaks the rule."""


def one_of(choices: Collection[Any]) -> Check:
    """Return the check that a value is one of ``choices``."""
    return lambda name, value: _checks.one_of(name, value, choices)


def learning_rate(name: str, value: Any) -> Any:
    """Return a learning rate of zero or more; a tensor of one element is kept as it is, and not read on a device."""
    if not isinstance(value, Tensor):
        return _checks.non_negative(name, value)
    if value.numel() != 1 or not value.is_floating_point():
        raise ValueError(
            f"{name} as a tensor must hold one floating-point number, got shape {tuple(value.shape)} of {value.dtype}: "
            f"pass torch.tensor(0.02)"
        )
    if value.device.type == "cpu":
        _checks.non_negative(name, float(value))
    return value


def below_one(name: str, value: Any) -> float:
    """Return a number in [0, 1)."""
    return _checks.real(name, value, low=0.0, high=1.0, high_open=True)


def boolean(name: str, value: Any) -> bool:
    """Return True or False, and nothing that merely resembles them."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}: pass a bool")
    return value


COMMON: Mapping[str, Check] = {
    "lr": learning_rate,
    "momentum": below_one,
    "nesterov": boolean,
    "weight_decay": _checks.non_negative,
    "maximize": boolean,
    "nonfinite": one_of(("propagate", "raise", "skip")),
}
"""Options of every optimizer here."""


def checked(group: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the options of a group in plain form; keys that no option has are the user's own, or a scheduler's."""
    return {name: check(name, group[name]) for name, check in checks.items() if name in group}


OF_SCHEDULERS = {"initial_lr", "min_lr", "max_lr", "base_momentum", "max_momentum"}
"""Keys that torch's schedulers put into groups."""


def refuse_slips(group: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Refuse a key of a group that looks like an option but for a slip of the pen."""
    if not isinstance(group, Mapping):
        raise TypeError(
            f"a parameter group must be a dictionary, got {type(group).__name__}: pass {{'params': [...], 'lr': ...}}"
        )
    for key in set(group) - set(checks) - OF_SCHEDULERS:
        near = difflib.get_close_matches(str(key), checks, n=1, cutoff=0.8)
        if near:
            raise ValueError(f"a parameter group has no option {key!r}: did you mean {near[0]!r}?")
