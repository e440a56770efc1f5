"""The factors that different analyses of Muon put on their bounds, for the same matrices. Prints JSON.

The matrices are momenta of a small network on scikit-learn's digits (300 steps with five quintic steps), and normal
matrices, with and without columns that decay as 1/k. For each way to orthogonalize, in exact arithmetic on the measured
singular values (docs/theory/other-analyses.md has the definitions):

- ``alignment``: 1/a = s/ρ;
- ``spread``: largest over smallest singular value of O on the range of M;
- ``additive``: (1+δ)/(1-δ) with δ = ‖O - Polar(M)‖_op, None if δ ≥ 1;
- ``chi``: the paper's χ_q = 1/(1-ε_q), for Taylor polynomials only;
- ``floor``: 1/a of the worst matrix of this rank.

``step_and_momentum`` has the learning rate and the momentum that minimize two bounds as the direction becomes less
precise, in powers of two relative to the exact polar factor.

    OMP_NUM_THREADS=1 python benchmarks/other_analyses.py            # seconds
    OMP_NUM_THREADS=1 python benchmarks/other_analyses.py --quick    # small matrices
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from muonlab import Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.diagnostics import Spectrum, respond, spectrum
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import alignment_bound, alignment_floor, muon_bound
from muonlab.theory.bound import Bound

WAYS = {
    **{f"quintic q={q}": Schedule.repeat(taylor(2), q) for q in (1, 3, 5)},
    "Jordan 5": preset("jordan").schedule(5),
    "Polar Express 5": preset("polar_express").schedule(5),
}
BETAS = 1.0 - 2.0 ** -np.linspace(0.0, 8.0, 1601)
"""Momenta to search, from 0 to 1 - 1/256."""


def digits(steps: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the momenta of the two hidden matrices after training."""
    torch.manual_seed(0)
    X, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    X = X.float() / 16
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    split = split_params(net)
    how = NewtonSchulz(taylor(2), steps=5)
    opt = MuonWithAux(Muon(split.matrices, orthogonalizer=how, nesterov=False), torch.optim.AdamW(split.rest, lr=3e-3))
    for _ in range(steps):
        batch = torch.randint(len(X), (64,))
        opt.zero_grad()
        nn.functional.cross_entropy(net(X[batch]), y[batch]).backward()
        opt.step()
    for i in (0, 2):
        M = opt.state[net[i].weight]["momentum_buffer"]
        yield f"digits, layer {i // 2 + 1}, {M.shape[0]}×{M.shape[1]}", M


def random_matrices(shapes: list[tuple[int, int]]) -> Iterator[tuple[str, Tensor]]:
    """Yield normal matrices, plain and with decaying columns."""
    generator = torch.Generator().manual_seed(0)
    for m, n in shapes:
        M = torch.randn(m, n, generator=generator, dtype=torch.float64)
        yield f"normal, {m}×{n}", M
        yield f"normal, column k over k, {m}×{n}", M / torch.arange(1, n + 1)


def factors(of: Spectrum, schedule: Schedule) -> dict[str, float | None]:
    """Return every factor for one matrix and one way to orthogonalize it, with ρ, s and δ."""
    response = respond(of, schedule)
    scaled = of.support / response.alpha
    values = np.array([schedule(float(s)) for s in scaled])  # the singular values of O
    taylor_steps = all(polynomial == taylor(2) for polynomial in schedule.polynomials)
    delta = response.epsilon
    return {
        "rho": response.descent,
        "s": response.gain,
        "delta": delta,
        "alignment": 1 / response.alignment,
        "spread": float(values.max() / values.min()),
        "additive": (1 + delta) / (1 - delta) if delta < 1 else None,
        "chi": response.chi if taylor_steps else None,
        "floor": 1 / alignment_floor(schedule, of.rank),
    }


def optimum(bound: Callable[[float, float], Bound]) -> tuple[float, float]:
    """Return the η and β that minimize a bound ``A/η + Bη + C`` over the grid of momenta."""
    best = (math.inf, math.nan, math.nan)
    for beta in BETAS.tolist():
        one, two = bound(1.0, beta).terms, bound(2.0, beta).terms
        falling = sum(term for name, term in one.items() if two[name] < term)
        rising = sum(term for name, term in one.items() if two[name] > term)
        still = sum(term for name, term in one.items() if two[name] == term)
        total = 2 * math.sqrt(falling * rising) + still
        best = min(best, (total, math.sqrt(falling / rising), beta))
    return best[1:]


def step_and_momentum(noise: float) -> list[dict[str, float]]:
    """Return log2 of the best learning rate and of 1/(1-β), less those of ρ = 1, by the alignment and the ε bound.

    The direction has ρ < 1 and s = 1; the ε bound (Theorem 1) has ε = 1-ρ, the least that such a direction can have.
    """
    given: dict[str, Any] = {"L": 1.0, "D": 1.0, "sigma": noise, "r": 1, "B": 1, "T": 200}

    def by_alignment(rho: float) -> tuple[float, float]:
        return optimum(lambda eta, beta: alignment_bound(**given, alignment=rho, eta=eta, beta=beta))

    def by_error(rho: float) -> tuple[float, float]:
        return optimum(lambda eta, beta: muon_bound(**given, epsilon=1 - rho, eta=eta, beta=beta, constants="paper"))

    rows = []
    for rho in (0.4, 0.6, 0.8, 1.0):
        row = {"noise": noise, "rho": rho}
        for name, find in (("alignment", by_alignment), ("error", by_error)):
            (eta, beta), (eta_1, beta_1) = find(rho), find(1.0)
            row[f"{name}_log_lr"] = math.log2(eta / eta_1)
            row[f"{name}_log_memory"] = math.log2((1 - beta_1) / (1 - beta))
            row[f"{name}_beta"] = beta
        rows.append(row)
    return rows


def main() -> None:
    """Print the factors of every matrix, and the optima of the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small matrices, to check the program")
    quick = parser.parse_args().quick
    shapes = [(16, 64), (32, 32)] if quick else [(256, 2304), (768, 768)]
    matrices = []
    for name, M in (*digits(20 if quick else 300), *random_matrices(shapes)):
        of = spectrum(M)
        ways = {way: factors(of, schedule) for way, schedule in WAYS.items()}
        condition = float(of.support[0] / of.support[-1])
        matrices.append({"matrix": name, "rank": of.rank, "condition": condition, "ways": ways})
    optima = [row for noise in (1.0, 4.0) for row in step_and_momentum(noise)]
    print(json.dumps({"matrices": matrices, "step_and_momentum": optima}, indent=1))


if __name__ == "__main__":
    main()
