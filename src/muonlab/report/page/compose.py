"""Compose the page of a study: summary, warnings, verdicts, sections, environment and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muonlab import __version__
from muonlab.lab.runner.results import CellResult, Results
from muonlab.lab.runner.store import NUMERICS
from muonlab.lab.runner.summary import command, definition, differences, earlier
from muonlab.lab.runner.timing import Timing, timing_of
from muonlab.lab.studies import studies
from muonlab.lab.study import WHOLE
from muonlab.report.claims.judging import judge
from muonlab.report.claims.ledger import Claim, all_claims, digest
from muonlab.report.gather import GatheredRun
from muonlab.report.page.sections import study_sections
from muonlab.report.values import Fact, Finding, Link, Page

MOST_NAMED = 20
"""Most seeds, and most cells of a warning, that are listed by name."""
MOST_LINKS = 200
"""Most cells whose files are linked."""
FILES = ("spec.json", "metrics.jsonl", "certificates.jsonl", "weights.safetensors", "done.json", "failed.json")
DECIDED = ("held", "not held")


def compose_page(run: GatheredRun, smoothing: int = 1) -> Page:
    """Return the content of the page of a run; ``smoothing`` is the width of the curves' running mean."""
    results = run.results
    study, timing = studies().get(results.study), timing_of(results)
    return Page(
        title=str(definition(results).get("title") or (study.title if study else results.study)),
        study=results.study,
        profile="" if results.profile == WHOLE else results.profile,
        status="open" if run.lost or not results.cells else results.status,
        labels=tuple(_labels(run)),
        warnings=tuple(_warnings(results, timing)),
        facts=tuple(_facts(run, timing)),
        environment=tuple(_environment(results.environments)),
        findings=judge_runs([run]),
        sections=study_sections(results, smoothing),
        links=tuple(_links(results)),
        problems=run.problems,
        cells=len(results.cells) + run.lost,
        done=sum(cell.status == "done" for cell in results.cells),
    )


def judge_runs(runs: Sequence[GatheredRun], *, whole_ledger: bool = False) -> tuple[Finding, ...]:
    """Judge the claims of the studies of these runs, or all claims; decided ones come first.

    If a study has several runs, the first one that decides a claim counts, so sort the most complete run first.
    """
    by_study: dict[str, list[GatheredRun]] = {}
    for run in runs:
        by_study.setdefault(run.results.study, []).append(run)
    findings = [
        _judge(claim, by_study.get(claim.study, []))
        for claim in all_claims().values()
        if whole_ledger or claim.study in by_study
    ]
    return tuple(sorted(findings, key=lambda finding: finding.verdict not in DECIDED))


def _judge(claim: Claim, runs: Sequence[GatheredRun]) -> Finding:
    findings = [judge(claim, run.results, lost=run.lost) for run in runs] or [judge(claim, None)]
    return next((finding for finding in findings if finding.verdict in DECIDED), findings[0])


def _labels(run: GatheredRun) -> Iterator[str]:
    results = run.results
    if results.profile not in ("paper", WHOLE):
        yield f"profile {results.profile}"
    yield from sorted({str(data["label"]) for data in results.head["data"].values()} - {"complete"})
    if run.lost or not results.cells or results.status == "open":
        yield "incomplete"
    if results.status == "failed":
        yield "some cells failed"


def _warnings(results: Results, timing: Timing) -> Iterator[str]:
    study, head = studies().get(results.study), results.head
    profiles: Mapping[Any, Any] = study.profiles if study else {}
    profile = profiles.get(results.profile)
    if smaller := differences(results):
        yield f"This is not the paper's setting. Profile {results.profile}: {smaller}."
    if kept := earlier(results):
        yield kept
    runs = {len(cells) for cells in results.places().values()}
    if profile and profile.seeds and runs and runs != {profile.seeds}:
        here = " to ".join(map(str, sorted({min(runs), max(runs)})))
        yield f"The profile has {profile.seeds} runs of each setting; this study has {here}."
    for data in head["data"].values():
        if data["label"] != "complete":
            yield f"Data: {data['words']}."
    if results.changed:
        yield f"Settings were changed: {', '.join(f'{name} = {value}' for name, value in results.changed.items())}."
    unfinished = [cell for cell in results.cells if cell.status != "done"]
    if unfinished:
        yield (
            f"{len(unfinished)} of {len(results.cells)} cells are not finished: tables leave them out, and curves show "
            f"them only if no run of the same setting is finished."
        )
    for cell in unfinished:
        if cell.status == "failed":
            yield f"{cell.label}, seed {cell.seed}, failed: {cell.error}"
    if timing.clock != "wall" and any("seconds" in {**cell.summary, **cell.last} for cell in results.cells):
        yield timing.explanation if timing.clock else f"{timing.explanation} No results over time are shown."
    yield from _hardware(results.cells)
    yield from _versions(results)


