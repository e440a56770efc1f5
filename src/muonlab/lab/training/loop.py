"""The training loop: one cell from its spec to its rows, stopped and resumed without a trace."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from muonlab.diagnostics import Recorder
from muonlab.lab.cell_context import CellContext, Stopped
from muonlab.lab.data import Data, augment, load, order
from muonlab.lab.distributed.parallel_model import Spread
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.spec import Spec
from muonlab.lab.training import checkpoint
from muonlab.lab.training.clipping import clip
from muonlab.lab.training.clock import Clock
from muonlab.lab.training.evaluation import criterion, held_out_numbers
from muonlab.lab.training.recipe import learning_rate_factor, optimizer_of
from muonlab.lab.training.setup import check, lengths, model_of, nuclear_norm, watched_parameter
from muonlab.lab.training.snapshot import set_random, snapshot


def train(spec: Spec, desk: CellContext, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Train one cell, from its last checkpoint if there is one; return its final numbers.

    Called on every rank, with a desk that writes on the leader alone.
    """
    check(spec, ranks=ranks)
    run = Training(spec, desk, ranks)
    run.resume()
    while run.step < run.updates or run.evaluation_is_due:
        if not run.evaluation_is_due:
            run.update()
        run.save_if_due()
        if run.evaluation_is_due:
            run.evaluate()
    return run.finish()


