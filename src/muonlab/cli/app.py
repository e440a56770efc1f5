"""The command line: parses and delegates. Importing it loads neither torch nor numpy."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import tyro

from muonlab._cache import cache_directory
from muonlab.cli.commands import Certify, Command, Data, Doctor, Explore, List, Parsed, Plan, Queue, Rates, Report, Run

EXIT_CODES = {"violated": 1, "not_applicable": 1, "not_met": 1, "failed": 1, "unfinished": 1, "open": 75, "stopped": 75}
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
    if (cache := cache_directory()) is not None:  # matplotlib keeps a list of fonts
        os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
    if isinstance(command, Run) and _launched():
        return _left(_code(command, partial(_together, command)))
    return _code(command, partial(_told, command, partial(_answer, command)))


def _launched() -> bool:
    from muonlab.lab.distributed.ranks import started_by_torchrun

    return started_by_torchrun()


def _left(code: int) -> int:
    """Return the exit code of a rank; one whose group is broken ends at once, as the group's threads would abort it."""
    from torch import distributed

    if distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _together(command: Run) -> int:
    """Run a study as one of torchrun's processes: the leader works and speaks, the others follow it."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost rank is told in one line, not with frames of C++
    from muonlab.lab.distributed.ranks import process_group

    try:
        with process_group(command.parallel, device=command.device) as ranks:
            if ranks.rank != 0:
                from muonlab.lab.runner.run_study import follow

                return follow(ranks)
            code = 2
            try:
                code = _code(command, partial(_told, command, partial(_answer, command, ranks=ranks)))
            finally:  # when all is written and said
                _settled()
                with suppress(RuntimeError):  # the store may be lost as well
                    ranks.publish("job", {"end": code})
            return code
    finally:
        _settled()


def _settled() -> None:
    """Keep the exit code that a rank has: torchrun sends SIGTERM to everybody when one of them ends in an error."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _code(command: Parsed, work: Callable[[], int]) -> int:
    """Return the exit code of some work, with an error told in a line."""
    try:
        return work()
    except KeyboardInterrupt:
        print("muonlab: stopped at once; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except Exception as error:
        from muonlab.lab.cell_context import Stopped
        from muonlab.lab.distributed.ranks import LostRankError, OtherRankError

        if isinstance(error, Stopped):
            print("muonlab: stopped while data were read; the same command begins again", file=sys.stderr)
            return EXIT_CODES["open"]
        if isinstance(error, LostRankError):
            told = f"a rank was lost, got {error}: what was saved is kept; the same command goes on"
            print(f"muonlab: {told}", file=sys.stderr, flush=True)
            return EXIT_CODES["open"]
        said = str(error) if isinstance(error, OtherRankError) else _in_one_line(error)
        if said is None or getattr(command, "debug", False):
            raise
        print(f"muonlab: {said}", file=sys.stderr)
        return 2


def _told(command: Parsed, answer: Callable[[], Answer]) -> int:
    """Print an answer; return the exit code of its status."""
    report, show = answer()
    text = json.dumps(report, indent=2, allow_nan=False) if command.json else show(report)
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


def _answer(command: Parsed, **more: Any) -> Answer:
    """Return the command's answer; what it needs is imported only now."""
    options = dataclasses.asdict(command) | more
    for name in ("json", "debug"):
        options.pop(name, None)
    return ANSWERS[type(command)](**options)


def _rates(**options: Any) -> Answer:
    from muonlab.cli import console
    from muonlab.theory import summary

    return summary.rates(**options), console.rates


def _certify(file: str, **options: Any) -> Answer:
    from muonlab.cli import console
    from muonlab.diagnostics.certificates.file_certificate import certify_file

    certificate = certify_file(file, **options, progress=console.progress)
    return certificate.to_dict(), lambda _: str(certificate)


def _plan(shape: str, **options: Any) -> Answer:
    from muonlab.cli import console
    from muonlab.diagnostics import plan

    found = plan(console.shape(shape), **options)
    return found.to_dict(), lambda _: str(found)


def _list(what: str) -> Answer:
    from muonlab.cli import console

    module, function = LISTS[what].split(":")
    report: dict[str, Any] = getattr(import_module(f"muonlab.{module}"), function)()
    return report, getattr(console, what)


def _run(study: str, set: tuple[str, ...], parallel: str | None, **options: Any) -> Answer:
    from muonlab import lab
    from muonlab.cli import console
    from muonlab.lab.distributed.ranks import started_by_torchrun
    from muonlab.lab.runner.summary import report
    from muonlab.lab.settings import read_words
    from muonlab.lab.studies import find
    from muonlab.report.claims.ledger import digest

    if parallel is not None and not started_by_torchrun():
        raise ValueError(
            f"--parallel is for processes that torchrun started, got {parallel!r} in one alone: use torchrun "
            f"--nproc-per-node N -m muonlab run {study} --parallel {parallel}"
        )
    found = find(study)
    settings = read_words(type(found.base), set)
    results = lab.run(found, **options, settings=settings, progress=True, notes={"rules": digest(found.name)})
    return report(results) | _page(results.folder), console.run


def _queue(file: str, out: str, data: str | None, jobs: int, checkpoint_seconds: float, status: bool) -> Answer:
    from muonlab import _checks
    from muonlab.cli import console
    from muonlab.lab.runner.queue import progress_of, read_list, run_queue
    from muonlab.report.claims.ledger import digest

    entries, folder = read_list(Path(file)), Path(out)
    _checks.integer("jobs", jobs, at_least=1)
    root = None if data is None else Path(data)
    stopped = not status and run_queue(
        entries, folder, data=root, jobs=jobs, checkpoint_seconds=checkpoint_seconds,
        notes=lambda study: {"rules": digest(study)},
        show=console.line,
    )  # fmt: skip
    found = [dataclasses.asdict(one) for one in progress_of(entries, folder, console.line)]
    open_, failed = (sum(one[name] for one in found) for name in ("open", "failed"))
    state = "stopped" if stopped else "unfinished" if open_ else "failed" if failed else "done"
    report = {"status": "shown" if status else state, "state": state, "folder": out, "jobs": jobs, "entries": found}
    return report, console.queue


def _page(folder: Path) -> dict[str, Any]:
    """Return where the page of a run is, or why there is none: the run itself is never lost with it."""
    try:
        from muonlab.report.publish import page_of

        return {"page": str(page_of(folder)), "page_problem": None}
    except Exception as error:
        return {"page": None, "page_problem": _in_one_line(error) or f"{type(error).__name__}: {error}"}


def _report(folder: str, smoothing: int, open: bool) -> Answer:
    from muonlab.cli import console
    from muonlab.report.publish import report

    return report(folder, smoothing=smoothing, show=open), console.report


def _explore(out: str, open: bool) -> Answer:
    from muonlab.cli import console
    from muonlab.report.explore.explorer import explore

    console.note("computing the floors of all polynomials, some seconds")
    return explore(out, show=open), console.explore


def _data(what: str, names: tuple[str, ...], data: str | None) -> Answer:
    from muonlab.cli import console
    from muonlab.lab.data import prepare, status

    found = status(names or None, data) if what == "status" else prepare(names or None, data, progress=console.reading)
    return found, console.data


def _doctor() -> Answer:
    from muonlab.cli import console
    from muonlab.orthogonalize.hardware import diagnose

    return diagnose(), console.doctor


ANSWERS: dict[type, Callable[..., Answer]] = {
    Rates: _rates,
    Certify: _certify,
    Plan: _plan,
    List: _list,
    Run: _run,
    Queue: _queue,
    Report: _report,
    Explore: _explore,
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
