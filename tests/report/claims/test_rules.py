"""Rules at their boundaries, in both directions: a wrong tolerance or comparison fails here."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from muonlab.lab import paper
from muonlab.report.claims import rules
from muonlab.report.claims.evidence import MissingEvidenceError
from muonlab.report.claims.rules import NS, SGD_M, SVD
from tests.report.made import MACHINE, cell, clocks, evidence, of_table, run, seeds, swept

BASE = [2.0, 1.5, 1.0]
ONE_STEP = rules.below_at_every_epoch(NS[0], SGD_M)
MATCH = rules.close_at_every_epoch(["a", "b"], "c")


def scaled(*factors, of=BASE):
    return [loss * factor for loss, factor in zip(of, factors, strict=True)]


def one_step(train=(1, 1, 1), test=(1, 1, 1)):
    """Whether one step beats SGD-M, with losses that are these multiples of its."""
    return ONE_STEP(evidence(cell(NS[0], run(scaled(*train), scaled(*test))), cell(SGD_M, run(BASE))))


# ----------------------------------------------------------------------------------------------------- lower, or close


def test_lower_means_lower_at_the_last_epoch_and_at_no_epoch_over_5_percent_higher():
    for factors, held in [
        ((0.9, 0.9, 0.9), True),
        ((1.049, 1.049, 0.999), True),
        ((1.051, 0.9, 0.9), False),
        ((0.9, 1.051, 0.9), False),
        ((0.9, 0.9, 1.0), False),  # equal at the last epoch
        ((0.9, 0.9, 1.001), False),
    ]:
        for metric in ["train", "test"]:
            found = one_step(**{"train": (0.9,) * 3, "test": (0.9,) * 3, metric: factors})
            assert found.held is held


def test_lower_tells_both_losses_and_the_least_favourable_epoch():
    found = one_step((1.04, 1, 0.9), (1, 1.049, 0.8))
    assert found.ours == "last epoch: −10.0 % in training, −20.0 % in test loss"
    assert found.why == "at the least favourable epoch +4.9 %"


def test_it_is_means_over_runs_that_are_compared():
    fast = seeds(NS[0], run(scaled(0.5, 0.5, 0.5)), run(scaled(1.4, 1.4, 1.4)))  # mean 0.95
    assert ONE_STEP(evidence(*fast, cell(SGD_M, run(BASE)))).held
    slow = seeds(NS[0], run(scaled(0.5, 0.5, 0.5)), run(scaled(1.6, 1.6, 1.6)))  # mean 1.05, the last one fails
    assert not ONE_STEP(evidence(*slow, cell(SGD_M, run(BASE)))).held


def test_the_untrained_model_is_no_epoch():
    high, low = run(scaled(0.9, 0.9, 0.9), start=9.0), run(BASE, start=1.0)
    assert ONE_STEP(evidence(cell(NS[0], high), cell(SGD_M, low))).held


def test_close_means_within_5_percent_at_every_epoch_for_each_and_both_losses():
    for factor in [1.049, 0.951]:
        for epoch in range(3):
            for where in list(itertools.product("ab", ["train", "test"])):

                def found(one, where=where, epoch=epoch):
                    label, metric = where
                    factors = [one if i == epoch else 1 for i in range(3)]
                    other = {"train": run(scaled(*factors), BASE), "test": run(BASE, scaled(*factors))}[metric]
                    rows = {"a": run(BASE), "b": run(BASE), label: other}
                    return MATCH(evidence(*(cell(name, made) for name, made in rows.items()), cell("c", run(BASE))))

                assert found(factor).held
                beyond = found(1 + (factor - 1) * 1.05)
                assert not beyond.held
                assert f"({where[0]}, {where[1]} loss)" in beyond.ours


def test_losses_of_zero_are_no_test():
    # 0 over 0 has no ratio, and a comparison with it must not pass for one that held
    zero = run([1.0, 0.0])
    with pytest.raises(MissingEvidenceError, match="SGD-M has a loss that is not above 0"):
        ONE_STEP(evidence(cell(NS[0], zero), cell(SGD_M, zero)))
    with pytest.raises(MissingEvidenceError, match="not above 0"):
        rules.ends_below(["a"], "b")(evidence(cell("a", zero), cell("b", zero)))
    dead = [cell(label, run([1.0, 0.0])) for label in paper.OPTIMIZERS]
    with pytest.raises(MissingEvidenceError, match="not above 0"):
        rules.ahead_at_every_moment(NS, SVD, paper.TABLES[0])(evidence(*dead))


def test_curves_at_different_epochs_are_not_compared():
    other = [{**row, "epoch": row["epoch"] + 0.5} for row in run(BASE)]
    with pytest.raises(MissingEvidenceError, match=r"^Muon \(q=1\) and SGD-M were evaluated at different epochs$"):
        ONE_STEP(evidence(cell(NS[0], other), cell(SGD_M, run(BASE))))


# ------------------------------------------------------------------------------------------------------------- the end


def test_losses_fall_along_if_the_last_is_below_the_first_and_no_step_up_exceeds_5_percent():
    for ends, held in [
        ((1.0, 0.9, 0.8), True),
        ((1.0, 1.049, 0.999), True),
        ((1.0, 0.9, 0.944), True),
        ((1.0, 1.051, 0.9), False),
        ((1.0, 0.8, 0.841), False),
        ((1.0, 0.99, 1.0), False),  # the last equals the first
    ]:
        cells = [cell(label, run([3.0, end])) for label, end in zip("abc", ends, strict=True)]
        assert rules.falls_along("abc")(evidence(*cells)).held is held
        only_test = [
            cell(label, run([3.0, 1 / (1 + i)], [3.0, end]))
            for i, (label, end) in enumerate(zip("abc", ends, strict=True))
        ]
        assert rules.falls_along("abc")(evidence(*only_test)).held is held
        assert rules.falls_along("abc", ("train_loss",))(evidence(*only_test)).held


def test_each_must_end_below_by_the_given_part():
    for by, end, held in [(0, 0.999, True), (0, 1.0, False), (0.05, 0.949, True), (0.05, 0.951, False)]:
        cells = [cell("a", run([5.0, 0.5])), cell("b", run([0.1, end])), cell("c", run([0.2, 1.0]))]
        assert rules.ends_below("ab", "c", by=by)(evidence(*cells)).held is held


# ---------------------------------------------------------------------------------------------------------------- time


def test_sooner_is_by_5_percent_of_the_time_for_each():
    for seconds, held in [(0.949, True), (0.951, False), (1.0, False), (2.0, False)]:
        cells = [cell("a", run(BASE, seconds=0.1)), cell("b", run(BASE, seconds=seconds)), cell("c", run(BASE))]
        assert rules.sooner("ab", "c")(evidence(*cells)).held is held


def test_sooner_is_to_the_lowest_loss_that_every_run_reaches():
    cells = [*seeds("a", run([4.0, 1.0]), run([4.0, 2.0])), cell("b", run([4.0, 3.0, 0.5]))]
    found = rules.sooner(["a"], "b")(evidence(*cells))
    assert found.why == "to a test loss of 2"
    assert found.ours == "a 1.83 s, b 2.4 s"  # (1 + 2/3 + 2)/2, and 2 + 1/2.5


def test_first_is_before_every_other_whatever_their_order():
    for seconds, held in [(0.99, True), (1.0, False), (1.01, False)]:
        for order in [1, -1]:
            cells = [cell("a", run(BASE, seconds=seconds)), cell("b", run(BASE)), cell("c", run(BASE, seconds=3.0))]
            assert rules.first_of("a")(evidence(*cells[::order])).held is held


def test_updates_lengthen_if_the_last_takes_over_5_percent_more_and_none_over_5_percent_less():
    for seconds, held in [
        ((1.0, 1.2, 1.5), True),
        ((1.0, 0.951, 1.051), True),
        ((1.0, 0.949, 1.2), False),
        ((1.0, 1.0, 1.049), False),
        ((1.0, 1.3, 1.0), False),
    ]:
        cells = [cell(label, run(BASE, seconds=one)) for label, one in zip("abc", seconds, strict=True)]
        found = rules.steps_lengthen("abc")(evidence(*cells))
        assert found.held is held
        assert found.ours == f"ms per update: {', '.join(f'{100 * one:.3g}' for one in seconds)}"
        shared = rules.steps_lengthen("abc")(evidence(*(replace(one, jobs=2) for one in cells)))
        assert shared.ours == f"CPU {found.ours}"


def test_a_run_without_an_update_has_no_seconds_per_update():
    with pytest.raises(MissingEvidenceError, match=r"^a has a run without seconds$"):
        rules.steps_lengthen("ab")(evidence(cell("a", run([]), summary=clocks(0.0)), cell("b", run(BASE))))
    with pytest.raises(MissingEvidenceError, match=rf"^a has no run that was timed on {MACHINE}$"):
        rules.steps_lengthen("ab")(evidence(cell("a", run([])), cell("b", run(BASE))))


# ------------------------------------------------------------------------------------------------ tables of the paper


def doubtful(table):
    return (SVD,) if table.item == "Table 7" else ()


def order(table, losses):
    return rules.order_of(table, without=doubtful(table))(evidence(*of_table(table, losses)))


def test_the_papers_own_losses_are_in_its_order():
    for table in paper.TABLES:
        found = order(table, table.losses)
        assert found.held
        assert found.why == "none reversed"
        same, total = found.ours.split(" pairs")[0].split(" of ")
        assert same == total
        labels = [label for label in table.losses if label not in doubtful(table)]
        apart = [
            abs(a - b) / max(a, b) > 0.05
            for one, other in itertools.combinations(labels, 2)
            for a, b in zip(table.losses[one], table.losses[other], strict=True)
        ]
        assert int(total) == sum(apart)


def test_exchanging_two_losses_of_a_column_matters_exactly_if_they_are_over_5_percent_apart():
    for table in paper.TABLES:
        kept = broken = 0
        for one, other in itertools.combinations([label for label in table.losses if label not in doubtful(table)], 2):
            for column, (a, b) in enumerate(zip(table.losses[one], table.losses[other], strict=True)):
                losses = {label: list(row) for label, row in table.losses.items()}
                # exchanged, or made equal, without leaving the others' order
                losses[one][column], losses[other][column] = (b, a)
                found = order(table, losses)
                if abs(a - b) / max(a, b) > 0.05:
                    broken += 1
                    assert not found.held
                    assert f"{one} and {other}" in found.why
                else:
                    kept += 1
                    assert f"{one} and {other}" not in found.why
        assert broken
        assert kept or table.item == "Table 6"  # where all are far apart


def test_table_7_does_not_lean_on_its_row_with_the_svd():
    table = paper.TABLES[-1]
    losses = {**table.losses, SVD: [0.001] * 6}
    assert order(table, losses).held
    assert not rules.order_of(table)(evidence(*of_table(table, losses))).held


def test_columns_are_fractions_of_the_slowest_run_but_that_with_the_svd():
    table = paper.TABLES[1]
    cells = [cell(label, run([4.0, 3.0, 2.0], seconds=2.0)) for label in NS]
    cells += [cell(SGD_M, run([4.0, 3.0, 2.0])), cell(SVD, run([4.0, 3.0, 2.0], seconds=5.0))]
    cells += [cell("Muon (q=0)", run([4.0, 3.0, 2.0], seconds=4.0))]  # not in the table, yet the slowest
    ours = rules.losses_at_columns(evidence(*cells), table)
    assert list(ours) == list(paper.OPTIMIZERS)
    assert ours[NS[0]] == pytest.approx([2.0] * 4)  # at 6, 8, 10 and 12 s; the SVD's first evaluation is at 5 s
    assert ours[SVD] == pytest.approx([3.8, 3.4, 3.0, 2.6])


def test_a_table_of_which_less_than_half_is_left_decides_nothing():
    table = paper.TABLES[1]
    cells = [cell(label, run([4.0, 3.0, 2.0], seconds=4.0)) for label in (*NS, SGD_M)]
    for seconds, left in ((6.0, 4), (7.9, 3)):
        ours = rules.losses_at_columns(evidence(*cells, cell(SVD, run([4.0], seconds=seconds))), table)
        assert {len(row) for row in ours.values()} == {left}
    with pytest.raises(MissingEvidenceError, match="4 of 6 of the paper's moments are before a first evaluation"):
        rules.losses_at_columns(evidence(*cells, cell(SVD, run([4.0], seconds=8.1))), table)


def test_columns_before_a_first_evaluation_are_left_out_and_that_is_told():
    table = paper.TABLES[0]
    late = [{**row} for row in run(table.losses[SVD], seconds=table.seconds)][3:]
    cells = [made if made.label != SVD else replace(made, metrics=tuple(late)) for made in of_table(table)]
    found = rules.order_of(table)(evidence(*cells))
    assert found.held
    assert found.why == "none reversed; left out, as before a first evaluation: 2 of 5 columns"
    ahead = rules.ahead_at_every_moment(NS, SVD, table)(evidence(*cells))
    assert ahead.why.endswith("; left out, as before a first evaluation: 2 of 5 columns")


def test_ahead_is_lower_at_the_last_moment_and_at_none_over_5_percent_higher():
    for factors, held in [
        ((1.049, 1.049, 1.049, 1.049, 0.999), True),
        ((1.051, 0.9, 0.9, 0.9, 0.9), False),
        ((0.9, 0.9, 0.9, 0.9, 1.0), False),
    ]:
        table = paper.TABLES[0]
        losses = {**table.losses, NS[0]: [0.1] * 5, NS[1]: scaled(*factors, of=table.losses[SVD]), NS[2]: [0.1] * 5}
        assert rules.ahead_at_every_moment(NS, SVD, table)(evidence(*of_table(table, losses))).held is held


# -------------------------------------------------------------------------------------------------------------- optima

SMALLER = rules.optimum_shifts("log_lr", of="a", to="b", sign=-1)
LONGER = rules.optimum_shifts("log_memory", of="a", to="b", sign=1)


def optima(shifts, network="digits", memory=0.0, descent=1.0):
    """Sweeps of a and b whose best learning rates differ by these powers of 2, by seed."""
    of = swept("a", [(-3.0 + by, 2.0 + memory) for by in shifts], network, descent)
    return [*of, *swept("b", [(-3.0, 2.0)] * len(shifts), network)]


def test_an_optimum_differs_if_its_mean_does_by_more_than_a_standard_error():
    for shifts, held in [((-0.5, -0.7), True), ((-0.3, -0.7), True), ((0.5, 0.7), False), ((0.3, 0.7), False)]:
        assert SMALLER(evidence(*optima(shifts))).held is held
        other = rules.optimum_shifts("log_lr", of="a", to="b", sign=1)
        assert other(evidence(*optima(shifts))).held is not held
    found = SMALLER(evidence(*optima((-0.5, -0.7))))
    assert (found.ours, found.why) == ("log2 of a over b: digits −0.60 ± 0.10", "predicted: below 0")
    for shifts in [(0.1, -0.7), (-0.1, 0.7)]:  # ∓0.3 ± 0.4
        with pytest.raises(MissingEvidenceError, match="the difference on digits is at most its standard error"):
            SMALLER(evidence(*optima(shifts)))


def test_one_network_with_a_clear_difference_the_other_way_decides():
    against, unclear = optima((0.5, 0.7), "MNIST"), optima((0.1, -0.7))
    assert not SMALLER(evidence(*optima((-0.5, -0.7)), *against)).held
    assert not SMALLER(evidence(*unclear, *against)).held
    with pytest.raises(MissingEvidenceError, match=r"digits −0\.30 ± 0\.40, MNIST −0\.60 ± 0\.10"):
        SMALLER(evidence(*unclear, *optima((-0.5, -0.7), "MNIST")))


def test_an_optimum_at_an_end_of_the_grid_decides_nothing():
    outside = [*swept("a", [(-9.0, 2.0)] * 2), *swept("b", [(-3.0, 2.0), (-3.1, 2.0)])]
    with pytest.raises(MissingEvidenceError, match="the best on digits is at an end of the grid"):
        SMALLER(evidence(*outside))
    # an end of one setting says nothing against the other
    sideways = [*swept("a", [(-9.0, 3.0)] * 2), *swept("b", [(-3.0, 2.0), (-3.0, 2.1)])]
    assert LONGER(evidence(*sideways)).held


def test_the_size_of_a_step_counts_the_descent():
    step = rules.optimum_shifts("log_descent", of="a", to="b", sign=-1)
    assert step(evidence(*optima((0.5, 0.7), descent=0.25))).ours == "log2 of a over b: digits −1.40 ± 0.10"
    with pytest.raises(MissingEvidenceError, match=r"^a and b share no seed with recorded steps on digits$"):
        step(evidence(*optima((0.5, 0.7), descent=None)))


def test_one_seed_has_no_standard_error():
    with pytest.raises(MissingEvidenceError, match=r"^digits has no standard error: it needs two or more seeds$"):
        SMALLER(evidence(*optima((-0.5,))))


# ------------------------------------------------------------------------------------------------------------- missing


def test_every_rule_says_what_is_missing():
    for rule in [
        rules.below_at_every_epoch("a", "b"),
        rules.close_at_every_epoch(["a"], "b"),
        rules.falls_along("ab"),
        rules.ends_below("a", "b"),
        rules.sooner("a", "b"),
        rules.first_of("b"),
        rules.steps_lengthen("ab"),
        rules.order_of(paper.TABLES[0]),
        rules.ahead_at_every_moment(NS, SVD, paper.TABLES[0]),
        rules.slope_between("ab", 0, 1),
        rules.flatter("a", "b"),
        rules.optimum_shifts("log_lr", of="a", to="b", sign=-1),
    ]:
        for cells in [[], [cell("a", run(BASE))], [cell("a", run([])), cell("b", run([]))]]:
            with pytest.raises(MissingEvidenceError):
                rule(evidence(*cells))


def test_cells_that_are_not_done_are_no_evidence():
    with pytest.raises(MissingEvidenceError, match=r"^b was not run$"):
        rules.falls_along("ab")(evidence(cell("a", run(BASE)), cell("b", run(BASE), status="failed")))
