"""What an optimizer holds: one buffer per parameter between steps, a few stacks of one shape during a step."""

from __future__ import annotations

import weakref
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from muonlab import SGDM, ExactPolar, Muon, NewtonSchulz
from muonlab.optim import layout
from muonlab.orthogonalize import release

SHAPES = [shape for shape in ((64, 96), (96, 64), (48, 128)) for _ in range(8)]
STACK = 8 * 64 * 96 * 4
"""Bytes of the matrices of one shape; the three shapes have as many entries."""

OPTIONS = {
    "default": {},
    "momentum alone": {"nesterov": False},
    "heavy ball": {"momentum_form": "heavy_ball"},
    "decay": {"weight_decay": 0.1},
    "tensor lr": {"lr": torch.tensor(0.1)},
    "renormalize": {"renormalize": "before"},
    "skip": {"nonfinite": "skip"},
    "skip, renormalize": {"nonfinite": "skip", "renormalize": "after", "weight_decay": 0.1},
}


def bytes_held(run) -> tuple[int, int]:
    """Return the most tensor memory that ``run`` holds at once beyond what was there before, and what it leaves."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak, held


def ready(build=Muon, shapes=SHAPES, **options) -> torch.optim.Optimizer:
    """Return an optimizer after its first step, with gradients for the next one."""
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = build(params, **{"lr": 0.1, "momentum": 0.9, **options})
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()
    release()
    return optimizer


def check_peak(optimizer: torch.optim.Optimizer) -> None:
    """Hold a step to four times the memory of the matrices of one shape."""
    peak, _ = bytes_held(optimizer.step)
    assert peak <= 4 * STACK, f"{peak / STACK:.2f} stacks"


def test_a_step_holds_at_most_four_stacks_of_one_shape():
    for options in OPTIONS.values():
        check_peak(ready(**options))


def test_a_step_leaves_nothing_behind_but_the_buffers_that_release_frees():
    for options in OPTIONS.values():
        optimizer = ready(**options)
        peak, left = bytes_held(lambda optimizer=optimizer: (optimizer.step(), release()))
        assert peak > 0
        assert left == 0


def test_a_step_of_sgdm_holds_no_stack_at_all_and_skipping_two():
    assert bytes_held(ready(SGDM).step)[0] < 0.01 * STACK
    assert bytes_held(ready(SGDM, nonfinite="skip").step)[0] < 7 * STACK  # one copy of all momenta, then of all weights


def test_a_variant_that_keeps_every_batch_fails_the_check():
    optimizer = ready()
    kept: list[Tensor] = []
    optimizer.register_orthogonalize_hook(lambda _, M, O: kept.extend((M, O)))
    with pytest.raises(AssertionError, match="stacks"):
        check_peak(optimizer)


def test_a_variant_that_works_on_copies_in_float64_fails_the_check():
    class Wasteful(Muon):
        def step(self, closure=None):
            copies = [p.double() for group in self.param_groups for p in group["params"]]
            super().step(closure)
            return sum(copy.numel() for copy in copies)

    with pytest.raises(AssertionError, match="stacks"):
        check_peak(ready(Wasteful))


def test_the_exact_polar_factor_holds_no_more_than_the_iterations_do():
    check_peak(ready(shapes=SHAPES, orthogonalizer=ExactPolar(), nesterov=False))


# ------------------------------------------------------------------------- the path of devices, on tensors without data


class Live(TorchDispatchMode):
    """Count the bytes of storages that are alive at once beyond those known before."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known, self.alive, self.peak = {t.untyped_storage()._cdata for t in known}, {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in {*self.known, *self.alive}:
                storage = x.untyped_storage()
                self.alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, storage._cdata, None)
                self.peak = max(self.peak, sum(self.alive.values()))
        return out


def most_bytes(count: int, shape: tuple[int, int], weight_bytes: int, compute_bytes: int) -> int:
    """Return the memory of a step on a device beyond weights, gradients and momenta (docs/guides/gpus.md).

    In the dtype of the weights the directions and the results, twice for tall matrices; in the dtype of the computation
    the scaled matrices, the iterate of a second segment, the results if it is narrower, and four Gram-sized
    matrices; in float32 the matrices whose largest entry is 1, if the computation is narrower.
    """
    m, n = sorted(shape)
    stacks = count * m * n
    own = 2 * stacks * (2 if shape[0] > shape[1] else 1)
    narrower = compute_bytes < weight_bytes
    wide = 4 * stacks if compute_bytes < 4 else 0
    return own * weight_bytes + wide + ((2 + narrower) * stacks + 4 * count * m * m) * compute_bytes


def peak_on_a_device(*shapes: tuple[int, int], **options) -> int:
    """Return the bytes that a step on a device without data holds at once."""
    params = [Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    options = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in options.items()}
    optimizer = Muon(params, **{"lr": 0.1, **options})
    for p in params:
        p.grad = torch.empty_like(p)
    with Live([t for p in params for t in (p, p.grad, optimizer.state[p]["momentum_buffer"])]) as live:
        optimizer.step()
    return live.peak


def test_a_step_on_a_device_holds_the_memory_of_the_formula():
    few = 1 << 12  # norms and other numbers, some for each matrix
    for shape, given, dtype in product(((64, 64), (64, 256), (256, 64)), OPTIONS.values(), (None, torch.float16)):
        options = {**given, "orthogonalizer": NewtonSchulz(accuracy="half", compute_dtype=dtype)}
        formula = most_bytes(8, shape, 4, 2 if dtype else 4)
        copies = 9 * shape[0] * shape[1] * 4 if options.get("nonfinite") == "skip" else 0  # weights, one new weight
        peak = peak_on_a_device(*[shape] * 8, **options)
        assert 0.6 * formula < peak <= formula + copies + few, (shape, given, dtype)


def test_the_memory_of_a_step_on_a_device_is_bounded_whatever_the_number_of_matrices(monkeypatch):
    monkeypatch.setattr(layout, "DEVICE_CHUNK_BYTES", 4 * 64 * 64 * 4)
    for count in (4, 40):
        assert peak_on_a_device(*[(64, 64)] * count) <= most_bytes(4, (64, 64), 4, 4) + 1024
    few = peak_on_a_device(*[(64, 64)] * 4)
    many = [(64, 64 + 8 * i) for i in range(8) for _ in range(7)]  # several shapes, each with a chunk that is not full
    assert peak_on_a_device(*many) <= 2.5 * few  # the largest shape has 1.9 times the entries of the smallest
    assert (
        peak_on_a_device(*many, capturable=True, lr=torch.tensor(0.1)) > 6 * few
    )  # it keeps the buffers of all shapes
    monkeypatch.setattr(layout, "DEVICE_CHUNK_BYTES", 40 * 64 * 64 * 4)
    assert peak_on_a_device(*[(64, 64)] * 40) > most_bytes(4, (64, 64), 4, 4) * 5
