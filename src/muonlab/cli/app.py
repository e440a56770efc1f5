"""The command line: parses a command, prints its answer, and returns the exit code.

Importing it loads neither torch nor numpy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from muonlab import __version__
from muonlab._cache import cache_directory
from muonlab.cli.answers import ANSWERS, answer, error_message
from muonlab.cli.commands import PrintingCommand, RunCommand

if TYPE_CHECKING:
    from muonlab.lab.study import Cell

Command: Any = Union[  # noqa: UP007 - built from the commands that have an answer
    tuple(Annotated[kind, subcommand(kind.__name__.removesuffix("Command").lower())] for kind in ANSWERS)
]
EXIT_CODES = {"violated": 1, "not_applicable": 1, "not_met": 1, "failed": 1, "unfinished": 1, "open": 75, "stopped": 75}
"""Exit codes by the status of an answer; other statuses give 0. Errors give 2; 75 means: rerun the same command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    if list(sys.argv[1:] if argv is None else argv) == ["--version"]:
        print(f"muonlab {__version__}")
        return 0
    words = list(sys.argv[1:] if argv is None else argv)
    for word in words:
        if "\0" in word:
            print(f"muonlab: an argument must have no null character, got {word!r}: leave it out", file=sys.stderr)
            return 2
    command: PrintingCommand = tyro.cli(
        Command,
        args=join_repeated(words, "--set"),
        prog="muonlab",
        description="Muon with Newton-Schulz: the proof as numbers for your matrices, and the paper's experiments.",
    )
    if (cache := cache_directory()) is not None:  # for matplotlib's list of fonts
        os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
    if isinstance(command, RunCommand):
        from muonlab.lab.distributed.ranks import started_by_torchrun

        if started_by_torchrun():
            return _leave_group(exit_code(command, partial(_run_on_rank, command)))
    return exit_code(command, partial(print_answer, command))


def join_repeated(argv: Sequence[str], option: str) -> list[str]:
    """Return the arguments with the values of a repeated option behind its first use: a parser keeps only the last.

    Example:
        >>> join_repeated(["run", "x", "--set", "lr=1", "--json", "--set", "steps=2"], "--set")
        ['run', 'x', '--set', 'lr=1', 'steps=2', '--json']
    """
    joined: list[str] = []
    end = None  # where the values of the option end
    collecting = False
    for word in argv:
        if word.startswith("--"):
            collecting = word == option
            if collecting and end is not None:
                continue
        if collecting and end is not None:
            joined.insert(end, word)
            end += 1
            continue
        joined.append(word)
        if collecting:
            end = len(joined)
    return joined


def print_answer(command: PrintingCommand, **more: Any) -> int:
    """Print the answer to a command; return the exit code of its status."""
    report, as_text = answer(command, **more)
    text = json.dumps(report, indent=2, allow_nan=False) if command.json else as_text(report)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_CODES.get(report.get("status", ""), 0) or int(bool(report.get("page_problem")))


def exit_code(command: PrintingCommand, work: Callable[[], int]) -> int:
    """Return the exit code of ``work``; print an error that the user can do something about in one line."""
    try:
        return work()
    except KeyboardInterrupt:
        print("muonlab: interrupted; rerun the same command to resume from the last checkpoint", file=sys.stderr)
        return 130
    except Exception as error:
        from muonlab.lab.cell_context import Stopped
        from muonlab.lab.distributed.ranks import LostRankError, OtherRankError

        if isinstance(error, Stopped):
            print("muonlab: stopped while reading data; rerun the same command to start again", file=sys.stderr)
            return EXIT_CODES["open"]
        if isinstance(error, LostRankError):
            message = f"a rank was lost, got {error}: checkpoints are kept; rerun the same command to resume"
            print(f"muonlab: {message}", file=sys.stderr, flush=True)
            return EXIT_CODES["open"]
        line = str(error) if isinstance(error, OtherRankError) else error_message(error)
        if line is None or getattr(command, "debug", False):
            raise
        print(f"muonlab: {line}{_line_of_study(error, getattr(command, 'study', ''))}", file=sys.stderr)
        return 2


def _line_of_study(error: BaseException, study: str) -> str:
    """Return the last line of a study file that an error passed through, as the end of a message; empty without one."""
    if not study.endswith(".py"):
        return ""
    cause = error.__cause__ or error
    frames = [*extract_tb(error.__traceback__), *extract_tb(cause.__traceback__)]
    lines = [frame.lineno for frame in frames if Path(frame.filename) == Path(study).resolve()]
    return f" ({Path(study).name}, line {lines[-1]})" if lines else ""


# ------------------------------------------------------------------------------------------------------ under torchrun


def _run_on_rank(command: RunCommand) -> int:
    """Run a study as one of torchrun's processes: rank 0 runs the study and prints, the others follow it."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost rank is reported in one line, without C++ frames
    from muonlab.lab.distributed.ranks import process_group

    try:
        with process_group(command.parallel, device=command.device) as ranks:
            if ranks.rank != 0:
                from muonlab.lab.runner.run_study import follow

                return follow(ranks, partial(_cells, command))
            code = 2
            try:
                code = exit_code(command, partial(print_answer, command, ranks=ranks))
            finally:  # after everything is written and printed
                _ignore_sigterm()
                with suppress(RuntimeError):  # the store may be lost, too
                    ranks.publish("job", {"end": code})
            return code
    finally:
        _ignore_sigterm()


def _cells(command: RunCommand, threads: int) -> tuple[Cell, ...]:
    """Return the cells that rank 0 runs: those of the same command."""
    from muonlab.lab.settings import parse_settings
    from muonlab.lab.studies import find

    study = find(command.study)
    settings = parse_settings(type(study.base), command.set)
    return study.cells(command.profile, seeds=command.seeds, device=command.device, threads=threads, settings=settings)


def _ignore_sigterm() -> None:
    """Keep the exit code of this rank: torchrun sends SIGTERM to all ranks when one of them ends with an error."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave_group(code: int) -> int:
    """Return the exit code of a rank; if its group is broken, exit at once, as the group's threads would abort it."""
    from torch import distributed

    if distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