class Training:
    """A model, its optimizer and data, and where the run is: ``step`` updates done, sums since the last evaluation.

    Sums of losses are this rank's own, over its share of each batch; they are added when they are read.
    """

    def __init__(self, spec: Spec, desk: CellContext, ranks: Ranks = ALONE) -> None:
        self.spec, self.desk, self.ranks = spec, desk, ranks
        self.device = torch.device(ranks.device(spec.device))
        data = self._load()
        if desk.data_hash not in (None, data.hash):
            raise ValueError(
                f"data must stay the same during a study, got {spec.dataset} changed: choose another --out"
            )
        self.train, self.test = data.train.to(self.device), data.test.to(self.device)
        self.per_epoch, self.updates = lengths(spec, len(self.train))
        self.evaluate_every = spec.evaluate_every or self.per_epoch
        self.spread = Spread(model_of(spec, data), ranks, self.device)
        self.model = self.spread.model
        self.optimizer = optimizer_of(spec, self.model, ranks)
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.watched = watched_parameter(spec, self.model)
        self.recorder: Recorder | None = None
        if spec.recorded:
            self.recorder = Recorder(self.optimizer, spec.record_every, to=lambda row: desk.write(row, "certificates"))
        self.clock = Clock(self.device, alone=ranks.size == 1)
        self.step = 0
        self.losses = torch.zeros((), dtype=torch.float32 if self.device.type == "mps" else torch.float64)
        self.losses = self.losses.to(self.device)
        self.nuclear_norms = 0.0
        self.since = 0  # updates since the last evaluation
        self._saved = self._shown = time.monotonic()
        self._saving = 0.0  # seconds that the last checkpoint took
        self._order: tuple[int, Tensor] | None = None

    def _load(self) -> Data:
        """Load the data, first on one rank of each machine, which decodes what the machine's cache lacks."""
        first, spec = self.ranks.local_rank == 0, self.spec
        if not first:
            self.ranks.barrier()
        data = load(spec.dataset, root=self.desk.data, train=spec.train, test=spec.test, block=spec.block)
        if first:
            self.ranks.barrier()
        return data

    # -------------------------------------------------------------------------------------------------- one update

    def update(self) -> None:
        """Take one update: batch, gradients, clipping, learning rates, step."""
        self.clock.start()
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.losses.new_zeros(())
        parts = list(self.batch())
        for number, (x, y, part) in enumerate(parts, 1):
            with self.spread.passing(last=number == len(parts)):
                mean = criterion(self.spread.forward, x, y, self.spec)
                weight = y.numel() if self.spec.loss == "sum" and part else part
                torch.autograd.backward(mean * (weight * self.spread.factor))
            loss += mean.detach() * part
        if self.watched is not None:
            with self.clock.paused():
                self.nuclear_norms += nuclear_norm(self.watched)
        if self.spec.clip is not None:
            clip(self.trained, self.spec.clip)
        factor = learning_rate_factor(self.step, self.updates, self.spec.warmup)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        recorded = (self.recorder.seconds, self.recorder.cpu_seconds) if self.recorder else (0.0, 0.0)
        self.optimizer.step()
        if self.recorder:
            self.clock.exclude(self.recorder.seconds - recorded[0], self.recorder.cpu_seconds - recorded[1])
        self.losses += loss
        self.step += 1
        self.since += 1
        self._show(loss, sum(part for *_, part in parts))

    def batch(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield this rank's examples of the update, in parts that fit, with each part's share of the whole batch.

        What is drawn to augment a batch depends on all of it, so that all of it is augmented before it is divided.
        """
        epoch, position = divmod(self.step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, order(self.spec.seed, epoch, len(self.train))
        size = self.spec.batch_size
        index = self._order[1][position * size : (position + 1) * size]
        if self.spec.augmentation == "none":
            x, y = self.train.batch(self._share(index))
        else:
            x, y = self.train.batch(index)
            x = augment(x, self.spec.augmentation, seed=self.spec.seed, epoch=epoch, step=position)
            x, y = self._share(x), self._share(y)
        most = self.spec.micro_batch or size
        for a, b in zip(torch.split(x, most), torch.split(y, most), strict=True):
            yield a, b, len(a) / size
        largest = math.ceil(size / self.ranks.size)
        if self.spread.in_shards and math.ceil(len(x) / most) < math.ceil(largest / most):
            yield x[:1], y[:1], 0.0  # a pass for company, of no weight: shards are gathered from all ranks

    def _share(self, batch: Tensor) -> Tensor:
        return torch.tensor_split(batch, self.ranks.size)[self.ranks.rank]

    def _show(self, loss: Tensor, share: float) -> None:
        now = time.monotonic()
        if now - self._shown > 0.5 or self.step == self.updates:  # reading the loss waits for the device
            self._shown = now
            self.clock.stop()
            self.desk.progress(self.step, self.updates, loss=float(loss) / share, seconds=self.clock.seconds)

    # -------------------------------------------------------------------------------------------------- evaluation

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the updates since the last evaluation are to be evaluated before the next one."""
        return self.since > 0 and (self.step % self.evaluate_every == 0 or self.step == self.updates)

    def evaluate(self) -> None:
        """Write a row: mean training loss since the last one, loss and accuracy on held-out data, training seconds."""
        self.clock.stop()
        row = {"event": "evaluation", **self._where(), "train_loss": self._finite(self._losses() / self.since)}
        numbers = self._held_out_numbers()
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

    def _losses(self) -> float:
        """Return the sum of the losses of whole batches since the last evaluation."""
        return float(self.ranks.sum(self.losses))

    def _held_out_numbers(self) -> dict[str, float] | None:
        self.spread.settle()
        numbers = held_out_numbers(self.model, self.test, self.spec, lambda: self.desk.stopping, self.ranks)
        self.spread.settle()
        return numbers

    def _where(self) -> dict[str, Any]:
        last = learning_rate_factor(max(self.step - 1, 0), self.updates, self.spec.warmup)
        return {
            "step": self.step,
            "epoch": self.step / self.per_epoch,
            **self.clock.reading(),
            "lr": self.rates[0] * last,
        }

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise ValueError(f"the loss must stay finite, got {loss} within {self.step} updates: lower lr, or aux_lr")
        return loss

    # ---------------------------------------------------------------------------------------------- save and resume

    def resume(self) -> None:
        """Go on from the newest sound checkpoint, or begin with a row on the untrained model."""
        tensors = snapshot(self.model, self.optimizer)
        values = checkpoint.load(self.desk.folder, tensors, self.ranks)
        if values is None:
            self.desk.begin({})
            numbers = self._held_out_numbers()
            if numbers is None:
                raise Stopped
            self.desk.write({"event": "start", **self._where(), **numbers})
            return
        set_random(self.model, tensors)
        self.step, self.since = values["step"], values["since"]
        self.losses.fill_(values["losses"] if self.ranks.leader else 0.0)
        self.nuclear_norms = values["nuclear_norms"]
        self.clock.resume(values["clock"])
        if self.recorder:
            self.recorder.load_state_dict(values["recorder"])
        with checkpoint.together(self.ranks):
            self._check_own(values)
            self.desk.begin(values["rows"])

    def _check_own(self, values: dict[str, Any]) -> None:
        if values["key"] != self.desk.key:
            raise ValueError(
                f"a cell must resume from its own checkpoint, got {self.desk.folder.name} with that of another cell: "
                f"remove {checkpoint.FOLDER}/ of that cell to begin it anew"
            )

    def save_if_due(self) -> None:
        """Save when a rank is asked to stop, and then stop, and when the leader's clock says so.

        That is from time to time, at a twentieth of the time or less.
        """
        every = self.desk.checkpoint_seconds
        due = self.ranks.leader and time.monotonic() - self._saved >= every + 20 * self._saving * bool(every)
        stopping, due = self.ranks.any(self.desk.stopping, due)
        if stopping or due:
            self.save()
        if stopping:
            raise Stopped

    def save(self) -> None:
        """Save everything that the rest of the run depends on."""
        self.clock.stop()
        began = time.monotonic()
        values = {
            "key": self.desk.key,
            "step": self.step,
            "since": self.since,
            "losses": self._finite(self._losses()),
            "nuclear_norms": self.nuclear_norms,
            "clock": self.clock.reading(),
            "recorder": self.recorder.state_dict() if self.recorder else None,
            "rows": self.desk.save_rows(),
        }
        self.spread.settle()
        checkpoint.save(self.desk.folder, self.step, snapshot(self.model, self.optimizer), values, self.ranks)
        self._saved = time.monotonic()
        self._saving = self._saved - began

    def finish(self) -> dict[str, Any]:
        """Keep the weights, or their hash alone; return what a table says of the run."""
        if self.recorder:
            self.recorder.close()
        weights, digest = self.spread.weights(), None
        with checkpoint.together(self.ranks):
            if self.ranks.leader:
                if self.desk.keep_weights:
                    digest = checkpoint.save_tensors(self.desk.folder / checkpoint.WEIGHTS, weights)
                else:
                    digest = checkpoint.hash_tensors(weights)
        return {
            "steps": self.step,
            **self.clock.reading(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "weights_sha256": digest,
        }
