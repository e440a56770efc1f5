"""What can be typed: a command each, its options with their words and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand


@dataclass(frozen=True)
class Rates:
    """Bounds and iteration counts of SGD-M, Muon with SVD and Muon with Newton-Schulz for given constants."""

    L: float = 1.0
    """Smoothness constant from the operator to the nuclear norm."""
    D: float = 1.0
    """f(W_0) - f*."""
    sigma: float = 1.0
    """Standard deviation of one sample's gradient, Frobenius norm."""
    r: int = 256
    """min(m, n)."""
    B: int = 128
    """Batch size."""
    T: int = 10_000
    """Number of steps."""
    kappa: int = 2
    """Degree of the Newton-Schulz polynomial."""
    q: int = 3
    """Newton-Schulz steps."""
    delta_0: float | None = None
    """Initial residual in [0, 1); without it Muon is rated by the alignment it guarantees for every matrix."""
    target: float | None = None
    """Also count the steps that bring the average gradient norm to this."""
    constants: Literal["sharp", "paper"] = "sharp"
    """Explicit constants: ours, or the paper's."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Certify:
    """Certificates of the matrices in a file: momenta in an optimizer's checkpoint, weights, or numpy arrays.

    Exit code 0 if the alignment theorem holds for the whole, 1 if it is violated or says nothing, 2 for a file that
    cannot be read.
    """

    file: Annotated[Positional[str], arg(metavar="FILE")]
    """A file of torch.save, a .safetensors, a .npy or a .npz; nothing in it is executed."""
    weights: bool = False
    """Certify weights too (the theorems speak of momenta)."""
    polynomial: str | None = None
    """Preset to use in place of what the checkpoint's groups say (see: muonlab list polynomials)."""
    steps: int | None = None
    """Number of steps."""
    prescale: Literal["frobenius", "paper", "schatten4", "schatten8", "spectral", "none"] | None = None
    """How matrices are brought into the unit ball."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Plan:
    """The cheapest polynomial, number of steps, prescale and method that reach an alignment on this machine.

    Exit code 0 if the target is met, 1 if nothing meets it (the best is shown), 2 for a wrong option.
    """

    shape: str
    """Rows and columns, such as 768x3072."""
    target_alignment: float | None = None
    """Alignment to reach, between 0 and 1; 0.95 without a target."""
    target_epsilon: float | None = None
    """Or: distance from the exact polar factor to reach."""
    basis: Literal["typical", "floor"] = "typical"
    """On typical spectra, or guaranteed for every matrix of this shape."""
    ell: float | None = None
    """With --target-epsilon and --basis floor: smallest singular value over the Frobenius norm."""
    recalibrate: bool = False
    """Time this machine again instead of using what was kept."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class List:
    """Show what is registered."""

    what: Annotated[
        Positional[Literal["polynomials", "optimizers", "studies", "models", "datasets"]], arg(name="what")
    ] = "polynomials"
    """Which registry."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Run:
    """Run a study of the paper, or go on with it: finished cells are kept, interrupted ones go on to the same bits.

    Exit code 0 if every cell is done, 1 if one failed, 2 for a wrong option or wrong data, 75 if SIGTERM or Ctrl-C
    stopped it: everything is saved then, and the same command goes on. Several processes train each cell together
    under torchrun --nproc-per-node N -m muonlab run STUDY ...; there 75 also says that one of them was lost.
    """

    study: Annotated[Positional[str], arg(metavar="STUDY")]
    """One of: muonlab list studies."""
    profile: Literal["smoke", "small", "paper"] = "smoke"
    """Seconds; minutes per cell on two CPU cores, labelled as smaller; or the paper's setting in full."""
    seeds: int | None = None
    """Runs of each cell; the profile's number without it."""
    data: str | None = None
    """Folder with a folder for each dataset in the hub's layout; without it MUONLAB_DATA, else the hub."""
    out: str | None = None
    """Run directory; runs/STUDY-PROFILE without it."""
    device: str = "cpu"
    """cpu, cuda, cuda:N or mps."""
    threads: int | None = None
    """Threads of torch for a cell; without it those of the run directory, or the cores divided by the jobs."""
    jobs: int = 1
    """Cells at the same time; with one thread each they are timed in CPU seconds."""
    parallel: Literal["ddp", "fsdp", "hsdp"] | None = None
    """Under torchrun: models whole on each process (ddp, the default), in shards, or in two replicas of shards."""
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE")] = ()
    """Fields of the spec to replace in every cell, such as lr=0.1 epochs=3 clip=none."""
    retry: bool = False
    """Try cells again that failed."""
    keep_weights: bool = True
    """Write the trained weights of each cell to its folder; their hash is kept in any case."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Queue:
    """Run a list of studies, a few cells at a time with one thread each; rerun the same command to resume.

    The list is a TOML file with a table [[run]] for each entry: study, profile, seeds, cell_minutes (an estimate), and
    optionally name and settings. Cells are run in the order of the entries, without keeping weights. SIGTERM and Ctrl-C
    save the running cells. Exit code 0 if every cell is done, 1 if one failed or could not be run, 2 for an error, 75
    if it was stopped.
    """

    file: Annotated[Positional[str], arg(metavar="FILE")]
    """The list."""
    out: str = "results/runs"
    """Directory of the run directories."""
    data: str | None = None
    """Folder with a folder for each dataset in the hub's layout; without it MUONLAB_DATA, else the hub."""
    jobs: int = 2
    """Cells at the same time."""
    checkpoint_seconds: float = 60.0
    """Seconds between the checkpoints of a cell."""
    status: bool = False
    """Only show what is done and what is left; nothing is run."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Report:
    """Write the page of a study: curves, tables, the paper's numbers beside ours, and which claims held.

    One HTML file that needs no network, report.html in the run directory; for a directory of several runs also an
    index.html over them. Exit code 0 if a page was written, 2 if there is nothing to make one of.
    """

    folder: Annotated[Positional[str], arg(metavar="DIR")]
    """What muonlab run named, or a directory that holds such."""
    smoothing: int = 1
    """Evaluations in a running mean of each curve; 1 is none."""
    open: bool = False
    """Open the page in a browser."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Explore:
    """Write an interactive page of the theory: polynomial, steps, residual, spectrum, rank and cost, with sliders."""

    out: str = "explore.html"
    """The file to write; it needs no network."""
    open: bool = False
    """Open the page in a browser."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Data:
    """Show which datasets are there, or decode them into the cache."""

    what: Annotated[Positional[Literal["status", "prepare"]], arg(name="what")] = "status"
    """Look, or decode."""
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME")] = ()
    """Of: muonlab list datasets; all without any."""
    data: str | None = None
    """Folder with a folder for each dataset in the hub's layout; without it MUONLAB_DATA, else the hub."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Doctor:
    """Report versions, cores, dtypes that multiply in hardware, and measured throughputs."""

    json: bool = False
    """Print JSON."""


Command = (
    Annotated[Rates, subcommand("rates")]
    | Annotated[Certify, subcommand("certify")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[List, subcommand("list")]
    | Annotated[Run, subcommand("run")]
    | Annotated[Queue, subcommand("queue")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Explore, subcommand("explore")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Doctor, subcommand("doctor")]
)
Parsed = Rates | Certify | Plan | List | Run | Queue | Report | Explore | Data | Doctor
