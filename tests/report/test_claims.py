"""The ledger and its judge: every claim is there, can be held or not, and is no verdict where it was not tested."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from muonlab.lab import paper
from muonlab.lab.studies import studies
from muonlab.report.claims import ledger as claims
from muonlab.report.claims.evidence import Decided
from muonlab.report.claims.judging import judge
from muonlab.report.claims.ledger import DEGREES, digest, ledger
from muonlab.report.claims.rules import NS, SGD_M, SVD
from tests.report.made import MACHINE, cell, certified, changed, clocks, of_table, ranked, renamed, results, run

LEDGER = ledger()
EVERY = pytest.mark.parametrize("name", LEDGER)
UNTESTED = "not tested at this scale"

# ------------------------------------------------------------------------------- results that satisfy all of a study


def q_ablation():
    """Curves that are one by epoch, more steps a little lower; by seconds the fewer the steps the faster."""
    f = [2 * math.exp(-epoch / 20) for epoch in range(1, 41)]
    muon = [("Muon (q=0)", 1.06, 0.95), (NS[0], 1.01, 1.0), (NS[1], 1.005, 1.15), (NS[2], 1.0, 1.35), (SVD, 1.0, 8.0)]
    cells = [cell(label, run([factor * y for y in f], seconds=seconds)) for label, factor, seconds in muon]
    sgdm = run([1.2 + 0.8 * math.exp(-epoch / 10) for epoch in range(1, 41)], seconds=0.9)
    return results([cell(SGD_M, sgdm), *cells])


def degree():
    cells = [cell(label, run([3.0, 2 - 0.1 * i], seconds=1 + 0.2 * i)) for i, label in enumerate(DEGREES)]
    return results(cells, "degree")


def batch_size():
    cells = [cell(f"B={b}", run([3.0, 1.0], seconds=1 / b)) for b in paper.BATCH_SIZES]
    return results(cells, "batch-size")


def wall_clock():
    numbers = {"measured_over_predicted": 1.02, "measured_ratio": 5.0, "ratio_to_ours": 6.0}
    numbers |= {"gemm_flops_per_second": 6e9, "svd_flops_per_second": 1e9, **clocks(1.0)}
    return results([cell(shape, summary=numbers) for shape in ("64×216", "64×576", "768×768")], "wall-clock")


def theory_at_work():
    names = {"muon_q3": ("paper_after", "floor"), "sgdm": ("sgdm_paper", "sgdm_sharp"), "muon_svd": ("paper", "sharp")}
    cells = []
    for method, bounds in names.items():
        rows = [
            {"event": "inequality", "name": name, "kind": "expected", "slack": 0.5, "held": True} for name in bounds
        ]
        rows += [{"event": "inequality", "name": "one_step", "kind": "certain", "slack": 0.0, "held": True}]
        cells.append(cell(f"bowl, {method}", rows, spec={"method": method}))
    return results(cells, "theory-at-work")


def quickstart(folder):
    recorded = {"q": 2, "delta_0": 0.99, "delta": 0.9, "chi": 3.0, "alignment": 0.6, "alignment_floor": 0.3}
    ends = ((NS[0], 0.9), (NS[1], 0.81), (NS[2], 0.8), (SVD, 0.8))
    cells = [certified(folder / label, label, [recorded], metrics=run([2.0 * end, end])) for label, end in ends]
    return results([cell(SGD_M, run([2.0, 1.0])), *cells], "quickstart")


@pytest.fixture
def satisfied(tmp_path):
    """Results by study with which each of its claims holds."""
    made = {table.study: results(of_table(table), table.study) for table in paper.TABLES}
    slopes = {slopes.optimizer: slopes.raw for slopes in paper.SLOPES}
    others = (
        q_ablation(),
        degree(),
        batch_size(),
        wall_clock(),
        theory_at_work(),
        quickstart(tmp_path),
        ranked(slopes),
    )
    return made | {one.study: one for one in others} | {"adhoc": results([cell("NS polynomial", run([1.0]))], "adhoc")}


# ----------------------------------------------------------------------------------------- results that violate one


def exchange(one, other):
    return lambda made: renamed(made, one, other)


def with_summary(**numbers):
    return lambda made: changed(made, lambda cell: replace(cell, summary={**cell.summary, **numbers}))


def broken(method, name):
    def one(cell):
        hit = [{**row, "held": row["held"] and row["name"] != name} for row in cell.metrics]
        return replace(cell, metrics=tuple(hit)) if cell.spec["method"] == method else cell

    return lambda made: changed(made, one)


def certificate(**numbers):
    def one(made):
        row = {"q": 2, "delta_0": 0.99, "delta": 0.9, "chi": 3.0, "alignment": 0.6, "alignment_floor": 0.3, **numbers}
        saved = certified(made.cells[1].folder, made.cells[1].label, [row]).saved
        return changed(made, lambda cell: replace(cell, saved=saved) if cell is made.cells[1] else cell)

    return one


def rank_of(**exponents):
    return lambda _: ranked({SGD_M: 0.29, SVD: 0.1, NS[2]: -0.1} | exponents)


VIOLATED = {
    "one-step-beats-sgdm": exchange(NS[0], SGD_M),
    "steps-match-svd": exchange(NS[1], SGD_M),
    "steps-sooner-than-svd": exchange(NS[1], SVD),
    "more-steps-improve": exchange(NS[0], NS[2]),
    "resnet18-more-steps-lower": exchange(NS[0], NS[2]),
    "wrn-more-steps-lower": exchange(NS[0], NS[2]),
    "degree-lowers-loss": exchange(DEGREES[0], DEGREES[-1]),
    "degree-lengthens-steps": exchange(DEGREES[0], DEGREES[-1]),
    "rank-sgdm-grows": rank_of(**{SGD_M: 0.36}),
    "rank-muon-flat": rank_of(**{SVD: 0.16}),
    "rank-normalised": rank_of(**{NS[2]: 0.16}),
    "rank-muon-flatter": rank_of(**{NS[2]: 0.3}),
    "large-batch-first": exchange("B=1024", "B=512"),
    "small-batch-later": exchange("B=1024", "B=64"),
    "lemma-11-predicts": with_summary(measured_over_predicted=1.06),
    "products-faster-than-svds": with_summary(gemm_flops_per_second=0.9e9),
    "steps-cheaper-than-svd": with_summary(ratio_to_ours=0.9),
    "theorem-1": broken("muon_q3", "floor"),
    "theorem-3": broken("sgdm", "sgdm_sharp"),
    "theorem-4": broken("muon_svd", "paper"),
    "proofs-step-by-step": broken("sgdm", "one_step"),
    "digits-one-step": exchange(NS[0], SGD_M),
    "digits-match-svd": exchange(NS[1], SGD_M),
    "residual-bound": certificate(delta=0.99),
    "factor-bound": certificate(chi=3.6),
    "alignment-floor": certificate(alignment=0.2),
}
VIOLATED |= {name: exchange(NS[0], SGD_M) for name in LEDGER if re.search(r"-order$|-(below|of)-sgdm$|far-below", name)}
VIOLATED |= {name: exchange(NS[0], SVD) for name in LEDGER if name.endswith("-ahead-of-svd")}
VIOLATED["table-2-order"] = exchange(NS[0], SVD)  # the other rows are within 5 % of each other


# ---------------------------------------------------------------------------------------------------------- the ledger


def test_the_ledger_has_every_claim_once_under_a_word_and_in_full_sentences():
    assert len(LEDGER) == 43
    for name, claim in LEDGER.items():
        assert name == claim.name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert claim.source
        assert claim.rule
        assert claim.words.endswith(".")
        assert claim.words[0].isupper()


def test_every_sentence_of_every_study_has_an_entry_and_every_entry_a_sentence():
    covered = {(claim.study, claim.says) for claim in LEDGER.values()}
    assert covered == {(name, i) for name, study in studies().items() for i in range(len(study.claims))}


def test_every_table_of_losses_has_an_entry_for_its_order():
    for table in paper.TABLES:
        claim = LEDGER[f"{table.item.lower().replace(' ', '-')}-order"]
        assert (claim.study, claim.source) == (table.study, table.item)
        assert ("without Muon (SVD)" in claim.rule) == (table.item == "Table 7")
        assert all(f"{label} {row[-1]:g}" in claim.paper for label, row in table.losses.items())


@EVERY
def test_a_claim_is_timed_exactly_if_its_rule_speaks_of_time(name):
    claim = LEDGER[name]
    speaks = re.search(r"second|\bmoments?\b|\btime\b|fractions of the|throughput|measured over predicted", claim.rule)
    assert claim.timed == (speaks is not None)


def test_two_entries_of_a_name_are_refused(monkeypatch):
    entries = list(LEDGER.values())
    monkeypatch.setattr(claims, "_entries", lambda: [*entries, entries[0]])
    with pytest.raises(ValueError, match="a claim named 'one-step-beats-sgdm' is there already: choose another name"):
        claims.ledger.__wrapped__()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, "x") for field in ("name", "statement", "rule", "paper", "source")),
        *(("study", "rank"), ("says", 1), ("at_least", "paper"), ("timed", True), ("exact", True)),
    ],
)
def test_the_digest_changes_with_all_that_a_rule_says(monkeypatch, field, value):
    before = digest()
    other = replace(LEDGER["theorem-4"], **{field: value})
    monkeypatch.setattr(claims, "ledger", lambda: {**LEDGER, "theorem-4": other})
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert digest() != before


def test_the_digest_of_a_study_is_of_its_own_claims(monkeypatch):
    names = ("theory-at-work", "q-ablation")
    before = [digest(name) for name in names]
    monkeypatch.setattr(claims, "ledger", lambda: {**LEDGER, "theorem-4": replace(LEDGER["theorem-4"], rule="x")})
    after = [digest(name) for name in names]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_the_digest_does_not_depend_on_the_process():
    program = "from muonlab.report.claims.ledger import digest; import json; print(json.dumps(digest()))"
    environment = {"PYTHONHASHSEED": "7", "LC_ALL": "C"}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(found.stdout) == digest()


# ------------------------------------------------------------------------------------------------------------ verdicts


@EVERY
def test_a_claim_is_held_by_results_that_satisfy_it(name, satisfied):
    claim = LEDGER[name]
    found = judge(claim, satisfied[claim.study])
    assert (found.verdict, found.ours != "", found.why != "") == ("held", True, True)
    assert (found.claim, found.source, found.statement) == (name, claim.source, claim.words)
    assert (found.study, found.rule, found.paper) == (f"{claim.study}, small, 1 run", claim.rule, claim.paper)


@pytest.mark.parametrize("name", [name for name, claim in LEDGER.items() if not claim.exact])
def test_a_claim_is_not_held_by_results_that_violate_it(name, satisfied):
    claim = LEDGER[name]
    found = judge(claim, VIOLATED[name](satisfied[claim.study]))
    assert (found.verdict, found.ours != "", found.why != "") == ("not held", True, True)


@EVERY
def test_cells_that_could_not_be_read_are_no_verdict(name, satisfied):
    claim = LEDGER[name]
    found = judge(claim, satisfied[claim.study], lost=2)
    assert claim.exact or (found.verdict, found.why) == (UNTESTED, "2 cells could not be read")


def test_the_number_of_runs_is_told_with_every_finding(satisfied):
    results_of = satisfied["q-ablation"]
    twice = [replace(one, spec={**one.spec, "seed": 1}) for one in results_of.cells]
    claim = LEDGER["one-step-beats-sgdm"]
    assert judge(claim, replace(results_of, cells=(*results_of.cells, *twice))).study == "q-ablation, small, 2 runs"
    uneven = judge(claim, replace(results_of, cells=(*results_of.cells, twice[0])))
    assert uneven.study == "q-ablation, small, 1–2 runs"


@EVERY
def test_a_study_that_was_not_run_tests_nothing_but_what_arithmetic_decides(name):
    claim = LEDGER[name]
    found = judge(claim, None)
    assert found.study == claim.study
    if claim.exact:
        assert found.verdict == "held"
    else:
        assert (found.verdict, found.ours, found.why) == (UNTESTED, "", f"{claim.study} was not run")


@EVERY
def test_a_smoke_run_tells_its_number_and_is_no_verdict_where_more_is_asked(name, satisfied):
    claim = LEDGER[name]
    found = judge(claim, replace(satisfied[claim.study], profile="smoke"))
    assert found.ours
    if claim.at_least == "smoke" or claim.exact:
        assert found.verdict == "held"
    else:
        assert (found.verdict, found.why) == (UNTESTED, "the profile smoke is too short a run")
    assert judge(claim, replace(satisfied[claim.study], profile="paper")).verdict == "held"
    unknown = judge(claim, replace(satisfied[claim.study], profile="huge"))
    assert unknown.verdict == ("held" if claim.exact else UNTESTED)


def head(of, **other):
    return replace(of, head={**of.head, **other})


CHANGES = {
    "settings were changed: lr": lambda r: head(r, settings={"device": "cpu", "threads": 1, "lr": 0.5}),
    "the data are a stand-in for some-data": lambda r: head(r, data={"some-data": {"label": "stand-in"}}),
    "1 of {} cells are not finished": lambda r: replace(r, cells=(*r.cells, cell("more", status="open"))),
    "1 of {} cells failed": lambda r: replace(r, cells=(*r.cells, cell("more", status="failed"))),
}


@EVERY
@pytest.mark.parametrize("why", CHANGES)
def test_results_of_another_making_tell_a_number_and_are_no_verdict(name, why, satisfied):
    claim = LEDGER[name]
    other = CHANGES[why](satisfied[claim.study])
    found = judge(claim, other)
    if claim.exact:
        assert found.verdict == "held"
        return
    assert (found.verdict, found.why) == (UNTESTED, why.format(len(other.cells)))
    assert found.ours or claim.study == "rank"  # whose slopes are of a whole study


def side_by_side(of, **spec):
    return changed(of, lambda cell: replace(cell, jobs=2, spec={**cell.spec, **spec}))


@EVERY
def test_times_of_cells_side_by_side_decide_in_cpu_seconds_of_one_thread_or_not_at_all(name, satisfied):
    claim = LEDGER[name]
    one_thread = judge(claim, side_by_side(satisfied[claim.study]))
    assert one_thread.verdict == "held"
    assert ("times are CPU seconds" in one_thread.why) is claim.timed
    two_threads = judge(claim, side_by_side(satisfied[claim.study], threads=2))
    if claim.timed:
        words = "Times are not comparable: cells ran side by side, and they ran with more than one thread."
        assert (two_threads.verdict, two_threads.ours, two_threads.why) == (UNTESTED, "", words)
    else:
        assert two_threads == one_thread


@pytest.mark.parametrize(("jobs", "verdict"), [(1, "held"), (2, "not held")])
def test_where_the_clocks_disagree_a_claim_is_decided_by_the_one_that_is_used(jobs, verdict):
    loss = [3.0, 2.0, 1.0]
    slow_on_the_wall = cell(SVD, run(loss, seconds=8.0, cpu=0.1), jobs=jobs)
    steps = [cell(label, run(loss, seconds=1.0), jobs=jobs) for label in NS[1:]]
    found = judge(LEDGER["steps-sooner-than-svd"], results([slow_on_the_wall, *steps]))
    assert found.verdict == verdict
    unit, svd = ("s", 24) if jobs == 1 else ("CPU s", 2.4)
    assert found.ours == f"Muon (q=2) 3 {unit}, Muon (q=3) 3 {unit}, Muon (SVD) {svd:.3g} {unit}"


def test_where_the_clocks_disagree_costs_are_decided_by_the_one_that_is_used(satisfied):
    made = with_summary(cpu_measured_over_predicted=2.0, cpu_measured_ratio=0.5)(satisfied["wall-clock"])
    for name in ("lemma-11-predicts", "steps-cheaper-than-svd"):
        assert judge(LEDGER[name], made).verdict == "held"
        assert judge(LEDGER[name], side_by_side(made)).verdict == "not held"


@EVERY
def test_a_place_without_a_run_on_the_machine_of_the_others_decides_no_timed_claim(name, satisfied):
    claim, made = LEDGER[name], satisfied[LEDGER[name].study]
    (first, *others) = made.cells
    moved = replace(made, cells=(replace(first, machines=("B 2",), ranks=(1,)), *others))
    found = judge(claim, moved)
    if not claim.timed:
        assert found == judge(claim, made)
    elif claim.name != "steps-sooner-than-svd":  # which does not read the first place
        assert (found.verdict, found.why) == (UNTESTED, f"{first.label} has no run that was timed on {MACHINE}")
    more = replace(first, spec={**first.spec, "seed": 1})
    assert judge(claim, replace(moved, cells=(*moved.cells, more))).verdict == "held"


@EVERY
def test_another_device_threads_and_a_subset_are_verdicts_and_the_subset_is_told(name, satisfied):
    claim = LEDGER[name]
    made = head(satisfied[claim.study], settings={"device": "cuda", "threads": 8}, data={"x": {"label": "subset"}})
    found = judge(claim, made)
    assert (found.verdict, found.study) == ("held", f"{claim.study}, small, subset, 1 run")


@EVERY
@pytest.mark.parametrize("cells", [(), (cell("something else", run([1.0])),), (cell(NS[0]), cell(SGD_M))])
def test_finished_results_without_what_a_rule_needs_are_no_verdict(name, cells):
    claim = LEDGER[name]
    found = judge(claim, results(cells, claim.study))
    assert found.verdict == ("held" if claim.exact else UNTESTED)
    assert found.why


def test_data_without_a_label_are_called_unknown(satisfied):
    found = judge(LEDGER["steps-match-svd"], head(satisfied["q-ablation"], data={"x": {}}))
    assert found.study == "q-ablation, small, unknown, 1 run"


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), KeyError("step"), TypeError("no"), ValueError("bad")])
def test_rows_that_break_a_rule_are_told_and_are_no_verdict(error, satisfied):
    def decide(_) -> Decided:
        raise error

    found = judge(dataclasses.replace(LEDGER["steps-match-svd"], decide=decide), satisfied["q-ablation"])
    assert (found.verdict, found.ours) == (UNTESTED, "")
    assert found.why == f"its rows lack what the rule needs: {type(error).__name__}: {error}"


@pytest.mark.parametrize("name", ["steps-match-svd", "steps-sooner-than-svd"])
def test_steps_are_compared_with_the_svd_and_nothing_else(name, satisfied):
    made = satisfied["q-ablation"]
    only = replace(made, cells=tuple(cell for cell in made.cells if cell.label in (*NS[1:], SVD)))
    assert judge(LEDGER[name], only).verdict == "held"
