"""Continues a training of AdamW with Muon for the hidden matrices: learning rates, decay and momenta are taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import AdamW

from muonlab import _checks
from muonlab.optim.combined import MuonWithAux
from muonlab.optim.muon import Muon
from muonlab.optim.saved_state import BUFFER
from muonlab.optim.scaling import SCALES, Scale
from muonlab.optim.split import Split
from muonlab.optim.views import matrix_blocks


def continue_adamw(adamw: AdamW, split: Split, *, scale: Scale = "match_rms_adamw", **options: Any) -> MuonWithAux:
    """Return an optimizer that continues a training of AdamW, with Muon for the hidden matrices.

    Every parameter keeps its learning rate and weight decay. Muon's momentum starts as AdamW's average of gradients
    with its bias removed; the other parameters keep their whole state, and their next steps are those of ``adamw`` to
    the bit. With ``scale="match_rms_adamw"`` learning rates are the same numbers, as an update of Muon then has entries
    as large as one of AdamW. For another rule they are translated matrix by matrix, so that the updates are the same:
    groups are made by shape.

    Args:
        adamw: the optimizer of the training so far; not to be used afterwards, as its states are shared.
        split: ``split_params(model)`` of the same parameters.
        scale: scale rule of Muon.
        options: further options of :class:`muonlab.Muon`, such as ``momentum`` or ``orthogonalizer``.

    Example:
        >>> import torch
        >>> from muonlab import split_params
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> adamw = AdamW(model.parameters(), lr=1e-3)
        >>> continued = continue_adamw(adamw, split_params(model))
        >>> [(type(part).__name__, part.param_groups[0]["lr"]) for part in (continued.muon, continued.aux)]
        [('Muon', 0.001), ('AdamW', 0.001)]
    """
    if not isinstance(adamw, AdamW):
        raise TypeError(
            f"continue_adamw takes a torch.optim.AdamW, got {type(adamw).__name__}: a state of torch.optim.Muon is "
            f"loaded by Muon.torch(...).load_state_dict(state)"
        )
    _checks.one_of("scale", scale, tuple(SCALES))
    own = {p: group for group in adamw.param_groups for p in group["params"]}
    rows = {p: row for p, row in zip(split.parameters, split.table, strict=True) if row.goes_to != "none"}
    unknown = [row.name for p, row in rows.items() if p not in own] or [
        f"one of shape {tuple(p.shape)}" for p in own.keys() - rows.keys()
    ]
    if unknown:
        raise ValueError(
            f"adamw and split must have the same parameters, got {len(unknown)} that are in one of them only, the "
            f"first {unknown[0]}: pass split_params(model) of the model that adamw trains, with the same ones frozen"
        )
    matrices: dict[tuple[Any, ...], dict[str, Any]] = {}
    others: list[dict[str, Any]] = []
    for number, group in enumerate(adamw.param_groups):
        rest = [(rows[p].name, p) for p in group["params"] if rows[p].matrix_view is None]
        if rest:
            others.append({**{k: v for k, v in group.items() if k != "param_names"}, "params": rest})
        for p in group["params"]:
            view = rows[p].matrix_view
            if view is not None:
                factor = _translation(p, view, scale)
                key = (number, view, factor)
                matrices.setdefault(key, _muon_group(group, view, factor))["params"].append((rows[p].name, p))
    if not matrices or not others:
        raise ValueError(
            f"split must have both matrices and other parameters, got {len(matrices)} groups of matrices and "
            f"{len(others)} others: use Muon or AdamW alone"
        )
    muon = Muon([*matrices.values()], scale=scale, **options)
    aux = type(adamw)(others)
    for p, row in rows.items():
        state = adamw.state.get(p)
        if state and row.matrix_view is None:
            aux.state[p] = state
        elif state:
            beta, steps = own[p]["betas"][0], float(state["step"])
            muon.state[p][BUFFER].copy_(state["exp_avg"] / (1 - beta**steps))
    return MuonWithAux(muon, aux)


def _muon_group(group: Mapping[str, Any], view: str, factor: float) -> dict[str, Any]:
    """Return a group of Muon with the learning rates of one of AdamW times a factor, and its other common options."""
    rates = {key: group[key] * factor for key in ("lr", "initial_lr", "max_lr", "min_lr") if key in group}
    # decay is lr·weight_decay in both, and is not scaled
    return {
        **rates,
        "params": [],
        "matrix_view": view,
        "weight_decay": group["weight_decay"] / factor,
        "maximize": group["maximize"],
    }


def _translation(param: Tensor, view: str, scale: Scale) -> float:
    """Return what multiplies a learning rate of AdamW, so that updates are those of ``match_rms_adamw``."""
    factors = {
        SCALES["match_rms_adamw"](*block.out_in) / SCALES[scale](*block.out_in)
        for block in matrix_blocks(param.shape, view)
    }
    if len(factors) > 1:
        raise ValueError(
            f"blocks of one parameter must have the same translated learning rate, got {len(factors)} for shape "
            f"{tuple(param.shape)} as {view} with scale={scale!r}: use scale='match_rms_adamw'"
        )
    return factors.pop()
