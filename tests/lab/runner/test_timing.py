"""Which clock times are read from: wall seconds of a quiet machine, else CPU seconds of one thread, else none."""

from __future__ import annotations

from dataclasses import replace

from muonlab.lab.runner.timing import QUIET, on_clock, timing_of
from tests.report.made import MACHINE, cell, clocks, results, run

CPU = 0.25
"""CPU seconds in a second of the runs of these tests."""


def trained(label="a", *, others=0.0, threads=1, device="cpu", **given):
    """A cell of ten wall seconds; other processes used this part of the machine's two cores meanwhile."""
    rows = [{**row, "other_seconds": row["seconds"] * 2 * others} for row in run([2.0, 1.0], seconds=5.0, cpu=CPU)]
    return cell(label, rows, spec={"threads": threads, "device": device, "seed": given.pop("seed", 0)}, **given)


def chosen(*cells):
    return timing_of(results(cells))


def seconds_of(timing):
    return [cell.last["seconds"] for cell in timing.cells]


def test_cells_that_ran_alone_on_a_quiet_machine_are_timed_by_the_wall_clock():
    found = chosen(trained("a"), trained("b", others=QUIET, threads=8))
    assert (found.clock, found.unit, found.hardware, found.left_out) == ("wall", "seconds", MACHINE, ())
    assert seconds_of(found) == [10.0, 10.0]


def test_one_disturbed_cell_puts_all_of_them_on_cpu_seconds_if_each_had_one_thread():
    for given, reason in (
        ({"jobs": 2}, "cells ran side by side"),
        ({"others": QUIET + 0.01}, "other processes used up to 6% of the machine"),
    ):
        found = chosen(trained("a"), trained("b", **given))
        assert (found.clock, found.unit) == ("cpu", "CPU seconds")
        assert found.explanation == f"Times are CPU seconds, of one thread for each cell: {reason}."
        assert seconds_of(found) == [2.5, 2.5]
        assert [row["seconds"] for row in found.cells[0].metrics] == [0.0, 1.25, 2.5]


def test_cells_that_the_processor_s_clock_does_not_measure_have_the_wall_clock_or_none():
    for given, reason in (
        ({"threads": 2}, "they ran with more than one thread"),
        ({"device": "cuda:1"}, "they ran on a GPU"),
        ({"ranks": (2,)}, "several processes trained each of them"),
    ):
        assert chosen(trained("a", **given)).clock == "wall"
        for disturbance in ({"jobs": 2}, {"others": 0.5}):
            found = chosen(trained("a", **given, **disturbance), trained("b", **given))
            assert (found.clock, found.cells) == (None, ())
            assert found.explanation.startswith("Times are not comparable: ")
            assert found.explanation.endswith(f", and {reason}.")


def without(made, *names):
    return replace(made, metrics=tuple({n: v for n, v in row.items() if n not in names} for row in made.metrics))


def test_cells_without_processor_time_have_the_wall_clock_or_none():
    old = without(trained("b"), "cpu_seconds")
    assert chosen(trained("a"), old).clock == "wall"
    found = chosen(trained("a", jobs=2), old)
    assert found.clock is None
    assert found.explanation.endswith("and their processor time was not measured.")


def test_a_system_that_does_not_say_what_others_used_is_judged_by_what_is_known():
    unknown = without(trained("a"), "other_seconds")
    assert chosen(unknown).clock == "wall"
    assert chosen(replace(unknown, jobs=2)).clock == "cpu"
    assert chosen(unknown, trained("b", others=0.5)).clock == "cpu"


def test_of_several_machines_the_one_with_most_places_is_timed_and_clocks_are_not_mixed():
    # B has more cells, A more places; on B the machine was busy, on A it was not
    on_a = [trained(label) for label in "abc"]
    on_b = [trained(label, seed=seed, machines=("B",), others=0.5) for label in "ab" for seed in range(1, 4)]
    found = chosen(*on_b, *on_a)
    assert (found.clock, found.hardware) == ("wall", MACHINE)
    assert [(cell.label, cell.seed) for cell in found.cells] == [("a", 0), ("b", 0), ("c", 0)]
    assert {cell.machines for cell in found.left_out} == {("B",)}
    assert len(found.left_out) == 6
    assert f"Times are those of 3 of 9 cells, on {MACHINE}; the other cells ran on B." in found.explanation


def test_processes_that_train_a_cell_together_are_a_kind_of_machine():
    found = chosen(trained("a", ranks=(2,)), trained("b", ranks=(2,)), trained("c"))
    assert (found.hardware, [cell.label for cell in found.left_out]) == (f"{MACHINE}, 2 processes", ["c"])


def test_a_cell_that_was_moved_between_machines_is_left_out():
    moved = trained("b", machines=(MACHINE, "B"))
    found = chosen(trained("a"), moved)
    assert [cell.label for cell in found.cells] == ["a"]
    assert [cell.label for cell in found.left_out] == ["b"]
    alone = chosen(moved)
    assert (alone.clock, alone.cells) == (None, ())
    assert "no cell ran on one known machine" in alone.explanation
    assert chosen(trained("a", machines=())).clock is None


def test_cells_that_are_not_finished_or_have_no_times_are_not_timed():
    found = chosen(trained("a"), trained("b", status="open", jobs=2), cell("c"))
    assert found.clock == "wall"
    assert set(found.places()) == {"a"}
    assert chosen(cell("c"), cell("d", summary={"measured": 1.0})) == chosen()
    assert chosen().explanation == "No times were measured."


def test_on_the_processor_s_clock_every_number_that_has_two_is_that_of_the_processor():
    numbers = {"measured_ratio": 5.0, "cpu_measured_ratio": 3.0, "gemm_shape": "2×2", **clocks(8.0, CPU)}
    made = cell("64×216", [{"event": "cost", "seconds": 1.0, "cpu_seconds": 0.5}], summary=numbers)
    assert on_clock(made, "wall") is made
    found = on_clock(made, "cpu")
    assert (found.summary["measured_ratio"], found.summary["seconds"], found.summary["gemm_shape"]) == (3.0, 2.0, "2×2")
    assert found.metrics[0]["seconds"] == 0.5
