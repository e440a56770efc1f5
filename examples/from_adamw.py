"""From AdamW alone to Muon for the hidden matrices: split the parameters, keep learning rate and weight decay.

With scale="match_rms_adamw" entries of Muon's updates have a root mean square of up to 0.2·lr, like AdamW's after
its first steps; AdamW's first updates are several times larger, so that a short run with Muon needs a larger lr.
Set weight_decay for both: the default of Muon is 0, that of AdamW 0.01. Takes ten seconds on one core.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from muonlab import Muon, MuonWithAux, split_params

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
X, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def train(lr: float, decay: float, use_muon: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = AdamW(model.parameters(), lr=lr, weight_decay=decay)
    if use_muon:  # this is the change
        split = split_params(model)
        muon = Muon(split.matrices, lr=lr, weight_decay=decay, scale="match_rms_adamw")
        optimizer = MuonWithAux(muon, AdamW(split.rest, lr=lr, weight_decay=decay))
    for _ in range(400):
        batch = torch.randint(1400, (64,))
        before = model[2].weight.detach().clone()
        optimizer.zero_grad()
        cross_entropy(model(X[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        rms, logits = (model[2].weight - before).square().mean().sqrt(), model(X[1400:])
        loss, accuracy = cross_entropy(logits, y[1400:]), (logits.argmax(1) == y[1400:]).double().mean()
    name = "Muon and AdamW" if use_muon else "AdamW alone"
    print(f"lr {lr}, {name:14}: test loss {loss:.3f}, accuracy {accuracy:.1%}, last update {rms / lr:.2f}·lr")


for lr in (0.001, 0.003):
    train(lr, 0.1, use_muon=False)
    train(lr, 0.1, use_muon=True)
