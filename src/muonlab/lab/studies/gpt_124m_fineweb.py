"""NanoGPT (124M) on FineWeb with the optimizers of the paper's tables."""

from __future__ import annotations

from muonlab.lab import Study
from muonlab.lab.studies._gpt import BASE, CLAIMS, profiles
from muonlab.lab.studies._points import OPTIMIZERS

STUDY = Study(
    number=5,
    name="gpt-124m-fineweb",
    title="NanoGPT (124M) on FineWeb",
    claims=CLAIMS,
    items=("Figure 6", "Table 6"),
    base=BASE.changed({"model": "gpt-124m"}),
    axes=(OPTIMIZERS,),
    profiles=profiles(micro_batch=8),
)
