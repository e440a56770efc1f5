"""What the integrations share: the optimizer of a model, the optimizer inside of a wrapper, scalars of a recording."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics import Recorder
from muonlab.optim import Muon, MuonWithAux, split_params


def muon_with_aux(
    model: nn.Module,
    lr: float | Tensor,
    aux_lr: float | Tensor,
    *,
    weight_decay: float = 0.0,
    split: Mapping[str, Any] | None = None,
    aux: Mapping[str, Any] | None = None,
    **options: Any,
) -> MuonWithAux:
    """Build Muon for the hidden matrices of a model and AdamW for its other parameters.

    Args:
        model: the network.
        lr: learning rate of Muon.
        aux_lr: learning rate of AdamW.
        weight_decay: decoupled weight decay of both.
        split: options of :func:`muonlab.split_params`, such as ``{"head": "classifier"}`` or ``{"rules": {...}}``.
        aux: further options of AdamW, such as ``{"betas": (0.9, 0.95)}``.
        options: further options of :class:`muonlab.Muon`, such as ``momentum`` or ``scale``.

    Returns:
        A :class:`muonlab.MuonWithAux`, whose groups are those of Muon, then those of AdamW.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [group["lr"] for group in muon_with_aux(model, 0.02, 3e-3).param_groups]
        [0.02, 0.003, 0.003]
    """
    parts = split_params(model, **(split or {}))
    muon = Muon(parts.matrices, lr=lr, weight_decay=weight_decay, **options)
    return MuonWithAux(muon, AdamW(parts.rest, **{"lr": aux_lr, "weight_decay": weight_decay, **(aux or {})}))


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside of wrappers that keep it as ``.optimizer``, as AcceleratedOptimizer does.

    Example:
        >>> from types import SimpleNamespace
        >>> unwrapped(SimpleNamespace(optimizer=SimpleNamespace(optimizer="Muon")))
        'Muon'
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def discard(_: Mapping[str, Any]) -> None:
    """Do nothing with a row: for ranks that write no file."""


class ScalarLog:
    """The scalars of a recorder, each recorded step once.

    Args:
        recorder: the recorder to read.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._logged = 0

    def new_scalars(self) -> dict[str, float]:
        """Return the scalars of the last recorded step; nothing if they were returned before."""
        rows = self._recorder.last
        if not rows or rows[0]["step"] == self._logged:
            return {}
        self._logged = rows[0]["step"]
        return recorded_scalars(rows)


def recorded_scalars(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return means over the matrices of one recorded step.

    ``muonlab/alignment`` and ``muonlab/least_alignment``: 1 is the exact polar factor. ``muonlab/polar_error``: ε, not
    with ``measure="bracket"``. A value that is not finite is left out.

    Example:
        >>> row = {"event": "matrix", "step": 1, "alignment": 0.5, "epsilon": 0.25}
        >>> recorded_scalars([row, {**row, "alignment": 1.0}])
        {'muonlab/alignment': 0.75, 'muonlab/least_alignment': 0.5, 'muonlab/polar_error': 0.25}
    """
    matrices = [row for row in rows if row["event"] == "matrix"]
    alignments = [row["alignment"] for row in matrices if row.get("alignment") is not None]
    errors = [row["epsilon"] for row in matrices if row.get("epsilon") is not None]
    scalars = {}
    if alignments:
        scalars["muonlab/alignment"] = statistics.fmean(alignments)
        scalars["muonlab/least_alignment"] = min(alignments)
    if errors:
        scalars["muonlab/polar_error"] = statistics.fmean(errors)
    return scalars
