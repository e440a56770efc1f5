"""Results made in memory: runs with given losses, seconds, summaries and certificates, as a run directory has them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muonlab.lab import paper
from muonlab.lab.runner.results import CellResult, Results
from muonlab.report.claims.evidence import Evidence, evidence_of

NOWHERE = Path("nowhere")
MACHINE = "A 1, 2 cores, no GPU"
PER_EPOCH = 10
"""Updates."""


def run(
    train: Sequence[float],
    test: Sequence[float] | None = None,
    *,
    seconds: float | Sequence[float] = 1.0,
    cpu: float = 1.0,
    start: float | None = None,
    **more: float,
) -> tuple[dict[str, Any], ...]:
    """The rows of a run: a row before training (``start`` is its test loss), then one after each epoch.

    ``seconds`` are those of an epoch, or the moment of every evaluation; ``cpu`` are the CPU seconds in each of them.
    """
    test = train if test is None else test
    moments = [seconds * (i + 1) for i in range(len(train))] if isinstance(seconds, (int, float)) else seconds
    first = {"event": "start", "step": 0, "epoch": 0.0, **clocks(0.0, cpu), "lr": 0.1}
    rows = [first if start is None else first | {"test_loss": start}]
    for i, (a, b, moment) in enumerate(zip(train, test, moments, strict=True), start=1):
        where = {"event": "evaluation", "step": i * PER_EPOCH, "epoch": float(i), **clocks(moment, cpu), "lr": 0.1}
        rows.append(where | {"train_loss": a, "test_loss": b, **more})
    return tuple(rows)


def clocks(seconds: float, cpu: float = 1.0) -> dict[str, float]:
    """What the clocks of a cell show on a quiet machine, with this many CPU seconds in a second."""
    return {"seconds": seconds, "cpu_seconds": seconds * cpu, "other_seconds": 0.0}


def cell(label: str, rows: Iterable[Mapping[str, Any]] = (), **given: Any) -> CellResult:
    """A finished cell; ``given`` are its fields, and those of its spec by ``spec``."""
    spec = {"seed": 0, "device": "cpu", "threads": 1, **given.pop("spec", {})}
    made = CellResult(label, {"optimizer": label}, spec, "done", tuple(rows), {}, None, 1, (0,), NOWHERE)
    return replace(made, **{"machines": (MACHINE,), "cores": 2, "ranks": (1,), **given})


def seeds(label: str, *runs: Iterable[Mapping[str, Any]], **given: Any) -> list[CellResult]:
    """A finished cell for each run, with seeds from 0 on."""
    return [cell(label, rows, spec={"seed": i}, **given) for i, rows in enumerate(runs)]


def results(
    cells: Iterable[CellResult],
    study: str = "q-ablation",
    profile: str = "small",
    *,
    settings: Mapping[str, Any] | None = None,
    label: str = "complete",
) -> Results:
    """The outcome of a study; ``label`` is that of its data."""
    head = {
        "format": 1,
        "study": study,
        "profile": profile,
        "settings": {"device": "cpu", "threads": 1, **(settings or {})},
        "data": {"some-data": {"label": label, "words": "some data"}},
    }
    return Results(study, profile, head, ({},), tuple(cells), NOWHERE)


def evidence(*cells: CellResult, study: str = "q-ablation") -> Evidence:
    """What a rule is given of these cells."""
    return evidence_of(results(cells, study))


def of_table(table: paper.TimedLosses, losses: Mapping[str, Sequence[float]] | None = None) -> list[CellResult]:
    """One run of each optimizer, evaluated at the paper's moments, with its printed losses or others."""
    return [cell(label, run(row, seconds=table.seconds)) for label, row in (losses or table.losses).items()]


def ranked(exponents: Mapping[str, float], profile: str = "small") -> Results:
    """The study of ranks with gradient norms of 3 r^ω, for these ω by optimizer."""
    return results(
        [
            cell(
                f"{label}, r={r}",
                run([1.0] * 2, gradient_nuclear_norm=3 * r**omega),
                points={"optimizer": label, "rank": f"r={r}"},
                spec={"first_width": r},
            )
            for label, omega in exponents.items()
            for r in paper.RANKS
        ],
        "rank",
        profile,
    )


def certified(path: Path, label: str, rows: Iterable[Mapping[str, Any]], **given: Any) -> CellResult:
    """A cell with recorded rows, which are read from its folder."""
    path.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"event": "matrix", "step": 1, "name": "w", **row}) + "\n" for row in rows)
    (path / "certificates.jsonl").write_text(text)
    saved = {"certificates": {"lines": text.count("\n"), "sha256": hashlib.sha256(text.encode()).hexdigest()}}
    spec = {"optimizer": "muon", "polynomial": "taylor", "kappa": 2, **given.pop("spec", {})}
    return cell(label, given.pop("metrics", ()), folder=path, spec=spec, saved=saved, **given)


def renamed(of: Results, one: str, other: str) -> Results:
    """The same results with two labels exchanged."""
    names = {one: other, other: one}

    def with_other_name(cell: CellResult) -> CellResult:
        points = {axis: names.get(name, name) for axis, name in cell.points.items()}
        return replace(cell, label=names.get(cell.label, cell.label), points=points)

    return changed(of, with_other_name)


def changed(of: Results, change: Callable[[CellResult], CellResult]) -> Results:
    """The same results with every cell changed."""
    return replace(of, cells=tuple(map(change, of.cells)))


RATES = tuple(0.02 * 2**k for k in range(6))
MOMENTA = (0.2, 0.6, 0.8, 0.9, 0.95)


def bowl_of_losses(
    log_lr: float, log_memory: float, descent: float | None = 1.0
) -> dict[tuple[float, float], dict[str, Any]]:
    """The rows of a sweep whose training loss is quadratic around log2 of these; test accuracy is best elsewhere."""
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    for lr in RATES:
        for momentum in MOMENTA:
            away = (math.log2(lr) - log_lr) ** 2 + (-math.log2(1.0 - momentum) - log_memory) ** 2
            row = {"event": "rate", "lr": lr, "step": 200, "final_train_loss": 0.5 + away / 100}
            row |= {"final_test_loss": 1.0, "final_test_accuracy": lr * (1.0 - momentum)}
            rows[lr, momentum] = row if descent is None else row | {"descent": descent, "op_norm": 1.0}
    return rows


def swept(
    label: str,
    places: Sequence[tuple[float, float]],
    network: str = "digits",
    descent: float | None = 1.0,
    **given: Any,
) -> list[CellResult]:
    """The cells of a sweep of one optimizer: a cell for each momentum and seed, with its optimum at these places."""
    cells = []
    for seed, place in enumerate(places):
        rows = bowl_of_losses(*place, descent)
        for momentum in MOMENTA:
            points = {"network": network, "optimizer": label, "momentum": f"μ={momentum}"}
            spec = {"seed": seed, "momentum": momentum}
            of_cell = [row for (_, other), row in rows.items() if other == momentum]
            cells.append(cell(", ".join(points.values()), of_cell, points=points, spec=spec, **given))
    return cells
