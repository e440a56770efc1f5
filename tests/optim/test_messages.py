"""What Muon says to a newcomer: its signature, arguments of other packages, states that do not fit, split tables."""

from __future__ import annotations

import inspect
from copy import deepcopy

import pytest
import torch
from torch import nn

from muonlab import Muon, MuonWithAux, NewtonSchulz, newton_schulz, split_params
from muonlab.optim import continue_adamw
from muonlab.polynomials import Polynomial, taylor


class Block(nn.Module):
    """A module as in nanoGPT, with a fused query, key and value."""

    def __init__(self, width=8):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.c_fc = nn.Linear(width, 3 * width)


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def combined(**options):
    split = split_params(net := model(), **options)
    return net, MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest, lr=3e-3))


def test_the_signature_names_the_default_without_its_coefficients():
    shown = str(inspect.signature(Muon))
    assert "orthogonalizer: 'Orthogonalizer' = NewtonSchulz(polar_express x5 (safety 1.01), accuracy='half')" in shown
    others = map(str, map(inspect.signature, (NewtonSchulz, newton_schulz)))
    for printed in (shown, *others, repr(NewtonSchulz("jordan", steps=3))):
        assert "Fraction" not in printed
    assert repr(NewtonSchulz("jordan", steps=3, prescale="spectral")) == "NewtonSchulz(jordan x3, prescale='spectral')"
    assert eval(repr(taylor(2)), {"Polynomial": Polynomial}) == taylor(2)


def test_an_argument_of_another_muon_is_answered_by_what_to_write_here():
    matrix = [nn.Parameter(torch.eye(3))]
    for argument, advice in (
        ({"ns_steps": 5}, r"'ns_steps': pass orthogonalizer=NewtonSchulz\(steps=5\).*Muon\.torch takes"),
        ({"adjust_lr_fn": "original"}, r"pass scale="),
        ({"betas": (0.9, 0.95)}, r"pass momentum="),
        ({"weight_dekay": 0.1}, r"did you mean 'weight_decay'\?"),
        ({"xyz": 1}, r"it takes lr, momentum, orthogonalizer"),
    ):
        with pytest.raises(TypeError, match=f"unexpected keyword argument.*{advice}"):
            Muon(matrix, **argument)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lrr'"):
        Muon.paper(matrix, 0.1, momentum=0.9, lrr=1)


def test_a_group_of_the_auxiliary_optimizer_of_muon_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"use_muon=False is not for Muon, got one: give its parameters to the aux"):
        Muon([{"params": [nn.Parameter(torch.eye(3))], "use_muon": False}])


def test_names_are_those_of_the_model_inside_of_a_wrapper_and_sizes_may_be_a_list(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    finally:
        torch.distributed.destroy_process_group()
    row = split_params(wrapped, rules={"0.weight": [2, 2]}).table.rows[0]
    assert (row.name, row.matrix_view) == ("0.weight", "rows(2, 2)")


def test_a_state_of_adamw_names_what_was_loaded_what_is_expected_and_how_to_continue():
    net, optimizer = combined()
    adamw = torch.optim.AdamW(net.parameters(), lr=1e-3)
    before = deepcopy(optimizer.state_dict())
    for target, expected in ((optimizer, "3 groups .*2 of Muon, 3 of Adam, 1 of Adam"), (optimizer.muon, "1 group ")):
        with pytest.raises(
            ValueError, match=rf"got 1 group \(parameters: 6 of Adam\), expected {expected}.*continue_adamw"
        ):
            target.load_state_dict(adamw.state_dict())
    assert str(optimizer.state_dict()) == str(before)
    one_group = torch.optim.AdamW([net[0].weight, net[2].weight])  # as many groups and parameters as Muon
    with pytest.raises(ValueError, match="continue_adamw"):
        optimizer.muon.load_state_dict(one_group.state_dict())
    net(torch.ones(1, 4)).sum().backward()
    adamw.step()
    continue_adamw(adamw, split_params(net)).step()  # what the message says


def test_groups_by_shape_into_groups_by_view_names_split_params():
    by_shape, by_view = combined(by="shape")[1], combined()[1]
    with pytest.raises(ValueError, match=r"got 4 groups .*expected 3 groups .*call split_params with the arguments of"):
        by_view.load_state_dict(by_shape.state_dict())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_model_is_split_under_the_names_of_the_model():
    net = model()
    compiled = torch.compile(net)
    assert str(split_params(compiled).table) == str(split_params(net).table)
    rules = {"2.weight": "embedding"}
    assert str(split_params(compiled, rules=rules).table) == str(split_params(net, rules=rules).table)


def test_the_table_hints_at_a_fused_projection_and_the_hint_is_a_rule():
    rows = {row.name: row.why for row in split_params(Block(), head=None).table}
    hint = rows["c_attn.weight"].partition("if fused: ")[2]
    assert hint == "rules={'c_attn.weight': (8, 8, 8)}"
    assert not any("fused" in rows[name] for name in ("c_proj.weight", "c_fc.weight"))
    cut = split_params(Block(), head=None, rules={"c_attn.weight": (8, 8, 8)})
    assert Muon(cut.matrices).param_groups[0]["matrix_view"] == "rows(8, 8, 8)"


def test_rates_that_overflow_and_names_that_are_none_are_refused_with_the_rule():
    W = nn.Parameter(torch.eye(3))
    for options in ({"lr": 1e300}, {"lr": torch.tensor(1e300, dtype=torch.float64)}, {"weight_decay": 1e300}):
        with pytest.raises(ValueError, match=r"must be a finite number in \[0, 1e\+30\], got 1e\+300: choose a value"):
            Muon([W], **options)
    opt = Muon([("w", W)])
    for names in (3, [3], "w"):
        state = opt.state_dict()
        state["param_groups"][0]["param_names"] = names
        with pytest.raises(
            TypeError, match=r"param_names must be a list of names, got .*: remove it to load by position"
        ):
            opt.load_state_dict(state)
