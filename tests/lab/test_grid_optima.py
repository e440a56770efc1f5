"""Optima of sweeps against least squares, against planted bowls and against a list of all runs."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from muonlab.lab.grid_optima import least_losses, lowest_point, optima, optima_of, optimum, shift
from tests.report.made import MOMENTA, RATES, bowl_of_losses, results, swept

# ------------------------------------------------------------------------------------------------- the lowest point


def test_the_lowest_point_is_the_vertex_of_the_parabola_through_three_points():
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = np.cumsum(rng.uniform(0.2, 3.0, 6))
        y = rng.standard_normal(6)
        k = int(y.argmin())
        place, inside = lowest_point(x.tolist(), y.tolist())
        assert inside is (0 < k < 5)
        if not inside:
            assert place == x[k]
            continue
        curvature, slope, _ = np.polyfit(x[k - 1 : k + 2], y[k - 1 : k + 2], 2)
        assert place == pytest.approx(-slope / (2 * curvature), rel=1e-9)
        assert x[k - 1] <= place <= x[k + 1]


def test_the_lowest_point_of_a_flat_valley_is_one_of_its_points():
    assert lowest_point([0.0, 1.0, 3.0], [2.0, 2.0, 2.0]) == (0.0, False)
    assert lowest_point([0.0, 1.0, 3.0, 4.0], [5.0, 2.0, 2.0, 2.0]) == (2.0, True)  # halfway along the equal pair


# --------------------------------------------------------------------------------------------------------- one seed


def test_the_optimum_of_a_bowl_is_its_bottom():
    for log_lr, log_memory in [(-3.2, 1.9), (-4.0, 2.5), (-1.7, 1.4)]:
        found = optimum(bowl_of_losses(log_lr, log_memory, descent=0.5))
        # the grid of momenta is even on this scale, so the parabola is the bowl itself, but for the other setting
        assert found.log_lr == pytest.approx(log_lr, abs=1e-9)
        assert found.log_memory == pytest.approx(log_memory, abs=1e-9)
        assert found.log_descent == pytest.approx(log_lr - 1.0, abs=1e-9)
        assert (found.lr_inside, found.momentum_inside) == (True, True)


def test_an_optimum_outside_of_the_grid_is_found_at_its_end():
    found = optimum(bowl_of_losses(2.0, 0.1))
    assert (2**found.log_lr, found.lr_inside) == (pytest.approx(RATES[-1]), False)
    assert (1 - 2**-found.log_memory, found.momentum_inside) == (pytest.approx(MOMENTA[0]), False)


def test_least_losses_let_the_other_setting_take_its_best_value():
    rng = np.random.default_rng(1)
    runs = {
        (lr, momentum): {"final_train_loss": float(loss)}
        for (lr, momentum), loss in zip([(lr, m) for lr in RATES for m in MOMENTA], rng.uniform(1, 2, 99), strict=False)
    }
    table = np.array([[runs[lr, momentum]["final_train_loss"] for momentum in MOMENTA] for lr in RATES])
    assert least_losses(runs, 0) == dict(zip(RATES, table.min(axis=1), strict=True))
    assert least_losses(runs, 1) == dict(zip(MOMENTA, table.min(axis=0), strict=True))


def test_without_recorded_steps_the_size_of_a_step_is_unknown():
    assert math.isnan(optimum(bowl_of_losses(-3.0, 2.0, descent=None)).log_descent)


# ----------------------------------------------------------------------------------------------------------- a study

PLACES = {"a": [(-3.0, 2.0), (-3.4, 2.2), (-2.9, 1.7)], "b": [(-4.1, 1.5), (-4.0, 1.6), (-4.2, 1.4)]}


def made(**given):
    return results([cell for label, places in PLACES.items() for cell in swept(label, places, **given)], "lr-by-steps")


def test_shifts_are_means_over_seeds_of_the_difference_from_the_last_optimizer():
    found = {row["optimizer"]: row for row in optima_of(made())}
    for axis, name in enumerate(("log_lr", "log_memory")):
        differences = [a[axis] - b[axis] for a, b in zip(PLACES["a"], PLACES["b"], strict=True)]
        assert found["a"][f"shift_{name}"] == pytest.approx(statistics.fmean(differences), abs=1e-9)
        error = statistics.stdev(differences) / math.sqrt(3)
        assert found["a"][f"shift_{name}_error"] == pytest.approx(error, abs=1e-9)
        assert found["b"][f"shift_{name}"] == found["b"][f"shift_{name}_error"] == 0.0


def test_the_best_setting_is_that_of_least_mean_training_loss_and_test_data_have_no_say():
    cells = made().cells
    for row in optima_of(made()):
        every = [
            (cell.seed, line["lr"], cell.spec["momentum"], line)
            for cell in cells
            if cell.points["optimizer"] == row["optimizer"]
            for line in cell.metrics
        ]
        settings = {(lr, momentum) for _, lr, momentum, _ in every}
        of = {at: [line for _, lr, momentum, line in every if (lr, momentum) == at] for at in settings}
        best = min(settings, key=lambda at: sum(line["final_train_loss"] for line in of[at]))
        assert (row["lr"], row["momentum"]) == best
        assert row["train_loss"] == pytest.approx(statistics.fmean(line["final_train_loss"] for line in of[best]))
        assert row["train_loss_std"] == pytest.approx(statistics.stdev(line["final_train_loss"] for line in of[best]))
        assert row["lr_rho"] == pytest.approx(best[0] * row["rho"])
        by_accuracy = max(settings, key=lambda at: sum(line["final_test_accuracy"] for line in of[at]))
        assert by_accuracy != best  # the made runs have their best accuracy elsewhere


def test_unfinished_sweeps_and_cells_of_other_studies_are_left_out():
    assert optima(swept("a", PLACES["a"], status="failed")) == {}
    assert optima_of(results([], "lr-by-steps")) == []
    one_seed = optima_of(results(swept("a", PLACES["a"][:1]), "lr-by-steps"))
    assert [row["shift_log_lr_error"] for row in one_seed] == [None]


def test_a_shift_compares_only_seeds_that_both_have():
    of = optima(swept("a", PLACES["a"]))["digits", "a"]
    reference = optima(swept("b", PLACES["b"][:2]))["digits", "b"]
    value, error = shift(of, reference, "log_lr")
    assert value == pytest.approx((1.1 + 0.6) / 2, abs=1e-9)
    assert error == pytest.approx(0.25, abs=1e-9)
    assert math.isnan(shift(of, {}, "log_lr")[0])
