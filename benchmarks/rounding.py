"""How far rounding carries newton_schulz from exact steps, in units of 4u·max(8, sup|F'|) (docs/adr/0004). Prints JSON.

Two kinds of matrices are worse than a random one: proportional rows, where rounding adds up instead of averaging out,
and many singular values at 1, where Gram space rounds all of them alike. For both the worst is kept, float32.

    OMP_NUM_THREADS=1 python benchmarks/rounding.py    # two minutes
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from muonlab import newton_schulz
from muonlab.diagnostics.matrix_spectra import by_definition, operator_norm
from muonlab.orthogonalize.prescale import Prescale
from muonlab.orthogonalize.rounding import allowed_error
from muonlab.polynomials import Schedule, preset, taylor

SCHEDULES = {
    "quintic x5": Schedule.repeat(taylor(2), 5),
    "jordan x5": preset("jordan").schedule(5),
    "polar_express x5": preset("polar_express").schedule(5),
    "polar_express x5, safe": preset("polar_express").schedule(5, safety="1.01"),
}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def isometry(m: int, n: int, rank: int, rest: float = 0.0) -> Tensor:
    """Matrix with `rank` singular values of 1 and the others at `rest`."""
    values = torch.full((min(m, n),), rest, dtype=torch.float64)
    values[:rank] = 1.0
    U, _, Vh = torch.linalg.svd(normal(m, n).double(), full_matrices=False)
    return ((U * values) @ Vh).float()


PROPORTIONAL: dict[str, Callable[[int], Tensor]] = {
    "equal rows, square": lambda n: torch.ones(n, 1) @ normal(1, n),
    "ones, square": lambda n: torch.ones(n, n),
    "ones, four times as wide": lambda n: torch.ones(n // 4, n),
}
CROWDED = {
    "96x400, rank 16": lambda: isometry(96, 400, 16),
    "96x400, rank 32": lambda: isometry(96, 400, 32),
    "384x384, 383 at 1 and one at 0.1": lambda: isometry(384, 384, 383, 0.1),
}


def worst(M: Tensor, prescale: Prescale) -> dict[str, float]:
    """Error of each schedule over the tolerance that knows neither size nor prescale."""
    found = {}
    for name, F in SCHEDULES.items():
        _, exact = by_definition(M, F, prescale)
        error = operator_norm(newton_schulz(M, F, prescale=prescale).double() - exact)
        found[name] = round(error / allowed_error(F), 3)
    return found


def main() -> None:
    sizes = (64, 256, 512, 1024, 2048)
    proportional = {
        kind: {str(n): worst(make(n), "frobenius") for n in sizes if n < 2048 or kind.endswith("wide")}
        for kind, make in PROPORTIONAL.items()
    }
    crowded = {
        kind: {prescale: worst(make(), prescale) for prescale in ("frobenius", "schatten4", "schatten8", "spectral")}
        for kind, make in CROWDED.items()
    }
    random = {str(n): worst(normal(n, n), "frobenius") for n in sizes if n < 2048}
    report = {"command": "OMP_NUM_THREADS=1 python benchmarks/rounding.py", "random": random}
    print(json.dumps({**report, "proportional": proportional, "crowded": crowded}, indent=1))


if __name__ == "__main__":
    main()
