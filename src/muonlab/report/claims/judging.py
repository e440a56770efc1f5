"""Judge claims: apply the rule of each claim to the results of its study."""

from __future__ import annotations

from muonlab.lab.runner.results import Results
from muonlab.lab.study import PROFILES
from muonlab.report.claims.evidence import Evidence, MissingEvidenceError, evidence_of
from muonlab.report.claims.ledger import Claim
from muonlab.report.values import ClaimVerdict, Finding


def judge(claim: Claim, results: Results | None, *, lost: int = 0) -> Finding:
    """Judge a claim by the results of its study; None means that the study was not run.

    Seeds that are still running are left out. The claim is decided only if the study is finished, at a profile that
    tests the claim, with unchanged settings, and on the paper's data or a subset of it. A claim about time also needs
    comparable times of every label that its rule reads. Our result is reported even if the claim is not decided.
    """
    results = results and results.of_ended_seeds()
    evidence = Evidence(None, {}) if results is None else evidence_of(results)
    untested = "" if claim.exact else _untested(claim, evidence, lost)
    ours, held, why = "", False, ""
    try:
        outcome = claim.decide(evidence)
        held, ours, why = outcome.held, outcome.ours, outcome.why
        if claim.timed and evidence.timing.clock == "cpu":
            why = f"{why}; times are CPU seconds"
    except MissingEvidenceError as missing:
        untested = untested or str(missing)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # rows of another version
        untested = untested or f"its rows lack what the rule needs: {type(error).__name__}: {error}"
    verdict: ClaimVerdict = "not tested at this scale" if untested else "held" if held else "not held"
    return Finding(
        claim.name, claim.source, claim.text, scale(claim, results), claim.rule, ours, claim.paper, verdict,
        untested or why,
    )  # fmt: skip


def scale(claim: Claim, results: Results | None) -> str:
    """Return the study of a claim with profile, data labels and number of runs."""
    if results is None:
        return claim.study
    labels = {str(data.get("label", "unknown")) for data in results.head["data"].values()} - {"complete"}
    parts = [results.study, results.profile, *sorted(labels)]
    counts = {len(cells) for cells in results.places(status="done").values()}
    if counts:
        runs = "–".join(map(str, sorted({min(counts), max(counts)})))
        parts.append("1 run" if runs == "1" else f"{runs} runs")
    return ", ".join(parts)


def _untested(claim: Claim, evidence: Evidence, lost: int) -> str:
    """Return why the results do not test a claim; empty if they do."""
    if (results := evidence.results) is None:
        return f"{claim.study} was not run"
    stand_ins = [name for name, data in results.head["data"].items() if data.get("label") == "stand-in"]
    reasons = (
        (_is_smaller(results.profile, claim.at_least), f"the profile {results.profile} is too short a run"),
        (bool(results.changed), f"settings were changed: {', '.join(results.changed)}"),
        (bool(stand_ins), f"the data are a stand-in for {', '.join(stand_ins)}"),
        (results.status == "open", f"{_unfinished(results)} of {len(results.cells)} cells are not finished"),
        (results.status == "failed", f"{_unfinished(results)} of {len(results.cells)} cells failed"),
        (lost > 0, f"{lost} cells could not be read"),
        (claim.timed and evidence.timing.clock is None, evidence.timing.explanation),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _is_smaller(profile: str, than: str) -> bool:
    return profile not in PROFILES or PROFILES.index(profile) < PROFILES.index(than)


def _unfinished(results: Results) -> int:
    return sum(cell.status != "done" for cell in results.cells)