def _hardware(cells: Sequence[CellResult]) -> Iterator[str]:
    """Warn if the cells ran on several kinds of hardware, and name the cells that ran on a less common one."""
    if len({kind for cell in cells for kind in cell.machines}) < 2:
        return
    where = [(cell, " and ".join(cell.machines)) for cell in cells if cell.machines]
    ((usual, count),) = Counter(hardware for _, hardware in where).most_common(1)
    others = [f"{cell.label}, seed {cell.seed}, on {hardware}" for cell, hardware in where if hardware != usual]
    named = [f"{count} of {len(where)} on {usual}", *others[:MOST_NAMED]]
    if len(others) > MOST_NAMED:
        named.append(f"and {len(others) - MOST_NAMED} more")
    yield (
        f"Cells ran on different hardware: {'; '.join(named)}. Their losses may differ by rounding; times from "
        f"different hardware are never compared."
    )


def _versions(results: Results) -> Iterator[str]:
    """Warn if the results are from several versions, or if this version would compute other numbers."""
    made = {str(session.get("muonlab", "unknown")) for session in results.environments}
    if len(made) > 1:
        yield f"Cells were run by different versions of muonlab: {', '.join(sorted(made))}."
    numerics = results.head.get("numerics")
    if numerics != NUMERICS:
        yield (
            f"The results have numerics version {numerics}. muonlab {__version__}, which wrote this page, has "
            f"version {NUMERICS} and computes other numbers."
        )


def _facts(run: GatheredRun, timing: Timing) -> Iterator[Fact]:
    results = run.results
    study = None if definition(results) else studies().get(results.study)
    yield Fact("Command", command(results), code=True)
    if study and study.items:
        yield Fact("Of the paper", ", ".join(study.items))
    for name, data in results.head["data"].items():
        yield Fact(f"Data, {name}", str(data["words"]))
    seeds = sorted({cell.seed for cell in results.cells})
    more = f" and {len(seeds) - MOST_NAMED} more" if len(seeds) > MOST_NAMED else ""
    yield Fact("Seeds", ", ".join(map(str, seeds[:MOST_NAMED])) + more)
    done = sum(cell.status == "done" for cell in results.cells)
    lost = f", {run.lost} could not be read" if run.lost else ""
    yield Fact("Cells", f"{done} of {len(results.cells) + run.lost} done{lost}")
    yield Fact("Times", timing.explanation)
    if study:
        yield Fact("Rules of the claims", _rules(results))


def _rules(results: Results) -> str:
    """Return whether the rules of the claims have changed since the runs began."""
    now, recorded = digest(results.study), [session.get("rules") for session in results.environments]
    if not recorded or None in recorded:
        return "unknown: not every session recorded the rules of its claims"
    if set(recorded) != {now}:
        return f"changed since the run began (now {now[:12]}): the verdicts use the new rules"
    commits = ", ".join(sorted({str(session.get("commit") or "unknown")[:12] for session in results.environments}))
    return f"unchanged since the run began ({now[:12]}, commit {commits})"


def _environment(sessions: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    for number, session in enumerate(sessions, start=1):
        prefix = f"Session {number}: " if len(sessions) > 1 else ""
        machine = [f"{session.get('system')}", f"{session.get('cpu')}", f"{session.get('cores')} cores"]
        machine += session.get("gpus") or ["no GPU"]
        if parallel := session.get("parallel"):
            machine.append(f"{session.get('ranks')} processes ({parallel})")
        libraries = [f"{name} {version}" for name, version in session.get("libraries", {}).items() if version]
        commit = str(session.get("commit") or "unknown")[:12]
        yield Fact(f"{prefix}muonlab", f"{session.get('muonlab')}, commit {commit}")
        yield Fact(f"{prefix}machine", ", ".join(machine))
        yield Fact(f"{prefix}versions", ", ".join([f"Python {session.get('python')}", *libraries]))


def _links(results: Results) -> Iterator[Link]:
    contents = {"study.json": "study, profile, settings and data", "cells.json": "list of the cells"}
    contents["env.json"] = "machine and versions of each session"
    for name, content in contents.items():
        if (results.folder / name).exists():
            yield Link(name, content)
    for cell in results.cells[:MOST_LINKS]:
        for name in FILES:
            if (cell.folder / name).exists():
                yield Link(f"cells/{cell.folder.name}/{name}", f"{cell.label}, seed {cell.seed}: {name}")
    if len(results.cells) > MOST_LINKS:
        yield Link("cells/", f"the other {len(results.cells) - MOST_LINKS} cells")
