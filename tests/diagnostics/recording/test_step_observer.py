"""Observing a Muon: every matrix under its own name, at the right steps, and no hook left behind."""

import itertools
import math

import pytest
import torch
from torch.nn import Parameter

from muonlab import SGDM, Muon, MuonWithAux
from muonlab.diagnostics.optimizer_matrices import muon_of
from muonlab.diagnostics.recording.step_observer import StepObserver
from muonlab.optim.scaling import SCALES


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parameter(*shape, seed=0, dtype=torch.float64):
    p = Parameter(normal(*shape, seed=seed, dtype=dtype))
    p.grad = normal(*shape, seed=seed + 100, dtype=dtype)
    return p


def plain(params, **options):
    """Return a Muon whose M is the gradient itself."""
    return Muon(params, lr=0.1, momentum=0.0, **{"nesterov": False, "momentum_form": "heavy_ball", **options})


class Log:
    """A Watch that keeps what it was shown."""

    def __init__(self, optimizer, every=1):
        self.seen, self.steps, self.missing = [], [], []
        self.watch = StepObserver(optimizer, every, self.seen.append, self.after)

    def after(self, step, missing):
        self.steps.append(step)
        self.missing.append(missing)

    @property
    def by_name(self):
        assert len({s.name for s in self.seen}) == len(self.seen)
        return {s.name: s for s in self.seen}


def hooks_of(muon):
    places = (muon._optimizer_step_pre_hooks, muon._optimizer_step_post_hooks, muon._orthogonalize_hooks)
    return [len(hooks) for hooks in places]


# --------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("sizes", [(2, 3, 2, 3), (1, 4, 1, 4, 1), (5, 5), (10,)])
def test_the_i_th_block_of_rows_is_named_i_even_when_shapes_interleave(sizes):
    a, b, c = parameter(sum(sizes), 3, seed=1), parameter(sum(sizes), 3, seed=2), parameter(2, 3, seed=3)
    fused = {"params": [("a", a), ("b", b)], "matrix_view": sizes}
    log = Log(muon := plain([fused, {"params": [("c", c)]}]))
    muon.step()
    ends = list(itertools.accumulate(sizes))
    for name, p in (("a", a), ("b", b)):
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True)):
            seen = log.by_name[f"{name}[{i}]" if len(sizes) > 1 else name]
            assert torch.equal(seen.M, p.grad[end - size : end])
            assert torch.equal(seen.gradient, p.grad[end - size : end])
    assert torch.equal(log.by_name["c"].M, c.grad)
    assert len(log.seen) == 2 * len(sizes) + 1
    assert log.missing == [[]]


def test_blocks_of_filters_are_read_as_rows_times_the_rest():
    p = parameter(5, 2, 3, 3)
    log = Log(muon := plain([{"params": [("w", p)], "matrix_view": (2, 3)}]))
    muon.step()
    assert torch.equal(log.by_name["w[0]"].M, p.grad[:2].flatten(1))
    assert torch.equal(log.by_name["w[1]"].gradient, p.grad[2:].flatten(1))


def test_members_of_a_batch_are_numbered_in_memory_order():
    stack, single = parameter(2, 3, 4, 5, seed=1), parameter(4, 5, seed=2)
    log = Log(muon := plain([("stack", stack), ("single", single)], matrix_view="batch"))
    muon.step()
    assert set(log.by_name) == {f"stack[{i}]" for i in range(6)} | {"single[0]"}
    for i, (j, k) in enumerate(itertools.product(range(2), range(3))):
        assert torch.equal(log.by_name[f"stack[{i}]"].M, stack.grad[j, k])
        assert torch.equal(log.by_name[f"stack[{i}]"].gradient, stack.grad[j, k])


