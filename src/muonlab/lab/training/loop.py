"""The training loop: one cell from its spec to its rows; a run that was stopped resumes bit-for-bit."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from muonlab.diagnostics import Recorder
from muonlab.lab.cell_context import CellContext, Stopped
from muonlab.lab.data.batches import Examples, augment, order, set_aside
from muonlab.lab.data.loading import Data, load
from muonlab.lab.distributed.parallel_model import DistributedModel
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.own.datasets import OwnDataset
from muonlab.lab.own.optimizers import OwnOptimizer
from muonlab.lab.spec import Spec
from muonlab.lab.training import checkpoint
from muonlab.lab.training.clipping import clip_gradients
from muonlab.lab.training.clock import Clock
from muonlab.lab.training.evaluation import criterion, held_out_numbers
from muonlab.lab.training.own_state import create_state, describe_state
from muonlab.lab.training.recipe import build_optimizer, learning_rate_factor
from muonlab.lab.training.setup import (
    build_model,
    check_spec,
    gradient_nuclear_norm,
    run_length,
    watched_parameter,
)
from muonlab.lab.training.snapshot import named_tensors, restore_random_state

Part = tuple[Tensor, Tensor, float]
"""Inputs, targets, and their share of the whole batch."""


def train(spec: Spec, context: CellContext, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Train one cell, from its last checkpoint if there is one; return its summary.

    Called on every rank, with a context that writes rows on rank 0 only. Raises :class:`Stopped` after saving if the
    context asks to stop.
    """
    if isinstance(spec.dataset, OwnDataset):
        spec.dataset.splits(context.data)  # in this process, before they are checked
    check_spec(spec, ranks=ranks)
    run = Training(spec, context, ranks)
    run.resume()
    while run.step < run.updates or run.evaluation_is_due:  # a run stopped before its last evaluation resumes with it
        if not run.evaluation_is_due:
            run.update()
        run.save_if_due()
        if run.evaluation_is_due:
            run.evaluate()
    return run.finish()


