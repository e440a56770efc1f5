"""State dictionaries and options of other Muon packages, converted to those of Muon."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muonlab.optim.options import SCHEDULER_KEYS
from muonlab.optim.orthogonalizer import NewtonSchulz
from muonlab.optim.scaling import SCALES
from muonlab.polynomials import Polynomial, preset

_MUONLAB_ONLY = ("orthogonalizer", "momentum_form", "scale", "renormalize", "matrix_view")
_COMMON_KEYS = {"params", "param_names", "use_muon", *SCHEDULER_KEYS}
_TORCH_SCALES: Mapping[str | None, str] = {None: "original", "spectral_unclamped": "spectral"}
_TORCH_ONLY = ("ns_coefficients", "ns_steps", "adjust_lr_fn", "eps")


def newton_schulz_of(coefficients: Sequence[float], steps: int) -> NewtonSchulz:
    """Return ``steps`` steps of the polynomial with these coefficients."""
    try:
        given = [float(c) for c in coefficients]
    except (TypeError, ValueError, RuntimeError):
        shown = type(coefficients).__name__
        raise TypeError(
            f"ns_coefficients must be numbers, got {shown}: pass a tuple such as (3.4445, -4.775, 2.0315)"
        ) from None
    while len(given) > 1 and given[-1] == 0:  # a cubic is often written as a quintic with a zero
        given.pop()
    polynomial = Polynomial(tuple(map(repr, given)))
    jordan = preset("jordan").polynomial
    return NewtonSchulz(jordan if polynomial == jordan else polynomial, steps=steps)


def scale_of(adjust_lr_fn: str | None) -> Any:
    """Return the name of the scale rule that torch.optim.Muon calls ``adjust_lr_fn``; an unknown name unchanged."""
    return (
        _TORCH_SCALES.get(adjust_lr_fn, adjust_lr_fn)
        if isinstance(adjust_lr_fn, (str, type(None)))
        else str(adjust_lr_fn)
    )


HINTS: Mapping[str, str] = {
    "ns_steps": "pass orthogonalizer=NewtonSchulz(steps=5), or NewtonSchulz('jordan', steps=…) for another number",
    "ns_coefficients": "pass orthogonalizer=NewtonSchulz(Polynomial(coefficients), steps=5)",
    "adjust_lr_fn": f"pass scale=, one of {', '.join(map(repr, SCALES))}",
    "wd": "pass weight_decay=",
    "eps": "leave it out, no input is too small here",
    "beta": "pass momentum=",
    "betas": "pass momentum=, and give betas to the auxiliary AdamW",
    "backend": "pass orthogonalizer=NewtonSchulz(…) or ExactPolar()",
    "backend_steps": "pass orthogonalizer=NewtonSchulz(steps=5)",
}
"""What to write instead of an argument of another Muon."""


def refuse_unknown(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise for an argument that Muon does not have."""
    for name in arguments:
        near = difflib.get_close_matches(name, known, n=1)
        advice = HINTS.get(name) or (f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}")
        torchs = "; Muon.torch takes the arguments of torch.optim.Muon" if name in _TORCH_ONLY else ""
        raise TypeError(f"Muon got an unexpected keyword argument {name!r}: {advice}{torchs}")


def refuse_foreign(group: Mapping[str, Any]) -> None:
    """Raise for options of other Muons in a parameter group, where they would have no effect."""
    if isinstance(group, Mapping) and group.get("use_muon") is False:
        raise ValueError(
            "a group with use_muon=False is not for Muon, got one: give its parameters to the auxiliary optimizer, "
            "MuonWithAux(Muon(...), AdamW(...))"
        )
    for key in _TORCH_ONLY:
        if key in group:
            raise ValueError(
                f"a parameter group has no option {key!r}, which belongs to torch.optim.Muon: pass "
                f"orthogonalizer=NewtonSchulz(polynomial, steps=...) or scale=... in the group"
            )


def as_native(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a loaded group of torch.optim.Muon or muon-optimizer with muonlab's options; one of muonlab unchanged."""
    if any(key in group for key in _MUONLAB_ONLY):
        return dict(group)
    if "ns_coefficients" in group:
        return _from_torch(group)
    if set(group) - _COMMON_KEYS == {"lr", "momentum", "weight_decay"}:
        return _from_muon_optimizer(group)
    raise ValueError(
        f"a state dictionary must be one of Muon, torch.optim.Muon or muon-optimizer, got a group with the options "
        f"{', '.join(sorted(set(group) - _COMMON_KEYS))}: load it into the optimizer that it comes from; "
        f"continue_adamw(adamw, split_params(model)) continues a training of AdamW"
    )


def _from_torch(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in group.items() if key not in _TORCH_ONLY}
    return {
        **kept,
        "orthogonalizer": newton_schulz_of(group["ns_coefficients"], group["ns_steps"]),
        "momentum_form": "ema",
        "scale": scale_of(group["adjust_lr_fn"]),
        "renormalize": None,
    }


def _from_muon_optimizer(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in group.items() if key != "use_muon"}
    return {
        **kept,
        "orthogonalizer": NewtonSchulz("jordan", steps=5),
        "momentum_form": "ema",
        "nesterov": True,
        "scale": "original",
        "renormalize": None,
    }


def from_muon_with_aux_adam(state_dict: Mapping[str, Any], aux_defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of muon-optimizer's MuonWithAuxAdam as one of MuonWithAux with AdamW; any other unchanged.

    The groups of MuonWithAuxAdam are in any order and have the flag ``use_muon``.
    """
    groups = state_dict.get("param_groups")  # may be missing: a hook of the user may unpack it later
    if not groups or not all("use_muon" in group for group in groups):
        return dict(state_dict)
    muon_groups = [group for group in groups if group["use_muon"]]
    aux_groups = [{**aux_defaults, **group} for group in groups if not group["use_muon"]]
    for group in aux_groups:
        del group["use_muon"]
    return {**state_dict, "param_groups": muon_groups + aux_groups}
