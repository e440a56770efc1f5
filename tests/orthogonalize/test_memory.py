from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch.profiler import ProfilerActivity, profile

from muonlab import newton_schulz
from muonlab.orthogonalize import release
from muonlab.polynomials import Schedule, preset, taylor
from tests.orthogonalize.zoo import gaussian


def peak_bytes(run) -> int:
    """Return the largest amount of tensor memory that ``run`` holds at once, its result included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = run()
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert peak >= result.nbytes
    return peak


def test_a_call_holds_at_most_five_gram_and_two_input_sized_matrices():
    for shape, method, prescale, kappa in product(
        [(96, 96), (400, 96)],
        ["standard", "gram"],
        ["frobenius", "schatten8"],
        [1, 2, 4],
    ):
        M = gaussian(*shape)
        m = min(shape)
        schedule = Schedule.repeat(taylor(kappa), 5)
        newton_schulz(M, schedule, method=method, prescale=prescale)  # plans are cached from here on
        release()
        peak = peak_bytes(partial(newton_schulz, M, schedule, method=method, prescale=prescale))
        assert peak <= 4 * (5 * m * m + 2 * M.numel()) + 4096


def test_the_measure_sees_an_input_sized_copy():
    M = gaussian(96, 400)
    assert peak_bytes(lambda: M + (M * 2)) >= 2 * M.nbytes


def test_a_batch_needs_no_more_buffers_than_one_matrix():
    batch = torch.stack([gaussian(96, 400, seed=s) for s in range(6)])
    schedule = preset("polar_express").schedule(5)
    newton_schulz(batch, schedule)
    release()
    peak = peak_bytes(lambda: newton_schulz(batch, schedule))
    assert peak <= batch.nbytes + 4 * (5 * 96 * 96 + 3 * 96 * 400) + 4096
