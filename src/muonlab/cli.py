"""The command line: parses and delegates. Importing it loads neither torch nor numpy."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    file: Annotated[Positional[str], arg(name="FILE")]
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

    what: Annotated[Positional[Literal["polynomials", "optimizers"]], arg(name="what")] = "polynomials"
    """Which registry."""
    json: bool = False
    """Print JSON."""


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
    | Annotated[Doctor, subcommand("doctor")]
)


NO = ("violated", "not_applicable", "not_met")
"""Verdicts with which a command ends in exit code 1; errors end in 2."""
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""Words of torch's allocators when memory is short."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    command: Rates | Certify | Plan | List | Doctor = tyro.cli(
        Command,
        args=argv,
        prog="muonlab",
        description="Muon with Newton-Schulz: the proof as numbers for your matrices.",
    )
    try:
        report, show = _answer(command)
        text = json.dumps(report, indent=2, allow_nan=False) if command.json else show(report)
    except (ValueError, TypeError, OverflowError) as error:
        print(f"muonlab: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:  # torch says by a RuntimeError that memory is short
        got = str(error)
        if not isinstance(error, MemoryError) and not any(words in got for words in NO_MEMORY):
            raise
        got = got.splitlines()[0] if got.strip() else type(error).__name__
        print(f"muonlab: there is not enough memory for this, got {got}: give it less at once", file=sys.stderr)
        return 2
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if report.get("status") in NO else 0


def _answer(command: Rates | Certify | Plan | List | Doctor) -> tuple[dict[str, Any], Callable[[dict[str, Any]], str]]:
    """Return the command's report and the function that writes it for people."""
    from muonlab import console

    if isinstance(command, Rates):
        from muonlab.theory import summary

        options = dataclasses.asdict(command)
        del options["json"]
        return summary.rates(**options), console.rates
    if isinstance(command, Certify):
        from muonlab.diagnostics.certify_file import certify_file, report, written

        options = dataclasses.asdict(command)
        del options["json"]
        outcome = certify_file(options.pop("file"), **options, progress=console.progress)
        return report(*outcome), lambda _: written(*outcome)
    if isinstance(command, Plan):
        from muonlab.diagnostics import plan

        options = dataclasses.asdict(command)
        del options["json"]
        found = plan(console.shape(options.pop("shape")), **options)
        return found.to_dict(), lambda _: str(found)
    if isinstance(command, List) and command.what == "optimizers":
        from muonlab import optim

        return optim.describe(), console.optimizers
    if isinstance(command, List):
        from muonlab.theory import summary

        return summary.polynomials(), console.polynomials
    from muonlab.orthogonalize.hardware import diagnose

    return diagnose(), console.doctor
