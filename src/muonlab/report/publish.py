"""Pages written: one in each run directory, with its figures and tables as files; an index over several."""

from __future__ import annotations

import json
import os
import webbrowser
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muonlab import __version__, _checks
from muonlab.lab.files import disk
from muonlab.lab.study import PROFILES
from muonlab.report.claims.ledger import digest
from muonlab.report.gather import Found, gather, runs_in, words_of
from muonlab.report.values import Entry, Finding, Index, Page, Problem

PAGE = "report.html"
PARTS = "report"
INDEX = "index.html"
LEDGER = "claims.json"
MOST_SMOOTHING = 1_000
MARK = b"muonlab"
"""Of files that may be written over."""


def report(folder: str | os.PathLike[str], *, smoothing: int = 1, show: bool = False) -> dict[str, Any]:
    """Write the page of a run directory, or those of all runs in a directory and an index over them.

    Beside ``report.html`` a folder ``report`` has the figures as SVG, the tables as Markdown and LaTeX, and the claims
    as JSON.

    Args:
        folder: what ``muonlab run`` named, or a directory that holds such.
        smoothing: evaluations in a running mean of each curve; 1 is none.
        show: whether to open the page in a browser.

    Returns:
        The path of the page, how many claims held, and what could not be used.
    """
    root = Path(folder)
    runs = runs_in(root) if root.is_dir() else []
    if not runs:
        what = "without a run in it" if root.is_dir() else "which is no directory"
        raise ValueError(f"a report is made of run directories, got {root} {what}: muonlab run quickstart makes one")
    if _checks.integer("smoothing", smoothing, at_least=1) > MOST_SMOOTHING:
        raise ValueError(f"smoothing must be at most {MOST_SMOOTHING:,}, got {smoothing}: a handful will do")
    answer = _of_study(root, smoothing) if runs == [root] else _of_all(root, runs, smoothing)
    if show:
        webbrowser.open(Path(answer["page"]).resolve().as_uri())
    return answer


def page_of(folder: Path) -> Path:
    """Return the page of a run directory; it is written unless it is there and nothing has changed since."""
    path, stamp = folder / PAGE, folder / PARTS / "made-of.json"
    try:
        known = path.exists() and json.loads(stamp.read_bytes()) == _made_of(folder, 1)
    except (OSError, ValueError):
        known = False
    return path if known else Path(_of_study(folder, 1)["page"])


def _of_study(folder: Path, smoothing: int) -> dict[str, Any]:
    page, _ = _write_page(folder, smoothing)
    return _answer(folder / PAGE, page.findings, page.problems)


def _write_page(folder: Path, smoothing: int) -> tuple[Page, Found]:
    from muonlab.report.page.compose import compose
    from muonlab.report.page.html import study_html

    made_of = _made_of(folder, smoothing)  # before reading: what changes meanwhile is new then
    found = gather(folder)
    try:
        page = compose(found, smoothing)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"a page shows what studies write, got {folder} with something else ({type(error).__name__}: {error}): "
            f"--debug shows where"
        ) from error
    _write_parts(_own(folder, PARTS), page)
    disk.write(folder / PAGE, _bytes(study_html(page)))
    disk.write(folder / PARTS / "made-of.json", json.dumps(made_of).encode())
    return page, found


def _write_parts(folder: Path, page: Page) -> None:
    from muonlab.report.figures.plain_svg import labelled_svg
    from muonlab.report.table_text import labelled, to_latex, to_markdown

    drawn = [figure for section in page.sections for figure in section.figures]
    made = [table for section in page.sections for table in section.tables]
    files = {f"figures/{figure.name}.svg": labelled_svg(figure.svg, page.labels) for figure in drawn}
    files |= {f"tables/{table.name}.md": to_markdown(labelled(table, page.labels)) for table in made}
    files |= {f"tables/{table.name}.tex": to_latex(labelled(table, page.labels)) for table in made}
    files["claims.json"] = json.dumps([asdict(finding) for finding in page.findings], indent=2, ensure_ascii=False)
    for part in ("figures", "tables"):
        for old in _own(folder, part).iterdir():
            if f"{part}/{old.name}" not in files and old.suffix in (".svg", ".md", ".tex"):
                old.unlink()
    for name, text in files.items():
        disk.write(folder / name, _bytes(f"{text}\n"), durable=False)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # half of a pair of surrogates is no letter


