"""Claims decided: the rule of each, applied to the results of its study."""

from __future__ import annotations

from muonlab.lab.runner.results import Results
from muonlab.lab.study import PROFILES
from muonlab.report.claims.evidence import Evidence, MissingError, evidence_of
from muonlab.report.claims.ledger import Claim
from muonlab.report.values import Finding, Verdict


def judge(claim: Claim, results: Results | None, *, lost: int = 0) -> Finding:
    """Decide a claim by the results of its study; None if there are none.

    Seeds that are still running are left out, so that a study whose first seeds are finished is judged by these. A
    number is shown wherever there is one. It is a verdict only if the study was run to its end, at a profile that
    tests the claim, with its own settings and on the paper's data or a part of them. A claim about time also needs a
    clock that can be compared, and a timed run of every place that its rule reads. Other claims do not depend on it.
    """
    results = results and results.of_ended_seeds()
    given = Evidence(None, {}) if results is None else evidence_of(results)
    untested = "" if claim.exact else _untested(claim, given, lost)
    ours, held, why = "", False, ""
    try:
        decided = claim.decide(given)
        held, ours, why = decided.held, decided.ours, decided.why
        if claim.timed and given.timing.clock == "cpu":
            why = f"{why}; times are CPU seconds"
    except MissingError as missing:
        untested = untested or str(missing)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # results that no study of ours writes
        untested = untested or f"its rows lack what the rule needs: {type(error).__name__}: {error}"
    verdict: Verdict = "not tested at this scale" if untested else "held" if held else "not held"
    return Finding(
        claim.name, claim.source, claim.words, scale(claim, results), claim.rule, ours, claim.paper, verdict,
        untested or why,
    )  # fmt: skip


def scale(claim: Claim, results: Results | None) -> str:
    """Return the study and what was run of it, in a few words."""
    if results is None:
        return claim.study
    labels = {str(d.get("label", "unknown")) for d in results.head["data"].values()} - {"complete"}
    counts = sorted({len(cells) for cells in results.places(status="done").values()})
    runs = (
        ""
        if not counts
        else "1 run"
        if counts == [1]
        else f"{'–'.join(map(str, counts[:: max(1, len(counts) - 1)]))} runs"
    )
    return ", ".join([results.study, results.profile, *sorted(labels), *([runs] if runs else [])])


def _untested(claim: Claim, given: Evidence, lost: int) -> str:
    """Return why results are no test of a claim; empty if they are."""
    if (results := given.results) is None:
        return f"{claim.study} was not run"
    stand_ins = [name for name, data in results.head["data"].items() if data.get("label") == "stand-in"]
    reasons = (
        (_is_smaller(results.profile, claim.at_least), f"the profile {results.profile} is too short a run"),
        (bool(results.changed), f"settings were changed: {', '.join(results.changed)}"),
        (bool(stand_ins), f"the data are a stand-in for {', '.join(stand_ins)}"),
        (results.status == "open", f"{_unfinished(results)} of {len(results.cells)} cells are not finished"),
        (results.status == "failed", f"{_unfinished(results)} of {len(results.cells)} cells failed"),
        (lost > 0, f"{lost} cells could not be read"),
        (claim.timed and given.timing.clock is None, given.timing.explanation),
    )
    return next((words for applies, words in reasons if applies), "")


def _is_smaller(profile: str, than: str) -> bool:
    return profile not in PROFILES or PROFILES.index(profile) < PROFILES.index(than)


def _unfinished(results: Results) -> int:
    return sum(cell.status != "done" for cell in results.cells)
