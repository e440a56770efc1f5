"""Muon in Lightning: the answer of ``configure_optimizers``, and a callback that records every matrix.

This module needs lightning 2. See docs/guides/trainers.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics import Recorder
from muonlab.diagnostics.recording.rows import Measure
from muonlab.integrations.common import ScalarLog, discard, muon_with_aux, unwrapped
from muonlab.theory import RunBound

try:
    from lightning.pytorch import Callback
except ImportError:  # the module can be imported, so that its documentation can be read and tested
    Callback = object


def configure_optimizers(
    module: nn.Module,
    lr: float | Tensor,
    aux_lr: float | Tensor,
    *,
    scheduler: Callable[[Optimizer], Any] | None = None,
    interval: Literal["step", "epoch"] = "step",
    **options: Any,
) -> dict[str, Any]:
    """Return what ``LightningModule.configure_optimizers`` returns, for Muon and AdamW as one optimizer.

    Args:
        module: the LightningModule, or the network in it.
        lr: learning rate of Muon.
        aux_lr: learning rate of AdamW.
        scheduler: a function of the optimizer that returns a scheduler; it acts on both learning rates.
        interval: when Lightning calls the scheduler.
        options: of :func:`muonlab.integrations.common.muon_with_aux`: ``weight_decay``, ``split``, ``aux``, and the
            options of :class:`muonlab.Muon`.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> halve = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        >>> sorted(configure_optimizers(model, lr=0.02, aux_lr=3e-3, scheduler=halve))
        ['lr_scheduler', 'optimizer']
    """
    optimizer = muon_with_aux(module, lr, aux_lr, **options)
    if scheduler is None:
        return {"optimizer": optimizer}
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler(optimizer), "interval": interval}}


class RecorderCallback(Callback):
    """Record the matrices of Muon, and log their mean alignment and polar error at every recorded step.

    The names are ``muonlab/alignment``, ``muonlab/least_alignment`` and ``muonlab/polar_error``. The trainer's loggers
    get them, and ``pl_module.log_dict`` for callbacks that monitor a metric. The state of the recorder is part of
    Lightning's checkpoints.

    Args:
        every: record the first step and then every ``every``-th step; a certificate needs 1.
        to: file for JSON lines, written by the first process; None keeps the rows in ``recorder.rows``.
        measure: how matrices are measured, as in :class:`muonlab.diagnostics.Recorder`.
        gradients: also record the nuclear norm of gradients.
        certificate: arguments of :meth:`muonlab.diagnostics.Recorder.certificate`, such as ``{"L": 1.0, "D": 2.0}``;
            None for no certificate.
        optimizer: index of the optimizer to record, if the module has several.

    Attributes:
        recorder: the recorder, from the beginning of training on.
        bound: the certificate, at the end of training; its value is logged as ``muonlab/gradient_norm_bound``.
    """

    recorder: Recorder

    def __init__(
        self,
        every: int = 50,
        *,
        to: str | os.PathLike[str] | None = None,
        measure: Measure = "spectrum",
        gradients: bool = True,
        certificate: Mapping[str, Any] | None = None,
        optimizer: int = 0,
    ) -> None:
        if Callback is object:
            raise ImportError("RecorderCallback needs lightning, got none: pip install lightning")
        self.bound: RunBound | None = None
        self._options: dict[str, Any] = {"every": every, "measure": measure, "gradients": gradients}
        self._to, self._certificate, self._index = to, certificate, optimizer
        self._saved: dict[str, Any] | None = None

    # ----------------------------------------------------------------------------------- events, called by Lightning

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach a recorder to the optimizer; on resuming, with the state of the checkpoint."""
        to = self._to if trainer.is_global_zero or self._to is None else discard
        self.recorder = Recorder(unwrapped(trainer.optimizers[self._index]), to=to, keep=to is None, **self._options)
        if self._saved is not None:
            self.recorder.load_state_dict(self._saved)
        self._scalars = ScalarLog(self.recorder)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log the scalars of a step that was recorded."""
        values = self._scalars.new_scalars()
        if values:
            pl_module.log_dict(values, logger=False, rank_zero_only=True)  # to a logger it would repeat old values
            self._send(trainer, values)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the bound of the certificate, remove the recorder from the optimizer and close its file."""
        if self._certificate is not None:
            self.bound = self.recorder.certificate(**self._certificate)
            if self.bound.status == "applies":
                self._send(trainer, {"muonlab/gradient_norm_bound": self.bound.total})
        self.recorder.close()

    def _send(self, trainer: Any, values: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the recorder, for a checkpoint."""
        return self.recorder.state_dict() if hasattr(self, "recorder") else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint for the beginning of training."""
        self._saved = state_dict or None
