"""Lightning with Muon: clipping, accumulation, a schedule, logging, and resuming bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from muonlab import Muon, MuonWithAux
from muonlab.integrations.lightning import RecorderCallback, configure_optimizers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trainers("lightning", "tensorboard"),
    pytest.mark.filterwarnings("ignore"),  # of these packages; warnings of muonlab are tested elsewhere
]

STEPS = 6


def network():
    """Return a LightningModule; without dropout, since Lightning does not save random number generators."""
    from lightning.pytorch import LightningModule

    class Network(LightningModule):
        def __init__(self):
            super().__init__()
            layers = (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
            self.net = nn.Sequential(*layers)
            self.losses, self.norms, self.rates = [], [], []

        def training_step(self, batch, _):
            X, Y = batch
            loss = (self.net(X) - Y).square().mean()
            self.losses.append(loss.item())
            return loss

        def on_before_optimizer_step(self, _):  # before clipping
            self.norms.append(float(nn.utils.get_total_norm([p.grad for p in self.parameters()])))
            self.rates.append([group["lr"] for group in self.trainer.optimizers[0].param_groups])

        def configure_optimizers(self):
            return configure_optimizers(
                self, lr=0.02, aux_lr=3e-3, weight_decay=0.1,
                scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
            )  # fmt: skip

    torch.manual_seed(0)
    return Network()


def trained(folder, steps, *, resume=None, callbacks=(), logger=False):
    """Train with everything that a Trainer of Lightning has, and return the module."""
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)
    )  # four steps of two batches an epoch: Lightning resumes the data of a loader at the start of an epoch
    module = network()
    seed_everything(5, verbose=False)
    checkpoint = ModelCheckpoint(folder, filename="last", every_n_train_steps=1, enable_version_counter=False)
    trainer = Trainer(
        accelerator="cpu", max_steps=steps, gradient_clip_val=0.1, accumulate_grad_batches=2, logger=logger,
        callbacks=[checkpoint, *callbacks], enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer.fit(module, loader, ckpt_path=resume)
    return module


def assert_same_bits(module, other) -> None:
    ours, theirs = module.trainer.optimizers[0], other.trainer.optimizers[0]
    assert isinstance(ours, MuonWithAux)
    for (name, p), q in zip(module.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
        for key, value in ours.state[p].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs.state[q][key])), (name, key)
    assert [group["lr"] for group in ours.param_groups] == [group["lr"] for group in theirs.param_groups]


def test_lightning_clips_accumulates_schedules_and_resumes_bit_for_bit(tmp_path):
    whole = trained(tmp_path / "whole", STEPS)
    assert whole.trainer.optimizers[0].muon.orthogonalized == 2
    assert len(whole.losses) == 2 * STEPS
    assert min(whole.norms) > 0.1  # clipping acts
    assert len({tuple(rates) for rates in whole.rates}) == STEPS
    cut = trained(tmp_path / "cut", 4)
    resumed = trained(tmp_path / "again", STEPS, resume=str(tmp_path / "cut" / "last.ckpt"))
    assert_same_bits(resumed, whole)
    assert cut.losses + resumed.losses == whole.losses
    with pytest.raises(AssertionError):
        assert_same_bits(cut, whole)


def test_the_recorder_logs_to_tensorboard_and_changes_no_bit(tmp_path):
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = RecorderCallback(every=2)
    logger = TensorBoardLogger(str(tmp_path), name="board", version="")
    recorded = trained(tmp_path / "recorded", STEPS, callbacks=[recorder], logger=logger)
    assert_same_bits(recorded, trained(tmp_path / "plain", STEPS))
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    rows = recorder.recorder.rows
    for key, field in (("alignment", "alignment"), ("polar_error", "epsilon")):
        logged = [event.value for event in board.Scalars(f"muonlab/{key}")]
        assert [event.step for event in board.Scalars(f"muonlab/{key}")] == [1, 3, 5]
        means = [
            sum(of) / len(of)
            for of in ([r[field] for r in rows if r["step"] == s and r["event"] == "matrix"] for s in (1, 3, 5))
        ]
        assert logged == pytest.approx(means, rel=1e-6)
    last = recorded.trainer.callback_metrics["muonlab/polar_error"].item()  # for callbacks that monitor a metric
    assert last == pytest.approx(means[-1], rel=1e-6)
    assert {row["name"] for row in rows if row["event"] == "matrix"} == {"net.0.weight", "net.2.weight"}


def test_a_recording_resumes_with_its_checkpoint(tmp_path):
    constants = {"certificate": {"L": 1.0, "D": 5.0}}
    whole, first, second = RecorderCallback(every=1, **constants), RecorderCallback(1), RecorderCallback(1, **constants)
    trained(tmp_path / "whole", STEPS, callbacks=[whole])
    trained(tmp_path / "cut", 4, callbacks=[first])
    trained(tmp_path / "again", STEPS, callbacks=[second], resume=str(tmp_path / "cut" / "last.ckpt"))
    assert second.recorder.step == whole.recorder.step == STEPS
    assert second.bound == whole.bound
    assert whole.bound.status == "not_applicable"  # weight decay is not covered by the theorem


def test_the_bound_of_a_covered_run_is_logged_at_the_end(tmp_path):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    class Quadratic(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(4, 6))

        def training_step(self, batch, _):
            return (self.weight - batch.mean(0)).square().sum() / 2

        def configure_optimizers(self):
            return Muon.paper(self.parameters(), lr=0.01, momentum=0.9)

    callback = RecorderCallback(every=1, certificate={"L": 1.0, "D": 12.0})
    trainer = Trainer(
        accelerator="cpu", max_steps=5, callbacks=[callback], logger=CSVLogger(tmp_path, "", ""),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Quadratic(), torch.utils.data.DataLoader(torch.ones(64, 4, 6), batch_size=2))
    assert callback.bound.status == "applies"
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert "muonlab/gradient_norm_bound" in lines[0]
    assert str(callback.bound.total) in lines[-1]
