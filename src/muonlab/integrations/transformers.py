"""Muon in the Trainer of transformers: the optimizer, and a callback that records every matrix.

This module needs transformers, tested with version 5, and Accelerate. See docs/guides/trainers.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from muonlab import _files
from muonlab.diagnostics import Recorder
from muonlab.diagnostics.recording.rows import Measure
from muonlab.integrations.common import ScalarLog, discard, muon_with_aux, unwrapped
from muonlab.optim import MuonWithAux
from muonlab.theory import RunBound

try:
    from transformers import TrainerCallback
except ImportError:  # the module can be imported, so that its documentation can be read and tested
    TrainerCallback = object

RECORDER_FILE = "muonlab_recorder.json"
"""File of a checkpoint that has the state of the recorder."""


class TrainerOptimizer:
    """What the Trainer calls to build the optimizer: ``TrainerOptimizer()(model, **kwargs)``."""

    def __call__(self, model: nn.Module, **kwargs: Any) -> MuonWithAux:
        """Return the optimizer of the Trainer's model."""
        return muon_with_aux(model, **kwargs)


def trainer_optimizer(
    model: nn.Module, lr: float | Tensor, aux_lr: float | Tensor, **options: Any
) -> tuple[type[TrainerOptimizer], dict[str, Any]]:
    """Return what ``Trainer(optimizer_cls_and_kwargs=…)`` takes to train with Muon and AdamW.

    The Trainer builds the optimizer when training begins, from its own model. Learning rates and weight decay are those
    given here: ``learning_rate`` and ``weight_decay`` of TrainingArguments have no effect. The Trainer's scheduler acts
    on both learning rates.

    Args:
        model: the network; it is split now, so that an error in ``options`` appears here.
        lr: learning rate of Muon.
        aux_lr: learning rate of AdamW.
        options: of :func:`muonlab.integrations.common.muon_with_aux`: ``weight_decay``, ``split``, ``aux``, and the
            options of :class:`muonlab.Muon`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> build, kwargs = trainer_optimizer(model, lr=0.02, aux_lr=3e-3, weight_decay=0.1)
        >>> build()(model, **kwargs).muon.param_groups[0]["weight_decay"]
        0.1
    """
    kwargs = {"lr": lr, "aux_lr": aux_lr, **options}
    muon_with_aux(model, **kwargs)
    return TrainerOptimizer, kwargs


class RecorderCallback(TrainerCallback):
    """Record the matrices of the Trainer's Muon, and log their mean alignment and polar error.

    At every logging step after a recorded one, ``muonlab/alignment``, ``muonlab/least_alignment`` and
    ``muonlab/polar_error`` are added to ``logs`` and to ``state.log_history``. The Trainer calls the loggers of
    ``report_to`` before the callbacks that it was given: :meth:`attach` puts this one first, so that TensorBoard and
    others get the values. The state of the recorder is a file of every checkpoint, and is loaded on resuming.

    Args:
        every: record the first step and then every ``every``-th step; a certificate needs 1.
        to: file for JSON lines, written by the first process; None keeps the rows in ``recorder.rows``.
        measure: how matrices are measured, as in :class:`muonlab.diagnostics.Recorder`.
        gradients: also record the nuclear norm of gradients.
        certificate: arguments of :meth:`muonlab.diagnostics.Recorder.certificate`, such as ``{"L": 1.0, "D": 2.0}``;
            None for no certificate.

    Attributes:
        recorder: the recorder, from the beginning of training on.
        bound: the certificate, at the end of training; ``muonlab/gradient_norm_bound`` of the last log is its value.
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
    ) -> None:
        if TrainerCallback is object:
            raise ImportError("RecorderCallback needs transformers, got none: pip install transformers accelerate")
        self.bound: RunBound | None = None
        self._options: dict[str, Any] = {"every": every, "measure": measure, "gradients": gradients}
        self._to, self._certificate = to, certificate

    def attach(self, trainer: Any) -> RecorderCallback:
        """Add this callback to a Trainer, before its loggers, and return it."""
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        return self

    # -------------------------------------------------------------------------------- events, called by the Trainer

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, optimizer: Optimizer | None = None, **_: Any
    ) -> None:
        """Attach a recorder to the optimizer; on resuming, with the state that was saved with the checkpoint."""
        if optimizer is None:
            raise ValueError(
                "recording needs the optimizer of the Trainer, got None: pass the callback to a Trainer that trains"
            )
        to = self._to if state.is_world_process_zero or self._to is None else discard
        self.recorder = Recorder(unwrapped(optimizer), to=to, keep=to is None, **self._options)
        saved = _recorder_file(args, state)
        if state.global_step and saved.is_file():
            # a checkpoint from the hub's cache has links
            self.recorder.load_state_dict(_files.parse_json(_files.read_bytes(saved, follow_link=True)))
        self._scalars = ScalarLog(self.recorder)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Add the scalars of the last recorded step, and at the end the bound of the certificate."""
        values = self._scalars.new_scalars()
        if logs is not None and "train_runtime" in logs and self._certificate is not None:  # the last log of a training
            self.bound = self.recorder.certificate(**self._certificate)
            if self.bound.status == "applies":
                values["muonlab/gradient_norm_bound"] = self.bound.total
        if logs is not None:
            logs.update(values)
        if state.log_history:
            state.log_history[-1].update(values)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the state of the recorder in the folder of the checkpoint."""
        file, saved = _recorder_file(args, state), self.recorder.state_dict()  # all processes take part in the second
        if state.is_world_process_zero and file.parent.is_dir():
            file.write_text(json.dumps(saved), encoding="utf-8")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the recorder from the optimizer and close its file."""
        self.recorder.close()


def _recorder_file(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / RECORDER_FILE
