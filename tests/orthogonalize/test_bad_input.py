from __future__ import annotations

from itertools import product

import pytest
import torch

from muonlab import newton_schulz, polar
from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from tests.orthogonalize.zoo import gaussian

M = gaussian(4, 6)


def test_what_is_no_real_dense_matrix_is_refused_with_the_way_out():
    for function, (value, error, message) in product(
        [newton_schulz, polar],
        [
            ([[1.0, 2.0]], TypeError, r"M must be a torch.Tensor, got list: use torch.as_tensor"),
            (torch.ones(3, 4, dtype=torch.int64), TypeError, r"M must be float16.*got torch.int64: use M.float\(\)"),
            (torch.ones(3, 4, dtype=torch.bool), TypeError, r"got torch.bool: use M.float\(\)"),
            (torch.ones(3, 4, dtype=torch.complex64), TypeError, r"got torch.complex64: orthogonalize real matrices"),
            (torch.eye(3).to_sparse(), TypeError, r"M must be dense, got layout torch.sparse_coo: use M.to_dense\(\)"),
            (torch.ones(3), ValueError, r"at least two dimensions.*got shape \(3,\): reshape"),
            (torch.tensor(1.0), ValueError, r"at least two dimensions.*got shape \(\): reshape"),
        ],
    ):
        with pytest.raises(error, match=message):
            function(value)


def test_options_that_make_no_sense_are_refused_with_the_way_out():
    for options, error, message in [
        ({"steps": -1}, ValueError, r"steps must be at least 0, got -1: pass 0 or more"),
        ({"steps": 2.5}, TypeError, r"steps must be an integer, got 2.5 of type float"),
        ({"steps": True}, TypeError, r"steps must be an integer, got True: pass 1"),
        ({"prescale": "l2"}, ValueError, r"prescale must be one of 'frobenius', 'paper'.*got 'l2': pick one"),
        ({"method": "fast"}, ValueError, r"method must be one of 'standard', 'gram', 'auto', got 'fast'"),
        ({"compute_dtype": torch.int32}, TypeError, r"compute_dtype must be float16.*got torch.int32: None keeps"),
        ({"polynomial": "nope"}, ValueError, r"unknown preset 'nope': registered are 'cubic', 'jordan'"),
        ({"polynomial": 3}, TypeError, r"polynomial must be a Polynomial, a Schedule, a Preset.*got 3 of type int"),
        ({"polynomial": [1.5, -0.5]}, TypeError, r"polynomial must be.*type list.*taylor\(2\)"),
        (
            {"polynomial": Schedule.repeat(taylor(2), 3), "steps": 5},
            ValueError,
            r"brings its own number of steps: got steps = 5 with a schedule of 3: leave steps out",
        ),
    ]:
        with pytest.raises(error, match=message):
            newton_schulz(M, **options)


def test_a_schedule_may_be_given_its_own_number_of_steps():
    schedule = Schedule.repeat(taylor(2), 3)
    assert torch.equal(newton_schulz(M, schedule, steps=3), newton_schulz(M, schedule))


def test_a_schedule_that_diverges_on_the_unit_interval_is_refused():
    for diverging in [
        Schedule.repeat(Polynomial((8.28721, -23.59589, 17.30039)), 5),
        Schedule.repeat(Polynomial((3.0, 1.0)), 1),
        Schedule((Polynomial((-1.5, -1.0)),)),
    ]:
        with pytest.raises(
            ValueError, match=r"diverges on \[0, 1\]: its largest value there is .*use other polynomials"
        ):
            newton_schulz(M, diverging)


def test_a_schedule_that_diverges_where_half_precision_rounds_is_refused():
    for dtype in [torch.bfloat16, torch.float16]:
        with pytest.raises(ValueError, match=r"diverges on \[0, 1 \+ .*rounds.*use a safety factor"):
            newton_schulz(M, "polar_express", compute_dtype=dtype)
        safe = preset("polar_express").schedule(5, safety="1.01")
        for prescale in ("frobenius", "spectral", "schatten8"):
            assert bool(torch.isfinite(newton_schulz(M, safe, compute_dtype=dtype, prescale=prescale)).all())


def test_options_of_unhashable_types_get_their_own_message():
    with pytest.raises(ValueError, match=r"prescale must be one of"):
        newton_schulz(M, prescale=["frobenius"])
    with pytest.raises(TypeError, match=r"steps must be an integer, got \[5\]"):
        newton_schulz(M, steps=[5])


def test_polar_options_that_make_no_sense_are_refused():
    for options, error, message in [
        ({"method": "qr"}, ValueError, r"method must be one of 'auto', 'svd', 'gram', got 'qr'"),
        ({"rank_tol": -1.0}, ValueError, r"rank_tol must be a finite number in \[0, inf\), got -1.0"),
        ({"rank_tol": float("nan")}, ValueError, r"rank_tol must be a finite number.*got nan"),
        ({"rank_tol": "small"}, TypeError, r"rank_tol must be a real number, got 'small'"),
    ]:
        with pytest.raises(error, match=message):
            polar(M, **options)
