"""Train a small network on handwritten digits with Muon: a complete training script.

The images come with scikit-learn; nothing is downloaded. Takes seconds on one core:

    python examples/train_digits.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from muonlab import Muon, MuonWithAux, split_params

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels))
X, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
X_train, y_train, X_test, y_test = X[:1400], y[:1400], X[1400:], y[1400:]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
split = split_params(model)  # hidden matrices for Muon; biases and the output layer for AdamW
print(split.table, end="\n\n")
optimizer = MuonWithAux(Muon(split.matrices, lr=0.02), torch.optim.AdamW(split.rest, lr=3e-3))

for epoch in range(1, 11):
    for batch in torch.randperm(len(y_train)).split(64):
        loss = cross_entropy(model(X_train[batch]), y_train[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(X_test).argmax(1) == y_test).double().mean()
    print(f"epoch {epoch:2}: loss of the last batch {loss:.4f}, test accuracy {accuracy:.1%}")