def test_filters_in_any_memory_format_are_shown_as_the_matrix_that_is_orthogonalized():
    p = Parameter(normal(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    p.grad = normal(4, 3, 2, 2, seed=1).contiguous(memory_format=torch.channels_last)
    log = Log(muon := plain([("conv", p)]))
    muon.step()
    assert torch.equal(log.by_name["conv"].M, p.grad.flatten(1))
    assert torch.equal(log.by_name["conv"].gradient, p.grad.flatten(1))


def test_parameters_without_names_are_called_by_their_places():
    log = Log(muon := plain([{"params": [parameter(2, 3), parameter(3, 2)]}, {"params": [parameter(2, 2)]}]))
    muon.step()
    assert set(log.by_name) == {"group 0, parameter 0", "group 0, parameter 1", "group 1, parameter 0"}


def test_a_parameter_without_entries_is_neither_shown_nor_missing():
    empty = Parameter(torch.zeros(0, 3))
    empty.grad = torch.zeros(0, 3)
    log = Log(muon := plain([("empty", empty), ("full", parameter(2, 3, dtype=torch.float32))]))
    muon.step()
    assert set(log.by_name) == {"full"}
    assert log.missing == [[]]


# ------------------------------------------------------------------------------------------------ lengths and skips


@pytest.mark.parametrize("scale", SCALES)
def test_the_length_times_the_direction_is_what_the_weight_moves_by(scale):
    lr = torch.tensor(0.25)
    params = {"tall": parameter(7, 2, seed=1), "conv": parameter(3, 2, 2, 2, seed=2), "fused": parameter(5, 4, seed=3)}
    groups = [{"params": [item]} for item in params.items()]
    groups[1]["lr"] = 0.01
    groups[2]["matrix_view"] = (4, 1)
    before = {name: p.detach().clone() for name, p in params.items()}
    log = Log(muon := Muon(groups, lr=lr, scale=scale))
    muon.step()
    moved = {name: (before[name] - p.detach()).flatten(1) for name, p in params.items()}
    moved |= {"fused[0]": moved["fused"][:4], "fused[1]": moved["fused"][4:]}
    assert set(log.by_name) == {"tall", "conv", "fused[0]", "fused[1]"}
    for name, seen in log.by_name.items():
        assert torch.allclose(seen.length * seen.O, moved[name], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308])
def test_a_skipped_parameter_is_shown_as_skipped_in_all_its_blocks_and_moves_by_nothing(bad, nesterov):
    p, q = parameter(5, 3, seed=1), parameter(2, 3, seed=2)
    fused = {"params": [("p", p)], "matrix_view": (2, 3)}
    muon = Muon(
        [fused, {"params": [("q", q)]}], momentum=0.9, momentum_form="heavy_ball", nesterov=nesterov, nonfinite="skip"
    )
    if math.isfinite(bad):
        muon.state[p]["momentum_buffer"].fill_(1.7e308)
    before, log = p.detach().clone(), Log(muon)
    p.grad[0, 0] = bad  # in one block only
    muon.step()
    shown = {name: (seen.skipped, seen.length > 0) for name, seen in log.by_name.items()}
    assert shown == {"p[0]": (True, False), "p[1]": (True, False), "q": (False, True)}
    assert torch.equal(p, before)


# --------------------------------------------------------------------------------------------------------- cadence


@pytest.mark.parametrize("every", [1, 3])
def test_the_first_step_and_each_every_th_are_shown_and_nothing_is_hooked_between(every):
    muon = plain([("p", parameter(3, 3))])
    log, original, hooked = Log(muon, every), muon._begin_step, []

    def begin_step(closure):
        hooked.append(len(muon._orthogonalize_hooks))
        return original(closure)

    muon._begin_step = begin_step
    for _ in range(12):
        assert not muon._orthogonalize_hooks
        muon.step()
    due = [step for step in range(1, 13) if (step - 1) % every == 0]
    assert log.steps == due
    assert [step for step, count in enumerate(hooked, 1) if count] == due
    assert not muon._orthogonalize_hooks
    assert log.watch.step == 12


def test_a_wrong_distance_of_steps_is_refused_and_leaves_no_hook():
    muon = plain([parameter(3, 3)])
    for every in (0, 1.5, True, "2", None):
        with pytest.raises((TypeError, ValueError), match=r"^every must be .+, got .+: pass"):
            StepObserver(muon, every, print, print)
        assert hooks_of(muon) == [0, 0, 0]


def test_what_is_written_into_the_shown_matrices_does_not_reach_training():
    ends = []
    for destroy in (False, True):
        p = parameter(4, 4)
        muon = plain([p])
        if destroy:
            StepObserver(muon, 1, lambda seen: (seen.M.fill_(7), seen.O.zero_()), lambda *_: None)
        muon.step()
        muon.step()
        ends.append(p.detach().clone())
    assert torch.equal(*ends)


# ------------------------------------------------------------------------------------------------ missing and failed


def test_matrices_without_a_gradient_are_missing_by_name_and_only_they():
    p, q = parameter(5, 3), parameter(2, 3)
    log = Log(muon := plain([{"params": [("p", p)], "matrix_view": (2, 3)}, {"params": [("q", q)]}]))
    p.grad = None
    muon.step()
    assert log.missing == [["p[0]", "p[1]"]]
    assert [seen.name for seen in log.seen] == ["q"]
    assert log.watch.passed_over == []


def test_matrices_that_had_a_gradient_and_were_not_orthogonalized_are_passed_over(monkeypatch):
    p, q = parameter(3, 3), parameter(2, 3)
    q.grad = None
    log = Log(muon := plain([("p", p), ("q", q)]))
    monkeypatch.setattr(muon._orthogonalize_hooks, "show", lambda *_: None)
    muon.step()
    assert log.missing == [["p", "q"]]
    assert log.watch.passed_over == ["p"]


def test_a_step_that_fails_is_not_counted_and_the_next_one_starts_afresh():
    begun = []
    p, q = parameter(3, 3), parameter(2, 3)
    log = Log(muon := plain([("p", p), ("q", q)]))
    log.watch._on_start = lambda: begun.append(log.watch.step)
    handle = muon.register_orthogonalize_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        muon.step()
    assert log.steps == []
    assert log.watch.step == 0
    handle.remove()
    log.seen.clear()
    muon.step()
    assert log.steps == [1]
    assert [seen.name for seen in log.seen] == ["p", "q"]
    assert log.missing == [[]]
    assert begun == [0, 0]
    assert not muon._orthogonalize_hooks


def test_the_gradient_is_the_one_that_the_closure_computed():
    p = parameter(3, 3)
    log = Log(muon := plain([("p", p)]))

    def closure():
        p.grad = torch.full_like(p, 2.0)
        return 1.0

    assert muon.step(closure) == 1.0
    assert torch.equal(log.seen[0].gradient, torch.full_like(p, 2.0))


# --------------------------------------------------------------------------------------------------------- closing


def test_closing_removes_every_hook_and_may_be_repeated():
    muon = plain([parameter(3, 3)])
    log, other = Log(muon), Log(muon)
    log.watch.close()
    log.watch.close()
    assert hooks_of(muon) == [1, 1, 0]
    muon.step()
    assert log.steps == []
    assert other.steps == [1]
    other.watch.close()
    assert hooks_of(muon) == [0, 0, 0]


def test_closing_within_a_step_ends_the_observation_and_not_the_training():
    p = parameter(3, 3)
    muon = plain([p])
    steps = []

    def after(step, _):
        steps.append(step)
        watch.close()

    watch, other = StepObserver(muon, 1, lambda _: None, after), Log(muon)
    before = p.detach().clone()
    muon.step()
    middle = p.detach().clone()
    muon.step()
    assert steps == [1]
    assert other.steps == [1, 2]
    assert not torch.equal(before, middle)
    assert not torch.equal(middle, p)
    watch.close()
    other.watch.close()
    assert hooks_of(muon) == [0, 0, 0]


# -------------------------------------------------------------------------------------------------- which optimizer


def test_the_muon_of_a_joint_optimizer_is_watched():
    p, bias = parameter(3, 3), parameter(3)
    joint = MuonWithAux(plain([("p", p)]), torch.optim.AdamW([bias]))
    log = Log(joint)
    joint.step()
    assert muon_of(joint) is joint.muon
    assert [seen.name for seen in log.seen] == ["p"]


def test_any_other_optimizer_is_refused_with_a_way_out():
    params = [parameter(3, 3, dtype=torch.float32)]
    for optimizer in (torch.optim.AdamW(params), torch.optim.Muon(params), SGDM(params, lr=0.1, momentum=0.9)):
        name = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        with pytest.raises(TypeError, match=f"^the optimizer must be .+, got {name}: Muon.torch"):
            StepObserver(optimizer, 1, print, print)
        assert not optimizer._optimizer_step_pre_hooks
