"""A step on an accelerator can be captured in a CUDA graph: no reads, no allocations, errors for what does not repeat.

No graph was captured: that needs a GPU. What a capture requires is checked on tensors that say they are on one.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

import muonlab
from muonlab import SGDM, ExactPolar, Muon, NewtonSchulz
from muonlab.polynomials import taylor
from tests.optim.devices import OnDevice, Tracer

SHAPES = ((4, 6), (6, 4), (4, 6), (8, 3, 2, 2), (3, 4, 6), (12, 6))
LR = torch.tensor(0.1)
build = partial(Muon, lr=LR, momentum=0.9, capturable=True)
OPTIONS = {
    "default": {},
    "half precision": {"orthogonalizer": NewtonSchulz(accuracy="half", compute_dtype=torch.float16)},
    "momentum alone": {"nesterov": False},
    "heavy ball": {"momentum_form": "heavy_ball"},
    "decay": {"weight_decay": 0.1, "scale": "match_rms_adamw"},
    "paper": {"orthogonalizer": NewtonSchulz(taylor(3), steps=3, prescale="paper")},
    "batch of transposed": {"matrix_view": "batch transposed"},
    "number as lr": {"lr": 0.1, "weight_decay": 0.1},
}


def steps_on_a_device(optimizer: torch.optim.Optimizer, params: list[Parameter], steps: int) -> list[Tracer]:
    """Take steps with gradients of ones plus a part that changes, and return what each did."""
    traces = []
    gc.collect()
    gc.disable()  # finalizers of what earlier tests left behind may allocate
    try:
        for t in range(steps):
            for i, p in enumerate(params):
                p.grad = torch.sin(torch.arange(p.numel()) * (1 + t + i)).view(p.shape)
            with OnDevice(), Tracer() as tracer:
                optimizer.step()
            traces.append(tracer)
    finally:
        gc.enable()
    return traces


def parameters(shapes=SHAPES) -> list[Parameter]:
    """Return parameters of fixed values."""
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


@pytest.fixture(autouse=True)
def _capability(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index - 100, 0))


def test_a_capturable_step_reads_and_allocates_nothing_after_the_first():
    # in a process of its own: allocations of other code in this one would count
    root = Path(__file__).parents[2]
    script = "from tests.optim.test_capture import check_steps; check_steps()"
    environment = {**os.environ, "PYTHONPATH": str(Path(muonlab.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def check_steps() -> None:
    """Check that later steps read and allocate nothing, and that weights are those of steps on the CPU."""
    torch.set_num_threads(1)
    torch.cuda.get_device_capability = lambda device: (device.index - 100, 0)
    for name, options in OPTIONS.items():
        params, here = parameters(), parameters()
        optimizer, reference = build(params, **options), Muon(here, **{"lr": 0.1, "momentum": 0.9, **options})
        first, *others = steps_on_a_device(optimizer, params, 4)
        assert first.allocated, name
        # what else runs in this process can only add to the counts of a step, which are the same every time
        assert min(trace.reads for trace in others) == 0, name
        assert min((trace.allocated for trace in others), key=len) == [], name
        for t in range(4):
            for i, p in enumerate(here):
                p.grad = torch.sin(torch.arange(p.numel()) * (1 + t + i)).view(p.shape)
            reference.step()
        tolerance = 0.05 if name == "half precision" else 2e-4  # Polar Express magnifies rounding
        for p, h in zip(params, here, strict=True):
            torch.testing.assert_close(p, h, rtol=tolerance, atol=tolerance)


def test_the_tracer_sees_reads_and_allocations():
    params = parameters()
    _, second = steps_on_a_device(build(params, capturable=False), params, 2)
    assert second.allocated  # its buffers are freed between steps
    params = parameters()
    _, second = steps_on_a_device(build(params, nonfinite="raise"), params, 2)
    assert second.reads >= 1
    params = parameters()
    optimizer = build(params)
    optimizer.register_orthogonalize_hook(lambda *_: None)
    _, second = steps_on_a_device(optimizer, params, 2)
    assert second.allocated  # the copies for the hook


def test_buffers_are_kept_only_by_a_capturable_optimizer_and_never_saved():
    for capturable in (True, False):
        params = parameters()
        optimizer = build(params, capturable=capturable)
        steps_on_a_device(optimizer, params, 1)
        assert bool(optimizer._workspaces._kept) == capturable
        assert "_workspaces" not in optimizer.__getstate__()
        assert "_workspaces" not in optimizer.state_dict()


# --------------------------------------------------------------------------------------------------- launches of a step


def gpt2_matrices(width: int = 768, layers: int = 12) -> tuple[list[Parameter], list[Parameter]]:
    """Return the hidden matrices of GPT-2 (124M) without data: fused queries, keys and values, and the others."""
    fused = [(3 * width, width)]
    others = [(width, width), (4 * width, width), (width, 4 * width)]
    return tuple(
        [Parameter(torch.empty(shape, device="meta")) for _ in range(layers) for shape in shapes]
        for shapes in (fused, others)
    )


def launches(**options) -> int:
    """Return the launches of a step for GPT-2 (124M)."""
    fused, others = gpt2_matrices()
    groups = [{"params": fused, "matrix_view": (768, 768, 768)}, {"params": others}]
    optimizer = Muon(groups, lr=torch.tensor(0.02, device="meta"), capturable=True, **options)
    for p in [*fused, *others]:
        p.grad = torch.empty_like(p)
    optimizer.step()
    traces = []
    for _ in range(3):
        with Tracer() as tracer:
            optimizer.step()
        traces.append(tracer)
    assert optimizer.orthogonalized == 72
    assert min((trace.allocated for trace in traces), key=len) == []
    return min(trace.launches for trace in traces)


def test_a_step_of_gpt_2_has_at_most_140_launches():
    counts = {
        (dtype, decay): launches(orthogonalizer=NewtonSchulz(accuracy="half", compute_dtype=dtype), weight_decay=decay)
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
        for decay in (0.0, 0.1)
    }
    assert max(counts.values()) <= 140, counts
    assert min(counts.values()) > 30, counts


def test_skipping_and_renormalizing_add_a_few_launches_to_each_matrix():
    def of_twelve(**options):
        params = [Parameter(torch.empty(64, 96, device="meta")) for _ in range(12)]
        optimizer = Muon(params, lr=torch.tensor(0.02, device="meta"), **options)
        for p in params:
            p.grad = torch.empty_like(p)
        launched = []
        for _ in range(3):
            with Tracer() as tracer:
                optimizer.step()
            launched.append(tracer.launches)
        return min(launched)

    plain = of_twelve()
    assert of_twelve(renormalize="before") - plain <= 3 * 12 + 10  # two for the norm, one for the factor
    assert of_twelve(nonfinite="skip") - plain <= 2 * 12 + 10  # momentum and weight kept or not
    assert of_twelve(nonfinite="skip", momentum_form="heavy_ball") - plain <= 2 * 12 + 15


# ------------------------------------------------------------------------------------------------- what is not captured


def test_a_step_that_would_not_repeat_in_a_graph_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    cases = (
        ({"capturable": False}, r"group 0 has capturable=False: pass capturable=True"),
        ({"lr": 0.1}, r"group 0 has lr=0.1, which the graph would keep as a constant: pass lr=torch.tensor\(0.02, dev"),
        ({"lr": torch.tensor(0.1)}, r"group 0 has lr on cpu, which the graph would keep as a constant"),
        ({"lr": "device", "nonfinite": "raise"}, r"nonfinite='raise', which reads from the device: pass non"),
        ({"lr": "device", "orthogonalizer": ExactPolar()}, r"orthogonalizer=ExactPolar\(\), which reads from the dev"),
        ({"lr": "device", "orthogonalizer": NewtonSchulz(prescale="spectral")}, r"prescale='spectral', which reads"),
    )
    for given, message in cases:
        params = [Parameter(torch.empty(4, 6, device="meta"))]
        options = {k: torch.tensor(0.1, device="meta") if v == "device" else v for k, v in given.items()}
        optimizer = Muon(params, **{"capturable": True, **options})
        params[0].grad = torch.empty_like(params[0])
        with pytest.raises(RuntimeError, match=rf"in a CUDA graph must repeat without the host, but .*{message}"):
            optimizer.step()
    params = [Parameter(torch.empty(4, 6, device="meta"))]
    lr = torch.tensor(0.1, device="meta")
    for optimizer in (Muon(params, lr, capturable=True), SGDM(params, lr, 0.9, capturable=True)):
        params[0].grad = torch.empty_like(params[0])
        optimizer.step()
    optimizer = Muon(params, lr, capturable=True)
    optimizer.register_orthogonalize_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hooks would run once"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="capturable=False"):
        SGDM(params, lr, 0.9).step()
