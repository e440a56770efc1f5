"""The recorder: training keeps its bits, rows say what an SVD says, and certificates are given only where they hold."""

import copy
import functools
import io
import itertools
import json
import math
import pickle

import numpy as np
import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler

from muonlab import SGDM, ExactPolar, Muon, MuonWithAux, NewtonSchulz, newton_schulz, polar
from muonlab.diagnostics.planning.autosteps import AutoSteps
from muonlab.diagnostics.recording.recorder import Recorder
from muonlab.diagnostics.recording.rows import MEASURES
from muonlab.optim import layout, optimizers
from muonlab.optim.orthogonalizer import from_plain
from muonlab.polynomials import taylor
from muonlab.theory import run_bound
from tests.contracts.optimizer_cases import same
from tests.paper import simulation
from tests.paper.simulation import nuclear, observed_error, observed_residual, operator, singular

every_measure = pytest.mark.parametrize("measure", MEASURES)
RECIPES = [name for name in optimizers() if name.startswith("muon")]
SHAPES = {"square": (5, 5), "wide": (4, 7), "tall": (7, 4), "conv": (4, 3, 2, 2)}


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parameters(shapes=None, dtype=torch.float32):
    shapes = SHAPES if shapes is None else shapes
    return {name: Parameter(normal(*shape, seed=i, dtype=dtype)) for i, (name, shape) in enumerate(shapes.items())}


def give(params, step, absent=()):
    for i, (name, p) in enumerate(params.items()):
        p.grad = None if name in absent else normal(*p.shape, seed=100 * step + i).to(p.dtype)


def one(*shape, dtype=torch.float64, **options):
    """Return a weight and a plain Muon of it: heavy-ball, no look-ahead, nothing that the theorem does not cover."""
    p = Parameter(normal(*(shape or (4, 4)), dtype=dtype))
    return p, Muon.paper([("W", p)], **{"lr": 0.1, "momentum": 0.9, **options})


def steps(optimizer, p, count=1, first=0):
    for t in range(first, first + count):
        p.grad = normal(*p.shape, seed=50 + t, dtype=p.dtype)
        optimizer.step()


def matrices(rec):
    return [row for row in rec.last if row["event"] == "matrix"]


def event(rec, name):
    found = [row for row in rec.last if row["event"] == name]
    assert len(found) == 1
    return found[0]


def unhooked(optimizer):
    muon = optimizer.muon if isinstance(optimizer, MuonWithAux) else optimizer
    hooks = (muon._optimizer_step_pre_hooks, muon._optimizer_step_post_hooks, muon._orthogonalize_hooks)
    return not any(map(len, (*hooks, optimizer._optimizer_load_state_dict_post_hooks)))


# ------------------------------------------------------------------------------------------------- bits of training


def with_aux(params):
    bias = Parameter(normal(7, seed=77, dtype=torch.float32))
    muon = Muon(params.items(), lr=0.02)
    params["bias"] = bias
    return MuonWithAux(muon, torch.optim.AdamW([bias], lr=0.01))


def mixed(params):
    """Return groups of every view, of unequal blocks, with other rates and orthogonalizers."""
    fused, stack = params["fused"], params["stack"]
    return Muon(
        [
            {
                "params": [("fused", fused)],
                "matrix_view": (2, 3, 2, 3),
                "orthogonalizer": NewtonSchulz(taylor(1), steps=2),
            },
            {"params": [("stack", stack)], "matrix_view": "batch", "lr": 0.003, "nonfinite": "skip"},
            {"params": [("conv", params["conv"])], "orthogonalizer": ExactPolar()},
            {"params": [("square", params["square"])], "weight_decay": 0.1, "scale": "spectral"},
        ],
        lr=0.02,
    )


MIXED = {"fused": (10, 4), "stack": (3, 2, 4, 5), "conv": (4, 3, 2, 2), "square": (5, 5)}
SETUPS = {
    **{name: (optimizers()[name].build, SHAPES) for name in RECIPES},
    "with aux": (None, SHAPES),
    "mixed": (None, MIXED),
}


def build(name, params):
    if name in ("with aux", "mixed"):
        return {"with aux": with_aux, "mixed": mixed}[name](params)
    asked = {"lr": 0.05, "momentum": 0.9}
    return optimizers()[name].build(list(params.items()), **asked)


def train(name, record, *, dtype=torch.float32, poison=False, absent=False):
    """Train with dropout from the global generator, and return everything that could differ."""
    torch.manual_seed(3)
    params = parameters(SETUPS[name][1], dtype)
    optimizer = build(name, params)
    rec = record(optimizer) if record else None
    grads = []
    for step in range(3):
        give(params, step, absent=[list(params)[step]] if absent else ())
        for p in params.values():
            if p.grad is not None:
                p.grad.mul_((torch.rand(p.shape) > 0.3).to(p.dtype))
        if poison and step == 1:
            next(p for name, p in params.items() if name in ("stack", "square")).grad.view(-1)[0] = math.nan
        optimizer.step()
        grads.append([None if p.grad is None else p.grad.clone() for p in params.values()])
    end = [p.detach().clone() for p in params.values()], optimizer.state_dict(), grads, torch.get_rng_state()
    return end, rec


TRAININGS = {
    **{name: (name, {}) for name in SETUPS},
    "absent gradients": ("mixed", {"absent": True}),
    "NaN": ("mixed", {"poison": True}),
    **{str(dtype): ("muon", {"dtype": dtype}) for dtype in (torch.bfloat16, torch.float16, torch.float64)},
}


@pytest.mark.parametrize("case", TRAININGS)
def test_recording_changes_no_bit_of_weights_momenta_gradients_or_generator(case):
    name, options = TRAININGS[case]
    plain, _ = train(name, None, **options)
    for measure in MEASURES:
        recorded, rec = train(name, lambda optimizer: Recorder(optimizer, every=1, measure=measure), **options)  # noqa: B023
        assert same(plain, recorded), measure
        assert rec.step == 3
        assert {row["status"] for row in matrices(rec)} == {"holds"}, measure


# ------------------------------------------------------------------------------------------------ rows by an oracle


class Oracle:
    """What a hook of the test's own sees, judged by numpy's SVD."""

    def __init__(self, optimizer):
        self.steps = []
        muon = optimizer.muon if isinstance(optimizer, MuonWithAux) else optimizer
        muon.register_step_pre_hook(lambda *_: self.steps.append([]))
        muon.register_orthogonalize_hook(self.see)

    def see(self, params, M, O):
        for p, A, B in zip(params, M.double().numpy(), O.double().numpy(), strict=True):
            self.steps[-1].append((p, A.copy(), B.copy()))


