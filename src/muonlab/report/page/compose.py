"""The page of a study composed: its head, warnings, claims, figures and tables, environment and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muonlab import __version__
from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.runner.store import NUMERICS
from muonlab.lab.runner.summary import command
from muonlab.lab.runner.timing import Timing, timing_of
from muonlab.lab.studies import studies
from muonlab.report.claims.judging import judge
from muonlab.report.claims.ledger import Claim, digest, ledger
from muonlab.report.gather import Found
from muonlab.report.page.sections import sections
from muonlab.report.values import Fact, Finding, Link, Page

MOST_NAMED = 20
"""Seeds, and cells that a warning names."""
MOST_LINKS = 200
"""Cells whose files are linked; the others are in the same folder."""
FILES = ("spec.json", "metrics.jsonl", "certificates.jsonl", "weights.safetensors", "done.json", "failed.json")


def compose(found: Found, smoothing: int = 1) -> Page:
    """Return all that the page of a run directory says; ``smoothing`` is that of the curves."""
    results = found.results
    study, timing = studies().get(results.study), timing_of(results)
    return Page(
        title=study.title if study else results.study,
        study=results.study,
        profile=results.profile,
        status="open" if found.lost or not results.cells else results.status,
        labels=tuple(_labels(found)),
        warnings=tuple(_warnings(results, timing)),
        facts=tuple(_facts(found, timing)),
        environment=tuple(_environment(results.environments)),
        findings=findings([found]),
        sections=sections(results, smoothing),
        links=tuple(_links(results)),
        problems=found.problems,
        cells=len(results.cells) + found.lost,
        done=sum(cell.status == "done" for cell in results.cells),
    )


def findings(found: Sequence[Found], *, whole: bool = False) -> tuple[Finding, ...]:
    """Return the claims of these studies, decided; the whole ledger if asked.

    Of several runs of a study the first that gives a verdict counts, so the one that says most should come first.
    """
    by_study: dict[str, list[Found]] = {}
    for one in found:
        by_study.setdefault(one.results.study, []).append(one)
    judged = [
        _decided(claim, by_study.get(claim.study, []))
        for claim in ledger().values()
        if whole or claim.study in by_study
    ]
    return tuple(sorted(judged, key=lambda finding: finding.verdict not in ("held", "not held")))  # verdicts first


def _decided(claim: Claim, runs: Sequence[Found]) -> Finding:
    judged = [judge(claim, one.results, lost=one.lost) for one in runs] or [judge(claim, None)]
    return next((finding for finding in judged if finding.verdict in ("held", "not held")), judged[0])


def _labels(found: Found) -> Iterator[str]:
    results = found.results
    if results.profile != "paper":
        yield f"profile {results.profile}"
    yield from sorted({str(data["label"]) for data in results.head["data"].values()} - {"complete"})
    if found.lost or not results.cells or results.status == "open":
        yield "incomplete"
    if results.status == "failed":
        yield "some cells failed"


def _warnings(results: Results, timing: Timing) -> Iterator[str]:
    study, head = studies().get(results.study), results.head
    profiles: Mapping[Any, Any] = study.profiles if study else {}
    words = profiles[results.profile].differences if results.profile in profiles else ""
    if words:
        yield f"Not the paper's setting. Profile {results.profile}: {words}."
    asked = profiles[results.profile].seeds if results.profile in profiles else None
    runs = {len(cells) for cells in results.places().values()}
    if asked and runs and runs != {asked}:
        here = " to ".join(map(str, sorted({min(runs), max(runs)})))
        yield f"The profile asks for {asked} runs of each place; here: {here}."
    for data in head["data"].values():
        if data["label"] != "complete":
            yield f"Data: {data['words']}."
    if results.changed:
        yield f"Settings were changed: {', '.join(f'{name} = {value}' for name, value in results.changed.items())}."
    undone = [cell for cell in results.cells if cell.status != "done"]
    if undone:
        of = f"{len(undone)} of {len(results.cells)}"
        yield f"{of} cells are not finished: curves show what there is, tables leave them out."
    for cell in undone:
        if cell.status == "failed":
            yield f"{cell.label}, seed {cell.seed}, failed: {cell.error}"
    if timing.clock != "wall" and any("seconds" in {**cell.summary, **cell.last} for cell in results.cells):
        yield timing.explanation if timing.clock else f"{timing.explanation} Nothing is shown over time."
    yield from _hardware(results.cells)
    yield from _versions(results)


def _hardware(cells: Sequence[CellResult]) -> Iterator[str]:
    """Warn of cells that did not all run on one kind of hardware, and name those that ran on another than most."""
    if len({kind for cell in cells for kind in cell.machines}) < 2:
        return
    where = [(cell, " and ".join(cell.machines)) for cell in cells if cell.machines]
    ((usual, count),) = Counter(hardware for _, hardware in where).most_common(1)
    others = [f"{cell.label}, seed {cell.seed}, on {hardware}" for cell, hardware in where if hardware != usual]
    named = [f"{count} of {len(where)} on {usual}", *others[:MOST_NAMED]]
    if len(others) > MOST_NAMED:
        named.append(f"and {len(others) - MOST_NAMED} more")
    yield (
        f"Cells ran on different hardware: {'; '.join(named)}. Losses of different hardware may differ by rounding; "
        f"times of different hardware are never compared."
    )


def _versions(results: Results) -> Iterator[str]:
    """Warn of results that were not all made by one version, or whose numbers this version would not repeat."""
    made = {str(session.get("muonlab", "unknown")) for session in results.environments}
    if len(made) > 1:
        yield f"Cells were run by different versions of muonlab: {', '.join(sorted(made))}."
    numerics = results.head.get("numerics")
    if numerics != NUMERICS:
        yield (
            f"Made with numerics {numerics}; this page by muonlab {__version__} with numerics {NUMERICS}, which gives "
            f"other numbers."
        )


def _facts(found: Found, timing: Timing) -> Iterator[Fact]:
    results = found.results
    study = studies().get(results.study)
    yield Fact("Command", command(results), code=True)
    if study and study.items:
        yield Fact("Of the paper", ", ".join(study.items))
    for name, data in results.head["data"].items():
        yield Fact(f"Data, {name}", str(data["words"]))
    seeds = sorted({cell.seed for cell in results.cells})
    more = f" and {len(seeds) - MOST_NAMED} more" if len(seeds) > MOST_NAMED else ""
    yield Fact("Seeds", ", ".join(map(str, seeds[:MOST_NAMED])) + more)
    done = sum(cell.status == "done" for cell in results.cells)
    lost = f", {found.lost} could not be read" if found.lost else ""
    yield Fact("Cells", f"{done} of {len(results.cells) + found.lost} done{lost}")
    yield Fact("Times", timing.explanation)
    yield Fact("Rules of the claims", _rules(results))


def _rules(results: Results) -> str:
    """Return whether the rules are worded as they were when the runs began."""
    now, noted = digest(results.study), [session.get("rules") for session in results.environments]
    if not noted or not all(isinstance(rules, str) for rules in noted):
        return "not every session noted which rules stood when it began"
    if set(noted) != {now}:
        return f"worded otherwise when the run began (now {now[:12]}): read the verdicts with that in mind"
    commits = ", ".join(sorted({str(session.get("commit") or "unknown")[:12] for session in results.environments}))
    return f"as they were worded when the run began ({now[:12]}, commit {commits})"


def _environment(sessions: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    for number, session in enumerate(sessions):
        where = f"Session {number + 1}: " if len(sessions) > 1 else ""
        libraries = session.get("libraries")
        gpus = session.get("gpus")
        parallel = session.get("parallel")
        parts = {
            "muonlab": f"{session.get('muonlab')}, commit {str(session.get('commit') or 'unknown')[:12]}",
            "machine": ", ".join(
                [
                    f"{session.get('system')}",
                    f"{session.get('cpu')}",
                    f"{session.get('cores')} cores",
                    *(map(str, gpus) if isinstance(gpus, list) and gpus else ["no GPU"]),
                    *([f"{session.get('ranks')} processes ({parallel})"] if parallel else []),
                ]
            ),
            "versions": ", ".join(
                [
                    f"Python {session.get('python')}",
                    *(f"{name} {version}" for name, version in libraries.items() if version),
                ]
                if isinstance(libraries, dict)
                else [f"Python {session.get('python')}"]
            ),
        }
        yield from (Fact(f"{where}{name}", value) for name, value in parts.items())


def _links(results: Results) -> Iterator[Link]:
    for name, words in (
        ("study.json", "what was run"),
        ("cells.json", "the cells in order"),
        ("env.json", "machine and versions of every session"),
    ):
        if (results.folder / name).exists():
            yield Link(name, words)
    for cell in results.cells[:MOST_LINKS]:
        for name in FILES:
            if (cell.folder / name).exists():
                yield Link(f"cells/{cell.folder.name}/{name}", f"{cell.label}, seed {cell.seed}: {name}")
    if len(results.cells) > MOST_LINKS:
        yield Link("cells/", f"the other {len(results.cells) - MOST_LINKS} cells")
