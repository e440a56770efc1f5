"""Resume a checkpoint of torch.optim.Muon with muonlab: its state loads unchanged, and one line changes.

    - optimizer = torch.optim.Muon(matrices, lr=0.02)
    + optimizer = muonlab.Muon.torch(matrices, lr=0.02)

torch.optim.Muon computes in bfloat16 everywhere, which a CPU emulates: slow except for matrices as small as these. On a
CPU muonlab computes in float32, so the two agree to the precision of bfloat16.

    python examples/from_torch_muon.py
"""

import copy

import torch
from torch import nn

from muonlab import Muon

torch.manual_seed(0)
X, Y = torch.randn(64, 32), torch.randn(64, 16)
theirs = nn.Sequential(nn.Linear(32, 24, bias=False), nn.Tanh(), nn.Linear(24, 16, bias=False))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        loss = (model(X) - Y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


before = torch.optim.Muon(theirs.parameters(), lr=0.02)
print(f"10 steps of torch.optim.Muon:   loss {train(theirs, before, 10):.5f}")

ours = copy.deepcopy(theirs)
after = Muon.torch(ours.parameters(), lr=0.02)
after.load_state_dict(copy.deepcopy(before.state_dict()))  # a copy, as from a file: both go on from here

print(f"10 more of torch.optim.Muon:    loss {train(theirs, before, 10):.5f}")
print(f"10 more of muonlab.Muon.torch:  loss {train(ours, after, 10):.5f}")
for name, weight in theirs.state_dict().items():
    difference = (weight - ours.state_dict()[name]).norm() / weight.norm()
    print(f"{name} {tuple(weight.shape)}: relative difference {difference:.1e}")
