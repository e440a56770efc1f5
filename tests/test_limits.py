"""Arguments that would take unbounded time are refused, and large ones below the limits are quick."""

from __future__ import annotations

import time

import pytest
import torch

from muonlab import _checks, newton_schulz
from muonlab.diagnostics import plan
from muonlab.polynomials import Schedule, polar_express, preset, taylor
from muonlab.theory import chi, polar_error, residual_after

HUGE = 10**7


def test_work_without_bounds_is_refused_with_the_limit():
    for call, message in (
        (lambda: taylor(HUGE), r"kappa must be at most 300, got 10000000: pass 300 or less"),
        (lambda: residual_after(0.5, kappa=HUGE), r"kappa must be at most 300"),
        (lambda: Schedule.repeat(taylor(2), HUGE), r"steps must be at most 1000, got 10000000: pass 1000 or less"),
        (lambda: preset("quintic").schedule(HUGE), r"steps must be at most 1000"),
        (lambda: polar_express(ell=1e-3, steps=HUGE), r"steps must be at most 1000"),
        (lambda: newton_schulz(torch.eye(2), steps=HUGE), r"steps must be at most 1000"),
        (
            lambda: plan(shape=(10**9, 10**9)),
            r"at most 4294967296 entries, got 1000000000x1000000000: plan for a small",
        ),
    ):
        start = time.process_time()
        with pytest.raises(ValueError, match=message):
            call()
        assert time.process_time() - start < 2


def test_the_largest_allowed_arguments_take_seconds_at_most():
    start = time.process_time()
    assert taylor(_checks.LARGEST_DEGREE).kappa == 300
    assert newton_schulz(torch.eye(2), steps=_checks.LARGEST_STEPS, polynomial=taylor(2)).isfinite().all()
    assert time.process_time() - start < 20


def test_any_number_of_steps_of_a_residual_is_quick_and_ends_at_its_limit():
    start = time.process_time()
    for q in (HUGE, 10**18):
        assert residual_after(1 - 1e-12, kappa=1, q=q) == polar_error(0.9, kappa=2, q=q, bound=True) == 0.0
        assert chi(sigma_min=1e-300, kappa=2, q=q) == 1.0
    assert time.process_time() - start < 5
    assert residual_after(sigma_min=1e-300, kappa=2, q=10) > 0.99  # a break after the first step would return this
