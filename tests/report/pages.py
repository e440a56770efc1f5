"""Sample pages for tests: a study as it would be, an empty one, and pages built around a single string."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.sax.saxutils import escape

from muonlab.report.page.html import index_html
from muonlab.report.values import (
    AxisScale,
    ClaimVerdict,
    Fact,
    Figure,
    Finding,
    Link,
    Page,
    Panel,
    ReadProblem,
    Section,
    Series,
    Table,
    TableCell,
)

EPOCHS = tuple(float(epoch) for epoch in range(1, 21))
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
OPTIMIZERS = ("Muon (q=1)", "Muon (q=3)", "Muon (SVD)", "SGD-M")


def loss(optimizer: int, epoch: float) -> float:
    """A curve that falls: the faster, the smaller the number."""
    return 2.3 / (1 + epoch * (4 - optimizer) / 3)


def series(spread: bool = True, places: tuple[float, ...] = EPOCHS) -> tuple[Series, ...]:
    return tuple(
        Series(
            label,
            places,
            tuple(loss(i, x) for x in places),
            tuple(0.02 * loss(i, x) for x in places) if spread else None,
            COLOURS[i],
        )
        for i, label in enumerate(OPTIMIZERS)
    )


def panel(
    left: float = 60.0,
    *,
    x_scale: AxisScale = "linear",
    y_scale: AxisScale = "linear",
    curves: tuple[Series, ...] | None = None,
    x_range: tuple[float, float] = (0.5, 20.5),
) -> Panel:
    y_range = (0.0, 2.4) if y_scale == "linear" else (0.05, 5.0)
    box = (left, 20.0, left + 280.0, 240.0)
    return Panel(
        "epoch", "training loss", box, x_range, y_range, x_scale, y_scale, series() if curves is None else curves
    )


def position(panel: Panel, x: float, y: float) -> tuple[float, float]:
    """Where a point lies in the drawing."""
    left, top, right, bottom = panel.box
    across = _fraction(x, panel.x_range, panel.x_scale)
    return left + across * (right - left), bottom - _fraction(y, panel.y_range, panel.y_scale) * (bottom - top)


def _fraction(value: float, ends: tuple[float, float], scale: AxisScale) -> float:
    low, high, at = (math.log10(v) if scale == "log" else v for v in (*ends, value))
    return (at - low) / (high - low)


def drawn(name: str, panels: tuple[Panel, ...]) -> str:
    """A plain drawing of panels, as the project's own would be: currentColor for lines and text."""
    parts = [_drawn_panel(name, i, panel) for i, panel in enumerate(panels)]
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 290"><title>{name}</title>{"".join(parts)}</svg>'


def _drawn_panel(name: str, number: int, panel: Panel) -> str:
    left, top, right, bottom = panel.box
    clip = f"{name}-clip-{number}"
    box = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
    lines = []
    for curve in panel.series:
        places = [position(panel, x, y) for x, y in zip(curve.x, curve.y, strict=True)]
        points = " ".join(f"{across:.2f},{down:.2f}" for across, down in places)
        pen = f'fill="none" stroke="{curve.colour}" stroke-width="1.6"'
        lines.append(f'<polyline points="{points}" {pen} clip-path="url(#{clip})"/>')
    return (
        f'<defs><clipPath id="{clip}"><rect {box}/></clipPath></defs>'
        f'<rect {box} fill="none" stroke="currentColor" stroke-opacity="0.3"/>{"".join(lines)}'
        f'<text x="{(left + right) / 2}" y="{bottom + 34}" fill="currentColor" font-size="12" text-anchor="middle">'
        f"{escape(panel.x_name)} ({panel.x_scale})</text>"
        f'<text x="{left}" y="{top - 7}" fill="currentColor" font-size="12">{escape(panel.y_name)}</text>'
    )


