"""From AdamW alone to Muon for the hidden matrices: with learning rates of Muon, or with those of AdamW.

A pair to start from is Muon(lr=0.02) and AdamW(lr=3e-3) for the rest (docs/guides/learning-rates.md). To keep the
learning rate and weight decay of AdamW instead, pass scale="match_rms_adamw": the entries of Muon's updates then have a
root mean square of up to 0.2·lr, like AdamW's after its first steps. AdamW's first updates are several times larger, so
that a short run with Muon needs a larger lr than that of AdamW, as the first two lines show: an lr that was chosen for
AdamW is not the best for Muon. Set weight_decay for both: the default of Muon is 0, that of AdamW 0.01. One seed; takes
ten seconds on one core.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

from muonlab import Muon, MuonWithAux, split_params

DECAY = 0.1
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
X, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def adamw(model: nn.Module, lr: float) -> Optimizer:
    return AdamW(model.parameters(), lr=lr, weight_decay=DECAY)


def muon_with_rates_of_adamw(model: nn.Module, lr: float) -> Optimizer:
    split = split_params(model)
    muon = Muon(split.matrices, lr=lr, weight_decay=DECAY, scale="match_rms_adamw")
    return MuonWithAux(muon, AdamW(split.rest, lr=lr, weight_decay=DECAY))


def muon_with_its_own(model: nn.Module, lr: float) -> Optimizer:
    split = split_params(model)
    muon = Muon(split.matrices, lr=0.02, weight_decay=DECAY)
    return MuonWithAux(muon, AdamW(split.rest, lr=lr, weight_decay=DECAY))


def train(name: str, build, lr: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = build(model, lr)
    for _ in range(400):
        batch = torch.randint(1400, (64,))
        before = model[2].weight.detach().clone()
        optimizer.zero_grad()
        cross_entropy(model(X[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        rms, logits = (model[2].weight - before).square().mean().sqrt(), model(X[1400:])
        loss, accuracy = cross_entropy(logits, y[1400:]), (logits.argmax(1) == y[1400:]).double().mean()
    print(f"{name:35}: test loss {loss:.3f}, accuracy {accuracy:.1%}, last update {rms / lr:.2f}·lr")


for rate in (0.001, 0.003):
    train(f"AdamW alone, lr {rate}", adamw, rate)
    train(f"Muon and AdamW, both lr {rate}", muon_with_rates_of_adamw, rate)
train("Muon, lr 0.02, and AdamW, lr 0.003", muon_with_its_own, 0.003)
