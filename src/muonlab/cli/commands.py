"""The commands and their options: one dataclass each, from which the parser and the help texts are generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class PrintingCommand:
    """What all commands have in common."""

    json: bool = field(default=False, kw_only=True)
    """Print JSON."""


@dataclass(frozen=True)
class _DebugCommand(PrintingCommand):
    debug: bool = field(default=False, kw_only=True)
    """Show the traceback of an error."""


@dataclass(frozen=True)
class RatesCommand(PrintingCommand):
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
    """Also count the steps until the average gradient norm is this small."""
    constants: Literal["sharp", "paper"] = "sharp"
    """Explicit constants: ours, or the paper's."""
    lr_schedule: Literal["constant", "linear", "cosine", "warmup_cosine", "wsd"] | None = None
    """Schedule of Muon's learning rate: the average is then weighted by the rates, and eta is the peak rate."""
    nesterov: bool = False
    """With a schedule: Muon orthogonalizes Nesterov's look-ahead."""


@dataclass(frozen=True)
class CertifyCommand(PrintingCommand):
    """Certify the matrices in a file: momenta in an optimizer's checkpoint, weights, or numpy arrays.

    Exit code 0 if the alignment theorem holds for the whole network, 1 if it is violated or not applicable, 2 for a
    file that cannot be read.
    """

    file: Annotated[Positional[str], arg(metavar="FILE")]
    """A file of torch.save, a .safetensors, a .npy or a .npz; nothing in it is executed."""
    weights: bool = False
    """Certify weights, too (the theorems are about momenta)."""
    polynomial: str | None = None
    """Preset that replaces the polynomial of the checkpoint's parameter groups (see: muonlab list polynomials)."""
    steps: int | None = None
    """Number of steps."""
    prescale: Literal["frobenius", "paper", "schatten4", "schatten8", "spectral", "none"] | None = None
    """How matrices are scaled into the unit ball."""
    max_gigabytes: float = 1.0
    """Most memory that the matrices of the file may take, unpacked."""


@dataclass(frozen=True)
class PlanCommand(PrintingCommand):
    """Find the cheapest polynomial, number of steps, prescale and method that reach an alignment on this machine.

    Exit code 0 if the target is met, 1 if it cannot be met (the best plan is shown), 2 for a wrong option.
    """

    shape: str
    """Rows and columns, such as 768x3072."""
    target_alignment: float | None = None
    """Alignment to reach, between 0 and 1; 0.95 if no target is given."""
    target_epsilon: float | None = None
    """Distance from the exact polar factor to reach, instead of an alignment."""
    basis: Literal["typical", "floor"] = "typical"
    """Reach the target on typical spectra, or guarantee it for every matrix of this shape."""
    ell: float | None = None
    """With --target-epsilon and --basis floor: smallest singular value over the Frobenius norm."""
    recalibrate: bool = False
    """Measure this machine again instead of using the cached calibration."""


@dataclass(frozen=True)
class ListCommand(PrintingCommand):
    """List registered polynomials, optimizers, studies, models or datasets, or the studies in files."""

    what: Annotated[
        Positional[Literal["polynomials", "optimizers", "studies", "models", "datasets"]], arg(name="what")
    ] = "polynomials"
    """What to list."""
    files: Annotated[Positional[tuple[str, ...]], arg(metavar="FILE")] = ()
    """With studies: list those of these files."""


