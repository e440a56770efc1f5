"""The convergence factor of matrices of real shapes: the paper's chi, and the inverse alignment, which is far smaller.

Each row is a matrix of the shape of a real weight: Gaussian noise, or noise whose columns decay like 1/k. The factor
1/alignment multiplies the convergence bound; 1 is the exact polar factor. The paper's chi_3 depends on the smallest
singular value and is huge for square matrices; the alignment is not, and it has a floor that needs no SVD.
"""

from __future__ import annotations

import time

import torch

from muonlab.cli.console import table
from muonlab.diagnostics import respond, spectrum
from muonlab.orthogonalize.prescale import Prescale
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import alignment_floor

SHAPES = {"CifarNet conv": (64, 216), "CifarNet conv 3": (256, 2304), "GPT-2 attention": (768, 768)}

METHODS: dict[str, tuple[Schedule, Prescale]] = {
    "q=1": (Schedule.repeat(taylor(2), 1), "frobenius"),
    "q=3": (Schedule.repeat(taylor(2), 3), "frobenius"),
    "q=5": (Schedule.repeat(taylor(2), 5), "frobenius"),
    "q=3, Schatten-8": (Schedule.repeat(taylor(2), 3), "schatten8"),
    "Jordan 5": (preset("jordan").schedule(5), "frobenius"),
    "Polar Express 5": (preset("polar_express").schedule(5), "frobenius"),
}


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    rows: list[list[object]] = []
    for name, (m, n) in SHAPES.items():
        for spectrum_name in ("Gaussian", "decaying 1/k"):
            M = torch.randn(m, n, generator=generator)
            if spectrum_name != "Gaussian":
                M /= torch.arange(1, n + 1)
            of = spectrum(M)
            factors = [1 / respond(of, schedule, prescale).alignment for schedule, prescale in METHODS.values()]
            rows.append([f"{name} {m}x{n}", spectrum_name, respond(of, METHODS["q=3"][0]).chi, *factors])
    print("Factor on the convergence bound (1 = exact polar factor)\n")
    print(table(["matrix", "spectrum", "paper's chi_3", *METHODS], rows))

    floors = [
        [label, *(1 / alignment_floor(schedule, r) for r in (64, 256, 768))]
        for label, (schedule, prescale) in METHODS.items()
        if prescale == "frobenius"
    ]
    print("\nLargest factor that any matrix of this rank can have (guaranteed, no singular value needed)\n")
    print(table(["method", "rank 64", "rank 256", "rank 768"], floors))


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"\nDone in {time.perf_counter() - start:.1f} s. Next, with .venv/bin/ before each:")
    print("muonlab plan --shape 768x3072 --target-alignment 0.95 | certify FILE | rates | list optimizers | doctor")