ORTHOGONALIZERS = {
    "Taylor 2, three steps, paper": NewtonSchulz(taylor(2), steps=3, prescale="paper", compute_dtype=None),
    "Taylor 1, six steps": NewtonSchulz(taylor(1), steps=6, compute_dtype=None),
    "Taylor 2, no step": NewtonSchulz(taylor(2), steps=0, compute_dtype=None),
    "Jordan": NewtonSchulz("jordan", steps=5, compute_dtype=None),
    "Schatten-8": NewtonSchulz(taylor(2), steps=4, prescale="schatten8", compute_dtype=None),
    "exact": ExactPolar(),
}


@pytest.mark.parametrize("measure", ["spectrum", "exact"])
@pytest.mark.parametrize("how", ORTHOGONALIZERS)
def test_every_number_of_a_row_is_what_an_svd_of_the_matrices_gives(how, measure):
    params = parameters({"square": (4, 4), "wide": (3, 6), "tall": (6, 3)}, torch.float64)
    optimizer = Muon(params.items(), lr=0.05, momentum=0.8, orthogonalizer=ORTHOGONALIZERS[how])
    oracle, rec = Oracle(optimizer), Recorder(optimizer, every=1, measure=measure)
    for step in range(2):
        give(params, step)
        optimizer.step()
        seen = {next(n for n, q in params.items() if q is p): (M, O) for p, M, O in oracle.steps[-1]}
        for row in matrices(rec):
            M, O = seen[row["name"]]
            values = singular(M)
            alpha = {"paper": max(1.0, np.linalg.norm(M)), "Schatten-8": np.sum(values**8) ** 0.125}.get(
                how.split()[-1], np.linalg.norm(M)
            )
            descent = np.sum(M * O) / nuclear(M)
            expected = {
                "rank": min(M.shape),
                "effective_rank": np.exp(-np.sum(values / values.sum() * np.log(values / values.sum()))),
                "delta_0": np.max(np.abs(1 - (values / alpha) ** 2)),
                "delta": observed_residual(M, O),
                "epsilon": observed_error(M, O),
                "descent": descent,
                "op_norm": operator(O),
                "alignment": descent / operator(O),
                "nuclear": nuclear(M),
                "gradient_nuclear": nuclear(params[row["name"]].grad.numpy()),
            }
            found = {name: row[name] for name in expected}
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert row["chi"] == pytest.approx(1 / (1 - row["epsilon"]), rel=1e-9)
            assert row["alignment_floor"] <= row["alignment"] + 1e-9
            assert (row["status"], row["step"], row["measure"]) == ("holds", step + 1, measure)
            assert (row["shape"], row["lr"]) == (list(M.shape), 0.05)


@pytest.mark.parametrize("how", ORTHOGONALIZERS)
def test_bracketed_rows_enclose_what_an_svd_gives(how):
    params = parameters({"square": (6, 6), "wide": (4, 9)}, torch.float64)
    optimizer = Muon(params.items(), orthogonalizer=ORTHOGONALIZERS[how])
    oracle, rec = Oracle(optimizer), Recorder(optimizer, every=1, measure="bracket")
    give(params, 1)
    optimizer.step()
    seen = {next(n for n, q in params.items() if q is p): (M, O) for p, M, O in oracle.steps[-1]}
    for row in matrices(rec):
        M, O = seen[row["name"]]
        G = params[row["name"]].grad.numpy()
        rounding = 1 + 1e-9
        assert row["descent"] <= np.sum(M * O) / nuclear(M) * rounding
        assert operator(O) <= row["op_norm"] * rounding
        assert row["alignment"] <= np.sum(M * O) / nuclear(M) / operator(O) * rounding
        assert nuclear(M) <= row["nuclear"] * rounding
        assert row["gradient_nuclear_lower"] <= nuclear(G) <= row["gradient_nuclear"]
        assert row["gradient_nuclear"] < 1.2 * row["gradient_nuclear_lower"]
        assert row["status"] == "holds"
        # the exact polar factor has no bracket: it is measured, and the row says so
        assert row["measure"] == ("spectrum" if how == "exact" else "bracket")


def test_without_a_prescale_the_bracket_does_not_promise_a_unit_ball():
    p = Parameter(torch.diag(torch.tensor([1.04, 0.5, 0.3])))
    how = NewtonSchulz(taylor(2), steps=0, prescale="none")
    optimizer = Muon([("W", p)], momentum=0.0, nesterov=False, orthogonalizer=how)
    rec = Recorder(optimizer, every=1, measure="bracket")
    p.grad = 3 * p.detach().clone()
    optimizer.step()
    assert matrices(rec)[0]["op_norm"] >= 3.12


def test_the_bracket_bounds_the_gain_of_wrong_directions_too(monkeypatch):
    for wrong, prescale in itertools.product(("nothing", "twice as long", "climbing"), ("none", "frobenius")):
        monkeypatch.setattr(layout, "step_function", lambda _, wrong=wrong: WRONG[wrong])
        p = Parameter(normal(4, 4, dtype=torch.float32) / 10)
        optimizer = Muon([("W", p)], orthogonalizer=NewtonSchulz(taylor(2), steps=5, prescale=prescale))
        oracle, rec = Oracle(optimizer), Recorder(optimizer, every=1, measure="bracket")
        p.grad = p.detach().clone()
        optimizer.step()
        row = matrices(rec)[0]
        assert row["op_norm"] >= operator(oracle.steps[0][0][2]) * (1 - 1e-6), (wrong, prescale)
        assert row["status"] == "violated"


def test_the_recorded_gradient_is_the_clipped_one_and_rows_say_so():
    p, optimizer = one(4, 6)
    rec = Recorder(optimizer, every=1)
    p.grad = normal(4, 6, seed=1)
    before = nuclear(p.grad.numpy())
    torch.nn.utils.clip_grad_norm_([p], 0.01)
    after = nuclear(p.grad.numpy())
    optimizer.step()
    row = matrices(rec)[0]
    assert row["gradient_nuclear"] == pytest.approx(after, rel=1e-9)
    assert row["gradient_nuclear"] < before / 10
    assert "minibatch" in row["gradient"]
    assert "after clipping" in row["gradient"]


def test_the_whole_is_the_dual_pair_of_the_network_with_each_layers_own_step_length():
    shapes = {"a": (5, 3), "b": (3, 8), "c": (2, 3, 2, 2)}
    params = parameters(shapes, torch.float64)
    groups = [{"params": [item]} for item in params.items()]
    groups[1] |= {"lr": 0.005, "orthogonalizer": NewtonSchulz("jordan", steps=5, compute_dtype=None)}
    groups[2] |= {"scale": "match_rms_adamw"}
    optimizer = Muon(groups, lr=0.03, scale="original")
    oracle, rec = Oracle(optimizer), Recorder(optimizer, every=1, measure="exact")
    before = {name: p.detach().clone() for name, p in params.items()}
    give(params, 1)
    optimizer.step()
    layers = []
    for p, M, O in oracle.steps[-1]:
        name = next(n for n, q in params.items() if q is p)
        moved = np.linalg.norm((before[name] - p.detach()).numpy()) / np.linalg.norm(O)
        layers.append((moved, np.sum(M * O), nuclear(M), operator(O), nuclear(p.grad.flatten(1).numpy())))
    length, inner, size, gain, gradient = map(np.array, zip(*layers, strict=True))
    c = length / length.max()
    assert len(set(np.round(c, 6))) == 3
    whole = event(rec, "whole")
    expected = {
        "matrices": 3,
        "length": length.max(),
        "descent": np.sum(c * inner) / np.sum(c * size),
        "op_norm": gain.max(),
        "alignment": np.sum(c * inner) / np.sum(c * size) / gain.max(),
        "nuclear": np.sum(c * size),
        "gradient_nuclear": np.sum(c * gradient),
    }
    # the orthogonalizer of group 0 has half accuracy, so O is compared with itself and not with a formula
    assert {name: whole[name] for name in expected} == pytest.approx(expected, rel=1e-7)
    assert whole["status"] == "holds"


