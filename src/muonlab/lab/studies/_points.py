"""The optimizers that the paper compares, with the labels of its tables."""

from __future__ import annotations

from muonlab.lab import Axis, Point

SGD_M = Point("SGD-M", {"optimizer": "sgdm"})
SVD = Point("Muon (SVD)", {"optimizer": "svd"})


def muon(q: int) -> Point:
    """Return Muon with q Newton-Schulz steps (Kim & Oh 2026, Algorithm 1)."""
    return Point(f"Muon (q={q})", {"optimizer": "muon", "q": q})


OPTIMIZERS = Axis("optimizer", (SGD_M, muon(1), muon(2), muon(3), SVD))
"""The optimizers of Tables 2 and 4-7."""
