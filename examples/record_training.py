"""Record how well every matrix is orthogonalized during training, certify the run, and choose the number of steps.

The rows show, layer by layer, how close each update is to the exact polar factor (alignment), and what the paper's own
factor chi would say. AutoSteps then chooses the number of Newton-Schulz steps from the same spectra.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from muonlab import Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.diagnostics import AutoSteps, Recorder, certify
from muonlab.polynomials import taylor


def main() -> None:
    torch.manual_seed(0)
    X, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    X = X.float() / 16
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    split = split_params(net, by="shape")
    muon = Muon(split.matrices, lr=0.02, orthogonalizer=NewtonSchulz(taylor(2), steps=5))
    opt = MuonWithAux(muon, torch.optim.AdamW(split.rest, lr=3e-3))
    auto = AutoSteps(opt, target_alignment=0.95, every=100)
    with Recorder(opt, every=50) as recorder:
        for _ in range(200):
            batch = torch.randint(len(X), (64,))
            opt.zero_grad()
            nn.functional.cross_entropy(net(X[batch]), y[batch]).backward()
            opt.step()
            auto.step()
    for row in recorder.rows:
        if row["event"] == "matrix":
            print(
                f"step {row['step']:3}, {row['name']}: {row['q']} steps, alignment {row['alignment']:.3f} "
                f"(floor {row['alignment_floor']:.3f}), paper's chi {row['chi']:.3g}"
            )
    for change in auto.changes:
        print(f"AutoSteps after step {change.step}: group {change.group} from {change.before} to {change.after} steps")
    print(f"\n{certify(opt)}")


if __name__ == "__main__":
    main()