@dataclass(frozen=True)
class RunCommand(_DebugCommand):
    """Run a study of the paper or of your own, or resume it: finished cells are kept, an interrupted one resumes.

    Exit code 0 if every cell is done, 1 if one failed or there is no page, 2 for a wrong option or wrong data, 75 if
    SIGTERM or Ctrl-C stopped it: everything is saved, rerun the same command to resume. To train each cell on several
    processes, use torchrun --nproc-per-node N -m muonlab run STUDY ...; exit code 75 then also means that a process was
    lost.
    """

    study: Annotated[Positional[str], arg(metavar="STUDY")]
    """A name of muonlab list studies, or the path of a study file ending in .py."""
    profile: str | None = None
    """Smoke (the default) takes seconds, small takes minutes per cell on two CPU cores, paper is the full setting."""
    seeds: int | None = None
    """Number of runs of each cell; the default is that of the profile."""
    data: str | None = None
    """Directory with a folder for each dataset in the hub's layout; the default is MUONLAB_DATA, else the hub."""
    out: str | None = None
    """Run directory; the default is runs/STUDY-PROFILE, or runs/STUDY for a study with one profile."""
    device: str = "cpu"
    """cpu, cuda, cuda:N or mps."""
    threads: int | None = None
    """Torch threads of a cell; the default is that of the run directory, else the cores divided by the jobs."""
    jobs: int = 1
    """Number of cells that run at the same time; with one thread each they are timed in CPU seconds."""
    parallel: Literal["ddp", "fsdp", "hsdp"] | None = None
    """Under torchrun: replicate the model (ddp, the default), shard it (fsdp), or shard two replicas (hsdp)."""
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE")] = ()
    """Fields of the spec to replace in every cell, for example lr=0.1 epochs=3 clip=none."""
    retry: bool = False
    """Run failed cells again."""
    keep_weights: bool = True
    """Write the trained weights of each cell to its folder; their hash is always kept."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""


@dataclass(frozen=True)
class NewCommand(PrintingCommand):
    """Write a study of your own that runs as it is, to be edited."""

    what: Annotated[Positional[Literal["study"]], arg(name="what")]
    """What to write."""
    file: Annotated[Positional[str], arg(metavar="FILE")]
    """The file to write, ending in .py; an existing one is not overwritten."""


@dataclass(frozen=True)
class QueueCommand(_DebugCommand):
    """Run a list of studies, a few cells at a time with one thread each; rerun the same command to resume.

    The list is a TOML file with a table [[run]] for each entry: study (a name, or the path of a study file from the
    folder of the list), profile, seeds, cell_minutes (an estimate), and optionally name and settings. Cells are run in
    the order of the entries, and weights are not kept. SIGTERM and Ctrl-C save the running cells. Exit code 0 if every
    cell is done, 1 if one failed or could not be run, 2 for an error, 75 if it was stopped.
    """

    file: Annotated[Positional[str], arg(metavar="FILE")]
    """The TOML file."""
    out: str = "results/runs"
    """Directory of the run directories."""
    data: str | None = None
    """Directory with a folder for each dataset in the hub's layout; the default is MUONLAB_DATA, else the hub."""
    jobs: int = 2
    """Number of cells that run at the same time."""
    checkpoint_seconds: float = 60.0
    """Seconds between the checkpoints of a cell."""
    status: bool = False
    """Only show what is done and what is left; run nothing."""


@dataclass(frozen=True)
class ReportCommand(_DebugCommand):
    """Write the page of a study: curves, tables, the paper's numbers beside ours, and which claims hold.

    The page is one HTML file that needs no network: report.html in the run directory. For a directory whose
    subdirectories are run directories, index.html lists them. Exit code 0 if a page was written, 2 if there is no run
    to report.
    """

    folder: Annotated[Positional[str], arg(metavar="DIR")]
    """A run directory, or a directory of run directories."""
    out: str | None = None
    """Directory to write to; the default is DIR and its run directories."""
    smoothing: int = 1
    """Number of evaluations in the running mean of each curve; 1 means no smoothing."""
    open: bool = False
    """Open the page in a browser."""


@dataclass(frozen=True)
class ExploreCommand(PrintingCommand):
    """Write an interactive page of the theory: polynomial, steps, residual, spectrum, rank and cost, with sliders."""

    out: str = "explore.html"
    """The HTML file to write."""
    open: bool = False
    """Open the page in a browser."""


@dataclass(frozen=True)
class DataCommand(_DebugCommand):
    """Show which datasets are available, or decode them into the cache."""

    what: Annotated[Positional[Literal["status", "prepare"]], arg(name="what")] = "status"
    """Show the datasets, or decode them."""
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME")] = ()
    """Names of muonlab list datasets; the default is all."""
    data: str | None = None
    """Directory with a folder for each dataset in the hub's layout; the default is MUONLAB_DATA, else the hub."""


@dataclass(frozen=True)
class BenchCommand(PrintingCommand):
    """Check the results of a device against float64, then time steps on it beside other packages, as ratios."""

    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, mps."""
    width: int | None = None
    """Width of the GPT whose hidden matrices are stepped; the default is 768 on CUDA and 128 on a CPU."""
    layers: int | None = None
    """Layers of the GPT; the default is 12 on CUDA and 2 on a CPU."""
    rounds: int = 7
    """Timed repetitions of each side."""
    out: str | None = None
    """The JSON file to write, which can be sent in; the default is muonlab-bench-NAME.json in this directory."""


@dataclass(frozen=True)
class DoctorCommand(PrintingCommand):
    """Show versions, cores, dtypes that are multiplied in hardware, and measured throughputs."""
