"""The certificate of a real run: MNIST, default Muon on every weight, cosine decay, weight decay. Prints JSON.

The network has no biases, so that all parameters are matrices of Muon, and the recorder sees every step. Batches are
drawn with replacement, so that gradients are unbiased given the past (Assumption 2; in shuffled epochs they are not).
The activation is GELU, so that the gradient is Lipschitz on every bounded set of weights (with ReLU it jumps, and there
is no L). D is measured: the loss on the training set before and after. L and σ are estimates, labelled as such: L is
the largest quotient of gradient change and step along the run (on a fixed part of the training set, every tenth step),
σ comes from the gradients of batches at a few points. The certificate holds for the true constants; with estimates it
is an estimate.

    OMP_NUM_THREADS=1 MUONLAB_DATA=FOLDER python benchmarks/run_certificate.py            # minutes
    OMP_NUM_THREADS=1 MUONLAB_DATA=FOLDER python benchmarks/run_certificate.py --quick    # 12 steps
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from tasks import Batch, Task, mnist
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from muonlab import Muon
from muonlab.diagnostics import Recorder, certify

BATCH, DECAY, SAMPLE = 256, 0.1, 4096


def network() -> nn.Module:
    """The paper's MLP without biases, with GELU."""
    layers = [nn.Linear(m, n, bias=False) for m, n in ((784, 512), (512, 256), (256, 10))]
    return nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])


def drawn(data: Batch, seed: int) -> Iterator[Batch]:
    """Yield batches that are drawn with replacement."""
    generator, (x, y) = torch.Generator().manual_seed(seed), data
    while True:
        chosen = torch.randint(len(x), (BATCH,), generator=generator)
        yield x[chosen], y[chosen]


def gradients(task: Task, model: nn.Module, batch: Batch) -> list[Tensor]:
    """Return the gradients of a batch, without touching ``p.grad``."""
    return list(torch.autograd.grad(task.loss(model, batch), list(model.parameters())))


def variance(noise: list[Tensor], shares: list[float]) -> float:
    """Return ``B Σ_l c_l² ‖·‖_F²`` of the error of a batch, whose mean is the variance of one sample."""
    return BATCH * sum(c * c * float(G.square().sum()) for c, G in zip(shares, noise, strict=True))


def dual_norm(parts: list[Tensor], shares: list[float]) -> float:
    """Return ``Σ_l c_l ‖·‖_*``."""
    return sum(c * float(torch.linalg.svdvals(G).sum()) for c, G in zip(shares, parts, strict=True))


def step_norm(parts: list[Tensor], shares: list[float]) -> float:
    """Return ``max_l ‖·‖_op / c_l``."""
    return max(float(torch.linalg.matrix_norm(W, 2)) / c for c, W in zip(shares, parts, strict=True))


def weights_of(model: nn.Module) -> list[Tensor]:
    """Return copies of the weights."""
    return [p.detach().clone() for p in model.parameters()]


def main() -> None:
    """Train, and print the certificate with its terms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 steps, to check the program")
    steps = 12 if parser.parse_args().quick else 234  # an epoch
    torch.manual_seed(0)
    task, model = mnist(BATCH), network()
    x, y = (torch.cat(parts) for parts in zip(*islice(task.batches(1), 234), strict=True))
    everything, sample = (x, y), (x[:SAMPLE], y[:SAMPLE])
    optimizer = Muon(list(model.named_parameters()), weight_decay=DECAY)
    scheduler = CosineAnnealingLR(optimizer, steps)
    with torch.no_grad():
        start = float(task.loss(model, everything))
    batches, norms, smoothness, variances = drawn(everything, 0), [], [], []
    shares = [1.0] * 3
    with Recorder(optimizer, every=1) as recorder:
        for t in range(steps):
            looked = t % 10 == 0
            before, then = (weights_of(model), gradients(task, model, sample)) if looked else ([], [])
            optimizer.zero_grad()
            task.loss(model, next(batches)).backward()
            optimizer.step()
            scheduler.step()
            if t == 0:
                lengths = [row["length"] for row in recorder.rows if row["event"] == "matrix"]
                shares = [length / max(lengths) for length in lengths]
            if looked:
                now = gradients(task, model, sample)
                moved = [a - b for a, b in zip(weights_of(model), before, strict=True)]
                change = [a - b for a, b in zip(now, then, strict=True)]
                smoothness.append(dual_norm(change, shares) / step_norm(moved, shares))
                true = gradients(task, model, everything)
                norms.append(dual_norm(true, shares))
                noise = [
                    [a - b for a, b in zip(gradients(task, model, batch), true, strict=True)]
                    for batch in islice(drawn(everything, 2 + t), 4)
                ]
                variances.append(sum(variance(part, shares) for part in noise) / len(noise))
    certificate = certify(optimizer)
    with torch.no_grad():
        end = float(task.loss(model, everything))
    L, sigma = max(smoothness), math.sqrt(max(variances))
    print(json.dumps(report(recorder, certificate, L, sigma, start, end, norms, steps), indent=1))


def report(
    recorder: Recorder, certificate: Any, L: float, sigma: float, start: float, end: float, norms: list[float], T: int
) -> dict[str, Any]:
    """Return what is printed: constants, both certificates, and the gradient norms that were measured."""
    without, with_noise = (recorder.certificate(L=L, D=start - end, sigma=s, B=BATCH) for s in (0.0, sigma))
    history = recorder.run.history
    return {
        "run": f"MLP 784-512-256-10 without biases, GELU, MNIST, {T} steps, batches of {BATCH} drawn with replacement, "
        f"cosine, decay {DECAY}",
        "loss on the training set": [start, end],
        "estimates": {"L": L, "sigma": sigma, "note": "from below, along the run: the certificate is an estimate, too"},
        "descent": [min(step.descent for step in history), max(step.descent for step in history)],
        "gain": max(step.gain for step in history),
        "pull": [min(step.pull or 0.0 for step in history), max(step.pull or 0.0 for step in history)],
        "gradient norm, every tenth step": {"least": min(norms), "mean": sum(norms) / len(norms)},
        "certificate": {
            name: {
                "status": bound.status,
                "reason": bound.reason,
                "total": bound.total,
                "terms": bound.terms,
                "confidence": bound.confidence,
                "gap": None if bound.gap is None else bound.gap._asdict(),
            }
            for name, bound in (("noise left out", without), ("with noise", with_noise))
        },
        "last step": {
            "status": certificate.status,
            "what": certificate.what,
            "reduced descent": certificate.reduced_descent,
            "present gap": certificate.present_gap,
            "not covered": certificate.not_covered,
            "assumed": certificate.assumed,
        },
    }


if __name__ == "__main__":
    main()
