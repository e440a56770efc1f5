"""The command line: parses and delegates. Importing it loads neither torch nor numpy."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

import tyro
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
    stopped it: everything is saved then, and the same command goes on.
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
    """Cells at the same time; with more than one their seconds are not comparable."""
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE")] = ()
    """Fields of the spec to replace in every cell, such as lr=0.1 epochs=3 clip=none."""
    retry: bool = False
    """Try cells again that failed."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show the traceback of an error."""


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
    | Annotated[Data, subcommand("data")]
    | Annotated[Doctor, subcommand("doctor")]
)
Parsed = Rates | Certify | Plan | List | Run | Data | Doctor


EXIT_CODES = {"violated": 1, "not_applicable": 1, "not_met": 1, "failed": 1, "open": 75}
"""Of a report's status, where it is not 0. Errors end in 2; 75 says that the same command can be given again."""
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""Words of torch's allocators when memory is short."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    command: Parsed = tyro.cli(
        Command,
        args=argv,
        prog="muonlab",
        description="Muon with Newton-Schulz: the proof as numbers for your matrices, and the paper's experiments.",
    )
    try:
        report, show = _answer(command)
        text = json.dumps(report, indent=2, allow_nan=False) if command.json else show(report)
    except KeyboardInterrupt:
        print("muonlab: stopped at once; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except Exception as error:
        from muonlab.lab.desk import Stopped

        if isinstance(error, Stopped):
            print("muonlab: stopped while data were read; the same command begins again", file=sys.stderr)
            return EXIT_CODES["open"]
        said = _in_one_line(error)
        if said is None or getattr(command, "debug", False):
            raise
        print(f"muonlab: {said}", file=sys.stderr)
        return 2
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_CODES.get(report.get("status", ""), 0)


def _in_one_line(error: Exception) -> str | None:
    """Return what a user can do about an error; None if it is a fault of the program."""
    if isinstance(error, (ValueError, TypeError, OverflowError)):
        return str(error)
    got = str(error).strip().splitlines()[:1] or [type(error).__name__]
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    ):  # torch says by a RuntimeError that memory is short
        return f"there is not enough memory for this, got {got[0]}: give it less at once"
    if isinstance(error, OSError):
        return (
            f"a file or directory must be usable, got {error.filename}: {error.strerror}" if error.filename else got[0]
        )
    return None


Answer = tuple[dict[str, Any], Callable[[dict[str, Any]], str]]
"""A report, and the function that writes it for people."""


def _answer(command: Parsed) -> Answer:
    """Return the command's answer; what it needs is imported only now."""
    options = dataclasses.asdict(command)
    for name in ("json", "debug"):
        options.pop(name, None)
    return ANSWERS[type(command)](**options)


def _rates(**options: Any) -> Answer:
    from muonlab import console
    from muonlab.theory import summary

    return summary.rates(**options), console.rates


def _certify(file: str, **options: Any) -> Answer:
    from muonlab import console
    from muonlab.diagnostics.certify_file import certify_file, report, written

    outcome = certify_file(file, **options, progress=console.progress)
    return report(*outcome), lambda _: written(*outcome)


def _plan(shape: str, **options: Any) -> Answer:
    from muonlab import console
    from muonlab.diagnostics import plan

    found = plan(console.shape(shape), **options)
    return found.to_dict(), lambda _: str(found)


def _list(what: str) -> Answer:
    from muonlab import console

    module, function = LISTS[what].split(":")
    report: dict[str, Any] = getattr(import_module(f"muonlab.{module}"), function)()
    return report, getattr(console, what)


def _run(study: str, set: tuple[str, ...], **options: Any) -> Answer:
    from muonlab import console, lab
    from muonlab.lab.settings import read_words
    from muonlab.lab.studies import find
    from muonlab.lab.summary import report
    from muonlab.report.claims import digest

    found = find(study)
    settings = read_words(type(found.base), set)
    results = lab.run(found, **options, settings=settings, progress=True, notes={"rules": digest()})
    return report(results), console.run


def _data(what: str, names: tuple[str, ...], data: str | None) -> Answer:
    from muonlab import console
    from muonlab.lab.data import prepare, status

    found = status(names or None, data) if what == "status" else prepare(names or None, data, progress=console.reading)
    return found, console.data


def _doctor() -> Answer:
    from muonlab import console
    from muonlab.orthogonalize.hardware import diagnose

    return diagnose(), console.doctor


ANSWERS: dict[type, Callable[..., Answer]] = {
    Rates: _rates,
    Certify: _certify,
    Plan: _plan,
    List: _list,
    Run: _run,
    Data: _data,
    Doctor: _doctor,
}
LISTS = {
    "polynomials": "theory.summary:polynomials",
    "optimizers": "optim:describe",
    "studies": "lab.studies:describe",
    "models": "lab.models:describe",
    "datasets": "lab.data:describe",
}
