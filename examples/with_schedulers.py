"""Warm-up and a separate schedule for each parameter group; a checkpoint half-way resumes bit-for-bit. Quick."""

import math
import tempfile

import torch
from torch.optim.lr_scheduler import LambdaLR, SequentialLR

from muonlab import Muon, MuonWithAux, split_params

X = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    split = split_params(model)
    opt = MuonWithAux(Muon(split.matrices, lr=0.02), torch.optim.AdamW(split.rest, lr=3e-3))
    curves = [lambda t: math.cos(math.pi * t / 100) ** 2] * len(opt.muon.param_groups)  # cosine for Muon
    curves += [lambda t: 1 - t / 50] * len(opt.aux.param_groups)  # a straight line for AdamW
    warm_up, decay = LambdaLR(opt, lambda t: (t + 1) / 10), LambdaLR(opt, curves)
    return model, opt, SequentialLR(opt, [warm_up, decay], milestones=[10])


def train(run, model, opt, schedule, steps):
    for t in steps:
        loss = (model(X) - X[:, :4].sin()).square().mean()
        opt.zero_grad()
        loss.backward()
        if t % 10 == 0:
            lrs = [round(group["lr"], 5) for group in opt.param_groups]  # Muon's first
            print(f"{run:7}, step {t:2}: loss {loss:.4f}, learning rates {lrs}")
        opt.step()
        schedule.step()


train("whole", *(whole := build()), range(60))
train("first", *(first := build()), range(30))
with tempfile.TemporaryDirectory() as folder:
    torch.save([part.state_dict() for part in first], f"{folder}/half.pt")
    states = torch.load(f"{folder}/half.pt", weights_only=True)
for part, state in zip(resumed := build(), states, strict=True):
    part.load_state_dict(state)
train("resumed", *resumed, range(30, 60))
pairs = zip(whole[0].parameters(), resumed[0].parameters(), strict=True)
print("largest difference between whole and resumed:", max((p - q).abs().max().item() for p, q in pairs))
