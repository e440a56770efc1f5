"""Train a small Mixtral with Accelerate: the experts are batches of matrices, and ``prepare`` takes Muon as it is.

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model, optimizer)

Experts are stored as one parameter of three dimensions, which ``split_params`` reads as a batch of matrices: Muon
orthogonalizes each expert by itself, and its gate and up projections apart; the router stays with AdamW. The task is
to learn a permutation: each token determines the next. Takes half a minute on one core (pip install -r
requirements-trainers.txt).

    python examples/accelerate_moe.py
"""

import torch
from accelerate import Accelerator
from transformers import MixtralConfig, MixtralForCausalLM

from muonlab.integrations.common import muon_with_aux

VOCABULARY, HIDDEN, EXPERTS, STEPS = 256, 64, 4, 90


def sequences(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return sequences of 16 tokens, each the image of the one before under a fixed permutation of the vocabulary."""
    permutation = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))
    tokens = [torch.randint(VOCABULARY, (count,), generator=generator)]
    for _ in range(15):
        tokens.append(permutation[tokens[-1]])
    return torch.stack(tokens, dim=1)


def main() -> None:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=EXPERTS, max_position_embeddings=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    optimizer = muon_with_aux(model, lr=0.02, aux_lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 2 * STEPS + 1):
        tokens = sequences(32, generator)
        with accelerator.accumulate(model):  # two batches for each step
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if step % 30 == 0:
            accelerator.print(f"step {step // 2:3}: loss {loss.item():.3f}")
    with torch.no_grad():
        tokens = sequences(256, torch.Generator().manual_seed(2))
        predicted = model(input_ids=tokens).logits[:, :-1].argmax(-1)
    accelerator.print(f"next token right: {(predicted == tokens[:, 1:]).double().mean():.1%} of new sequences")
    accelerator.print(f"matrices that Muon orthogonalized in the last step: {optimizer.optimizer.muon.orthogonalized}")


if __name__ == "__main__":
    main()
