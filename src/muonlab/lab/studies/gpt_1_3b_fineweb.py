"""A GPT-2 of 1.3B parameters on FineWeb with the optimizers of the paper's tables."""

from __future__ import annotations

from muonlab.lab import Study
from muonlab.lab.studies._gpt import BASE, CLAIMS, profiles
from muonlab.lab.studies._points import OPTIMIZERS

STUDY = Study(
    number=6,
    name="gpt-1.3b-fineweb",
    title="GPT-2 (1.3B) on FineWeb",
    claims=(
        CLAIMS[0],
        # Table 7 interpolates its row of Muon (SVD), so the second claim of Table 6 is not tested here
        "With 1.3B parameters Muon with one, two and three steps still ends far below SGD-M.",
    ),
    items=("Figure 7", "Table 7"),
    base=BASE.changed({"model": "gpt-1.3b"}),
    axes=(OPTIMIZERS,),
    profiles=profiles(micro_batch=1),
)
