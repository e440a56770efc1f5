"""Run directories written by hand, in the format of the lab: many cells in no time, and damage of every kind."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from muonlab import __version__
from muonlab.lab.store import FORMAT, NUMERICS
from muonlab.report.publish import report

OPTIMIZERS = ["SGD-M", "Muon (q=1)", "Muon (q=3)", "Muon (SVD)"]


def losses(label: str, seed: int, epochs: int = 10) -> list[dict]:
    """Return the rows of a run whose losses fall as 1 + a/epoch."""
    pace = 1 + (sum(map(ord, label)) % 7) / 10 + seed / 100
    rows = [{"event": "start", "step": 0, "epoch": 0.0, "seconds": 0.0, "lr": 0.1, "test_loss": 3.0}]
    for epoch in range(1, epochs + 1):
        loss = 1 + pace / epoch
        rows.append(
            {"event": "evaluation", "step": 10 * epoch, "epoch": float(epoch), "seconds": pace * epoch, "lr": 0.1}
            | {"train_loss": loss, "test_loss": loss + 0.1, "test_accuracy": 1 / loss}
        )
    return rows


def write_cell(
    folder: Path, label: str, seed: int, rows: list[dict], *, done: bool = True, spec: dict | None = None
) -> str:
    """Write a cell; return the name of its folder."""
    name = f"cell-{hashlib.sha256(f'{label!a}/{seed}'.encode()).hexdigest()[:12]}"
    path = folder / "cells" / name
    path.mkdir(parents=True)
    about = {"seed": seed, "optimizer": "muon", "polynomial": "taylor", "kappa": 2, "q": 3, **(spec or {})}
    (path / "spec.json").write_text(json.dumps({"label": label, "points": {"optimizer": label}, "spec": about}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if done:
        digest = hashlib.sha256((path / "metrics.jsonl").read_bytes()).hexdigest()
        summary = {"steps": 100, "seconds": 1.0}
        outcome = {"summary": summary, "rows_sha256": {"metrics": digest}, "jobs": 1, "sessions": [0]}
        (path / "done.json").write_text(json.dumps(outcome))
    return name


def write_run(folder: Path, labels: list[str], seeds: int = 2, *, study: str = "q-ablation", **head: object) -> Path:
    """Write a run directory with a finished cell for each label and seed."""
    folder.mkdir(parents=True, exist_ok=True)
    of = {"format": FORMAT, "version": __version__, "numerics": NUMERICS, "study": study, "profile": "small"}
    data = {"cifar10": {"label": "subset", "words": "CIFAR-10, a subset"}}
    (folder / "study.json").write_text(
        json.dumps(of | {"settings": {"device": "cpu", "threads": 1}, "data": data} | head)
    )
    names = [write_cell(folder, label, seed, losses(label, seed)) for label in labels for seed in range(seeds)]
    (folder / "cells.json").write_text(json.dumps({"cells": names}))
    session = {"muonlab": __version__, "commit": "0" * 40, "python": "3.11", "system": "Linux", "cpu": "x", "cores": 2}
    (folder / "env.json").write_text(json.dumps({"sessions": [session]}))
    return folder


def finite(text: str) -> bool:
    """Whether a text has no number that is none."""
    return not re.search(r"\b(nan|NaN|inf|Infinity)\b", text)


def text_of(folder: Path) -> str:
    """Return the page of a run directory, made anew."""
    report(folder)
    return (folder / "report.html").read_text()