# ------------------------------------------------------------------------------------------------- wrong directions


def right(M):
    return newton_schulz(M, taylor(2), steps=5)


WRONG = {
    "climbing": lambda M: -right(M),
    "transposed": lambda M: right(M).mT,
    "twice as long": lambda M: 2 * right(M),
    "two percent short": lambda M: 0.98 * right(M),
    "nothing": torch.zeros_like,
    "not orthogonalized": lambda M: M.clone(),
    "one step too many": lambda M: newton_schulz(M, taylor(2), steps=6),
    "another degree": lambda M: newton_schulz(M, taylor(1), steps=5),
    "Jordan's": lambda M: newton_schulz(M, "jordan", steps=5),
    "another prescale": lambda M: newton_schulz(M, taylor(2), steps=5, prescale="schatten8"),
    "of another matrix": lambda M: right(M.flip(0)),
    "the exact polar factor": polar,
}


@every_measure
@pytest.mark.parametrize("wrong", [*WRONG, "right"])
def test_a_direction_that_the_orthogonalizer_does_not_compute_is_violated(wrong, measure, monkeypatch):
    monkeypatch.setattr(layout, "step_function", lambda _: WRONG.get(wrong, right))
    p, optimizer = one(8, 8, q=5, dtype=torch.float32, variant="experiments")
    oracle, rec = Oracle(optimizer), Recorder(optimizer, every=1, measure=measure)
    steps(optimizer, p)
    if measure != "bracket":  # its own numbers, not those of the direction that it should have been
        _, M, O = oracle.steps[0][0]
        found = {name: matrices(rec)[0][name] for name in ("descent", "op_norm")}
        assert found == pytest.approx({"descent": np.sum(M * O) / nuclear(M), "op_norm": operator(O)}, rel=1e-5)
    expected = "holds" if wrong == "right" else "violated"
    assert matrices(rec)[0]["status"] == event(rec, "whole")["status"] == expected
    assert ("not the one that the group's orthogonalizer computes" in matrices(rec)[0]["reason"]) == (wrong != "right")


def test_a_wrong_direction_of_half_precision_weights_is_violated(monkeypatch):
    """Steep steps magnify rounding a thousandfold, but they run in float32: only the result is rounded."""
    changes = {"right": 1.0, "nothing": 0.0, "climbing": -1.0, "two percent short": 0.98}
    for name, factor in changes.items():
        p = Parameter(normal(8, 8).to(torch.bfloat16))
        optimizer = Muon([("W", p)])
        how = from_plain(optimizer.param_groups[0]["orthogonalizer"])
        monkeypatch.setattr(layout, "step_function", lambda _, how=how, factor=factor: lambda M: factor * how(M))
        rec = Recorder(optimizer, every=1)
        steps(optimizer, p)
        assert matrices(rec)[0]["status"] == ("holds" if name == "right" else "violated"), name


def test_a_wrong_direction_in_place_of_an_exact_polar_factor_is_violated(monkeypatch):
    for wrong in ("climbing", "transposed", "twice as long", "nothing", "not orthogonalized"):
        monkeypatch.setattr(layout, "step_function", lambda _, wrong=wrong: WRONG[wrong])
        p, optimizer = one(6, 6, polar="svd")
        rec = Recorder(optimizer, every=1)
        steps(optimizer, p)
        assert matrices(rec)[0]["status"] == "violated", wrong


@every_measure
def test_a_direction_out_of_nothing_is_violated_and_a_zero_matrix_alone_is_not(measure, monkeypatch):
    p, optimizer = one(3, 3)
    rec = Recorder(optimizer, every=1, measure=measure)
    p.grad = torch.zeros(3, 3, dtype=torch.float64)
    optimizer.step()
    assert matrices(rec)[0]["status"] == "not_applicable"
    monkeypatch.setattr(layout, "step_function", lambda _: torch.ones_like)
    optimizer.step()
    assert matrices(rec)[0]["status"] == "violated"


@every_measure
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_direction_or_a_matrix_that_is_not_finite_never_holds(bad, measure, monkeypatch):
    p, optimizer = one(3, 3)
    rec = Recorder(optimizer, every=1, measure=measure)
    p.grad = torch.full((3, 3), bad, dtype=torch.float64)
    optimizer.step()
    assert {row["status"] for row in rec.last} == {"not_applicable"}
    other, second = one(3, 3)
    monkeypatch.setattr(layout, "step_function", lambda _: lambda M: M * bad)
    rec = Recorder(second, every=1, measure=measure)
    steps(second, other)
    assert not {row["status"] for row in rec.last} & {"holds"}
    json.dumps(rec.last, allow_nan=False)


@every_measure
def test_a_skipped_parameter_has_a_row_that_says_so(measure):
    p, optimizer = one(3, 3, nonfinite="skip")
    rec = Recorder(optimizer, every=1, measure=measure)
    steps(optimizer, p)
    p.grad = torch.full((3, 3), math.nan, dtype=torch.float64)
    optimizer.step()
    row = matrices(rec)[0]
    assert (row["status"], row["length"]) == ("not_applicable", 0.0)
    assert "skipped" in row["reason"]
    assert row["gradient_nuclear"] is None
    assert event(rec, "whole")["status"] == "not_applicable"


# ----------------------------------------------------------------------------------------------------- Muon not running


def test_a_step_without_any_gradient_warns_once_and_names_what_is_missing():
    params = parameters({"a": (3, 3), "b": (2, 3)})
    rec = Recorder(optimizer := Muon(params.items()), every=1)
    with pytest.warns(UserWarning, match=r"^step 1 orthogonalized nothing: no parameter of this Muon had a gradient"):
        optimizer.step()
    row = event(rec, "missing")
    assert row["names"] == ["a", "b"]
    assert "no parameter of this Muon had a gradient" in row["reason"]
    assert event(rec, "whole")["status"] == "not_applicable"
    assert not matrices(rec)
    optimizer.step()  # no second warning
    assert event(rec, "missing")["step"] == 2
    give(params, 0, absent=["a"])
    optimizer.step()
    assert (event(rec, "missing")["names"], event(rec, "missing")["reason"]) == (["a"], "1 matrices had no gradient")
    assert [row["name"] for row in matrices(rec)] == ["b"]
    give(params, 0)
    optimizer.step()
    assert not [row for row in rec.last if row["event"] == "missing"]


