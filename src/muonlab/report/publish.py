"""Write the pages of run directories.

For one run: :func:`gather_run` reads it, :func:`compose_page` makes sections of figures and tables and judges the
claims, and this module writes the HTML and the other files. For a directory of several runs it also writes an index.
"""

from __future__ import annotations

import json
import os
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muonlab import __version__, _checks, _files
from muonlab.lab.files import disk
from muonlab.lab.study import PROFILES
from muonlab.report.claims.ledger import digest
from muonlab.report.gather import GatheredRun, error_text, find_runs, gather_run
from muonlab.report.values import VERDICTS, Finding, Page, ReadProblem

PAGE = "report.html"
PARTS = "report"
INPUTS = "made-of.json"
INDEX = "index.html"
CLAIMS_FILE = "claims.json"
MOST_SMOOTHING = 1_000
MARK = b"muonlab"
"""An existing index.html or claims.json is overwritten only if it contains this word."""


def write_report(
    folder: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    smoothing: int = 1,
    show: bool = False,
    progress: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Write the page of a run directory, or the pages of all runs directly in a directory and an index of them.

    Next to ``report.html``, a folder ``report`` holds the figures as SVG, the tables as Markdown and LaTeX, and the
    claims as JSON.

    Args:
        folder: a run directory of ``muonlab run``, or a directory whose subdirectories are run directories.
        out: a directory to write to, which is created; None writes into the run directories and ``folder``.
        smoothing: number of evaluations in the running mean of each curve; 1 does not smooth.
        show: open the page in a browser.
        progress: called with a sentence before the pages of several runs are written.

    Returns:
        The path of the page, the number of claims by verdict, and what could not be read.

    Raises:
        ValueError: if the folder contains no run that can be read, or ``smoothing`` is out of range. Runs further below
            the folder are not searched for: they may belong to somebody else.
    """
    root = _checks.path("folder", folder)
    target = root if out is None else _checks.path("out", out)
    runs = find_runs(root) if root.is_dir() else []
    if not runs:
        problem = "without a run directly in it" if root.is_dir() else "which is not a directory"
        raise ValueError(
            f"a report needs a run directory, got {root} {problem}: create one with muonlab run quickstart"
        )
    if _checks.integer("smoothing", smoothing, at_least=1) > MOST_SMOOTHING:
        raise ValueError(f"smoothing must be at most {MOST_SMOOTHING:,}, got {smoothing}: use a smaller number")
    if runs == [root]:
        answer = _publish_run(root, smoothing, target)
    else:
        if progress is not None:
            progress(f"writing {len(runs)} pages and {INDEX} in {target}")
        answer = _publish_index(root, runs, smoothing, target)
    if show:
        webbrowser.open(Path(answer["page"]).resolve().as_uri())
    return answer


def page_of(folder: Path) -> Path:
    """Return the page of a run directory; it is written only if it does not exist or its inputs have changed."""
    path = folder / PAGE
    try:
        is_current = path.exists() and _files.read_json(folder / PARTS / INPUTS) == _inputs(folder, 1)
    except (OSError, ValueError):
        is_current = False
    return path if is_current else Path(_publish_run(folder, 1, folder)["page"])


# One run -----------------------------------------------------------------------------------------------------------


def _publish_run(folder: Path, smoothing: int, target: Path) -> dict[str, Any]:
    page, _ = _write_page(folder, smoothing, target)
    return _summary(target / PAGE, page.findings, page.problems)


def _write_page(folder: Path, smoothing: int, target: Path) -> tuple[Page, GatheredRun]:
    """Write the page of a run, and its parts, into the directory ``target``."""
    from muonlab.report.page.compose import compose_page
    from muonlab.report.page.html import study_html

    inputs = _inputs(folder, smoothing)  # before reading, so that a file changed meanwhile makes the page outdated
    run = gather_run(folder)
    try:
        page = compose_page(run, smoothing)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"a page needs the rows that a study writes, got unexpected rows in {folder} "
            f"({type(error).__name__}: {error}): --debug shows where"
        ) from error
    target.mkdir(parents=True, exist_ok=True)
    _write_parts(_own_folder(target, PARTS), page)
    disk.write_file(target / PAGE, _encode(study_html(page)))
    disk.write_file(target / PARTS / INPUTS, json.dumps(inputs).encode())
    return page, run


def _write_parts(folder: Path, page: Page) -> None:
    """Write figures, tables and claims as files, and remove figures and tables that are no longer made."""
    from muonlab.report.figures.svg import svg_with_labels
    from muonlab.report.table_text import to_latex, to_markdown, with_labels

    figures = [figure for section in page.sections for figure in section.figures]
    tables = [with_labels(table, page.labels) for section in page.sections for table in section.tables]
    files = {f"figures/{figure.name}.svg": svg_with_labels(figure.svg, page.labels) for figure in figures}
    files |= {f"tables/{table.name}.md": to_markdown(table) for table in tables}
    files |= {f"tables/{table.name}.tex": to_latex(table) for table in tables}
    files["claims.json"] = json.dumps([asdict(finding) for finding in page.findings], indent=2, ensure_ascii=False)
    for part in ("figures", "tables"):
        for old in _own_folder(folder, part).iterdir():
            if f"{part}/{old.name}" not in files and old.suffix in (".svg", ".md", ".tex"):
                old.unlink()
    for name, text in files.items():
        disk.write_file(folder / name, _encode(f"{text}\n"), durable=False)


def _own_folder(folder: Path, name: str) -> Path:
    """Return a subfolder, created if needed; raise if it is a link, so that nothing is written elsewhere."""
    path = folder / name
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"a report writes into its run directory only, got {path}, which is not a folder: remove it")
    path.mkdir(exist_ok=True)
    return path


def _inputs(folder: Path, smoothing: int) -> dict[str, Any]:
    """Return what a page depends on: version, rules, smoothing, and the size and time of every file that it reads."""
    names = ("*.json", "cells/*/*.json", "cells/*/*.jsonl", "cells/*/checkpoints/*.json")
    paths = sorted(path for name in names for path in folder.glob(name))
    files = {str(path.relative_to(folder)): _time_and_size(path) for path in paths}
    return {"muonlab": __version__, "rules": digest(), "smoothing": smoothing, "files": files}


def _time_and_size(path: Path) -> list[int]:
    try:
        stat = path.stat()
    except OSError:  # a checkpoint that a running study has just removed
        return []
    return [stat.st_mtime_ns, stat.st_size]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a lone surrogate cannot be encoded


# Several runs ------------------------------------------------------------------------------------------------------


def _publish_index(root: Path, folders: Iterable[Path], smoothing: int, target: Path) -> dict[str, Any]:
    from muonlab.report.page.compose import judge_runs
    from muonlab.report.page.html import index_html

    _check_replaceable(target / INDEX, target / CLAIMS_FILE)
    pages: dict[str, Page] = {}
    runs: list[GatheredRun] = []
    problems: list[ReadProblem] = []
    for folder in folders:
        where = folder.name
        try:
            pages[f"{where}/{PAGE}"], run = _write_page(folder, smoothing, target / where)
        except (ValueError, OSError) as error:
            problems.append(ReadProblem(where, error_text(error, folder)))
            continue
        runs.append(run)
        problems += [ReadProblem(f"{where}/{problem.where}", problem.what) for problem in run.problems]
    if not pages:
        raise ValueError(f"no run in {root} could be read, got {problems[0].what} ({problems[0].where}): run a study")
    findings = judge_runs(sorted(runs, key=_priority, reverse=True), whole_ledger=True)
    claims = json.dumps(_claims_json(pages.values(), findings), indent=2, ensure_ascii=False)
    disk.write_file(target / INDEX, _encode(index_html(pages, findings, problems)))
    disk.write_file(target / CLAIMS_FILE, _encode(f"{claims}\n"))
    return _summary(target / INDEX, findings, problems) | {"pages": [str(target / path) for path in pages]}


def _check_replaceable(*paths: Path) -> None:
    """Refuse to overwrite a file that muonlab did not write."""
    for path in paths:
        if path.exists() and (not path.is_file() or MARK not in _files.read_bytes(path, follow_link=True)):
            raise ValueError(f"only files that muonlab wrote are overwritten, got {path}: move it elsewhere")


def _claims_json(pages: Iterable[Page], findings: Iterable[Finding]) -> dict[str, Any]:
    """Return all claims and the runs that they were judged by, for JSON."""
    return {
        "muonlab": __version__,
        "rules": digest(),
        "studies": [
            {"study": page.study, "profile": page.profile, "status": page.status}
            | {"cells": page.cells, "done": page.done}
            | {"labels": page.labels, "facts": {fact.name: fact.value for fact in page.facts}}
            for page in pages
        ],
        "claims": [asdict(finding) for finding in findings],
    }


def _priority(run: GatheredRun) -> tuple[bool, int, int]:
    """Return the sort key of runs of one study: finished first, then by profile, then by number of cells."""
    results, profiles = run.results, list[str](PROFILES)
    size = profiles.index(results.profile) if results.profile in profiles else -1
    return results.status == "done" and not run.lost, size, len(results.cells)


def _summary(path: Path, findings: Iterable[Finding], problems: Iterable[ReadProblem]) -> dict[str, Any]:
    counts: Mapping[str, int] = Counter(finding.verdict for finding in findings)
    return {
        "page": str(path),
        "claims": {verdict: counts[verdict] for verdict in VERDICTS},
        "problems": [asdict(problem) for problem in problems],
    }
