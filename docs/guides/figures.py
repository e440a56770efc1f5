"""Draw the figures of the guides from real runs of the library: python docs/guides/figures.py [FOLDER].

The momenta are those of a small network that learns the handwritten digits of scikit-learn; every number in a figure is
computed here, by the code that the guide describes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from torch import nn

from muonlab import Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.diagnostics import Recorder, Spectrum, respond, spectrum
from muonlab.optim.distributed.exchange import OwnedBlock, Route, Transfer, elements_sent, from_owners, to_owners
from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.distributed.plan import assign_owners
from muonlab.optim.views import matrix_blocks
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import alignment_floor

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")  # told apart by any eye (Okabe and Ito)
QUINTIC = {q: Schedule.repeat(taylor(2), q) for q in (0, 1, 3, 5)}
STEPS, EVERY, SEED = 300, 5, 0


def style() -> None:
    mpl.rcParams.update(
        {
            "svg.hashsalt": "muonlab",
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "lines.linewidth": 1.8,
            "legend.frameon": False,
            "figure.constrained_layout.use": True,
        }
    )


def save(figure: plt.Figure, folder: Path, name: str) -> None:
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def train() -> tuple[list[dict], dict[str, Spectrum]]:
    """Train on digits with Muon (five quintic steps), recording; return the rows and the last momenta's spectra."""
    torch.manual_seed(SEED)
    X, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    X = X.float() / 16
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    split = split_params(net)
    how = NewtonSchulz(taylor(2), steps=5)
    opt = MuonWithAux(Muon(split.matrices, orthogonalizer=how, nesterov=False), torch.optim.AdamW(split.rest, lr=3e-3))
    with Recorder(opt, every=EVERY) as recorder:
        for _ in range(STEPS):
            batch = torch.randint(len(X), (64,))
            opt.zero_grad()
            nn.functional.cross_entropy(net(X[batch]), y[batch]).backward()
            opt.step()
    momenta = {f"{i}.weight": opt.state[net[i].weight]["momentum_buffer"] for i in (0, 2)}
    return recorder.rows, {name: spectrum(M) for name, M in momenta.items()}


def singular_values(spectra: dict[str, Spectrum], folder: Path) -> None:
    """Draw what steps make of the singular values of one momentum matrix."""
    of = spectra["2.weight"]
    s = of.values / of.frobenius
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    index = np.arange(1, len(s) + 1)
    left.semilogy(index, s, color=COLOURS[0])
    left.axhline(of.tolerance / of.frobenius, color="grey", linestyle=":", linewidth=1)
    left.text(1, of.tolerance / of.frobenius * 1.3, "below: counts as zero", fontsize=8, color="dimgrey")
    left.set(
        xlabel="index",
        ylabel="singular value / Frobenius norm",
        title=f"a momentum matrix, {of.shape[0]}×{of.shape[1]}",
    )
    for (q, schedule), colour, marker in zip(QUINTIC.items(), COLOURS, "osD^", strict=False):
        found = respond(of, schedule)
        label = f"q = {q}: alignment {found.alignment:.2f}, χ = {found.chi:.3g}"
        right.plot(index, schedule(s), color=colour, label=label, marker=marker, markevery=16, markersize=4)
    right.axhline(1, color="grey", linewidth=1)
    right.set(xlabel="index", ylabel="after q steps", title="what q quintic steps make of it", ylim=(0, 1.1))
    right.legend(fontsize=8, loc="center right")
    save(figure, folder, "singular-values")


