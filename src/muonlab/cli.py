"""The command line: parses and delegates. Importing it loads neither torch nor numpy."""

from __future__ import annotations

import dataclasses
import json
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
    | Annotated[List, subcommand("list")]
    | Annotated[Doctor, subcommand("doctor")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    command: Rates | List | Doctor = tyro.cli(
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
    print(text)
    return 0


def _answer(command: Rates | List | Doctor) -> tuple[dict[str, Any], Callable[[dict[str, Any]], str]]:
    """Return the command's report and the function that writes it for people."""
    from muonlab import console

    if isinstance(command, Rates):
        from muonlab.theory import summary

        options = dataclasses.asdict(command)
        del options["json"]
        return summary.rates(**options), console.rates
    if isinstance(command, List) and command.what == "optimizers":
        from muonlab import optim

        return optim.describe(), console.optimizers
    if isinstance(command, List):
        from muonlab.theory import summary

        return summary.polynomials(), console.polynomials
    from muonlab.orthogonalize.hardware import diagnose

    return diagnose(), console.doctor