class Training:
    """A model, its optimizer and data, and the state of the run.

    Attributes:
        step: updates done.
        updates_since_evaluation: updates since the last evaluation.
        loss_sum: sum over these updates of the loss on this rank's part of each batch.
        nuclear_norm_sum: sum over these updates of the nuclear norm of the watched gradient.
    """

    def __init__(self, spec: Spec, context: CellContext, ranks: Ranks = ALONE) -> None:
        self.spec, self.context, self.ranks = spec, context, ranks
        self.device = torch.device(ranks.device(spec.device))
        data = self._load_data()
        if context.data_hash not in (None, data.hash):
            raise ValueError(
                f"data must stay the same during a study, got other data for {data.name} than when the study was "
                f"planned: choose another --out, or seed the random numbers of the function that makes the data"
            )
        examples, self.validation_data = data.train, None
        if spec.validation is not None:
            examples, held_out = set_aside(data.train, spec.validation)
            self.validation_data = held_out.to(self.device)
        self.train_data, self.test_data = examples.to(self.device), data.test.to(self.device)
        self.per_epoch, self.updates = run_length(spec, len(self.train_data))
        self.evaluate_every = spec.evaluate_every or self.per_epoch
        self.distributed_model = DistributedModel(build_model(spec, data), ranks, self.device)
        self.model = self.distributed_model.model
        self.optimizer = build_optimizer(spec, self.model, ranks)
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.trained_parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.watched = watched_parameter(spec, self.model)
        self.recorder: Recorder | None = None
        if spec.recorded:
            self.recorder = Recorder(
                self.optimizer, spec.record_every, to=lambda row: context.write(row, "certificates"), keep=False
            )
        self.clock = Clock(self.device, alone=ranks.size == 1)
        self.step = self.updates_since_evaluation = 0
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self.loss_sum = torch.zeros((), dtype=dtype).to(self.device)
        self.nuclear_norm_sum = 0.0
        self._last_save = self._last_progress = time.monotonic()
        self._save_seconds = 0.0  # duration of the last save
        self._epoch_order: tuple[int, Tensor] | None = None

    def _load_data(self) -> Data:
        """Load the data, first on one rank per machine: it decodes what the cache does not have yet."""
        first, spec = self.ranks.local_rank == 0, self.spec
        if not first:
            self.ranks.barrier()
        data = load(spec.dataset, root=self.context.data, train=spec.train, test=spec.test, block=spec.block)
        if first:
            self.ranks.barrier()
        return data

    # -------------------------------------------------------------------------------------------------- one update

    def update(self) -> None:
        """Take one update: batch, gradients, clipping, learning rates, optimizer step."""
        self.clock.start()
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss_sum.new_zeros(())
        parts = self.batch()
        for number, (x, y, share) in enumerate(parts, 1):
            with self.distributed_model.gradient_sync(last=number == len(parts)):
                mean = criterion(self.distributed_model.forward, x, y, self.spec)
                # a part of share 0 only joins the all-gather (see batch): its weight is 0 for every loss
                weight = y.numel() if self.spec.loss == "sum" and share else share
                torch.autograd.backward(mean * (weight * self.distributed_model.loss_factor))
            loss += mean.detach() * share
        if self.watched is not None:
            with self.clock.paused():
                self.nuclear_norm_sum += gradient_nuclear_norm(self.watched)
        if self.spec.clip is not None:
            clip_gradients(self.trained_parameters, self.spec.clip)
        factor = learning_rate_factor(self.step, self.updates, self.spec.warmup, self.spec.schedule)
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        recorded = (self.recorder.seconds, self.recorder.cpu_seconds) if self.recorder else (0.0, 0.0)
        self.optimizer.step()
        if self.recorder:
            self.clock.exclude(self.recorder.seconds - recorded[0], self.recorder.cpu_seconds - recorded[1])
        self.loss_sum += loss
        self.step += 1
        self.updates_since_evaluation += 1
        self._show_progress(loss, sum(share for *_, share in parts))

    def batch(self) -> list[Part]:
        """Return this rank's examples of the next update, in parts of at most ``micro_batch``.

        The whole batch is augmented before it is divided, because the random numbers are drawn for all of it.
        """
        spec = self.spec
        epoch, position = divmod(self.step, self.per_epoch)
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            self._epoch_order = epoch, order(spec.seed, epoch, len(self.train_data))
        index = self._epoch_order[1][position * spec.batch_size : (position + 1) * spec.batch_size]
        if spec.augmentation == "none":
            x, y = self.train_data.batch(self._of_this_rank(index))
        else:
            x, y = self.train_data.batch(index)
            x = augment(x, spec.augmentation, seed=spec.seed, epoch=epoch, step=position)
            x, y = self._of_this_rank(x), self._of_this_rank(y)
        limit = spec.micro_batch or spec.batch_size
        chunks = zip(torch.split(x, limit), torch.split(y, limit), strict=True)
        parts = [(a, b, len(a) / spec.batch_size) for a, b in chunks]
        most = math.ceil(math.ceil(spec.batch_size / self.ranks.size) / limit)  # parts of the rank with most examples
        if self.distributed_model.is_sharded and len(parts) < most:
            parts.append((x[:1], y[:1], 0.0))  # zero-weight pass so that every rank joins the all-gather
        return parts

    def _of_this_rank(self, batch: Tensor) -> Tensor:
        return torch.tensor_split(batch, self.ranks.size)[self.ranks.rank]

    def _show_progress(self, loss: Tensor, share: float) -> None:
        now = time.monotonic()
        if now - self._last_progress > 0.5 or self.step == self.updates:  # reading the loss synchronizes the device
            self._last_progress = now
            self.clock.stop()
            self.context.progress(self.step, self.updates, loss=float(loss) / share, seconds=self.clock.seconds)

    # -------------------------------------------------------------------------------------------------- evaluation

    @property
    def evaluation_is_due(self) -> bool:
        """Whether to evaluate before the next update."""
        return self.updates_since_evaluation > 0 and (self.step % self.evaluate_every == 0 or self.step == self.updates)

    def evaluate(self) -> None:
        """Write a row: mean training loss since the last one, loss and accuracy on held-out data, training seconds."""
        self.clock.stop()
        row = {
            "event": "evaluation",
            **self._position(),
            "train_loss": self.check_finite(float(self.ranks.sum(self.loss_sum)) / self.updates_since_evaluation),
        }
        numbers = self._evaluate_model()
        if numbers is None:  # the resumed run evaluates again
            self.save()
            raise Stopped
        self.check_finite(numbers["test_loss"])
        row |= numbers
        if self.watched is not None:
            row["gradient_nuclear_norm"] = self.nuclear_norm_sum / self.updates_since_evaluation
        self.context.write(row)
        self.loss_sum.zero_()
        self.nuclear_norm_sum, self.updates_since_evaluation = 0.0, 0

    def _evaluate_model(self) -> dict[str, float] | None:
        """Return the numbers on held-out data, or None if asked to stop."""
        self.distributed_model.synchronize()
        numbers = self._held_out_numbers(self.test_data)
        if numbers is not None and self.validation_data is not None:
            chosen_by = self._held_out_numbers(self.validation_data)
            renamed = {name.replace("test", "validation"): value for name, value in (chosen_by or {}).items()}
            numbers = None if chosen_by is None else {**numbers, **renamed}
        self.distributed_model.synchronize()
        return numbers

    def _held_out_numbers(self, examples: Examples) -> dict[str, float] | None:
        return held_out_numbers(self.model, examples, self.spec, lambda: self.context.stopping, self.ranks)

    def _position(self) -> dict[str, Any]:
        """Return the columns of a row that say when it was written; ``lr`` is that of the last update."""
        last = learning_rate_factor(max(self.step - 1, 0), self.updates, self.spec.warmup, self.spec.schedule)
        position = {"step": self.step, "epoch": self.step / self.per_epoch}
        return {**position, **self.clock.reading(), "lr": self.base_rates[0] * last}

    def check_finite(self, loss: float) -> float:
        """Return a loss; raise ``ValueError`` if it is NaN or infinite."""
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss must stay finite, got {loss} after at most {self.step} updates: lower lr or aux_lr"
            )
        return loss

    # ---------------------------------------------------------------------------------------------- save and resume

    def resume(self) -> None:
        """Resume from the newest undamaged checkpoint; without one, write a row on the untrained model."""
        manifest = checkpoint.newest(self.context.folder, self.ranks)
        if manifest is None:
            self.context.begin({})
            numbers = self._evaluate_model()
            if numbers is None:
                raise Stopped
            self.context.write({"event": "start", **self._position(), **numbers})
            return
        values = manifest["values"]
        if values["key"] != self.context.key:
            name = self.context.folder.name
            raise ValueError(
                f"a cell must resume from its own checkpoint, got a checkpoint of another cell in {name}: remove "
                f"{name}/{checkpoint.FOLDER} to restart this cell"
            )
        if values.get("optimizer"):
            create_state(self.model, self.optimizer, values["optimizer"])
        tensors = named_tensors(self.model, self.optimizer)
        checkpoint.fill(tensors, self.context.folder, manifest, self.ranks)
        restore_random_state(self.model, tensors)
        self.step, self.updates_since_evaluation = values["step"], values["since"]
        self.loss_sum.fill_(values["losses"] if self.ranks.rank == 0 else 0.0)
        self.nuclear_norm_sum = values["nuclear_norms"]
        self.clock.resume(values["clock"])
        if self.recorder:
            self.recorder.load_state_dict(values["recorder"])
        with self.ranks.fail_together():
            self.context.begin(values["rows"])

    def save_if_due(self) -> None:
        """Save when a checkpoint is due by rank 0's clock, or when any rank is asked to stop.

        In the second case raise :class:`Stopped`. The interval is at least 20 times the duration of the last save, so
        that saving takes at most 5 % of the time.
        """
        interval = self.context.checkpoint_seconds
        wait = interval + 20 * self._save_seconds * bool(interval)
        due = self.ranks.rank == 0 and time.monotonic() - self._last_save >= wait
        stopping, due = self.ranks.any(self.context.stopping, due)
        if stopping or due:
            self.save()
        if stopping:
            raise Stopped

    def save(self) -> None:
        """Save everything that the rest of the run depends on."""
        self.clock.stop()
        began = time.monotonic()
        values = {
            "key": self.context.key,
            "step": self.step,
            "since": self.updates_since_evaluation,
            "losses": self.check_finite(float(self.ranks.sum(self.loss_sum))),
            "nuclear_norms": self.nuclear_norm_sum,
            "clock": self.clock.reading(),
            "recorder": self.recorder.state_dict() if self.recorder else None,
            "rows": self.context.save_rows(),
        }
        if isinstance(self.spec.optimizer, OwnOptimizer):
            values["optimizer"] = describe_state(self.model, self.optimizer)
        self.distributed_model.synchronize()
        tensors = named_tensors(self.model, self.optimizer)
        checkpoint.save(self.context.folder, self.step, tensors, values, self.ranks)
        self._last_save = time.monotonic()
        self._save_seconds = self._last_save - began

    def finish(self) -> dict[str, Any]:
        """Write the weights if they are to be kept; return the summary of the cell."""
        if self.recorder:
            self.recorder.close()
        weights, digest = self.distributed_model.gather_weights(), None
        with self.ranks.fail_together():
            if self.ranks.rank == 0:
                if self.context.keep_weights:
                    digest = checkpoint.save_tensors(self.context.folder / checkpoint.WEIGHTS, weights)
                else:
                    digest = checkpoint.hash_tensors(weights)
        return {
            "steps": self.step,
            **self.clock.reading(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "weights_sha256": digest,
        }