def test_a_muon_that_calls_no_hook_despite_gradients_is_reported(monkeypatch):
    p, optimizer = one()
    rec = Recorder(optimizer, every=1)
    monkeypatch.setattr(optimizer._orthogonalize_hooks, "show", lambda *_: None)
    with pytest.warns(UserWarning, match="1 matrices had a gradient and were not orthogonalized"):
        steps(optimizer, p)
    assert event(rec, "missing")["names"] == ["W"]


def test_a_recording_without_a_step_warns_at_exit_and_one_between_recorded_steps_does_not():
    p, optimizer = one()
    with pytest.warns(UserWarning, match="the optimizer took no step"), Recorder(optimizer):
        pass
    assert unhooked(optimizer)
    with Recorder(optimizer, every=10) as rec:
        steps(optimizer, p, 3)
    with pytest.warns(UserWarning, match="the optimizer took no step"), Recorder(optimizer, every=10) as again:
        again.load_state_dict(rec.state_dict())
    with Recorder(optimizer, every=10) as again:
        again.load_state_dict(rec.state_dict())
        steps(optimizer, p, 3)
    assert again.rows == []
    assert again.step == 6


BAD = {
    "every": ({"every": 0}, "^every must be at least 1, got 0: pass"),
    "measure": ({"measure": "svd"}, "^measure must be one of 'spectrum', 'exact', 'bracket', got 'svd'"),
    "to": ({"to": 3}, "^to must be a path, a function or None, got 3 of type int: pass"),
    "an open file": ({"to": io.StringIO()}, "^to must be a path, a function or None, got .+StringIO.+: pass"),
    "a directory": ({"to": "."}, "^a recording is a file, got the directory"),
    "no parent": ({"to": "/nowhere/rows.jsonl"}, "^a recording needs a directory that exists"),
}


def test_a_recorder_that_is_refused_leaves_no_hook_and_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    p, optimizer = one()
    for options, message in BAD.values():
        with pytest.raises((TypeError, ValueError), match=message):
            Recorder(optimizer, **{"to": "rows.jsonl", **options})
        assert unhooked(optimizer)
        assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match=r"^the optimizer must be a muonlab Muon or MuonWithAux, got .+: Muon.torch"):
        Recorder(SGDM([p], lr=0.1, momentum=0.9), to="rows.jsonl")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------ where rows go, and when


def test_the_first_step_and_each_every_th_are_recorded():
    p, optimizer = one()
    rec = Recorder(optimizer, every=3)
    for t in range(8):
        assert not optimizer._orthogonalize_hooks
        steps(optimizer, p, first=t)
    assert [(row["event"], row["step"]) for row in rec.rows] == [
        (kind, step) for step in (1, 4, 7) for kind in ("matrix", "whole")
    ]
    assert rec.step == 8


def test_rows_are_kept_unless_that_is_switched_off_wherever_else_they_go(tmp_path):
    p, optimizer = one()
    calls = []
    kept, called = Recorder(optimizer, every=1), Recorder(optimizer, every=1, to=calls.append)
    dropped = Recorder(optimizer, every=1, keep=False)
    with Recorder(optimizer, every=1, to=tmp_path / "rows.jsonl") as filed:
        steps(optimizer, p, 5)
    assert filed._file._file.closed
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert kept.rows == calls == lines
    assert len(lines) == 10
    assert called.rows == filed.rows == lines
    assert dropped.rows == []
    assert called.last == filed.last == dropped.last == lines[-2:]


def test_a_compiled_step_is_refused_before_anything_changes():
    p, optimizer = one()
    before = p.detach().clone()
    for step in (
        torch.compile(optimizer.step, backend="eager"),
        torch.compile(lambda: [optimizer.step()], backend="eager"),
    ):
        p.grad = torch.ones_like(p)
        refused = pytest.raises(RuntimeError, match="recording needs an uncompiled step")
        with refused, Recorder(optimizer, every=1) as rec:
            step()
        assert rec.rows == []
        assert torch.equal(p, before)
        torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend="eager")
    step()  # without a recorder it is fine
    assert not torch.equal(p, before)


def test_two_recorders_at_once_agree_and_one_closes_without_the_other():
    p, optimizer = one()
    first, second = Recorder(optimizer, every=1), Recorder(optimizer, every=2, measure="exact")
    steps(optimizer, p, 2)
    assert [row["step"] for row in first.rows] == [1, 1, 2, 2]
    assert [row["step"] for row in second.rows] == [1, 1]
    assert first.rows[0]["alignment"] == pytest.approx(second.rows[0]["alignment"], rel=1e-9)
    first.close()
    first.close()
    steps(optimizer, p, 1)
    assert [row["step"] for row in first.rows] == [1, 1, 2, 2]
    assert [row["step"] for row in second.rows] == [1, 1, 3, 3]
    second.close()
    assert unhooked(optimizer)


def closure_error(p, optimizer):
    steps_before = p.detach().clone()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert torch.equal(p, steps_before)


def nonfinite_error(p, optimizer):
    p.grad = torch.full_like(p, math.nan)
    with pytest.raises(ValueError, match="gradients must be finite"):
        optimizer.step()


@pytest.mark.parametrize("error", [closure_error, nonfinite_error])
def test_training_continues_bit_for_bit_after_a_step_that_failed_without_a_change(error):
    ends, recs = [], []
    for recorded in (False, True):
        p, optimizer = one(nonfinite="raise")
        recs.append(Recorder(optimizer, every=1) if recorded else None)
        steps(optimizer, p, 2)
        error(p, optimizer)
        steps(optimizer, p, 2, first=2)
        ends.append((p.detach(), optimizer.state_dict()))
    assert same(*ends)
    assert [row["step"] for row in recs[1].rows] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert recs[1].certificate(L=1.0, D=1.0).status == "applies"


def test_rows_of_a_step_that_failed_half_way_do_not_turn_up_in_the_next():
    params = parameters({"a": (3, 3), "b": (2, 3)})
    optimizer = Muon.paper(params.items(), lr=0.1, momentum=0.9)
    rec, calls = Recorder(optimizer, every=1), []

    def fail(*_):
        calls.append(rec._current[-1]["name"])  # the recorder has seen the first matrix
        raise ZeroDivisionError

    # registered after the recorder's own hook, which a pre-hook sets at the beginning of the step
    late = optimizer.register_step_pre_hook(lambda *_: handles.append(optimizer.register_orthogonalize_hook(fail)))
    handles = [late]
    give(params, 0)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert calls == ["a"]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert [row["name"] for row in matrices(rec)] == ["a", "b"]
    assert [row["step"] for row in rec.rows] == [1, 1, 1]
    assert "failed half-way" in rec.certificate(L=1.0, D=1.0).reason


