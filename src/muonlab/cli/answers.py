"""The answer to each command: a report as JSON values, and the function that formats it as text.

What a command needs is imported only when it is answered, so that the command line starts quickly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from muonlab import _checks, _files
from muonlab.cli import commands, console

Report = dict[str, Any]
Answer = tuple[Report, Callable[[Report], str]]

EXTRAS = {
    "lab": ("safetensors", "matplotlib", "jinja2", "rich", "sklearn"),
    "data": ("datasets", "tokenizers", "PIL", "huggingface_hub", "pyarrow"),
}
"""Modules that each optional part of the installation brings."""

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""Parts of the messages of torch's allocators, whose errors are RuntimeErrors."""


def answer(command: commands.PrintingCommand, **more: Any) -> Answer:
    """Return the answer to a command; ``more`` are arguments in addition to its options."""
    options = dataclasses.asdict(command) | more
    for name in ("json", "debug"):
        options.pop(name, None)
    return ANSWERS[type(command)](**options)


def error_message(error: Exception) -> str | None:
    """Return the message of an error that the user can do something about, in one line; None for a bug."""
    if isinstance(error, (ValueError, TypeError, OverflowError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in OUT_OF_MEMORY)
    ):
        return f"out of memory, got {line}: use a smaller batch"
    if isinstance(error, OSError):
        given = f"{error.filename}: {error.strerror}"
        return f"a file or directory must be accessible, got {given}" if error.filename else line
    return None


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return which extra brings the module that was not found; None for a module that no extra brings."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return f"this command needs the extra {extra!r}, got no module {module}: pip install 'muonlab[{extra}]'"
    return None


def require(extra: str) -> None:
    """Raise ModuleNotFoundError unless the modules of an extra are installed."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _rates(**options: Any) -> Answer:
    from muonlab.theory import summary

    return summary.rates(**options), console.rates


def _certify(file: str, **options: Any) -> Answer:
    from muonlab.diagnostics.certificates.file_certificate import certify_file

    certificate = certify_file(file, **options, progress=console.show_matrices)
    return certificate.to_dict(), lambda _: str(certificate)


def _plan(shape: str, **options: Any) -> Answer:
    from muonlab.diagnostics import plan

    chosen = plan(console.parse_shape(shape), **options)
    return chosen.to_dict(), lambda _: str(chosen)


def _list(what: str, files: tuple[str, ...] = ()) -> Answer:
    if files and what != "studies":
        raise ValueError(
            f"only studies are listed from files, got {files[0]} for {what}: use muonlab list studies {files[0]}"
        )
    module, function = LISTS[what].split(":")
    report: Report = getattr(import_module(f"muonlab.{module}"), function)(*files)
    return report, getattr(console, what)


def _run(study: str, set: tuple[str, ...], parallel: str | None, **options: Any) -> Answer:
    require("lab")  # before cells start, and fail one by one
    from muonlab import lab
    from muonlab.lab.distributed.ranks import started_by_torchrun
    from muonlab.lab.runner.summary import summarize
    from muonlab.lab.settings import parse_settings
    from muonlab.lab.studies import find
    from muonlab.report.claims.ledger import digest

    if parallel is not None and not started_by_torchrun():
        raise ValueError(
            f"--parallel is for processes that torchrun started, got {parallel!r} in one process: use torchrun "
            f"--nproc-per-node N -m muonlab run {study} --parallel {parallel}"
        )
    chosen = find(study)
    settings = parse_settings(type(chosen.base), set)
    results = lab.run(chosen, **options, settings=settings, progress=True, notes={"rules": digest(chosen.name)})
    return summarize(results) | _page(results.folder), console.run


def _new(what: str, file: str) -> Answer:
    from muonlab.lab.own.study_file import write_template

    return {"what": what, "file": str(write_template(file))}, console.new


def _page(folder: Path) -> Report:
    """Return the path of the page of a run, or why there is none: the run is kept in any case."""
    try:
        from muonlab.report.publish import page_of

        return {"page": str(page_of(folder)), "page_problem": None}
    except Exception as error:
        return {"page": None, "page_problem": error_message(error) or f"{type(error).__name__}: {error}"}


def _queue(file: str, out: str, data: str | None, jobs: int, checkpoint_seconds: float, status: bool) -> Answer:
    require("lab")
    from muonlab import _checks
    from muonlab.lab.runner.queue import queue_progress, read_queue, run_queue
    from muonlab.report.claims.ledger import digest

    entries, folder = read_queue(Path(file)), Path(out)
    _checks.integer("jobs", jobs, at_least=1)
    stopped = not status and run_queue(
        entries,
        folder,
        data=None if data is None else Path(data),
        jobs=jobs,
        checkpoint_seconds=checkpoint_seconds,
        notes=lambda study: {"rules": digest(study)},
        show=console.show_line,
    )
    progress = [dataclasses.asdict(entry) for entry in queue_progress(entries, folder, console.show_line)]
    open_, failed = (sum(entry[name] for entry in progress) for name in ("open", "failed"))
    left = "stopped" if stopped else "unfinished"  # a signal during the last cell leaves nothing to resume
    state = left if open_ else "failed" if failed else "done"
    report = {"status": "shown" if status else state, "state": state, "folder": out, "jobs": jobs, "entries": progress}
    return report, console.queue


def _report(folder: str, out: str | None, smoothing: int, open: bool) -> Answer:
    from muonlab.report.publish import write_report

    answer = write_report(folder, out=out, smoothing=smoothing, show=open, progress=console.show_line)
    return answer, console.report


def _explore(out: str, open: bool) -> Answer:
    from muonlab.report.explore.explorer import explore

    console.show_note("computing the floors of all polynomials, which takes some seconds")
    return explore(out, show=open), console.explore


def _data(what: str, names: tuple[str, ...], data: str | None) -> Answer:
    from muonlab.lab.data.inventory import prepare, status

    if what == "status":
        return status(names or None, data), console.data
    return prepare(names or None, data, progress=console.show_reading), console.data


def _bench(device: str, width: int | None, layers: int | None, rounds: int, out: str | None) -> Answer:
    from muonlab.diagnostics.benchmarking import bench
    from muonlab.diagnostics.benchmarking.device_report import file_name, write_report

    if out is not None:
        _files.require_replaceable(_checks.path("--out", out))
    report = bench(device, width=width, layers=layers, rounds=rounds, show=console.show_line)
    path = Path(out or file_name(report))
    write_report(report, path)
    return {**report, "file": str(path)}, console.bench


def _doctor() -> Answer:
    from muonlab.orthogonalize.hardware import diagnose

    return diagnose(), console.doctor


ANSWERS: dict[type, Callable[..., Answer]] = {
    commands.RatesCommand: _rates,
    commands.CertifyCommand: _certify,
    commands.PlanCommand: _plan,
    commands.ListCommand: _list,
    commands.RunCommand: _run,
    commands.NewCommand: _new,
    commands.QueueCommand: _queue,
    commands.ReportCommand: _report,
    commands.ExploreCommand: _explore,
    commands.DataCommand: _data,
    commands.BenchCommand: _bench,
    commands.DoctorCommand: _doctor,
}
LISTS = {
    "polynomials": "theory.summary:polynomials",
    "optimizers": "optim:describe",
    "studies": "lab.studies:describe",
    "models": "lab.models:describe",
    "datasets": "lab.data.registry:describe",
}
