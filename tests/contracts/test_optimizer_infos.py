"""The inputs of PyTorch's own optimizer tests, right and wrong ones, given to Muon.torch and SGDM."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from muonlab.optim import SGDM, Muon
from tests.contracts.optimizer_cases import frozen, same

pytestmark = [pytest.mark.slow, pytest.mark.trainers("expecttest")]


def sgdm(params, lr=1e-3, momentum=0.0, **options):
    """Build SGDM with the defaults of torch.optim.SGD."""
    return SGDM(params, lr, momentum, **options)


@dataclass(frozen=True)
class Peer:
    """An optimizer of torch whose inputs ours takes.

    Args:
        build: makes ours from the arguments of torch's.
        shapes: parameters that it can take, each multiplied with a vector of five entries.
        not_applicable: descriptions of right inputs that ours has no option for, each with the reason.
        differences: descriptions of wrong inputs that ours treats differently, each with what happens and the reason.
    """

    build: Any
    shapes: tuple[tuple[int, ...], ...]
    not_applicable: dict[str, str]
    differences: dict[str, tuple[str, str]]


_DUPLICATES = ("ValueError: a parameter must be given once, got .+", "refused, where torch warns that it will refuse")

PEERS = {
    "muon": Peer(
        Muon.torch,
        ((10, 5), (3, 5)),
        {},
        {
            "only support 2D parameters": ("nothing", "parameters of more dimensions are read as matrices"),
            "only support `original` and `match_rms_adamw`": (
                "ValueError: scale must be one of .*'original', 'match_rms_adamw'.*, got 'arbitrary': pick .+",
                "the same exception; the message names the choices",
            ),
            "does not support complex parameters": (
                "TypeError: parameters must be dense tensors of float16, .* got .* of torch.complex64: .+",
                "refused at construction, before a step",
            ),
            "a param group cannot have duplicate parameters": _DUPLICATES,
        },
    ),
    "sgd": Peer(
        sgdm,
        ((10, 5), (5,)),
        {"dampening": "heavy-ball momentum adds the whole gradient (Kim & Oh 2026, Algorithm 3)"},
        {
            "momentum should be between 0 and 1": (
                r"ValueError: momentum must be a finite number in \[0, 1\), got -0.5: .+",
                "the same exception; the message states the rule",
            ),
            "a param group cannot have duplicate parameters": _DUPLICATES,
        },
    ),
}


@pytest.fixture(scope="module", params=PEERS)
def peer(request):
    return request.param


@pytest.fixture(scope="module")
def theirs():
    """The module of torch that holds the inputs; imported late, because it changes global flags of torch."""
    from torch.testing._internal import common_optimizers

    return common_optimizers


def loss_of(params):
    x = torch.linspace(-1.0, 1.0, 5)
    return sum((p @ x + 1.0).square().sum() for p in params)


def started(peer, kwargs):
    """Return parameters and their optimizer."""
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(shape, generator=generator)) for shape in PEERS[peer].shapes]
    return params, PEERS[peer].build(params, **kwargs)


def descend(params, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(params).backward()
        optimizer.step()


def test_every_right_input_constructs_moves_the_right_way_and_goes_on_from_a_file(theirs, peer):
    inputs = getattr(theirs, f"optim_inputs_func_{peer}")(device="cpu")
    assert {given.desc for given in inputs} > set(PEERS[peer].not_applicable)
    for given in inputs:
        if given.desc in PEERS[peer].not_applicable:
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                started(peer, given.kwargs)
            continue
        params, optimizer = started(peer, given.kwargs)
        before = loss_of(params).item()
        descend(params, optimizer, 20)
        after = loss_of(params).item()
        assert after > before if given.kwargs.get("maximize") else after < before, given.desc

        file = io.BytesIO()
        torch.save([params, optimizer.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        copies, other = started(peer, given.kwargs)
        for copy, weight in zip(copies, weights, strict=True):
            copy.data.copy_(weight)
        other.load_state_dict(state)
        for trained, its_optimizer in ((params, optimizer), (copies, other)):
            descend(trained, its_optimizer, 5)
        results = [frozen(dict(enumerate(p)), o)[:2] for p, o in ((params, optimizer), (copies, other))]
        assert same(*results), given.desc


def outcome(theirs, peer, given):
    """Return what ours says to a wrong input: an exception or a warning with its type, or nothing."""
    wrong = given.optimizer_error_input
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            optimizer = PEERS[peer].build(wrong.params, **wrong.kwargs)
            if given.error_on is theirs.OptimizerErrorEnum.STEP_ERROR:
                optimizer.step()
        except Exception as error:
            return error
    return caught[0].message if caught else None


def test_every_wrong_input_is_refused_in_the_same_words_or_stands_in_the_table(theirs, peer):
    inputs = getattr(theirs, f"optim_error_inputs_func_{peer}")(device="cpu", dtype=torch.float32)
    differing = {}
    for given in inputs:
        said = outcome(theirs, peer, given)
        if not (isinstance(said, given.error_type) and re.search(given.error_regex, str(said))):
            text = "nothing" if said is None else f"{type(said).__name__}: {said}"
            differing[given.optimizer_error_input.desc] = text
    table = PEERS[peer].differences
    assert set(differing) == set(table)
    for desc, text in differing.items():
        assert re.fullmatch(table[desc][0], text), f"{desc}: {text}"
    assert len(inputs) >= len(table) + 5  # most are refused in the same words


def test_the_page_of_peers_has_the_counts(theirs):
    right, wrong = {}, {}
    for peer, entry in PEERS.items():
        inputs = getattr(theirs, f"optim_inputs_func_{peer}")(device="cpu")
        errors = getattr(theirs, f"optim_error_inputs_func_{peer}")(device="cpu", dtype=torch.float32)
        right[peer] = len(inputs) - len(entry.not_applicable), len(inputs)
        wrong[peer] = len(errors) - len(entry.differences), len(errors)
    text = (
        "Muon's: {} right inputs of {} run, {} wrong ones of {} refused in the same words; SGD's: {} of {} and {} of {}"
    ).format(*right["muon"], *wrong["muon"], *right["sgd"], *wrong["sgd"])
    assert text in (Path(__file__).parent / "PEERS.md").read_text(encoding="utf-8")


def test_inputs_that_a_sloppy_optimizer_accepts_are_found_out(theirs, monkeypatch):
    monkeypatch.setitem(PEERS, "sgd", Peer(lambda *_, **__: None, (), {}, PEERS["sgd"].differences))
    with pytest.raises(AssertionError, match="duplicate parameters"):
        test_every_wrong_input_is_refused_in_the_same_words_or_stands_in_the_table(theirs, "sgd")


def test_an_entry_of_the_table_that_does_not_differ_is_found_out(theirs, monkeypatch):
    extra = {**PEERS["sgd"].differences, "invalid param type": ("TypeError: .*", "the same")}
    monkeypatch.setitem(PEERS, "sgd", Peer(sgdm, (), {}, extra))
    with pytest.raises(AssertionError, match="invalid param type"):
        test_every_wrong_input_is_refused_in_the_same_words_or_stands_in_the_table(theirs, "sgd")
