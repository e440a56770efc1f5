"""Half precision with a gradient scaler: a step whose gradients overflow is skipped, and training continues.

GradScaler sees Muon and AdamW as one optimizer. The first loss scale here is far too large for float16, so that the
first steps overflow; the scaler skips them and halves its scale until the gradients fit.

    python examples/with_grad_scaler.py
"""

import torch
from torch import nn

from muonlab import Muon, MuonWithAux, split_params

torch.manual_seed(0)
X, Y = torch.randn(64, 16), torch.randn(64, 4)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
split = split_params(model)
optimizer = MuonWithAux(Muon(split.matrices, lr=0.02), torch.optim.AdamW(split.rest, lr=3e-3))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)

for step in range(1, 13):
    before = [p.detach().clone() for p in model.parameters()]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(X) - Y).square().mean()
    scale = scaler.get_scale()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # so that clipping sees true gradients
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    moved = sum(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    print(f"step {step:2}: loss {loss:.4f}, scale {scale:9.0f}, gradient norm {norm:.3f}, {moved} parameters moved")

finite = all(bool(p.isfinite().all()) for p in model.parameters())
print(f"all weights finite: {finite}")
