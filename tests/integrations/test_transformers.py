"""The Trainer of transformers with Muon: clipping, accumulation, a schedule, logging, and resuming bit for bit."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

from muonlab import Muon, MuonWithAux
from muonlab.integrations.transformers import RecorderCallback, trainer_optimizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trainers("transformers", "accelerate", "tensorboard"),
    pytest.mark.filterwarnings("ignore"),  # of these packages; warnings of muonlab are tested elsewhere
]

STEPS = 6
RULES = {"*.c_attn.weight": "transposed columns(16, 16, 16)", "*.c_*.weight": "transposed"}


def gpt():
    """Return a GPT-2 of two layers, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, bos_token_id=0, eos_token_id=0, **small))


def sequences() -> list[dict]:
    tokens = torch.randint(32, (64, 12), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def mixture(folder=None):
    """Return a Qwen3-MoE of two layers: a new one, or that of a checkpoint."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    if folder is not None:
        return Qwen3MoeForCausalLM.from_pretrained(folder)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    experts = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=32, intermediate_size=16, **small, **experts))


def trained(folder, *, model=None, resume=None, callback=None, stop=STEPS, **arguments):
    """Train with everything that a Trainer has, and return it with its model."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):  # noqa: ARG002
            control.should_training_stop = state.global_step >= stop

    model, split = (gpt(), {"rules": RULES}) if model is None else (model, {})
    settings = {
        "max_steps": STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5,
        "lr_scheduler_type": "cosine", "warmup_steps": 2, "logging_steps": 1, "save_steps": 2, "seed": 3,
        "use_cpu": True, "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    trainer = Trainer(
        model,
        TrainingArguments(output_dir=str(folder), **{**settings, **arguments}),
        train_dataset=sequences(),
        optimizer_cls_and_kwargs=trainer_optimizer(
            model, lr=0.02, aux_lr=3e-3, weight_decay=0.1, split=split, aux={"betas": (0.9, 0.95)}
        ),
        callbacks=[Stop()],
    )
    if callback is not None:
        callback.attach(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def inner(trainer) -> MuonWithAux:
    return trainer.optimizer.optimizer


def values(trainer, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


def assert_same_bits(trainer, other) -> None:
    for (name, p), q in zip(trainer.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q), name
        for key, value in inner(trainer).state[p].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(inner(other).state[q][key])), (name, key)
    assert [group["lr"] for group in inner(trainer).param_groups] == [g["lr"] for g in inner(other).param_groups]


def test_the_trainer_clips_accumulates_schedules_and_resumes_bit_for_bit(tmp_path):
    whole = trained(tmp_path / "whole")
    assert isinstance(inner(whole), MuonWithAux)
    assert inner(whole).muon.orthogonalized == 2 * 6  # query, key, value and three others in two layers
    assert len(values(whole, "loss")) == STEPS
    assert max(values(whole, "grad_norm")) > 0.5  # clipping acts
    assert len(set(values(whole, "learning_rate"))) > 3
    trained(tmp_path / "cut", stop=4)
    resumed = trained(tmp_path / "cut", resume=str(tmp_path / "cut" / "checkpoint-4"))
    assert resumed.state.global_step == STEPS
    assert_same_bits(resumed, whole)
    assert values(resumed, "loss") == values(whole, "loss")
    fresh = trained(tmp_path / "fresh", stop=4)
    with pytest.raises(AssertionError):
        assert_same_bits(fresh, whole)


def test_a_mixture_of_experts_resumes_bit_for_bit_from_the_model_of_its_checkpoint(tmp_path):
    """The Trainer saves experts one by one and loads them into no parameter: ``from_pretrained`` reads them."""
    whole = trained(tmp_path / "whole", model=mixture())
    assert inner(whole).muon.orthogonalized == 2 * (4 + 3 * 4)  # attention; gate, up and down of four experts
    trained(tmp_path / "cut", model=mixture(), stop=4)
    checkpoint = str(tmp_path / "cut" / "checkpoint-4")
    assert_same_bits(trained(tmp_path / "read", model=mixture(checkpoint), resume=checkpoint), whole)


@pytest.mark.trainers("peft")
def test_lora_trains_b_by_muon_and_resumes_bit_for_bit(tmp_path):
    import peft

    def adapted():
        torch.manual_seed(0)
        return peft.get_peft_model(mixture(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))

    whole = trained(tmp_path / "whole", model=adapted())
    found = {id(p) for group in inner(whole).muon.param_groups for p in group["params"]}
    trainable = {name: id(p) in found for name, p in whole.model.named_parameters() if p.requires_grad}
    assert trainable == {name: "lora_B" in name for name in trainable}
    assert inner(whole).muon.orthogonalized == 2 * 2
    trained(tmp_path / "cut", model=adapted(), stop=4)
    assert_same_bits(trained(tmp_path / "cut", model=adapted(), resume=True), whole)


def test_the_recorder_logs_to_tensorboard_and_changes_no_bit(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    callback = RecorderCallback(every=2, to=tmp_path / "rows.jsonl")
    recorded = trained(tmp_path / "recorded", callback=callback, report_to=["tensorboard"])
    assert_same_bits(recorded, trained(tmp_path / "plain"))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["event"] == "whole"] == [1, 3, 5]
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    for key, field in (("alignment", "alignment"), ("polar_error", "epsilon")):
        scalars = {event.step: event.value for event in board.Scalars(f"train/muonlab/{key}")}
        by_step = {step: [r[field] for r in rows if r["step"] == step and r["event"] == "matrix"] for step in (1, 3, 5)}
        assert scalars == pytest.approx({step: sum(of) / len(of) for step, of in by_step.items()}, rel=1e-6)
        assert values(recorded, f"muonlab/{key}") == pytest.approx(list(scalars.values()), rel=1e-6)
    assert all(re.match(r"transformer\.h\.\d\.(attn|mlp)\.c_", r["name"]) for r in rows if r["event"] == "matrix")


def test_a_recording_resumes_with_its_checkpoint_and_ends_with_a_certificate(tmp_path):
    constants = {"certificate": {"L": 1.0, "D": 5.0}}
    options = {"lr_scheduler_type": "constant", "warmup_steps": 0, "max_grad_norm": 0}
    whole = RecorderCallback(every=1, **constants)
    trained(tmp_path / "whole", callback=whole, **options)
    first = RecorderCallback(every=1)
    trained(tmp_path / "cut", callback=first, stop=4, **options)
    second = RecorderCallback(every=1, **constants)
    trained(tmp_path / "cut", callback=second, resume=True, **options)
    assert first.bound is None
    assert second.recorder.step == whole.recorder.step == STEPS
    assert second.bound == whole.bound
    # decay and an auxiliary optimizer are not covered by the theorem, and the certificate says so
    assert whole.bound.status == "not_applicable"
    assert whole.bound.reason


class Quadratic(nn.Module):
    """Half the squared distance of a matrix to a target."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4, 6))

    def forward(self, target):
        return {"loss": (self.weight - target.mean(0)).square().sum() / 2}


def test_the_bound_of_a_covered_run_is_in_the_last_log(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = Quadratic()
    muon = Muon.paper(model.parameters(), lr=0.01, momentum=0.9)
    constant = torch.optim.lr_scheduler.LambdaLR(muon, lambda _: 1.0)
    options = {"max_steps": 5, "use_cpu": True, "report_to": [], "disable_tqdm": True, "max_grad_norm": 0}
    trainer = Trainer(
        model,
        TrainingArguments(output_dir=str(tmp_path), save_strategy="no", **options),
        train_dataset=[{"target": torch.ones(4, 6)} for _ in range(64)],
        optimizers=(muon, constant),
    )
    callback = RecorderCallback(every=1, certificate={"L": 1.0, "D": 12.0}).attach(trainer)
    trainer.train()
    assert callback.bound.status == "applies"
    assert values(trainer, "muonlab/gradient_norm_bound") == [callback.bound.total]
    assert callback.bound == callback.recorder.certificate(L=1.0, D=12.0)
