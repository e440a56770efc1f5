"""Bring the README's sentence on claims up to date with results/runs/claims.json, which ``muonlab report`` writes.

python results/readme.py
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- claims -->\n", "<!-- /claims -->\n"


def sentence(ledger: dict) -> str:
    """Return what the ledger says in a sentence."""
    count = Counter(claim["verdict"] for claim in ledger["claims"])
    runs = [
        f"{' at '.join(filter(None, (run['study'], run['profile'])))} ({run['done']} of {run['cells']} cells)"
        for run in ledger["studies"]
        if run["done"]
    ]
    return (
        f"Of {len(ledger['claims'])} claims {count['held']} held, {count['not held']} did not, and "
        f"{count['not tested at this scale']} are not tested yet ([verdicts](results/runs/claims.json), "
        f"[log](docs/log.md)). The [runs](results/runs) so far: {', '.join(runs)}.\n"
    )


def updated(readme: str, ledger: dict) -> str:
    """Return the README with the sentence of a ledger."""
    if (readme.count(BEGIN), readme.count(END)) != (1, 1):
        raise ValueError(
            f"the README must have {BEGIN.strip()} and {END.strip()} once each, got another number: mend it"
        )
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + sentence(ledger) + END + after


def main() -> None:
    """Write the README."""
    path = ROOT / "README.md"
    ledger = json.loads((ROOT / "results/runs/claims.json").read_text(encoding="utf-8"))
    path.write_text(updated(path.read_text(encoding="utf-8"), ledger), encoding="utf-8")


if __name__ == "__main__":
    main()
