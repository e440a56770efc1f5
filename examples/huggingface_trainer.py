"""Train a small GPT-2 on the README with the Trainer of transformers, and log how well Muon orthogonalizes.

    - Trainer(model, arguments, train_dataset=data)
    + Trainer(model, arguments, train_dataset=data, optimizer_cls_and_kwargs=trainer_optimizer(model, 0.02, 3e-3))

The tokens are bytes. ``split_params`` knows that GPT-2 stores its weights inputs × outputs, with query, key and value
as columns of one matrix. Nothing is downloaded. Takes half a minute on one core (pip install -r
requirements-trainers.txt):

    python examples/huggingface_trainer.py
"""

import tempfile
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from muonlab.integrations.transformers import RecorderCallback, trainer_optimizer

LENGTH, WIDTH, STEPS = 64, 64, 120
logging.set_verbosity_error()
logging.disable_progress_bar()


class Print(TrainerCallback):
    """Prints a line at each logging step."""

    def on_log(self, args, state, control, logs=None, **kwargs):  # noqa: ARG002
        if "loss" in logs:
            print(
                f"step {state.global_step:3}: loss {float(logs['loss']):.3f}, alignment {logs['muonlab/alignment']:.3f}"
                f" (least {logs['muonlab/least_alignment']:.3f}), polar error {logs['muonlab/polar_error']:.3f}"
            )


def main() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_bytes()
    tokens = torch.tensor(list(text))
    data = [{"input_ids": row, "labels": row} for row in tokens.unfold(0, LENGTH, LENGTH // 2)]
    set_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=16, lr_scheduler_type="cosine",
            warmup_steps=10, max_grad_norm=1.0, logging_steps=20, save_steps=60, report_to=[], use_cpu=True,
            disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model,
            arguments,
            train_dataset=data,
            optimizer_cls_and_kwargs=trainer_optimizer(model, lr=0.02, aux_lr=3e-3, weight_decay=0.1),
            callbacks=[Print()],
        )
        trainer.remove_callback(PrinterCallback)  # Print is instead of it
        recorder = RecorderCallback(every=10).attach(trainer)
        trainer.train()
        losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
        matrices = {row["name"] for row in recorder.recorder.rows if row["event"] == "matrix"}
        print(f"{len(matrices)} matrices by Muon, loss from {losses[20]:.2f} to {losses[STEPS]:.2f}")
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-60")  # half of the training once more
        again = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
        print(f"resumed from step 60: difference of the last loss {abs(again[STEPS] - losses[STEPS])}")


if __name__ == "__main__":
    main()
