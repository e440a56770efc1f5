"""Train a small vision transformer on handwritten digits with Lightning, and log how well Muon orthogonalizes.

    def configure_optimizers(self):
        return configure_optimizers(self, lr=0.02, aux_lr=3e-3)

The images come with scikit-learn; nothing is downloaded. Takes half a minute on one core (pip install -r
requirements-trainers.txt):

    python examples/lightning_vit.py
"""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification

from muonlab.integrations.lightning import RecorderCallback, configure_optimizers

EPOCHS = 8
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Digits(LightningModule):
    """A vision transformer on images of 8×8 pixels, in patches of 2×2."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = ViTForImageClassification(
            ViTConfig(
                hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=8,
                patch_size=2, num_channels=1, num_labels=10,
            )
        )  # fmt: skip

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return self.vit(pixel_values=images, labels=labels).loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        right = (self.vit(pixel_values=images).logits.argmax(1) == labels).float().mean()
        self.log("accuracy", right)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            found = self.trainer.callback_metrics
            print(f"epoch {self.current_epoch + 1}: test accuracy {found['accuracy']:.1%}", end=", ")
            print(f"alignment {found['muonlab/alignment']:.3f}, polar error {found['muonlab/polar_error']:.3f}")

    def configure_optimizers(self) -> dict[str, object]:
        steps = int(self.trainer.estimated_stepping_batches)
        return configure_optimizers(
            self, lr=0.02, aux_lr=3e-3, weight_decay=0.01,
            scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        )  # fmt: skip


def main() -> None:
    seed_everything(0, verbose=False)
    pixels, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    data = TensorDataset(pixels.float().view(-1, 1, 8, 8) / 16, labels)
    order = torch.randperm(len(data)).tolist()
    train, test = torch.utils.data.Subset(data, order[:1400]), torch.utils.data.Subset(data, order[1400:])
    recorder = RecorderCallback(every=10)
    trainer = Trainer(
        accelerator="cpu", max_epochs=EPOCHS, gradient_clip_val=1.0, callbacks=[recorder], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Digits(), DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=397))
    rows = [row for row in recorder.recorder.rows if row["event"] == "matrix"]
    least = min(rows, key=lambda row: row["alignment"])
    print(f"{len(rows)} measurements; least alignment {least['alignment']:.3f}: {least['name']}, step {least['step']}")


if __name__ == "__main__":
    main()