def _own(folder: Path, name: str) -> Path:
    """Return a folder of a directory, made if need be; a link that leads out of it is refused."""
    path = folder / name
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"a report writes into its run directory only, got {path}, which is no folder: remove it")
    path.mkdir(exist_ok=True)
    return path


def _made_of(folder: Path, smoothing: int) -> dict[str, Any]:
    """Return what a page depends on: version, rules, smoothing, and the size and time of every file that it reads."""
    names = ("*.json", "cells/*/*.json", "cells/*/*.jsonl", "cells/*/checkpoints/*.json")
    files = sorted(path for name in names for path in folder.glob(name))
    stats = {str(path.relative_to(folder)): _stamp(path) for path in files}
    return {"muonlab": __version__, "rules": digest(), "smoothing": smoothing, "files": stats}


def _stamp(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError:  # a link that leads nowhere
        return []
    return [found.st_mtime_ns, found.st_size]


def _of_all(root: Path, runs: Iterable[Path], smoothing: int) -> dict[str, Any]:
    from muonlab.report.page.compose import findings
    from muonlab.report.page.html import index_html

    _check_own(root / INDEX, root / LEDGER)
    made: list[tuple[Entry, Found]] = []
    problems: list[Problem] = []
    for run in runs:
        where = run.relative_to(root).as_posix()
        try:
            page, found = _write_page(run, smoothing)
        except (ValueError, OSError) as error:
            problems.append(Problem(where, words_of(error, run)))
            continue
        made.append((Entry(f"{where}/{PAGE}", page), found))
        problems += [Problem(f"{where}/{problem.where}", problem.what) for problem in found.problems]
    if not made:
        raise ValueError(f"no run in {root} could be read, got {problems[0].what} ({problems[0].where}), and so on")
    entries = tuple(entry for entry, _ in made)
    every = findings(sorted((found for _, found in made), key=_weight, reverse=True), whole=True)
    disk.write(root / INDEX, _bytes(index_html(Index("Studies", entries, every, tuple(problems)))))
    disk.write(root / LEDGER, _bytes(json.dumps(_ledger(entries, every), indent=2, ensure_ascii=False) + "\n"))
    return _answer(root / INDEX, every, problems) | {"pages": [str(root / entry.path) for entry in entries]}


def _check_own(*paths: Path) -> None:
    """Refuse to write over a file that is not one of ours."""
    for path in paths:
        if path.exists() and (not path.is_file() or MARK not in path.read_bytes()):
            raise ValueError(f"an index replaces only an index, got {path}, which is something else: move it away")


def _ledger(entries: Iterable[Entry], every: Iterable[Finding]) -> dict[str, Any]:
    """Return the whole ledger for programs, with what each study was run with."""
    return {
        "muonlab": __version__,
        "rules": digest(),
        "studies": [
            {"study": entry.page.study, "profile": entry.page.profile, "status": entry.page.status}
            | {"cells": entry.page.cells, "done": entry.page.done}
            | {"labels": entry.page.labels, "facts": {fact.name: fact.value for fact in entry.page.facts}}
            for entry in entries
        ],
        "claims": [asdict(finding) for finding in every],
    }


def _weight(found: Found) -> tuple[bool, int, int]:
    """Return how much a run of a study says: whether it is done, then its profile, then how many cells it has."""
    results, profiles = found.results, list[str](PROFILES)
    size = profiles.index(results.profile) if results.profile in profiles else -1
    return results.status == "done" and not found.lost, size, len(results.cells)


def _answer(path: Path, findings: Iterable[Finding], problems: Iterable[Problem]) -> dict[str, Any]:
    verdicts: Mapping[str, int] = Counter(finding.verdict for finding in findings)
    return {
        "page": str(path),
        "claims": {verdict: verdicts.get(verdict, 0) for verdict in ("held", "not held", "not tested at this scale")},
        "problems": [asdict(problem) for problem in problems],
    }
