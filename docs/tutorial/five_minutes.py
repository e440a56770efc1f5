"""
Five minutes: train, look, certify, plan, resume
================================================

A small network learns handwritten digits with Muon. You then look at what Muon did to each matrix, read a certificate,
let the planner choose the number of steps, and resume from a checkpoint. Everything runs in seconds on one core; the
images come with scikit-learn. The program is a notebook too: download it at the end of this page, or open the ``.py``
file with jupytext or in an editor that knows ``# %%`` cells.
"""

# %%
# Data and a network
# ------------------
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from muonlab import Muon, MuonWithAux, split_params

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels))
X, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def network():
    first, hidden, last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    return nn.Sequential(first, nn.ReLU(), hidden, nn.ReLU(), last)


# %%
# Which parameters go where
# -------------------------
# Muon takes the hidden matrices; AdamW takes biases and the output layer. The table gives a reason for each.
model = network()
split = split_params(model)
print(split.table)

# %%
# Train
# -----
# One optimizer with two learning rates: that of Muon, and that of AdamW.
aux = torch.optim.AdamW(split.rest, lr=3e-3)
optimizer = MuonWithAux(Muon(split.matrices, lr=0.02), aux)


def train(model, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(1400, (64,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(X[batch]), y[batch]).backward()
        optimizer.step()


def test_accuracy(model):
    with torch.no_grad():
        return float((model(X[1400:]).argmax(1) == y[1400:]).double().mean())


train(model, optimizer, 150, seed=1)
print(f"test accuracy {test_accuracy(model):.1%}")

# %%
# Look
# ----
# A recorder measures every matrix at every tenth step, without changing the training by a bit. *Alignment* is how well
# an update descends for its length: 1 for the exact polar factor.
from muonlab.diagnostics import Recorder

with Recorder(optimizer, every=10) as recorder:
    train(model, optimizer, 50, seed=2)

for row in recorder.rows:
    if row["event"] == "matrix":
        print(f"step {row['step']:2}, {row['name']}: alignment {row['alignment']:.3f}")

# %%
# Certify
# -------
# A certificate says what the convergence proof guarantees for these momenta, and what it does not cover.
from muonlab.diagnostics import certify

certificate = certify(optimizer)
print(certificate.status, f"alignment {certificate.alignment:.3f}")
print(f"at least {certificate.alignment_floor:.3f} for every matrix of these shapes")
print("not covered:", *certificate.not_covered, sep="\n  ")

# %%
# Plan
# ----
# The planner finds the cheapest Newton-Schulz steps that reach an alignment on typical momenta of this shape. It times
# matrix products on this machine once, so another machine may choose another way.
from muonlab.diagnostics import plan

chosen = plan((128, 128), target_alignment=0.9)
print(chosen.reason)
print(chosen.schedule, chosen.prescale, chosen.method, chosen.accuracy, sep=", ")

planned = network()
split = split_params(planned)
muon = Muon(split.matrices, lr=0.02, orthogonalizer=chosen.orthogonalizer())
train(planned, MuonWithAux(muon, torch.optim.AdamW(split.rest, lr=3e-3)), 150, seed=1)
print(f"test accuracy {test_accuracy(planned):.1%}")

# %%
# Resume
# ------
# One ``state_dict`` holds both optimizers, in plain values: it loads with ``weights_only=True``. A resumed run has the
# bits of one that was not interrupted.
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "checkpoint.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    state = torch.load(file, weights_only=True)

resumed = network()
split = split_params(resumed)
again = MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest))
resumed.load_state_dict(state["model"])
again.load_state_dict(state["optimizer"])

train(model, optimizer, 20, seed=3)
train(resumed, again, 20, seed=3)
equal = all(torch.equal(p, q) for p, q in zip(model.parameters(), resumed.parameters(), strict=True))
print("resumed to the same bits:", equal)
