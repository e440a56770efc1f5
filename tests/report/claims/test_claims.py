"""The ledger and its judge: each claim can be held or not, and is not decided by results that do not test it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from muonlab.lab import paper
from muonlab.lab.studies import studies
from muonlab.report.claims import ledger
from muonlab.report.claims.evidence import RuleOutcome
from muonlab.report.claims.judging import judge
from muonlab.report.claims.ledger import DEGREES, all_claims, digest
from muonlab.report.claims.rules import NS, SGD_M, SVD
from tests.report.made import MACHINE, cell, certified, changed, clocks, of_table, ranked, renamed, results, run, swept

CLAIMS = all_claims()
UNTIMED, TIMED = CLAIMS["steps-match-svd"], CLAIMS["steps-sooner-than-svd"]
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
    row = {"event": "inequality", "name": "trajectory", "kind": "expected", "slack": 0.5, "held": True}
    cells.append(cell("bowl, linear rate, muon_q2", [row], spec={"method": "muon_q2"}))
    for rank in (2, 8, 32):
        for method, exponent in (("sgdm_L_F", 0.5), ("muon_svd", 0.1)):
            spec = {"problem": "canyon", "method": method, "rank": rank}
            cells.append(cell(f"canyon of rank {rank}, {method}", spec=spec, summary={"measured": rank**exponent}))
    return results(cells, "theory-at-work")


def quickstart(folder):
    recorded = {"q": 2, "delta_0": 0.99, "delta": 0.9, "chi": 3.0, "alignment": 0.6, "alignment_floor": 0.3}
    ends = ((NS[0], 0.9), (NS[1], 0.81), (NS[2], 0.8), (SVD, 0.8))
    cells = [certified(folder / label, label, [recorded], metrics=run([2.0 * end, end])) for label, end in ends]
    return results([cell(SGD_M, run([2.0, 1.0])), *cells], "quickstart")


def lr_by_steps():
    """Optima of one step at a smaller learning rate and a larger momentum than those of the SVD, with two seeds."""
    cells = [
        one
        for network in ("digits", "MNIST")
        for label, place in ((NS[0], (-3.5, 2.6)), (SVD, (-2.5, 1.6)))
        for one in swept(label, [place, (place[0] - 0.1, place[1] + 0.1 * (label == SVD))], network)
    ]
    return results(cells, "lr-by-steps")


@pytest.fixture(scope="module")
def satisfied(tmp_path_factory):
    """Results by study with which each of its claims holds."""
    made = {table.study: results(of_table(table), table.study) for table in paper.TABLES}
    slopes = {slopes.optimizer: slopes.raw for slopes in paper.SLOPES}
    others = (
        q_ablation(),
        degree(),
        batch_size(),
        wall_clock(),
        theory_at_work(),
        quickstart(tmp_path_factory.mktemp("quickstart")),
        ranked(slopes),
        lr_by_steps(),
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
        recorded = ({"event": "matrix", "step": 1, "name": "w", **row},)
        return changed(made, lambda cell: replace(cell, recorded=recorded) if cell is made.cells[1] else cell)

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
    "theorems-a-b-c": broken("muon_q2", "trajectory"),
    "root-of-rank": with_summary(measured=1.0),
    "digits-one-step": exchange(NS[0], SGD_M),
    "digits-match-svd": exchange(NS[1], SGD_M),
    "residual-bound": certificate(delta=0.99),
    "factor-bound": certificate(chi=3.6),
    "alignment-floor": certificate(alignment=0.2),
    "precision-lr": exchange(NS[0], SVD),
    "precision-step": exchange(NS[0], SVD),
    "precision-momentum": exchange(NS[0], SVD),
}
VIOLATED |= {name: exchange(NS[0], SGD_M) for name in CLAIMS if re.search(r"-order$|-(below|of)-sgdm$|far-below", name)}
VIOLATED |= {name: exchange(NS[0], SVD) for name in CLAIMS if name.endswith("-ahead-of-svd")}
VIOLATED["table-2-order"] = exchange(NS[0], SVD)  # the other rows are within 5 % of each other


# ---------------------------------------------------------------------------------------------------------- the ledger


def test_every_claim_has_its_own_name_a_source_a_rule_and_a_full_sentence():
    assert len(CLAIMS) == len(list(ledger._claims()))
    for name, claim in CLAIMS.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert claim.source
        assert claim.text[0].isupper()
        assert claim.text.endswith(".")
        about_time = r"second|\bmoments?\b|\btime\b|fractions of the|throughput|measured over predicted"
        assert claim.timed == (re.search(about_time, claim.rule) is not None), name


def test_every_sentence_of_every_study_and_every_table_of_the_paper_has_a_claim():
    covered = {(claim.study, claim.sentence) for claim in CLAIMS.values()}
    assert covered == {(name, i) for name, study in studies().items() for i in range(len(study.claims))}
    for table in paper.TABLES:
        claim = CLAIMS[f"{table.item.lower().replace(' ', '-')}-order"]
        assert (claim.study, claim.source) == (table.study, table.item)
        assert ("without Muon (SVD)" in claim.rule) == (table.item == "Table 7")
        assert all(f"{label} {row[-1]:g}" in claim.paper for label, row in table.losses.items())


def test_the_digest_changes_with_every_part_of_a_rule_and_only_for_its_study(monkeypatch):
    before, of_study, of_other = digest(), digest("theory-at-work"), digest("q-ablation")
    assert re.fullmatch("[0-9a-f]{64}", before)
    texts = dict.fromkeys(("name", "statement", "rule", "paper", "source", "at_least"), "x")
    for field, value in {**texts, "study": "rank", "sentence": 1, "timed": True, "exact": True}.items():
        other = replace(CLAIMS["theorem-4"], **{field: value})
        monkeypatch.setattr(ledger, "all_claims", lambda other=other: {**CLAIMS, "theorem-4": other})
        assert digest() != before, field
        assert digest("theory-at-work") != of_study
        assert digest("q-ablation") == of_other


# ------------------------------------------------------------------------------------------------------------ verdicts


def test_every_claim_is_held_by_results_that_satisfy_it(satisfied):
    for name, claim in CLAIMS.items():
        finding = judge(claim, satisfied[claim.study])
        assert (finding.verdict, finding.ours != "", finding.why != "") == ("held", True, True), name
        assert (finding.claim, finding.source, finding.statement) == (name, claim.source, claim.text)
        runs = "2 runs" if claim.study == "lr-by-steps" else "1 run"
        assert (finding.study, finding.rule, finding.paper) == (
            f"{claim.study}, small, {runs}",
            claim.rule,
            claim.paper,
        )


def test_every_claim_is_not_held_by_results_that_violate_it(satisfied):
    for name, claim in CLAIMS.items():
        if not claim.exact:
            finding = judge(claim, VIOLATED[name](satisfied[claim.study]))
            assert (finding.verdict, finding.ours != "", finding.why != "") == ("not held", True, True), name


def test_every_claim_is_undecided_without_the_results_that_its_rule_needs():
    for name, claim in CLAIMS.items():
        finding = judge(claim, None)
        expected = "held" if claim.exact else UNTESTED
        assert (finding.verdict, finding.study) == (expected, claim.study), name
        assert claim.exact or (finding.ours, finding.why) == ("", f"{claim.study} was not run")
        for cells in ((), (cell("something else", run([1.0])),), (cell(NS[0]), cell(SGD_M))):
            finding = judge(claim, results(cells, claim.study))
            assert (finding.verdict, finding.why != "") == (expected, True), name


def with_head(of, **other):
    return replace(of, head={**of.head, **other})


NOT_A_TEST = {
    "the profile smoke is too short a run": lambda r: replace(r, profile="smoke"),
    "the profile huge is too short a run": lambda r: replace(r, profile="huge"),
    "settings were changed: lr": lambda r: with_head(r, settings={"device": "cpu", "threads": 1, "lr": 0.5}),
    "the data are a stand-in for some-data": lambda r: with_head(r, data={"some-data": {"label": "stand-in"}}),
    "1 of {} cells are not finished": lambda r: replace(r, cells=(*r.cells, cell("more", status="open"))),
    "1 of {} cells failed": lambda r: replace(r, cells=(*r.cells, cell("more", status="failed"))),
}


@pytest.mark.parametrize("claim", [UNTIMED, TIMED], ids=lambda claim: claim.name)
def test_results_that_do_not_test_a_claim_give_a_number_and_no_verdict(claim, satisfied):
    for why, change in NOT_A_TEST.items():
        other = change(satisfied["q-ablation"])
        finding = judge(claim, other)
        assert (finding.verdict, finding.why) == (UNTESTED, why.format(len(other.cells)))
        assert finding.ours
    finding = judge(claim, satisfied["q-ablation"], lost=2)
    assert (finding.verdict, finding.why) == (UNTESTED, "2 cells could not be read")


@pytest.mark.parametrize("claim", [UNTIMED, TIMED], ids=lambda claim: claim.name)
def test_other_profiles_devices_and_a_subset_are_tests_and_the_runs_are_counted(claim, satisfied):
    made = satisfied["q-ablation"]
    assert judge(claim, replace(made, profile="paper")).verdict == "held"
    gpu = with_head(made, settings={"device": "cuda", "threads": 8}, data={"x": {"label": "subset"}})
    assert (judge(claim, gpu).verdict, judge(claim, gpu).study) == ("held", "q-ablation, small, subset, 1 run")
    twice = [replace(one, spec={**one.spec, "seed": 1}) for one in made.cells]
    assert judge(claim, replace(made, cells=(*made.cells, *twice))).study == "q-ablation, small, 2 runs"
    assert judge(claim, replace(made, cells=(*made.cells, twice[0]))).study == "q-ablation, small, 1–2 runs"


def test_a_smoke_run_decides_the_claims_of_the_proofs(satisfied):
    smoke = replace(satisfied["quickstart"], profile="smoke")
    for name in ("residual-bound", "factor-bound", "alignment-floor"):
        assert judge(CLAIMS[name], smoke).verdict == "held"


def side_by_side(of, **spec):
    return changed(of, lambda cell: replace(cell, jobs=2, spec={**cell.spec, **spec}))


def test_times_of_cells_side_by_side_decide_in_cpu_seconds_of_one_thread_or_not_at_all(satisfied):
    for claim in (UNTIMED, TIMED):
        one_thread = judge(claim, side_by_side(satisfied["q-ablation"]))
        assert one_thread.verdict == "held"
        assert ("times are CPU seconds" in one_thread.why) is claim.timed
        two_threads = judge(claim, side_by_side(satisfied["q-ablation"], threads=2))
        if claim.timed:
            assert (two_threads.verdict, two_threads.ours) == (UNTESTED, "")
            assert two_threads.why.startswith("Times are not comparable: ")
        else:
            assert two_threads == one_thread


def test_where_the_clocks_disagree_a_claim_is_decided_by_the_one_that_is_used(satisfied):
    loss = [3.0, 2.0, 1.0]
    for jobs, verdict, unit, svd in ((1, "held", "s", 24), (2, "not held", "CPU s", 2.4)):
        slow_on_the_wall = cell(SVD, run(loss, seconds=8.0, cpu=0.1), jobs=jobs)
        steps = [cell(label, run(loss, seconds=1.0), jobs=jobs) for label in NS[1:]]
        finding = judge(TIMED, results([slow_on_the_wall, *steps]))
        assert finding.verdict == verdict
        assert finding.ours == f"Muon (q=2) 3 {unit}, Muon (q=3) 3 {unit}, Muon (SVD) {svd:.3g} {unit}"
    made = with_summary(cpu_measured_over_predicted=2.0, cpu_measured_ratio=0.5)(satisfied["wall-clock"])
    for name in ("lemma-11-predicts", "steps-cheaper-than-svd"):
        assert judge(CLAIMS[name], made).verdict == "held"
        assert judge(CLAIMS[name], side_by_side(made)).verdict == "not held"


def test_a_label_without_a_run_on_the_machine_of_the_others_decides_no_timed_claim(satisfied):
    made = satisfied["q-ablation"]
    svd = next(one for one in made.cells if one.label == SVD)
    moved = changed(made, lambda one: replace(one, machines=("B 2",)) if one is svd else one)
    assert judge(UNTIMED, moved) == judge(UNTIMED, made)
    finding = judge(TIMED, moved)
    assert (finding.verdict, finding.why) == (UNTESTED, f"{SVD} has no run that was timed on {MACHINE}")
    more = replace(svd, spec={**svd.spec, "seed": 1})
    assert judge(TIMED, replace(moved, cells=(*moved.cells, more))).verdict == "held"


def test_rows_that_break_a_rule_are_reported_and_are_no_verdict(satisfied):
    for error in (ZeroDivisionError("by zero"), KeyError("step"), TypeError("no"), ValueError("bad")):

        def decide(_, error=error) -> RuleOutcome:
            raise error

        finding = judge(replace(UNTIMED, decide=decide), satisfied["q-ablation"])
        assert (finding.verdict, finding.ours) == (UNTESTED, "")
        assert finding.why == f"its rows lack what the rule needs: {type(error).__name__}: {error}"


def test_steps_are_compared_with_the_svd_and_nothing_else(satisfied):
    made = satisfied["q-ablation"]
    only = replace(made, cells=tuple(cell for cell in made.cells if cell.label in (*NS[1:], SVD)))
    assert judge(UNTIMED, only).verdict == judge(TIMED, only).verdict == "held"
