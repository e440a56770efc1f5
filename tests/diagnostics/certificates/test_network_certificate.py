"""Certificates of several matrices: the whole against its definition, optimizers and models by their own settings."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from muonlab import ExactPolar, Muon, MuonWithAux, NewtonSchulz, newton_schulz, split_params
from muonlab.diagnostics import NetworkCertificate, certify
from muonlab.polynomials import taylor
from muonlab.theory import alignment_floor
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo

MATRICES = {
    "small": with_spectrum(6, 9, np.geomspace(1, 0.1, 6)),
    "tall": 100 * gaussian(12, 5),
    "flat": with_spectrum(8, 8, np.ones(8)),
}


AHEAD = "look-aheads of the present gradients and momenta"


def nuclear(M):
    return float(np.linalg.svd(M.detach().double().numpy(), compute_uv=False).sum())


def operator(M):
    return float(np.linalg.svd(M.detach().double().numpy(), compute_uv=False)[0])


def by_definition(layers):
    """ρ, s and ρ/s of ``[(M, O, c)]`` under the dual pair ``Σ c ‖·‖_*`` and ``max ‖·‖_op / c``."""
    descent = sum(c * float(torch.sum(M.double() * O.double())) for M, O, c in layers)
    norm = sum(c * nuclear(M) for M, _, c in layers)
    gain = max(operator(c * O) / c for _, O, c in layers)
    return descent / norm, gain, descent / norm / gain


def stepped(optimizer, seed=0):
    for k, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed + k)).to(p.dtype)
    optimizer.step()
    return optimizer


def parameter(*shape, seed=0):
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


# ---------------------------------------------------------------------------------------------------------- the whole


@pytest.mark.parametrize("polynomial", ["quintic", "jordan"])
def test_the_whole_is_that_of_its_definition(polynomial):
    n = certify(MATRICES, polynomial, steps=4)
    layers = [(M, newton_schulz(M, polynomial, steps=4), 1.0) for M in MATRICES.values()]
    assert (n.descent, n.op_norm, n.alignment) == pytest.approx(by_definition(layers), rel=1e-6)
    assert n.factor == pytest.approx(1 / n.alignment)
    assert n.rank == 6 + 5 + 8
    assert n.status == "holds"
    assert n.alignment_floor <= n.alignment
    for name, M in MATRICES.items():
        alone = certify(M, polynomial, steps=4)
        assert n[name].to_dict() == {**alone.to_dict(), "name": name}


def test_the_floor_of_the_whole_is_the_least_descent_over_the_largest_gain():
    n = certify(MATRICES, "jordan")
    floors = [alignment_floor(NewtonSchulz("jordan").schedule, r) for r in (6, 5, 8)]
    assert n.alignment_floor == pytest.approx(min(floors), rel=1e-12)
    mixed = stepped(
        Muon(
            [
                {"params": [parameter(4, 6)], "orthogonalizer": NewtonSchulz("jordan")},
                {"params": [parameter(40, 60)], "orthogonalizer": NewtonSchulz(taylor(2), steps=3)},
            ]
        )
    )
    whole = certify(mixed)
    a, b = (whole[name] for name in whole)
    assert a.largest_gain > 1.1
    assert whole.alignment_floor == pytest.approx(b.alignment_floor * 1.0 / a.largest_gain, rel=1e-9)
    assert whole.alignment_floor < whole.alignment


def test_the_floor_holds_for_networks_of_adversarial_spectra():
    rng = np.random.default_rng(0)
    for trial in range(10):
        network = []
        for _ in range(3):
            r = int(rng.integers(2, 16))
            values = np.r_[1.0, np.full(r - 1, 10.0 ** -rng.uniform(0, 3))]
            network.append(with_spectrum(r, 20, values, seed=trial) * 10.0 ** rng.uniform(-3, 3))
        n = certify(network, taylor(2), steps=3)
        assert n.alignment >= n.alignment_floor


@pytest.mark.parametrize("scale", ["none", "original", "match_rms_adamw", "spectral"])
def test_scale_rules_and_learning_rates_weigh_the_layers(scale):
    tall, wide = parameter(12, 5), parameter(4, 9)
    groups = [{"params": [("tall", tall)], "lr": 0.02}, {"params": [("wide", wide)], "lr": 0.3}]
    optimizer = stepped(Muon(groups, scale=scale, nesterov=False, orthogonalizer=NewtonSchulz("jordan")))
    n = certify(optimizer)
    rule = {
        "none": lambda *_: 1.0,
        "original": lambda m, n: math.sqrt(max(1, m / n)),
        "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),
        "spectral": lambda m, n: math.sqrt(m / n),
    }[scale]
    lengths = {"tall": 0.02 * rule(12, 5), "wide": 0.3 * rule(4, 9)}
    longest = max(lengths.values())
    assert n.steps == pytest.approx({name: length / longest for name, length in lengths.items()})
    momenta = {"tall": optimizer.state[tall]["momentum_buffer"], "wide": optimizer.state[wide]["momentum_buffer"]}
    layers = [(M, newton_schulz(M, "jordan"), lengths[name]) for name, M in momenta.items()]
    assert (n.descent, n.op_norm, n.alignment) == pytest.approx(by_definition(layers), rel=1e-5)
    unweighted = by_definition([(M, O, 1.0) for M, O, _ in layers])
    assert n.descent != pytest.approx(unweighted[0], rel=1e-3)


def test_one_wrong_matrix_makes_the_whole_violated_and_is_named():
    good, bad = (certify(MATRICES["flat"], outcome=s * newton_schulz(MATRICES["flat"])) for s in (1, -1))
    n = NetworkCertificate({"a": good, "b": bad}, "matrices", {"a": 1.0, "b": 0.1}, ())
    assert n.status == "violated"
    assert n.reason == "1 of 2 matrices contradict a statement, the first b"
    assert n.alignment > 0  # the sum descends, and still


def test_a_whole_that_does_not_descend_is_not_applicable():
    M = 0.01 * MATRICES["flat"]
    up = certify(M, "jordan", prescale="paper", outcome=-newton_schulz(M, "jordan"))
    assert up.status == "not_applicable"
    n = NetworkCertificate({"a": up}, "matrices", {"a": 1.0}, ())
    assert (n.status, n.reason, n.factor) == ("not_applicable", "the network as a whole does not descend", math.inf)
    assert n.alignment_floor is None


def test_one_matrix_that_is_not_finite_or_zero_leaves_the_others_certified():
    broken = gaussian(4, 4)
    broken[1, 2] = math.nan
    n = certify({**MATRICES, "broken": broken})
    assert n.status == "not_applicable"
    assert n.reason == "1 of 4 matrices are not finite, the first broken"
    assert n.alignment_floor is None
    assert [n[name].status for name in n] == ["holds", "holds", "holds", "not_applicable"]
    zero, without = certify({**MATRICES, "zero": torch.zeros(3, 4)}), certify(list(MATRICES.values()))
    assert list(without) == ["[0]", "[1]", "[2]"]
    assert (zero.descent, zero.op_norm) == pytest.approx((without.descent, without.op_norm))
    assert (zero.status, zero.rank) == ("holds", without.rank + 3)
    found = json.loads(json.dumps(n.to_dict(), allow_nan=False))
    assert found["alignment"] is None
    assert "broken: alignment theorem: not_applicable: NaN or infinity" in str(n)


def test_the_zoo_as_one_network_is_json_and_html():
    specimens = {name: M for name, M in zoo().items() if M.numel() < 5000 and "largest" not in name}
    n = certify(specimens, "jordan")
    assert n.status == "holds", n.reason
    assert len(json.loads(json.dumps(n.to_dict(), allow_nan=False))["matrices"]) == len(n) == len(specimens)
    assert all(name in str(n) for name in specimens)


# ------------------------------------------------------------------------------------------------- sources and names


def test_hostile_names_are_text_in_html_and_kept_in_json():
    hostile = {"<script>alert(1)</script>": gaussian(3, 4), 'x" onload="y': gaussian(4, 3), "</pre>": gaussian(2, 2)}
    n = certify(hostile)
    page = n._repr_html_()
    assert "<script" not in page
    assert page.count("</pre>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "x&quot; onload=&quot;y" in page
    assert [row["name"] for row in json.loads(json.dumps(n.to_dict()))["matrices"]] == list(hostile)


def test_names_used_twice_hide_no_matrix():
    groups = [{"params": [("w", parameter(4, 6))]}, {"params": [("w", parameter(6, 4))]}]
    n = certify(stepped(Muon(groups)))
    assert {name: n[name].shape for name in n} == {"w": (4, 6), "w (2)": (6, 4)}
    assert n.rank == 8
    blocks = [{"params": [("w", parameter(4, 6))], "matrix_view": (1, 3)}, {"params": [("w[0]", parameter(6, 4))]}]
    assert len(certify(stepped(Muon(blocks)))) == 3
    assert list(certify({0: gaussian(2, 3), 1: gaussian(2, 3)})) == ["0", "1"]
    assert len(certify({0: gaussian(2, 3), "0": gaussian(2, 3)})) == 2


# --------------------------------------------------------------------------------------------------------- optimizers


def test_every_matrix_of_an_optimizer_is_certified_as_its_group_sees_it():
    fused, experts, filters = parameter(12, 5, seed=1), parameter(2, 3, 4, seed=2), parameter(6, 3, 3, 3, seed=3)
    optimizer = stepped(
        Muon(
            [
                {"params": [("qkv", fused)], "matrix_view": (4, 4, 4), "orthogonalizer": NewtonSchulz("jordan")},
                {"params": [("experts", experts)], "matrix_view": "batch", "orthogonalizer": ExactPolar()},
                {"params": [("conv", filters)], "orthogonalizer": NewtonSchulz(taylor(3), steps=2)},
            ],
            nesterov=False,
        )
    )
    n = certify(optimizer)
    M, E, C = (optimizer.state[p]["momentum_buffer"] for p in (fused, experts, filters))
    expected = {f"qkv[{i}]": M[4 * i : 4 * i + 4] for i in range(3)}
    expected |= {f"experts[{i}]": E[i] for i in range(2)} | {"conv": C.flatten(1)}
    assert list(n) == list(expected)
    for name, matrix in expected.items():
        assert n[name].nuclear == pytest.approx(nuclear(matrix), rel=1e-6)
        assert n[name].shape == tuple(matrix.shape)
    assert n["qkv[1]"].method.startswith("jordan x5")
    assert n["experts[0]"].theorem == "Theorem 4"
    assert len(n["conv"].deltas) == 3
    assert n["conv"].shape == (6, 27)
    assert n["qkv[2]"].alignment == pytest.approx(certify(M[8:], "jordan").alignment, abs=1e-6)
    assert n.what == "momentum buffers"
    assert n.not_covered == ()
    assert n.status == "holds"


def test_what_the_theorems_do_not_cover_is_listed():
    n = certify(stepped(Muon([parameter(4, 6)], renormalize="before")))
    assert n.not_covered == ("renormalised weights",)
    assert "Not covered: renormalised weights." in str(n)
    assert n.to_dict()["not_covered"] == ["renormalised weights"]
    half = nn.Parameter(torch.eye(4, dtype=torch.bfloat16))
    groups = [{"params": [half], "momentum": 0.9}, {"params": [parameter(3, 4)], "momentum": 0.5}]
    n = certify(stepped(Muon(groups, maximize=True)))
    assert n.not_covered == (
        "maximize=True",
        "groups that differ in momentum or its form",
        "weights of half precision, which round short steps away",
    )
    for unseen in ("no clipping", "not masked", "parameters outside of the optimizer do not change"):
        assert unseen in str(n).split("Assumed: ")[1]
    assert certify(MATRICES).assumed == ()
    assert certify(stepped(Muon([parameter(4, 6)], nesterov=True, weight_decay=0.1))).not_covered == ()
    paper = certify(stepped(Muon.paper([parameter(4, 6)], lr=0.1, momentum=0.9, polar="svd")))
    assert (paper.not_covered, paper["group 0, parameter 0"].theorem) == ((), "Theorem 4")


def test_what_a_step_orthogonalized_is_certified_where_its_gradients_are_at_hand():
    for form in ("ema", "heavy_ball"):
        optimizer = Muon([("a", parameter(4, 6)), ("b", parameter(3, 3))], momentum=0.6, momentum_form=form)
        seen = []
        optimizer.register_orthogonalize_hook(lambda _, Z, __, seen=seen: seen.append(Z[0].clone()))
        stepped(stepped(optimizer), seed=5)
        ahead = certify(optimizer)
        assert ahead.what == AHEAD
        for c, Z in zip(ahead.matrices.values(), seen[-2:], strict=True):
            assert c.nuclear == pytest.approx(nuclear(Z), rel=1e-6)
        (a, b) = optimizer.param_groups[0]["params"]
        b.grad = None
        assert certify(optimizer).what == f"{AHEAD}: 1, momentum buffers without gradients: 1"
        a.grad.zero_()  # zero_grad(set_to_none=False)
        behind = certify(optimizer)
        assert behind.what == "momentum buffers without gradients"
        assert behind["a"].nuclear == pytest.approx(nuclear(optimizer.state[a]["momentum_buffer"]), rel=1e-6)
        assert abs(behind["a"].nuclear - ahead["a"].nuclear) > 1e-2


def test_weight_decay_reduces_the_descent_by_the_norm_of_the_weights_or_leaves_the_gap_alone():
    a, b = parameter(4, 6), parameter(8, 2, seed=1)
    groups = [{"params": [a], "weight_decay": 0.02}, {"params": [b], "weight_decay": 0.05}]
    n = certify(stepped(Muon(groups, lr=0.3, scale="original")))
    pull = max(0.02 * operator(a), 0.05 * operator(b) / 2)  # the scale of an 8×2 matrix is 2
    assert n.pull == pytest.approx(pull, rel=1e-6)
    assert 0 < n.reduced_descent == n.descent - n.pull
    assert f"Weight decay reduces the descent from {n.descent:.4g} to {n.descent - n.pull:.4g}." in str(n)
    assert n.to_dict()["reduced_descent"] == pytest.approx(n.reduced_descent)
    without = certify(stepped(Muon([parameter(4, 6)])))
    assert (without.pull, without.present_gap, without.reduced_descent) == (None, None, without.descent)


def test_a_matrix_that_does_not_move_does_not_pull():
    still, moving = parameter(4, 6), parameter(3, 3)
    groups = [{"params": [still], "lr": 0.0, "weight_decay": 9.0}, {"params": [moving], "weight_decay": 0.01}]
    n = certify(stepped(Muon(groups, scale="none")))
    assert n.pull == pytest.approx(0.01 * operator(moving), rel=1e-6)
    assert n.status == "holds"


def test_where_decay_pulls_more_than_the_steps_descend_the_gap_is_given_with_its_sign():
    """Groups of other rates, decays and shapes; ``W = -100 G`` lies outside of the ball, where the gap is negative."""
    for sign, lr in ((1.0, 0.3), (-1.0, 0.3), (-1.0, 0.0)):
        a, b = parameter(4, 6), parameter(8, 2, seed=1)
        groups = [{"params": [a], "weight_decay": 1.0, "lr": lr}, {"params": [b], "weight_decay": 3.0, "lr": lr / 5}]
        optimizer = Muon(groups, scale="original", orthogonalizer=NewtonSchulz(taylor(2), steps=5))
        for p in (a, b):
            p.grad = sign * 1e-2 * p.detach()
        optimizer.step()
        rates, decays, scales = (1.0, 0.2) if lr else (1.0, 1.0), (1.0, 3.0), (1.0, 2.0)
        n = certify(optimizer)
        longest = max(rate * scale for rate, scale in zip(rates, scales, strict=True))
        norm, inward = 0.0, 0.0
        for p, rate, decay, scale in zip((a, b), rates, decays, scales, strict=True):
            norm += rate * scale / longest * nuclear(p.grad)
            inward += rate * decay / longest * float((p.grad * p).sum().detach())
        assert n.present_gap == pytest.approx(n.descent * norm + inward, rel=1e-6)
        assert (n.present_gap > 0) == (sign > 0)
        assert (n.status, n.reduced_descent < 0) == ("not_applicable", True)
        assert f"gradient norms are not bounded, only the Frank-Wolfe gap is (it is {n.present_gap:.4g} now" in n.reason
        assert ("negative: a small bound" in str(n)) == (sign < 0)
        assert json.loads(json.dumps(n.to_dict(), allow_nan=False))["present_gap"] == n.present_gap
        b.grad.zero_()
        blind = certify(optimizer)
        assert (blind.status, blind.present_gap) == ("not_applicable", None)
        assert "its value needs the gradients" in blind.reason


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 2), nn.Flatten(), nn.Linear(6, 10))


def test_auxiliary_parameters_are_counted_as_not_covered():
    model = network()
    split = split_params(model)
    muon = Muon(split.matrices, nesterov=True, weight_decay=0.1)
    optimizer = MuonWithAux(muon, torch.optim.AdamW(split.rest))
    stepped(optimizer)
    n = certify(optimizer)
    count = sum(len(group["params"]) for group in split.rest)
    assert count == 4
    assert n.not_covered == (f"{count} auxiliary parameters (AdamW)",)
    assert list(n) == ["0.weight", "2.weight"]
    assert n["0.weight"].shape == (8, 27)


def test_before_the_first_step_momenta_are_zero_and_the_certificate_says_so():
    n = certify(Muon([parameter(4, 6), parameter(3, 3)]))
    assert n.status == "not_applicable"
    assert n.reason == "every matrix is zero: no step has been taken"
    assert (n.alignment, n.descent, n.op_norm) == (0.0, 0.0, 0.0)
    json.dumps(n.to_dict(), allow_nan=False)


def test_learning_rates_of_zero_keep_the_pair_of_norms_of_the_scale_rule():
    """The last step of a cosine schedule, or the first of a warm-up, is judged like the steps beside it."""
    optimizer = stepped(Muon([parameter(4, 6), parameter(40, 3)], scale="original", weight_decay=0.1))
    found = []
    for lr in (0.02, 1e-12, 0.0):
        optimizer.param_groups[0]["lr"] = lr
        found.append(certify(optimizer))
    assert len(set(found[0].steps.values())) == 2
    for n in found[1:]:
        assert n.steps == pytest.approx(found[0].steps)
        numbers = [(c.status, c.descent, c.alignment, c.pull, c.present_gap) for c in (found[0], n)]
        assert numbers[0][1:] == pytest.approx(numbers[1][1:], rel=1e-9)
        assert n.status == "holds"


def test_empty_parameters_are_no_matter():
    optimizer = Muon([("empty", parameter(0, 3)), ("w", parameter(4, 6))])
    n = certify(stepped(optimizer))
    assert n["empty"].status == "not_applicable"
    assert n.status == "holds"
    json.dumps(n.to_dict(), allow_nan=False)


def test_certifying_changes_no_weight_no_state_and_no_random_number():
    optimizer = stepped(Muon([("w", parameter(6, 4)), ("v", parameter(2, 3, 4))]))
    params = [p for group in optimizer.param_groups for p in group["params"]]
    before = [x.clone() for p in params for x in (p.detach(), p.grad, optimizer.state[p]["momentum_buffer"])]
    groups, state = repr(optimizer.param_groups), torch.get_rng_state()
    certify(optimizer)
    after = [x for p in params for x in (p.detach(), p.grad, optimizer.state[p]["momentum_buffer"])]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert repr(optimizer.param_groups) == groups
    assert torch.equal(torch.get_rng_state(), state)


# -------------------------------------------------------------------------------------------------------------- models


def test_a_model_is_certified_by_the_gradients_of_its_hidden_matrices():
    model = network()
    model(torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(1))).square().sum().backward()
    n = certify(model, "jordan")
    assert list(n) == ["0.weight", "2.weight"]
    assert n.what == "gradients"
    assert n["0.weight"].nuclear == pytest.approx(nuclear(model[0].weight.grad.flatten(1)), rel=1e-6)
    assert set(n.steps.values()) == {1.0}
    layers = [(m.weight.grad.flatten(1), newton_schulz(m.weight.grad.flatten(1), "jordan"), 1.0) for m in model[:3:2]]
    assert n.alignment == pytest.approx(by_definition(layers)[2], rel=1e-5)
    model[0].weight.grad = None
    assert list(certify(model)) == ["2.weight"]


# -------------------------------------------------------------------------------------------------------------- words


def test_the_text_repeats_the_numbers():
    n = certify(stepped(Muon([("w", parameter(4, 6)), ("v", parameter(3, 3, seed=1))])))
    text = str(n)
    for value in (n.descent, n.op_norm, n.alignment, n.alignment_floor, n.factor):
        assert f"{value:.4g}" in text
    for name, c in n.matrices.items():
        (line,) = [row for row in text.splitlines() if row.startswith(f"{name} ")]
        numbers = (c.delta_0, c.delta, c.chi, c.descent, c.op_norm, c.alignment, c.alignment_floor)
        assert line.split()[1:] == [f"{c.shape[0]}x{c.shape[1]}", str(c.rank), *(f"{x:.4g}" for x in numbers), "holds"]
    assert f"Network ({AHEAD}): holds." in text
    assert n.reason == f"alignment theorem over 2 matrices: factor {n.factor:.4g}"
    found = n.to_dict()
    assert [row["step"] for row in found["matrices"]] == list(n.steps.values())


BAD = [
    (
        lambda: certify(network()),
        ValueError,
        r"gradients of its hidden matrices, got none: call loss\.backward\(\)",
    ),
    (
        lambda: certify(torch.optim.SGD([parameter(2, 2)], lr=0.1)),
        TypeError,
        r"must be a muonlab Muon or MuonWithAux, got torch\.optim\.sgd\.SGD: Muon\.torch replaces torch's own",
    ),
    (lambda: certify(Muon([parameter(2, 2)]), steps=3), ValueError, r"got other options as well: leave them out"),
    (lambda: certify(Muon([parameter(2, 2)]), "jordan"), ValueError, r"or pass its momenta as \{name: matrix\}"),
    (lambda: certify(Muon([parameter(2, 2)]), prescale="none"), ValueError, r"orthogonalizers of its groups"),
    (
        lambda: certify(network(), outcome=torch.eye(2)),
        ValueError,
        r"an outcome belongs to one matrix, got several",
    ),
]


def test_errors_name_the_rule_the_value_and_the_way_out():
    for call, error, message in BAD:
        with pytest.raises(error, match=message):
            call()