def factors(rows: list[dict], folder: Path) -> None:
    """Draw the paper's factor and the one by alignment, layer by layer, over training."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    names = sorted({row["name"] for row in rows if row["event"] == "matrix"})
    for name, marker in zip(names, "os", strict=True):
        mine = [row for row in rows if row.get("name") == name]
        t = [row["step"] for row in mine]
        shape = "×".join(map(str, mine[0]["shape"]))
        options = {"marker": marker, "markevery": 6, "markersize": 4}
        axis.semilogy(t, [row["chi"] for row in mine], color=COLOURS[1], label=f"χ of the paper, {shape}", **options)
        axis.semilogy(
            t, [1 / row["alignment"] for row in mine], color=COLOURS[0], label=f"1/alignment, {shape}", **options
        )
        axis.semilogy(
            t, [1 / row["alignment_floor"] for row in mine], color=COLOURS[2], linestyle="--", linewidth=1.2,
            label=f"largest 1/alignment at rank {min(mine[0]['shape'])}",
        )  # fmt: skip
    axis.set(xlabel="training step", ylabel="factor on the bound", title="five quintic steps, digits: lower is better")
    axis.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    save(figure, folder, "factors")


def floors(spectra: dict[str, Spectrum], folder: Path) -> None:
    """Draw the alignment that is guaranteed by rank alone, and what the momenta really have."""
    methods = {
        "Polar Express, 5": (preset("polar_express").schedule(5), COLOURS[0], "o"),
        "Jordan, 5": (preset("jordan").schedule(5), COLOURS[1], "s"),
        "quintic, 5": (QUINTIC[5], COLOURS[2], "D"),
        "quintic, 3": (QUINTIC[3], COLOURS[3], "^"),
        "quintic, 0 (normalise only)": (QUINTIC[0], COLOURS[4], "v"),
    }
    ranks = np.unique(np.geomspace(2, 2048, 25).astype(int))
    figure, axis = plt.subplots(figsize=(7, 3.6))
    for i, (name, (schedule, colour, marker)) in enumerate(methods.items()):
        axis.semilogx(ranks, [alignment_floor(schedule, int(r)) for r in ranks], color=colour, base=2, label=name)
        for of in spectra.values():
            beside = min(of.shape) * 1.06 ** (i - 2)  # so that no mark hides another
            axis.plot(beside, respond(of, schedule).alignment, marker, color=colour, markersize=6, mec="black", mew=0.5)
    axis.set(
        xlabel="rank at most",
        ylabel="alignment",
        ylim=(0, 1.02),
        title="guaranteed (lines) and measured on digits (marks)",
    )
    axis.legend(fontsize=8, loc="lower left")
    save(figure, folder, "floors")


MATRICES = {"A": (6, 6), "B": (5, 4), "C": (2, 8)}
RANKS, LANE, HELD, OWNED, RESULT = 3, 9.0, 0.0, 33.0, 54.0  # ranks, height of a rank's lane, left edges of columns


def distributed(folder: Path) -> None:
    """Draw where three matrices lie on three ranks, who owns each, and every message of a step."""
    figure, axes = plt.subplots(2, 1, figsize=(10, 8.6))
    for axis, (name, grid) in zip(
        axes,
        {"shards (FSDP2)": RankGrid.simulated(1, RANKS), "copies (DDP)": RankGrid.simulated(RANKS, 1)}.items(),
        strict=True,
    ):
        blocks = [matrix_blocks(shape, "flatten", 0, grid.shards)[0] for shape in MATRICES.values()]
        owners = assign_owners([m * m * n for m, n in (sorted(shape) for shape in MATRICES.values())], RANKS)
        items = [OwnedBlock(block, owner) for block, owner in zip(blocks, owners, strict=True)]
        for rank in range(RANKS):
            axis.axhspan(-LANE * rank - 7.6, -LANE * rank + 0.6, color="0.95", zorder=0)
            axis.text(-1.2, -LANE * rank - 3.5, f"rank {rank}", ha="right", va="center", fontweight="bold")
            for left, letters in ((HELD, "ABC"), (RESULT, ("A\u2032", "B\u2032", "C\u2032"))):
                for i, letter in enumerate(letters):
                    rows = items[i].block.sizes[grid.shard[rank]]
                    draw_piece(axis, place(i, left), -LANE * rank, rows, i, letter, after=left > 0)
            for i in (i for i, item in enumerate(items) if item.owner == rank):
                rows, columns = MATRICES["ABC"[i]]
                draw_piece(axis, OWNED, -LANE * rank, rows, i, "ABC"[i], edge=1.8)
                axis.text(OWNED + columns + 0.6, -LANE * rank - rows / 2, "owner", va="center", fontsize=8)
        sent = [draw_messages(axis, items, grid, route) for route in (to_owners, from_owners)]
        assert sum(sent) == sum(elements_sent(item, grid) for item in items)
        gather = f"pieces to owners\nall_to_all, {sent[0]} elements" if sent[0] else "nothing\nto send"
        titles = (
            "1  momentum moves on\nwhere it lies",
            f"2  {gather}",
            "3  each owner\northogonalizes",
            f"4  results to everyone\n{'all_to_all' if sent[0] else 'broadcast'}, {sent[1]} elements",
            "5  decay and update\nwhere the weights lie",
        )
        for x, title in zip((10, 25.5, 37.3, 49, 65), titles, strict=True):
            axis.text(x, 1.4, title, ha="center", va="bottom", fontsize=9)
        axis.set_title(name, loc="left", fontweight="bold", pad=16)
        axis.set(xlim=(-6, 76), ylim=(-LANE * RANKS + 0.8, 3.2), aspect="equal")
        axis.axis("off")
    save(figure, folder, "distributed")


def place(i: int, left: float) -> float:
    """Return the left edge of a matrix in its column."""
    return left + sum(columns + 1.2 for _, columns in list(MATRICES.values())[:i])


def draw_piece(
    axis: plt.Axes, x: float, y: float, rows: int, i: int, letter: str, *, after: bool = False, edge: float = 0.8
) -> None:
    columns = list(MATRICES.values())[i][1]
    if not rows:
        axis.text(x + columns / 2, y - 0.7, "none", ha="center", va="center", fontsize=8, color="dimgrey")
        return
    face = {"facecolor": COLOURS[i], "alpha": 0.75 if after else 0.3}
    axis.add_patch(plt.Rectangle((x, y - rows), columns, rows, linewidth=0, **face))
    axis.add_patch(plt.Rectangle((x, y - rows), columns, rows, fill=False, edgecolor=COLOURS[i], linewidth=edge))
    axis.text(x + columns / 2, y - rows / 2, letter, ha="center", va="center", fontsize=9 if rows > 1 else 7)


def draw_messages(axis: plt.Axes, items: list[OwnedBlock], grid: RankGrid, route: Route) -> int:
    """Draw an arrow for every message of an exchange; return the elements that are sent."""
    sent = 0
    for me in range(RANKS):
        for transfer in route(items, RankGrid(grid.replica, grid.shard, me)).send:
            sent += transfer.elements
            (x0, y0), (x1, y1) = ends(transfer, me, items, route)
            style = {
                "arrowstyle": "-|>",
                "color": COLOURS[transfer.block_index],
                "linewidth": 1.2,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            axis.annotate("", (x1, y1), (x0, y0), arrowprops=style)
    return sent


def ends(
    transfer: Transfer, me: int, items: list[OwnedBlock], route: Route
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return where the arrow of a message begins and ends: between a rank's pieces and the owner's matrix."""
    rows, columns = MATRICES["ABC"[transfer.block_index]]
    owner, other = items[transfer.block_index].owner, transfer.rank if route is from_owners else me
    height = -LANE * owner - rows * (1 + other) / (RANKS + 1)
    beside = -LANE * other - 1.0 - 1.6 * transfer.block_index
    if route is to_owners:
        return (place(3, HELD) - 0.6, beside), (OWNED - 0.4, height)
    return (OWNED + columns + 4.6, height), (RESULT - 0.6, beside)


def main(folder: Path) -> None:
    style()
    distributed(folder)
    rows, spectra = train()
    singular_values(spectra, folder)
    factors(rows, folder)
    floors(spectra, folder)


if __name__ == "__main__":
    mpl.use("svg")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
