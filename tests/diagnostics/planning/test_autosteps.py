"""AutoSteps: the fewest steps that reach an alignment, set from outside the optimizer, the same in every run."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from muonlab import ExactPolar, Muon, MuonWithAux, NewtonSchulz, newton_schulz, split_params
from muonlab.diagnostics.planning.autosteps import AutoSteps, family_of
from muonlab.optim.orthogonalizer import from_plain
from muonlab.orthogonalize.rounding import allowed_error
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import descent_floor, schedule_error
from tests.orthogonalize.zoo import with_spectrum

QUINTIC = NewtonSchulz(taylor(2), steps=5)


def alignment(M, schedule, prescale="frobenius"):
    """ρ/s by an SVD of the matrix and of what the schedule makes of it."""
    O = newton_schulz(M.double(), schedule, prescale=prescale)
    nuclear = torch.linalg.svdvals(M.double()).sum()
    return float((M.double() * O).sum() / nuclear / torch.linalg.matrix_norm(O, 2))


def muon_on(matrices, groups=None, **options):
    """A Muon whose first momenta are multiples of these matrices."""
    params = [nn.Parameter(torch.zeros_like(M)) for M in matrices]
    for p, M in zip(params, matrices, strict=True):
        p.grad = M.clone()
    options = {"orthogonalizer": QUINTIC, "nesterov": False, **options}
    given = params if groups is None else [{"params": [params[i] for i in members]} for members in groups]
    return Muon(given, lr=0.1, **options), params


def taken(optimizer, **options):
    auto = AutoSteps(optimizer, **options)
    optimizer.step()
    auto.step()
    return auto


SPECTRA = {
    "flat": np.ones(24),
    "mild": np.linspace(1, 0.3, 24),
    "1/k": 1 / np.arange(1, 25),
    "1/k^2": 1 / np.arange(1, 25) ** 2,
    "one large": np.r_[1.0, np.full(23, 0.02)],
}


def test_the_guarantee_is_the_least_floor_and_the_largest_gain_up_to_rounding_and_holds_at_every_step():
    matrices = [with_spectrum(24, 40, SPECTRA[name], seed=3) for name in SPECTRA]
    for orthogonalizer, least, most in ((QUINTIC, 2, 4), (NewtonSchulz(preset("polar_express")), 1, 6)):
        optimizer, _ = muon_on(matrices, orthogonalizer=orthogonalizer)
        auto = AutoSteps(optimizer, 0.9, every=1, min_steps=least, max_steps=most)
        family = family_of(orthogonalizer.schedule)
        schedules = [*(family(q) for q in range(least, most + 1)), orthogonalizer.schedule]
        found = auto.guarantee()
        rounding = {schedule: allowed_error(schedule, size=40) for schedule in schedules}
        descent = min(descent_floor(schedule, 24) - rounding[schedule] for schedule in schedules)
        gain = max(schedule_error(schedule, 0.0).s_max + rounding[schedule] for schedule in schedules)
        assert (found.descent, found.gain) == pytest.approx((descent, gain), rel=1e-8)
        assert f"{least} to {max(most, 5)} steps" in found.reason
        for M, schedule in itertools.product(matrices, schedules):
            O = newton_schulz(M.double(), schedule)
            assert float((M.double() * O).sum() / torch.linalg.svdvals(M.double()).sum()) >= found.descent
            assert float(torch.linalg.matrix_norm(O, 2)) <= found.gain * (1 + 1e-9)
    unscaled, _ = muon_on(matrices[:1], orthogonalizer=NewtonSchulz(taylor(2), steps=5, prescale="paper"))
    none = AutoSteps(unscaled).guarantee()
    assert (none.descent, none.gain) == (0.0, float("inf"))
    assert "prescale 'paper'" in none.reason


def test_the_guarantee_counts_the_steps_that_were_taken_before_a_change_also_after_a_restart():
    """One quintic step reaches .602 on the first matrix; later ones take four steps or more."""
    F, worst = Schedule.repeat(taylor(2), 1), None
    for a in np.linspace(0.3, 0.999, 400):  # one large singular value and seven equal ones, of Frobenius norm 1
        values = np.r_[a, np.full(7, math.sqrt((1 - a * a) / 7))]
        if worst is None or values @ F(values) / values.sum() < worst @ F(worst) / worst.sum():
            worst = values
    optimizer, _ = muon_on([torch.diag(torch.tensor(worst))], momentum=0.0, orthogonalizer=NewtonSchulz(F))
    auto, seen = AutoSteps(optimizer, 0.99, every=1, min_steps=4), []
    optimizer.register_orthogonalize_hook(lambda _, M, O: seen.append(float((M * O).sum() / worst.sum())))
    before = auto.guarantee().descent
    optimizer.step()
    auto.step()
    assert auto.steps != [1]
    assert seen[0] == pytest.approx(0.6017, abs=1e-3)
    assert auto.guarantee().descent == before < seen[0]
    resumed = AutoSteps(optimizer, 0.99, every=1, min_steps=4)
    assert resumed.guarantee().descent > 0.8
    resumed.load_state_dict(json.loads(json.dumps(auto.state_dict())))
    assert resumed.guarantee() == auto.guarantee()
    optimizer.param_groups[0]["orthogonalizer"] = NewtonSchulz(taylor(1), steps=1).plain()  # the user's own change
    optimizer.step()
    auto.step()
    assert auto.guarantee().descent < before


def test_the_guarantee_covers_exact_polar_factors_only_without_a_rank_tolerance_of_their_own():
    exact, steps = nn.Parameter(torch.zeros(8, 8)), nn.Parameter(torch.zeros(4, 4))
    found = []
    for how in (ExactPolar(), ExactPolar(rank_tol=0.0), ExactPolar(rank_tol=3.0)):
        groups = [{"params": [exact], "orthogonalizer": how}, {"params": [steps]}]
        optimizer = Muon(groups, momentum=0.0, nesterov=False, orthogonalizer=NewtonSchulz(taylor(2), steps=8))
        found.append(AutoSteps(optimizer, 0.9, min_steps=7).guarantee())
    assert 0.98 < found[0].descent == found[1].descent < 1 < found[0].gain < 1.01
    assert found[2][:2] == (0.0, math.inf)
    assert "rank_tol" in found[2].reason
    M = torch.diag(torch.tensor([4.0, *[2.0] * 7]))
    assert float((M * ExactPolar(rank_tol=3.0)(M)).sum()) / 18 == pytest.approx(4 / 18)  # what 1.0 would contradict


def test_the_guarantee_holds_for_what_half_precision_stores():
    """Singular values at the maximum of F, where rounding to bfloat16 lifts the gain above that of exact steps."""
    how = NewtonSchulz(accuracy="half")
    s = np.geomspace(1e-3, 1, 100_001)
    top = s[how.schedule(s).argmax()]
    M = with_spectrum(64, 64, np.r_[math.sqrt(1 - 63 * top**2), np.full(63, top)], seed=1).to(torch.bfloat16)
    optimizer, _ = muon_on([M], orthogonalizer=how)
    found = AutoSteps(optimizer, 0.9, min_steps=5, max_steps=5).guarantee()
    O = how(M).double()
    gain = float(torch.linalg.matrix_norm(O, 2))
    assert schedule_error(how.schedule, 0.0).s_max < gain <= found.gain < 1.25
    assert 0.8 < found.descent <= float((M.double() * O).sum() / torch.linalg.svdvals(M.double()).sum())
    coarse, _ = muon_on([M], orthogonalizer=NewtonSchulz("quintic", compute_dtype=torch.bfloat16))
    none = AutoSteps(coarse, 0.9).guarantee()
    assert none[:2] == (0.0, math.inf)
    assert "rounding of (64, 64) in bfloat16" in none.reason


@pytest.mark.parametrize("name", SPECTRA)
def test_it_takes_the_fewest_steps_that_reach_the_target_by_an_svd(name):
    M = with_spectrum(24, 40, SPECTRA[name], seed=3)
    reached = {q: alignment(M, Schedule.repeat(taylor(2), q)) for q in range(1, 13)}
    for target in (0.7, 0.9, 0.99):
        optimizer, _ = muon_on([M])
        auto = taken(optimizer, target_alignment=target, max_steps=12)
        assert auto.steps == [min(q for q, a in reached.items() if a >= target)]


def test_the_hardest_matrix_of_a_group_decides_and_groups_decide_apart():
    easy, hard = (with_spectrum(24, 40, SPECTRA[name], seed=3) for name in ("flat", "1/k^2"))
    together, _ = muon_on([easy, hard])
    apart, _ = muon_on([easy, hard], groups=[[0], [1]])
    alone, _ = muon_on([hard])
    assert taken(apart).steps == [1, *taken(alone).steps]
    assert taken(together).steps == taken(alone).steps


def test_the_next_step_really_uses_the_new_number():
    M = with_spectrum(24, 40, SPECTRA["flat"], seed=3)
    optimizer, _ = muon_on([M])
    taken(optimizer, target_alignment=0.9)
    seen = []
    optimizer.register_orthogonalize_hook(lambda _, M, O: seen.append((M, O)))
    optimizer.step()
    ((M_seen, O),) = seen
    assert torch.equal(O, newton_schulz(M_seen, taylor(2), steps=1))
    assert not torch.equal(O, newton_schulz(M_seen, taylor(2), steps=5))


def test_the_other_options_of_the_orthogonalizer_stay():
    how = NewtonSchulz(
        taylor(3), steps=7, prescale="schatten8", compute_dtype=torch.float64, method="standard", accuracy="half"
    )
    optimizer, _ = muon_on([with_spectrum(24, 40, SPECTRA["mild"], seed=3)], orthogonalizer=how)
    auto = taken(optimizer, target_alignment=0.9)
    now = from_plain(optimizer.param_groups[0]["orthogonalizer"])
    assert auto.steps != [7]
    assert now == NewtonSchulz(
        taylor(3),
        steps=auto.steps[0],
        prescale="schatten8",
        compute_dtype=torch.float64,
        method="standard",
        accuracy="half",
    )


def test_the_number_stays_within_its_bounds():
    for low, high, expected in ((3, 8, 3), (1, 2, 2), (0, 8, 0), (4, 4, 4)):
        name = "1/k^2" if expected == 2 else "flat"
        optimizer, _ = muon_on([with_spectrum(24, 40, SPECTRA[name], seed=3)])
        assert taken(optimizer, min_steps=low, max_steps=high).steps == [expected]


def test_where_no_number_reaches_the_target_the_best_is_taken_and_the_change_says_so():
    M = with_spectrum(24, 40, SPECTRA["1/k^2"], seed=3)
    optimizer, _ = muon_on([M], orthogonalizer=NewtonSchulz("jordan", steps=5))
    auto = taken(optimizer, target_alignment=0.99)
    reached = {q: alignment(M, preset("jordan").schedule(q)) for q in range(1, 9)}
    assert max(reached.values()) < 0.99
    assert auto.steps == [max(reached, key=reached.get)]
    assert [change.reached for change in auto.changes] == [False]


def test_spectra_are_taken_at_the_first_step_and_every_so_many_later_ones():
    flat, steep = (with_spectrum(24, 40, SPECTRA[name], seed=3) for name in ("flat", "1/k^2"))
    optimizer, (p,) = muon_on([flat], momentum=0.0)
    auto = AutoSteps(optimizer, every=4)
    numbers = []
    for t in range(9):
        p.grad = (flat if t < 2 else steep).clone()
        optimizer.step()
        auto.step()
        numbers += auto.steps
    assert numbers[:4] == [1] * 4
    assert numbers[4:] == [numbers[4]] * 5
    assert numbers[4] > 1
    assert [change.step for change in auto.changes] == [1, 5]


def test_changes_are_logged_with_what_they_bring(caplog):
    M = with_spectrum(24, 40, SPECTRA["mild"], seed=3)
    optimizer, _ = muon_on([M])
    with caplog.at_level(logging.INFO, logger="muonlab"):
        auto = taken(optimizer, target_alignment=0.9)
    (change,) = auto.changes
    before, after = (alignment(M, Schedule.repeat(taylor(2), q)) for q in (change.before, change.after))
    assert change[:4] == (1, 0, 5, auto.steps[0])
    assert change.alignment_before == pytest.approx(before, rel=1e-5, abs=0)
    assert change.alignment_after == pytest.approx(after, rel=1e-5, abs=0)
    assert change.reached
    assert f"step 1: group 0 from 5 to {change.after} steps" in caplog.text


def run(T, resume_at=None):
    """Weights and changes of a run on a moving spectrum, in one go or saved and resumed."""
    rng = np.random.default_rng(0)
    gradients = [
        with_spectrum(24, 40, np.arange(1, 25.0) ** -(0.1 + 0.2 * t), seed=int(rng.integers(99))) for t in range(T)
    ]
    optimizer, (p,) = muon_on(gradients[:1])
    auto = AutoSteps(optimizer, target_alignment=0.9, every=3)
    for t, G in enumerate(gradients):
        if t == resume_at:
            saved = json.loads(json.dumps(auto.state_dict())), copy.deepcopy(optimizer.state_dict())
            old, (optimizer, (fresh,)) = p, muon_on(gradients[:1])
            fresh.data.copy_(old.data)
            p = fresh
            auto = AutoSteps(optimizer, target_alignment=0.9, every=3)
            optimizer.load_state_dict(saved[1])
            auto.load_state_dict(saved[0])
        p.grad = G.clone()
        optimizer.step()
        auto.step()
    return p.detach().clone(), auto.changes


def test_a_run_repeats_itself_bit_for_bit_and_a_resumed_one_goes_on_as_if_it_had_not_stopped():
    weights, changes = run(12)
    assert len(changes) >= 2
    for resume_at in (None, 2, 4, 7):
        again, same = run(12, resume_at)
        assert torch.equal(weights, again), resume_at
        assert changes == same


def test_a_model_split_by_shape_gets_a_number_for_each_shape():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 5)
    )
    split = split_params(net, by="shape")
    assert [len(group["params"]) for group in split.matrices] == [1, 2]
    optimizer = MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest))
    auto = AutoSteps(optimizer, target_alignment=0.97)
    net(torch.randn(16, 20)).square().sum().backward()
    optimizer.step()
    auto.step()
    assert auto.steps != [5, 5]
    assert len(auto.steps) == 2


def test_an_exact_polar_factor_has_no_number_and_is_left_alone():
    M = with_spectrum(24, 40, SPECTRA["flat"], seed=3)
    params = [nn.Parameter(torch.zeros_like(M)) for _ in range(2)]
    for p in params:
        p.grad = M.clone()
    groups = [{"params": [params[0]], "orthogonalizer": ExactPolar()}, {"params": [params[1]]}]
    optimizer = Muon(groups, orthogonalizer=QUINTIC)
    assert taken(optimizer).steps == [None, 1]
    with pytest.raises(ValueError, match="needs a group with Newton-Schulz steps, got exact polar factors only"):
        AutoSteps(Muon([params[0]], orthogonalizer=ExactPolar()))


def test_momenta_that_are_zero_or_not_finite_ask_for_nothing():
    for bad in (torch.zeros(4, 6), torch.full((4, 6), torch.nan)):
        optimizer, _ = muon_on([bad])
        assert taken(optimizer).steps == [5]


def test_closing_takes_every_hook_away_and_keeps_the_numbers():
    optimizer, _ = muon_on([with_spectrum(24, 40, SPECTRA["flat"], seed=3)])
    auto = taken(optimizer)
    auto.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert auto.steps == [1]


def test_polar_express_of_another_length_is_the_preset_of_that_length():
    for safety in (1, "1.01"):
        family = family_of(preset("polar_express").schedule(5, safety=safety))
        for q in range(1, 9):
            assert family(q) == preset("polar_express").schedule(q, safety=safety)


def test_steps_of_no_family_are_refused_unless_one_is_given():
    mixed = NewtonSchulz(Schedule((taylor(1), taylor(3))))
    optimizer, _ = muon_on([with_spectrum(24, 40, SPECTRA["flat"], seed=3)], orthogonalizer=mixed)
    with pytest.raises(ValueError, match=r"one polynomial repeated, or a registered preset, got .* pass family="):
        AutoSteps(optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    auto = taken(optimizer, family=lambda q: Schedule.repeat(taylor(1), q))
    assert auto.steps == [1]


BAD = [
    ({"target_alignment": 1.0}, r"target_alignment must be a finite number in \(0, 1\)"),
    ({"target_alignment": 0.0}, r"target_alignment must be a finite number in \(0, 1\)"),
    ({"every": 0}, "every must be at least 1, got 0"),
    ({"min_steps": -1}, "min_steps must be at least 0, got -1"),
    ({"min_steps": 4, "max_steps": 3}, "max_steps must be at least 4, got 3"),
]


def test_wrong_options_are_refused():
    optimizer, _ = muon_on([torch.eye(3)])
    for options, message in BAD:
        with pytest.raises(ValueError, match=message):
            AutoSteps(optimizer, **options)
    auto = taken(optimizer)
    before = auto.state_dict()
    for key in before:
        with pytest.raises(ValueError, match=f"a saved state must have .*{key}"):
            auto.load_state_dict({k: v for k, v in before.items() if k != key})
        assert auto.state_dict() == before


def test_the_prescale_of_the_group_decides_with_how_many_steps():
    """A flat spectrum is brought to 1 by the Schatten norms of high order, and needs several steps from ‖M‖_F."""
    M = with_spectrum(24, 40, SPECTRA["mild"], seed=3)
    numbers = {}
    for prescale in ("frobenius", "schatten8"):
        optimizer, _ = muon_on([M], orthogonalizer=NewtonSchulz(taylor(2), steps=5, prescale=prescale))
        numbers[prescale] = taken(optimizer, target_alignment=0.99).steps[0]
        reached = {q: alignment(M, Schedule.repeat(taylor(2), q), prescale) for q in range(1, 9)}
        assert numbers[prescale] == min(q for q, a in reached.items() if a >= 0.99)
    assert numbers["schatten8"] < numbers["frobenius"]


def test_a_change_that_was_planned_and_not_yet_made_survives_a_save():
    M = with_spectrum(24, 40, SPECTRA["flat"], seed=3)
    optimizer, _ = muon_on([M])
    auto = AutoSteps(optimizer)
    optimizer.step()
    state = json.loads(json.dumps(auto.state_dict()))
    resumed_optimizer, _ = muon_on([M])
    resumed = AutoSteps(resumed_optimizer)
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(state)
    resumed.step()
    auto.step()
    assert resumed.steps == auto.steps == [1]
    assert resumed.changes == auto.changes
