"""The training loop: one cell from its spec to its rows, stopped and resumed without a trace."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from muonlab.diagnostics import Recorder
from muonlab.lab import checkpoint
from muonlab.lab.clock import Clock
from muonlab.lab.data import augment, load, order
from muonlab.lab.desk import Desk, Stopped
from muonlab.lab.evaluate import criterion, held_out_numbers
from muonlab.lab.parts import check, lengths, model_of, nuclear_norm, watched_parameter
from muonlab.lab.recipe import learning_rate_factor, optimizer_of
from muonlab.lab.snapshot import restore, snapshot
from muonlab.lab.spec import Spec


def train(spec: Spec, desk: Desk) -> dict[str, Any]:
    """Train one cell, from its last checkpoint if there is one; return its final numbers."""
    check(spec)
    run = Training(spec, desk)
    run.resume()
    while run.step < run.updates or run.evaluation_is_due:
        if not run.evaluation_is_due:
            run.update()
        run.save_if_due()
        if run.evaluation_is_due:
            run.evaluate()
    return run.finish()


class Training:
    """A model, its optimizer and data, and where the run is: ``step`` updates done, sums since the last evaluation."""

    def __init__(self, spec: Spec, desk: Desk) -> None:
        self.spec, self.desk = spec, desk
        self.device = torch.device(spec.device)
        data = load(spec.dataset, root=desk.data, train=spec.train, test=spec.test, block=spec.block)
        if desk.data_hash not in (None, data.hash):
            raise ValueError(
                f"data must stay the same during a study, got {spec.dataset} changed: choose another --out"
            )
        self.train, self.test = data.train.to(self.device), data.test.to(self.device)
        self.per_epoch, self.updates = lengths(spec, len(self.train))
        self.evaluate_every = spec.evaluate_every or self.per_epoch
        self.model = model_of(spec, data).to(self.device)
        self.optimizer = optimizer_of(spec, self.model)
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.watched = watched_parameter(spec, self.model)
        self.recorder: Recorder | None = None
        if spec.recorded:
            self.recorder = Recorder(self.optimizer, spec.record_every, to=lambda row: desk.write(row, "certificates"))
        self.clock = Clock(self.device)
        self.step = 0
        self.losses = torch.zeros((), dtype=torch.float32 if self.device.type == "mps" else torch.float64)
        self.losses = self.losses.to(self.device)
        self.nuclear_norms = 0.0
        self.since = 0  # updates since the last evaluation
        self._saved = self._shown = time.monotonic()
        self._saving = 0.0  # seconds that the last checkpoint took
        self._order: tuple[int, Tensor] | None = None

    # -------------------------------------------------------------------------------------------------- one update

    def update(self) -> None:
        """Take one update: batch, gradients, clipping, learning rates, step."""
        self.clock.start()
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.losses.new_zeros(())
        for x, y, part in self.batch():
            mean = criterion(self.model, x, y, self.spec)
            torch.autograd.backward(mean * (y.numel() if self.spec.loss == "sum" else part))
            loss += mean.detach() * part
        if self.watched is not None:
            with self.clock.paused():
                self.nuclear_norms += nuclear_norm(self.watched)
        if self.spec.clip is not None:
            nn.utils.clip_grad_norm_(self.trained, self.spec.clip)
        factor = learning_rate_factor(self.step, self.updates, self.spec.warmup)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        before = self.recorder.seconds if self.recorder else 0.0
        self.optimizer.step()
        if self.recorder:
            self.clock.seconds -= self.recorder.seconds - before
        self.losses += loss
        self.step += 1
        self.since += 1
        self._show(loss)

    def batch(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield the examples of this update, in parts that fit, with each part's share of the batch."""
        epoch, position = divmod(self.step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, order(self.spec.seed, epoch, len(self.train))
        size = self.spec.batch_size
        index = self._order[1][position * size : (position + 1) * size]
        x, y = self.train.batch(index)
        x = augment(x, self.spec.augmentation, seed=self.spec.seed, epoch=epoch, step=position)
        most = self.spec.micro_batch or size
        for a, b in zip(torch.split(x, most), torch.split(y, most), strict=True):
            yield a, b, len(a) / size

    def _show(self, loss: Tensor) -> None:
        now = time.monotonic()
        if now - self._shown > 0.5 or self.step == self.updates:  # reading the loss waits for the device
            self._shown = now
            self.clock.stop()
            self.desk.progress(self.step, self.updates, loss=float(loss), seconds=self.clock.seconds)

    # -------------------------------------------------------------------------------------------------- evaluation

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the updates since the last evaluation are to be evaluated before the next one."""
        return self.since > 0 and (self.step % self.evaluate_every == 0 or self.step == self.updates)

    def evaluate(self) -> None:
        """Write a row: mean training loss since the last one, loss and accuracy on held-out data, training seconds."""
        self.clock.stop()
        row = {"event": "evaluation", **self._where(), "train_loss": self._finite(float(self.losses) / self.since)}
        numbers = held_out_numbers(self.model, self.test, self.spec, lambda: self.desk.stopping)
        if numbers is None:  # evaluated when the run goes on
            self.save()
            raise Stopped
        self._finite(numbers["test_loss"])
        row |= numbers
        if self.watched is not None:
            row["gradient_nuclear_norm"] = self.nuclear_norms / self.since
        self.desk.write(row)
        self.losses.zero_()
        self.nuclear_norms, self.since = 0.0, 0

    def _where(self) -> dict[str, Any]:
        last = learning_rate_factor(max(self.step - 1, 0), self.updates, self.spec.warmup)
        return {
            "step": self.step,
            "epoch": self.step / self.per_epoch,
            "seconds": self.clock.seconds,
            "lr": self.rates[0] * last,
        }

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise ValueError(f"the loss must stay finite, got {loss} within {self.step} updates: lower lr, or aux_lr")
        return loss

    # ---------------------------------------------------------------------------------------------- save and resume

    def resume(self) -> None:
        """Go on from the newest sound checkpoint, or begin with a row on the untrained model."""
        found = checkpoint.load(self.desk.folder)
        if found is None:
            self.desk.begin({})
            numbers = held_out_numbers(self.model, self.test, self.spec, lambda: self.desk.stopping)
            if numbers is None:
                raise Stopped
            self.desk.write({"event": "start", **self._where(), **numbers})
            return
        restore(self.model, self.optimizer, found.tensors)
        values = found.values
        self.step, self.since = values["step"], values["since"]
        self.losses.fill_(values["losses"])
        self.nuclear_norms = values["nuclear_norms"]
        self.clock.seconds = values["seconds"]
        if self.recorder:
            self.recorder.load_state_dict(values["recorder"])
        self.desk.begin(values["lines"])

    def save_if_due(self) -> None:
        """Save when asked to stop, and then stop, and from time to time, at a twentieth of the time or less."""
        stopping, every = self.desk.stopping, self.desk.checkpoint_seconds
        if stopping or time.monotonic() - self._saved >= every + 20 * self._saving * bool(every):
            self.save()
        if stopping:
            raise Stopped

    def save(self) -> None:
        """Save everything that the rest of the run depends on."""
        self.clock.stop()
        began = time.monotonic()
        values = {
            "step": self.step,
            "since": self.since,
            "losses": self._finite(float(self.losses)),
            "nuclear_norms": self.nuclear_norms,
            "seconds": self.clock.seconds,
            "recorder": self.recorder.state_dict() if self.recorder else None,
            "lines": self.desk.lines(),
        }
        checkpoint.save(self.desk.folder, self.step, snapshot(self.model, self.optimizer), values)
        self._saved = time.monotonic()
        self._saving = self._saved - began

    def finish(self) -> dict[str, Any]:
        """Keep the weights; return what a table says of the run."""
        if self.recorder:
            self.recorder.close()
        digest = checkpoint.save_tensors(self.desk.folder / "weights.safetensors", self.model.state_dict())
        return {
            "steps": self.step,
            "seconds": self.clock.seconds,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "weights_sha256": digest,
        }
