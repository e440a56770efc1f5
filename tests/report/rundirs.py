"""Run directories written by hand, in the format of the lab: many cells in no time, and damage of every kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from muonlab import __version__
from muonlab.lab.files.hashed_json import hashed_bytes, read_json
from muonlab.lab.runner.machine import describe_machine
from muonlab.lab.runner.store import FORMAT, NUMERICS, folder_name, key_of
from muonlab.report.publish import write_report

OPTIMIZERS = ["SGD-M", "Muon (q=1)", "Muon (q=3)", "Muon (SVD)"]
CPU = 0.8
"""CPU seconds in a second of every run."""
MACHINE = {"cpu": "A 1", "cpu_model": "6-85-7", "cores": 2, "gpus": [], "libraries": {"torch": "2"}}
"""What a session says of its machine."""


def losses(label: str, seed: int, epochs: int = 10) -> list[dict]:
    """Return the rows of a run whose losses fall as 1 + a/epoch."""
    pace = 1 + (sum(map(ord, label)) % 7) / 10 + seed / 100
    rows = [{"event": "start", "step": 0, "epoch": 0.0, **clocks(0.0), "lr": 0.1, "test_loss": 3.0}]
    for epoch in range(1, epochs + 1):
        loss = 1 + pace / epoch
        rows.append(
            {"event": "evaluation", "step": 10 * epoch, "epoch": float(epoch), **clocks(pace * epoch), "lr": 0.1}
            | {"train_loss": loss, "test_loss": loss + 0.1, "test_accuracy": 1 / loss}
        )
    return rows


def clocks(seconds: float) -> dict[str, float]:
    """Return what the clocks show on a quiet machine."""
    return {"seconds": seconds, "cpu_seconds": CPU * seconds, "other_seconds": 0.0}


def write_cell(
    folder: Path,
    label: str,
    seed: int,
    rows: list[dict],
    *,
    done: bool = True,
    spec: dict | None = None,
    certificates: Iterable[dict] = (),
    jobs: int = 1,
    sessions: Iterable[int] = (0,),
    machine: Mapping[str, Any] = MACHINE,
    listed: bool = True,
) -> str:
    """Write a cell, finished or with a checkpoint, and list it if there is a list; return the name of its folder."""
    settings = read_json(folder / "study.json", default={"settings": {}})["settings"]
    about = {"seed": seed, "optimizer": "muon", "polynomial": "taylor", "kappa": 2, "q": 3, "of": label, **settings}
    about |= spec or {}
    identity = {"spec": about, "numerics": NUMERICS, "data": None}
    key = key_of(identity)
    name = folder_name(label, about["seed"], key)
    path = folder / "cells" / name
    path.mkdir(parents=True)
    seal(path / "spec.json", label=label, points={"optimizer": label}, identity=identity, spec=about)
    saved = {"metrics": write_rows(path / "metrics.jsonl", rows)}
    if certificates:
        saved["certificates"] = write_rows(path / "certificates.jsonl", certificates)
    history = {"key": key, "jobs": jobs, "sessions": list(sessions), "machines": [describe_machine(machine)]}
    history |= {"cores": machine["cores"], "ranks": [1]}
    if done:
        seal(path / "done.json", summary={"steps": 100, **clocks(1.0)}, rows=saved, **history)
    else:
        seal(path / "history.json", **history)
        (path / "checkpoints").mkdir()
        seal(path / "checkpoints" / "000000100.json", step=100, values={"key": key, "rows": saved})
    if listed and (folder / "cells.json").exists():
        edit(folder / "cells.json", lambda about: about | {"cells": [*about["cells"], name]})
    return name


def write_rows(path: Path, rows: Iterable[dict]) -> dict[str, Any]:
    """Write a file of rows; return what says that they are saved."""
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines))
    return {"lines": len(lines), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def seal(path: Path, **value: Any) -> None:
    """Write a JSON file as the lab does, but for waiting for the disk."""
    path.write_bytes(hashed_bytes(value))


def edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a JSON file of the lab, with a hash that is right again."""
    seal(path, **change(read_json(path)))


def write_run(folder: Path, labels: list[str], seeds: int = 2, *, study: str = "q-ablation", **head: object) -> Path:
    """Write a run directory with a finished cell for each label and seed."""
    folder.mkdir(parents=True, exist_ok=True)
    of = {"format": FORMAT, "numerics": NUMERICS, "study": study, "profile": "small"}
    data = {"cifar10": {"label": "subset", "words": "CIFAR-10, a subset"}}
    seal(folder / "study.json", **of | {"settings": {"device": "cpu", "threads": 1}, "data": data} | head)
    names = [write_cell(folder, label, seed, losses(label, seed)) for label in labels for seed in range(seeds)]
    seal(folder / "cells.json", cells=names)
    session = {"muonlab": __version__, "commit": "0" * 40, "python": "3.11", "system": "Linux", **MACHINE}
    seal(folder / "env.json", sessions=[session])
    return folder


def text_of(folder: Path) -> str:
    """Return the page of a run directory, made anew."""
    write_report(folder)
    return (folder / "report.html").read_text()