def figure(name: str = "loss", *panels: Panel, **changes: object) -> Figure:
    panels = panels or (panel(), panel(420.0, x_scale="log", y_scale="log"))
    made = Figure(
        name,
        "Training loss by epoch",
        "Four falling curves: all Muon variants lie below SGD-M, and q = 3 lies on the SVD curve.",
        "Mean over three seeds; the band is one standard deviation. Left: linear axes. Right: both axes logarithmic.",
        drawn(name, panels),
        panels,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def table(
    name: str = "final",
    rows: tuple[tuple[TableCell, ...], ...] | None = None,
    header: tuple[str, ...] = ("optimizer", "seconds per epoch", "test accuracy", "runs", "note"),
    **changes: object,
) -> Table:
    rows = rows or (
        ("Muon (q=1)", 9.5, 0.98765, 10, "ours"),
        ("Muon (q=3)", 10.25, 0.98123, 9, "ours"),
        ("Muon (SVD)", None, 0.9901, 100, "ours"),
        ("SGD-M", 1e-5, 0.9444, None, "Ärger"),
        ("AdamW", 10.25, 0.9555, 2, None),
    )
    made = Table(name, "After the last epoch", "Mean over three seeds; training time only.", header, rows)
    return replace(made, **changes)  # type: ignore[arg-type]


def finding(verdict: ClaimVerdict = "held", **changes: str) -> Finding:
    made = Finding(
        claim="q3-is-svd",
        source="Section 6.1, Figure 2",
        statement="Muon with two or three Newton–Schulz steps nearly coincides with Muon (SVD) epoch by epoch.",
        study="quickstart",
        rule="largest gap of mean training loss over epochs at most 5 % of the SVD's",
        ours="2.1 % at epoch 3",
        paper="curves coincide; no number is printed",
        verdict=verdict,
        why="2.1 % ≤ 5 % with three seeds",
    )
    return replace(made, **changes)


def findings() -> tuple[Finding, ...]:
    return (
        finding(),
        finding(
            "not held",
            claim="q1-beats-sgdm",
            statement="Muon with one step already reaches a lower loss than SGD-M at every epoch.",
            rule="mean training loss below SGD-M's at every epoch, by more than one standard deviation",
            ours="18 of 20 epochs",
            paper="every epoch",
            why="epochs 1 and 2 lie within one standard deviation",
            source="Section 6.1",
        ),
        finding(
            "not tested at this scale",
            claim="wall-clock",
            statement="Newton–Schulz is faster than the SVD per step by a factor that grows with the width.",
            rule="ratio of seconds per step, at widths 256 to 4096",
            ours="",
            paper="up to 7.4×",
            why="profile small has one width; run --profile paper",
            source="Table 3",
        ),
    )


def page(**changes: object) -> Page:
    """A study as it would be."""
    made = Page(
        title="Muon against SGD with momentum on handwritten digits",
        study="quickstart",
        profile="small",
        status="done",
        labels=("profile small", "3 of 5 seeds"),
        warnings=(
            "This is the profile small: 20 epochs instead of 100, three seeds instead of five. It is not the paper's.",
            "Two cells are still open; means are over the seeds that are done.",
        ),
        facts=(
            Fact("Command", "muonlab run quickstart --profile small --json", code=True),
            Fact("Data", "handwritten digits of scikit-learn, complete: 1,437 training and 360 test images"),
            Fact("Seeds", "0, 1, 2"),
            Fact("Cells", "15 done, 2 open"),
        ),
        environment=(
            Fact("Machine", "2 cores, AMD EPYC, no GPU"),
            Fact("Versions", "muonlab 0.2.0, torch 2.13.0+cpu, numpy 2.4.6, Python 3.11.7"),
        ),
        findings=findings(),
        sections=(
            Section("training", "Training", "How fast the loss falls, by epoch and by time.", (figure(),), (table(),)),
            Section("alignment", "Alignment", "", (figure("alignment", title="Alignment with the polar factor"),)),
        ),
        links=(
            Link("study.json", "what was asked for"),
            Link("cells/muon-q-1-seed0-77f50c5ff8ab/metrics.jsonl", "one line for each evaluation"),
        ),
        problems=(ReadProblem("cells/sgd-m-seed3-1a2b3c", "done.json is missing: the cell is open"),),
        cells=17,
        done=15,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def empty() -> Page:
    """A study of which there is nothing yet."""
    return Page("Rank", "rank", "smoke", "open", (), (), (), (), (), (), (), ())


def index() -> str:
    first, second = page(), replace(empty(), title="Growth with the rank")
    return index_html(
        {"quickstart-small/index.html": first, "rank-smoke/index.html": second},
        findings(),
        (ReadProblem("broken", "study.json is not JSON: line 1, column 3"),),
    )