def test_a_recorded_optimizer_is_copied_and_pickled_without_its_recorder():
    p, muon = one()
    optimizer = MuonWithAux(muon, torch.optim.AdamW([Parameter(torch.ones(2))]))
    rec = Recorder(optimizer, every=1)
    steps(optimizer, p)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert unhooked(twin)
        assert same(twin.state_dict(), optimizer.state_dict())
        q = twin.param_groups[0]["params"][0]
        steps(twin, q, first=1)
    assert rec.step == 1
    steps(optimizer, p, first=1)
    assert torch.equal(p, q)
    assert rec.step == 2


def test_a_gradient_scaler_that_skips_a_step_skips_its_rows():
    p, optimizer = one(dtype=torch.float32)
    rec = Recorder(optimizer, every=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t, factor in enumerate((1.0, math.inf, 1.0, math.nan, 1.0)):
        optimizer.zero_grad()
        scaler.scale((p * normal(4, 4, seed=t, dtype=torch.float32)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert rec.step == 3
    assert rec.certificate(L=1.0, D=1.0).status == "applies"


# --------------------------------------------------------------------------------------------------- the certificate


PROBLEMS = {
    "bowl": (simulation.bowl(3), normal(3, 4, seed=5).numpy()),
    "wells": (simulation.wells(4), 2 * normal(6, 4, seed=6).numpy()),
    "huber": (simulation.huber(2, 1.0), np.diag([3.0, 3.0])),
    "quadratic": (
        simulation.quadratic(normal(4, 4, seed=7).numpy(), np.ones((4, 5))),
        normal(4, 5, seed=8).numpy(),
    ),
}


def descend(problem, build_optimizer, T, after=lambda _: None, **options):
    """Train on a noiseless problem: the recorder, ρ_t and s_t by SVD, true gradient norms, values."""
    objective, W = PROBLEMS[problem]
    p = Parameter(torch.from_numpy(W.copy()))
    optimizer = build_optimizer([("W", p)])
    oracle, rec = Oracle(optimizer), Recorder(optimizer, every=1, **options)
    norms, values, etas = [], [objective.value(W)], []
    for _ in range(T):
        G = objective.gradient(p.detach().numpy().copy())
        norms.append(nuclear(G))
        etas.append(float(optimizer.param_groups[0]["lr"]))
        p.grad = torch.from_numpy(G)
        optimizer.step()
        after(optimizer)
        values.append(objective.value(p.detach().numpy()))
    taken = [taken[0][1:] for taken in oracle.steps]
    rho = np.array([np.sum(M * O) / nuclear(M) if nuclear(M) else 0.0 for M, O in taken])
    gain = np.array([operator(O) for _, O in taken])
    return rec, rho, gain, np.array(norms), np.array(values), np.array(etas)


def paper(momentum, lr=0.01, **options):
    return lambda params: Muon.paper(params, lr=lr, momentum=momentum, **options)


RUNS = {
    "paper": paper(0.9),
    "no momentum": paper(0.0),
    "one step of degree 1": paper(0.8, q=1, kappa=1),
    "exact": paper(0.95, polar="svd"),
    "normalised": paper(0.9, q=0, variant="experiments", renormalize=None),
    "Jordan, average": lambda params: Muon(
        params, lr=0.01, momentum=0.7, nesterov=False, scale="none", orthogonalizer=NewtonSchulz("jordan", steps=5)
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_certificate_is_run_bound_of_measured_steps_and_bounds_the_true_gradients(problem):
    objective, W = PROBLEMS[problem]
    betas = {"paper": 0.9, "no momentum": 0.0, "one step of degree 1": 0.8, "exact": 0.95, "normalised": 0.9}
    for run, build_optimizer in RUNS.items():
        check_certificate(objective, W, betas.get(run, 0.7), *descend(problem, build_optimizer, 25))


def check_certificate(objective, W, beta, rec, rho, gain, norms, values, etas):
    for D in (values[0], values[0] - values[-1]):
        found = rec.certificate(L=objective.L, D=D)
        given = {"L": objective.L, "D": D, "sigma": 0.0, "r": min(W.shape), "B": 1}
        by_hand = run_bound(rho, gain, eta=etas, beta=beta, nesterov=False, **given)
        assert found.status == by_hand.status == "applies"
        assert found.confidence == 1.0
        assert found.terms == pytest.approx(by_hand.terms, rel=1e-7)
        assert found.total >= np.sum(etas * rho * norms) / np.sum(etas * rho) * (1 - 1e-9)
        assert found.total >= norms.min()


def test_half_of_d_and_a_tenth_of_l_are_refuted_by_runs():
    rec, rho, _, norms, values, etas = descend("huber", paper(0.0, lr=0.002, polar="svd"), 60)
    average = np.sum(etas * rho * norms) / np.sum(etas * rho)
    objective = PROBLEMS["huber"][0]
    D = values[0] - values[-1]
    assert rec.certificate(L=objective.L, D=D / 2).total < average <= rec.certificate(L=objective.L, D=D).total
    # a bowl whose step is far too long oscillates: only the curvature term pays for that
    rec, rho, _, norms, values, etas = descend("bowl", paper(0.0, lr=3.0, polar="svd"), 40)
    average = np.sum(etas * rho * norms) / np.sum(etas * rho)
    objective, D = PROBLEMS["bowl"][0], values[0] - values[-1]
    assert rec.certificate(L=objective.L / 10, D=D).total < average <= rec.certificate(L=objective.L, D=D).total


def test_a_schedule_of_the_learning_rate_keeps_the_certificate():
    schedulers = []

    def scheduled(params):
        optimizer = Muon.paper(params, lr=0.05, momentum=0.8)
        warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, 25, eta_min=1e-4)
        schedulers.append(lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [5]))
        return optimizer

    objective, W = PROBLEMS["wells"]
    rec, rho, gain, norms, values, etas = descend("wells", scheduled, 30, after=lambda _: schedulers[-1].step())
    assert len(set(etas)) > 20
    found = rec.certificate(L=objective.L, D=values[0])
    given = {"L": objective.L, "D": values[0], "sigma": 0.0, "r": min(W.shape), "B": 1}
    by_hand = run_bound(rho, gain, eta=etas, beta=0.8, nesterov=False, **given)
    assert found.terms == pytest.approx(by_hand.terms, rel=1e-7)
    assert found.total >= np.sum(etas * rho * norms) / np.sum(etas * rho)


def test_default_muon_with_warm_up_from_zero_cosine_rising_momentum_and_weight_decay_has_a_certificate():
    """As people run it; ρ_t, s_t and the norms of the weights are those of an SVD, the gradients the true ones."""
    T, objective, W = 30, *PROBLEMS["wells"]
    rates = [0.1 * min(t / 5, 1.0) * (1 + math.cos(math.pi * t / T)) / 2 for t in range(T)]
    betas = np.linspace(0.5, 0.95, T)
    for form, nesterov, decay in itertools.product(("ema", "heavy_ball"), (True, False), (0.0, 0.05, 2.0)):
        sizes, inward = [], []

        def settings(optimizer, sizes=sizes, inward=inward):
            group = optimizer.param_groups[0]
            t = len(sizes)
            if t < T:
                group.update(lr=rates[t], momentum=float(betas[t]))
            weight = group["params"][0].detach().numpy()
            sizes.append(operator(weight))
            inward.append(float(np.sum(objective.gradient(weight) * weight)))

        def default(params, form=form, nesterov=nesterov, decay=decay, settings=settings):
            options = {"momentum_form": form, "nesterov": nesterov, "weight_decay": decay, "scale": "none"}
            optimizer = Muon(params, lr=0.1, **options)
            settings(optimizer)
            return optimizer

        rec, rho, gain, norms, values, etas = descend("wells", default, T, after=settings, measure="exact")
        assert etas[0] == 0.0
        pull = decay * np.array(sizes[:T]) if decay else None
        found = rec.certificate(L=objective.L, D=values[0] - values[-1])
        by_hand = run_bound(
            np.where(etas > 0, rho, 0), np.where(etas > 0, gain, 0), L=objective.L, D=values[0] - values[-1],
            sigma=0.0, r=min(W.shape), B=1, eta=etas, beta=betas, momentum_form=form, nesterov=nesterov,
            pull=None if pull is None else np.where(etas > 0, pull, 0),
        )  # fmt: skip
        assert found.terms == pytest.approx(by_hand.terms, rel=1e-5)
        assert found.status == ("applies" if decay < 1 else "not_applicable")
        constants = f"L = {objective.L:g}, D = {values[0] - values[-1]:g} and sigma = 0 are true of this run"
        assert f"Assumed: {constants} (if they are estimates, so is the bound)" in found.reason
        if decay < 1:
            assert "no noise, as sigma = 0" in found.reason
            weights = etas * (rho - (0.0 if pull is None else pull))
            assert found.total >= np.sum(weights * norms) / np.sum(weights)
        if decay:
            gap = np.sum(etas * (rho * norms + decay * np.array(inward[:T]))) / np.sum(etas)
            assert found.gap.bound == pytest.approx(by_hand.gap.bound, rel=1e-5)
            assert found.gap.bound >= gap
            assert found.gap.nonnegative == (decay < 1)


def layered(lrs=(0.02, 0.005), **options):
    """Return two layers with other step lengths, on ``½ Σ ‖W_l‖²``."""
    params = parameters({"a": (6, 3), "b": (3, 4)}, torch.float64)
    groups = [{"params": [item], "lr": lr} for item, lr in zip(params.items(), lrs, strict=True)]
    return params, Muon.paper(groups, **{"lr": 0.1, "momentum": 0.8, "scale": "original", **options})


def roll(params, optimizer, T, after=lambda _: None):
    for t in range(T):
        for p in params.values():
            p.grad = p.detach().clone()
        optimizer.step()
        after(t)


def test_the_certificate_of_layers_bounds_their_weighted_gradients_under_a_common_schedule():
    params, optimizer = layered()
    rec = Recorder(optimizer, every=1)
    start = sum(float(p.detach().square().sum()) for p in params.values()) / 2
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.97)
    roll(params, optimizer, 30, after=lambda _: scheduler.step())
    c = {"a": 1.0, "b": 0.005 / (0.02 * math.sqrt(2))}
    # ‖Δ‖_dual = Σ c_l ‖Δ_l‖_* ≤ Σ c_l² r_l · max_l ‖Δ_l‖_op / c_l
    L = sum(c[name] ** 2 * min(p.shape) for name, p in params.items())
    end = sum(float(p.detach().square().sum()) for p in params.values()) / 2
    whole = [row for row in rec.rows if row["event"] == "whole"]
    weights = np.array([row["length"] * row["descent"] for row in whole])
    norms = np.array([row["gradient_nuclear"] for row in whole])
    by_name = [
        {r["name"]: r["gradient_nuclear"] for r in rec.rows if r["event"] == "matrix" and r["step"] == t}
        for t in (1, 30)
    ]
    for t, found in zip((0, 29), by_name, strict=True):
        assert norms[t] == pytest.approx(sum(c[name] * norm for name, norm in found.items()), rel=1e-6)
    bound = rec.certificate(L=L, D=start - end)
    assert bound.status == "applies"
    assert bound.total >= np.sum(weights * norms) / np.sum(weights) * (1 - 1e-9)


def test_a_wrong_direction_that_descends_has_the_certificate_of_its_own_numbers(monkeypatch):
    monkeypatch.setattr(layout, "step_function", lambda _: WRONG["twice as long"])
    objective, W = PROBLEMS["wells"]
    rec, rho, gain, norms, values, etas = descend("wells", paper(0.6), 20)
    given = {"L": objective.L, "D": values[0], "sigma": 0.0, "r": min(W.shape), "B": 1}
    by_hand = run_bound(rho, gain, eta=etas, beta=0.6, nesterov=False, **given)
    found = rec.certificate(L=objective.L, D=values[0])
    assert event(rec, "whole")["status"] == "violated"
    assert found.terms == pytest.approx(by_hand.terms, rel=1e-7)
    assert found.total >= np.sum(etas * rho * norms) / np.sum(etas * rho)


def test_a_descent_that_rounding_carries_above_the_gain_of_exact_steps_still_has_a_certificate(monkeypatch):
    p = Parameter(torch.eye(6))
    optimizer = Muon([("W", p)], lr=0.01, nesterov=False, scale="none")  # half accuracy
    how = layout.step_function(optimizer.param_groups[0]["orthogonalizer"])
    monkeypatch.setattr(layout, "step_function", lambda _: lambda M: 1.002 * how(M))
    rec = Recorder(optimizer, every=1)
    p.grad = torch.eye(6)
    optimizer.step()
    assert matrices(rec)[0]["status"] == "holds"
    assert matrices(rec)[0]["alignment"] > 1.001
    assert rec.certificate(L=6.0, D=1.0).status == "applies"


# ---------------------------------------------------------------------------------------- where there is no certificate


def why_not(rec):
    found = rec.certificate(L=1.0, D=1.0)
    assert found.status == "not_applicable"
    assert math.isinf(found.total)
    assert found.terms == {}
    return found.reason


OPTIONS = {
    "renormalised weights": {"renormalize": "after"},
    "maximize": {"maximize": True},
}
CHANGES = {"momentum in another form": {"momentum_form": "ema"}, "in another form": {"nesterov": True}, **OPTIONS}


def test_an_option_that_the_theorem_does_not_cover_ends_the_certificate_even_for_one_step():
    for reason, options in OPTIONS.items():
        p, optimizer = one(**options)
        rec = Recorder(optimizer, every=1)
        steps(optimizer, p, 2)
        assert reason in why_not(rec)
        assert "step 1" in why_not(rec)
    for reason, options in CHANGES.items():
        p, optimizer = one()
        rec = Recorder(optimizer, every=1)
        steps(optimizer, p, 2)
        before = {name: optimizer.param_groups[0][name] for name in options}
        optimizer.param_groups[0].update(options)
        steps(optimizer, p)
        optimizer.param_groups[0].update(before)
        steps(optimizer, p, 2)
        assert reason in why_not(rec)
        assert "step 3" in why_not(rec)


def after_two_steps(change, **options):
    """Return the recorder of two layers, changed after two steps and trained for two more."""
    params, optimizer = layered(**options)
    rec = Recorder(optimizer, every=1)
    roll(params, optimizer, 2)
    change(params, optimizer)
    roll(params, optimizer, 2)
    return rec


def nan_gradients(params, optimizer, names=("a", "b")):
    for name, p in params.items():
        p.grad = torch.full_like(p, math.nan if name in names else 1.0)
    optimizer.step()


def without_gradients(params, optimizer, names=("a", "b")):
    give(params, 0, absent=names)
    optimizer.step()


def another_group(params, optimizer):
    params["c"] = Parameter(normal(3, 3))
    optimizer.add_param_group({"params": [("c", params["c"])]})


def reload(_, optimizer):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def test_steps_that_the_theorem_does_not_cover_end_the_certificate():
    cases = [
        (nan_gradients, {}, "step 3 was not finite"),
        (
            lambda *args: nan_gradients(*args, names=("a",)),
            {"nonfinite": "skip"},
            "step 3 skipped a gradient",
        ),
        (lambda *args: without_gradients(*args, names=("b",)), {}, "gradients were missing"),
        (another_group, {}, "step 3 orthogonalized other matrices"),
        (lambda _, o: o.param_groups[0].update(lr=0.001), {}, "step 3 changed the relative lengths"),
        (lambda _, o: o.param_groups[1].update(momentum=0.5), {}, "step 3 is not covered: groups that differ in"),
        (reload, {}, "loaded during the run"),
    ]
    for change, options, reason in cases:
        assert reason in why_not(after_two_steps(change, **options)), reason
    with pytest.warns(UserWarning, match="orthogonalized nothing"):
        assert why_not(after_two_steps(without_gradients)) == "step 3 orthogonalized nothing"


def test_runs_that_the_theorem_does_not_cover_from_the_start_have_no_certificate(monkeypatch):
    p, optimizer = one()
    steps(optimizer, p)
    rec = Recorder(optimizer, every=1)
    steps(optimizer, p)
    assert why_not(rec) == "the momentum was not zero when recording began"
    q, fresh = one()
    rec = Recorder(fresh, every=1)
    fresh.load_state_dict(optimizer.state_dict())
    steps(fresh, q)
    assert why_not(rec) == "the momentum was not zero when recording began"
    p, muon = one()
    joint = MuonWithAux(muon, torch.optim.AdamW([Parameter(torch.ones(3))]))
    rec = Recorder(joint, every=1)
    steps(joint, p, 2)
    assert "1 auxiliary parameters (AdamW)" in why_not(rec)
    half = Parameter(torch.eye(8, dtype=torch.bfloat16))  # steps of 1e-4 from a weight of 1 do not move it
    rec = Recorder(optimizer := Muon.paper([half], lr=1e-4, momentum=0.5), every=1)
    half.grad = half.detach().clone()
    optimizer.step()
    assert torch.equal(half.detach(), torch.eye(8, dtype=torch.bfloat16))
    assert "half precision" in why_not(rec)
    params, optimizer = layered()
    rec = Recorder(optimizer, every=1)
    roll(params, optimizer, 2)
    with torch.no_grad():  # as another optimizer of the same weights does
        params["b"] -= 1e-6
    roll(params, optimizer, 2)
    assert why_not(rec) == "something else changed the weights before step 3"
    monkeypatch.setattr(layout, "step_function", lambda _: WRONG["climbing"])
    assert "rho is negative at 5 of 5 steps" in why_not(descend("wells", paper(0.6), 5)[0])


def test_a_resumed_recording_keeps_its_reasons_and_notices_what_was_not_loaded():
    p, optimizer = one()
    rec = Recorder(optimizer, every=1)
    steps(optimizer, p, 2)
    q, other = one()
    resumed = Recorder(other, every=1)
    resumed.load_state_dict(rec.state_dict())
    steps(other, q)
    assert "the momenta are not those that were saved" in why_not(resumed)
    p, optimizer = one()
    rec = Recorder(optimizer, every=3)
    steps(optimizer, p, 3)
    rec.close()
    again = Recorder(optimizer, every=1)
    again.load_state_dict(rec.state_dict())
    steps(optimizer, p, 2)
    assert why_not(again) == "2 of 5 steps were recorded"
    p, optimizer = one()
    rec = Recorder(optimizer, every=1)
    p.grad = torch.full_like(p, math.nan)
    optimizer.step()
    q, optimizer = one()
    again = Recorder(optimizer, every=1)
    again.load_state_dict(rec.state_dict())
    steps(optimizer, q, 2)
    assert why_not(again) == "step 1 was not finite"


def test_without_every_step_there_is_no_certificate():
    p, optimizer = one()
    rec, second = Recorder(optimizer, every=2), Recorder(optimizer, every=1)
    assert why_not(second) == "no step was recorded"
    steps(optimizer, p, 2)
    assert "pass every=1" in why_not(rec)
    assert second.certificate(L=1.0, D=1.0).status == "applies"


def test_bounds_in_place_of_measurements_give_a_certificate_that_is_a_little_larger():
    totals = {}
    for measure in MEASURES:
        params, optimizer = layered()
        rec = Recorder(optimizer, every=1, measure=measure)
        roll(params, optimizer, 12)
        bound = rec.certificate(L=3.0, D=2.0, sigma=0.5)
        assert bound.status == "applies"
        assert "no clipping" in bound.reason
        totals[measure] = bound.total
    assert totals["exact"] <= totals["spectrum"] <= 1.01 * totals["exact"]
    assert totals["exact"] < totals["bracket"] < 1.3 * totals["exact"]


def test_the_noise_of_layers_counts_the_ranks_of_all_of_them():
    params, optimizer = layered()
    rec = Recorder(optimizer, every=1, measure="exact")
    roll(params, optimizer, 6)
    history = rec.run.history
    options = {"L": 3.0, "D": 2.0, "sigma": 0.5, "B": 4}
    by_hand = run_bound(
        [step.descent for step in history], [step.gain for step in history], **options,
        r=sum(min(p.shape) for p in params.values()), eta=[step.length for step in history],
        beta=optimizer.param_groups[0]["momentum"], nesterov=False,
    )  # fmt: skip
    assert rec.certificate(**options).total == pytest.approx(by_hand.total, rel=1e-12)


def test_a_layer_that_does_not_move_is_no_part_of_the_whole():
    still, moving = (Parameter(torch.randn(6, 8, generator=torch.Generator().manual_seed(i))) for i in range(2))
    groups = [{"params": [still], "lr": 0.0, "orthogonalizer": NewtonSchulz("jordan")}, {"params": [moving]}]
    optimizer = Muon(groups, lr=0.1, orthogonalizer=NewtonSchulz(taylor(2), steps=6))
    rec = Recorder(optimizer, every=1)
    for p in (still, moving):
        p.grad = p.detach().clone()
    optimizer.step()
    alignments = {row["name"]: row["alignment"] for row in matrices(rec)}
    assert event(rec, "whole")["alignment"] == pytest.approx(alignments["group 1, parameter 0"], rel=1e-9)
    assert alignments["group 0, parameter 0"] < 0.95


def test_a_parameter_that_never_has_a_gradient_is_frozen_and_spoils_nothing():
    params, optimizer = layered()
    rec = Recorder(optimizer, every=1)
    for t in range(3):
        give(params, t, absent=["b"])
        optimizer.step()
    assert rec.certificate(L=1.0, D=1.0).status == "applies"


@pytest.mark.parametrize("recorder_first", [False, True])
def test_an_optimizer_rolled_back_together_with_its_recorder_keeps_the_certificate(recorder_first):
    p, optimizer = one()
    rec = Recorder(optimizer, every=1)
    steps(optimizer, p, 2)
    saved = copy.deepcopy((optimizer.state_dict(), rec.state_dict(), p.data))
    steps(optimizer, p, 3, first=2)
    straight = rec.certificate(L=1.0, D=1.0)
    steps(optimizer, p, 4)
    for load in (rec.load_state_dict, optimizer.load_state_dict)[:: 1 if recorder_first else -1]:
        load(saved[1] if load == rec.load_state_dict else saved[0])
    p.data.copy_(saved[2])
    steps(optimizer, p, 3, first=2)
    assert rec.certificate(L=1.0, D=1.0) == straight


def test_a_change_of_the_number_of_steps_keeps_the_certificate():
    params = parameters({"a": (4, 4), "b": (3, 4), "c": (4, 4)}, torch.float64)
    groups = [{"params": [item]} for item in params.items()]
    optimizer = Muon.paper(groups, lr=0.01, momentum=0.8, q=8, variant="experiments", renormalize=None)
    auto, rec = AutoSteps(optimizer, 0.6, every=1), Recorder(optimizer, every=1)
    roll(params, optimizer, 3, after=lambda _: auto.step())
    assert auto.changes
    orders = [[row["name"] for row in rec.rows if row["event"] == "matrix" and row["step"] == t] for t in (1, 3)]
    optimizer.param_groups[2]["orthogonalizer"] = NewtonSchulz(taylor(1), steps=3)
    roll(params, optimizer, 1)
    orders.append([row["name"] for row in matrices(rec)])
    assert len({tuple(order) for order in orders}) > 1  # matrices that are treated alike are worked on together
    assert rec.certificate(L=11.0, D=50.0).status == "applies"


def test_a_run_in_which_a_parameter_outside_of_the_optimizer_moves_is_exposed_by_a_negative_bound():
    """``f = tr W + 4b``: something raises b as fast as Muon lowers the trace; the recorder does not know b."""
    W, b = Parameter(torch.zeros(4, 4, dtype=torch.float64)), torch.zeros((), dtype=torch.float64)
    rec = Recorder(optimizer := Muon([W], lr=0.01), every=1)
    for _ in range(50):
        W.grad = torch.eye(4, dtype=torch.float64)
        optimizer.step()
        b += 0.0125
    D = -float(torch.trace(W.detach()) + 4 * b)
    assert D < 0
    found = rec.certificate(L=1e-6, D=D)
    assert (found.status, found.total) == ("not_applicable", math.inf)
    assert "the bound is negative" in found.reason
    assert "something else moved the weights" in found.reason
    assert "parameters outside of the optimizer do not change" in rec.certificate(L=1e-6, D=1.0).reason


# -------------------------------------------------------------------------------------------------------- resuming


def through_torch(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


@pytest.mark.parametrize(("at", "through"), [(0, through_json), (1, through_torch), (5, through_json)])
@pytest.mark.parametrize("options", [{}, {"nesterov": True, "weight_decay": 0.1, "momentum_form": "ema"}])
def test_a_resumed_recording_ends_like_an_uninterrupted_one(options, at, through, tmp_path):
    path, build = tmp_path / "rows.jsonl", functools.partial(one, **options)
    p, optimizer = build()
    with Recorder(optimizer, every=1) as straight:
        steps(optimizer, p, 8)
    p, optimizer = build()
    part = Recorder(optimizer, every=1, to=path)
    steps(optimizer, p, at)
    part.close()
    q, resumed = build()
    q.data.copy_(p.data)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with Recorder(resumed, every=1, to=path) as rec:
        rec.load_state_dict(through(part.state_dict()))
        if at:
            assert rec.certificate(L=1.0, D=1.0, sigma=1.0) == part.certificate(L=1.0, D=1.0, sigma=1.0)
        steps(resumed, q, 8 - at, first=at)
    assert rec.certificate(L=1.0, D=1.0, sigma=1.0) == straight.certificate(L=1.0, D=1.0, sigma=1.0)
    assert [json.loads(line) for line in path.read_text().splitlines()] == straight.rows


def test_an_exact_polar_factor_with_its_own_rank_tolerance_is_judged_by_that_tolerance():
    """Half of the singular values are cut off on purpose: the descent is that of the rest, and nothing is wrong."""
    W = Parameter(torch.zeros(6, 8))
    W.grad = torch.diag_embed(torch.tensor([4.0, 3.0, 2.0, 0.5, 0.4, 0.3]))[:, :6] @ torch.eye(6, 8)
    optimizer = Muon([W], orthogonalizer=ExactPolar(rank_tol=1.0), momentum=0.0, nesterov=False)
    with Recorder(optimizer, every=1) as rec:
        optimizer.step()
    row = rec.rows[0]
    assert (row["status"], row["rank"]) == ("holds", 3)
    assert row["descent"] == pytest.approx(9 / 10.2, rel=1e-5)


def test_a_saved_state_without_one_of_its_parts_is_refused_and_nothing_changes():
    p, optimizer = one()
    rec = Recorder(optimizer, every=1)
    steps(optimizer, p, 2)
    before = rec.state_dict()
    for key in before:
        with pytest.raises(ValueError, match=f"a saved state must have .*{key}"):
            rec.load_state_dict({k: v for k, v in before.items() if k != key})
        assert rec.state_dict() == before


def test_the_time_of_recording_grows_with_recorded_steps_alone():
    p, optimizer = one(4, 6)
    with Recorder(optimizer, every=3) as rec:
        seen = [rec.seconds]
        for t in range(7):
            steps(optimizer, p, first=t)
            seen.append(rec.seconds)
    assert seen[0] == 0.0
    grown = [later > sooner for sooner, later in itertools.pairwise(seen)]
    assert grown == [True, False, False, True, False, False, True]
