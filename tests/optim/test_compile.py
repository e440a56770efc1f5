"""A compiled step is the step: one graph, no breaks, no compiling again, the same numbers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import Parameter

from muonlab import SGDM, ExactPolar, Muon

SHAPES = ((6, 10), (6, 10), (10, 6), (4, 3, 3, 3))
STEPS = 4
BUILDS = {
    "muon": partial(Muon, momentum=0.9),
    "paper": partial(Muon.paper, momentum=0.9),
    "sgdm": partial(SGDM, momentum=0.9, weight_decay=0.1),
    "experiments": partial(Muon.paper, momentum=0.9, variant="experiments"),
    "exact, decay": partial(Muon, momentum=0.9, orthogonalizer=ExactPolar(), weight_decay=0.1, nesterov=False),
    "batch": partial(Muon, momentum=0.9, matrix_view="batch", renormalize="after"),
    "cut": partial(Muon, momentum=0.9, matrix_view="transposed row_heads(2)"),
    "skip": partial(Muon, momentum=0.9, nonfinite="skip"),
}
CHANGING = ("muon", "paper", "sgdm", "exact, decay")


def fresh_compiler() -> None:
    """Forget everything compiled so far."""
    torch._dynamo.reset()
    counters.clear()


@pytest.fixture(autouse=True)
def _fresh_compiler():
    fresh_compiler()
    yield
    fresh_compiler()


def drawn(seed: int) -> list[Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def path(build, backend: str | None, *, tensor_lr: bool = False, steps: int = STEPS, bad: int | None = None):
    """Return the weights after each step, compiled unless there is no backend; a tensor lr changes with each step."""
    params = [Parameter(w) for w in drawn(100)]
    lr = torch.tensor(0.1) if tensor_lr else 0.1
    optimizer = build(params, lr=lr)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend, fullgraph=True)
    result = []
    for t in range(steps):
        for i, (p, g) in enumerate(zip(params, drawn(t), strict=True)):
            p.grad = torch.full_like(g, torch.nan) if bad == t and i == 0 else g
        if isinstance(lr, Tensor):
            lr.fill_(0.1 / (1 + t))
        step()
        result.append([p.detach().clone() for p in params])
    return result


def assert_same(actual, expected, tolerance: float = 1e-6) -> None:
    """Compare two paths after every step."""
    for ours, theirs in zip(actual, expected, strict=True):
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


def assert_one_graph() -> None:
    """See that everything since the last reset was compiled once, whole."""
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_a_step_is_one_graph_with_the_numbers_of_the_plain_step():
    for build in BUILDS.values():
        fresh_compiler()
        actual = path(build, "eager")
        assert_one_graph()
        assert_same(actual, path(build, None))


def test_a_step_without_mutations_in_its_graph_has_the_same_numbers():
    for name, tensor_lr in (("muon", True), ("paper", False)):
        fresh_compiler()
        actual = path(BUILDS[name], "aot_eager", tensor_lr=tensor_lr)
        assert_one_graph()
        assert_same(actual, path(BUILDS[name], None, tensor_lr=tensor_lr))


def test_a_tensor_learning_rate_changes_without_compiling_again():
    for name in CHANGING:
        fresh_compiler()
        actual = path(BUILDS[name], "eager", tensor_lr=True)
        assert_one_graph()
        expected = path(BUILDS[name], None, tensor_lr=True)
        assert_same(actual, expected)
        with pytest.raises(AssertionError):  # a compiled step that kept the first rate as a constant would be here
            assert_same(path(BUILDS[name], None), expected)


def test_a_number_as_learning_rate_is_a_constant_and_a_new_one_compiles_again():
    params = [Parameter(w) for w in drawn(100)]
    optimizer = SGDM(params, 0.1, 0.0)
    step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    for lr in (0.1, 0.2):
        before = [p.detach().clone() for p in params]
        optimizer.param_groups[0]["lr"] = lr
        for p, g in zip(params, drawn(0), strict=True):
            p.grad = g
        step()
        for p, w, g in zip(params, before, drawn(0), strict=True):
            torch.testing.assert_close(p.detach(), w - lr * g)
    assert counters["stats"]["unique_graphs"] == 2


def test_a_compiled_step_skips_a_bad_gradient_without_compiling_again():
    build = BUILDS["skip"]
    actual = path(build, "eager", bad=2)
    assert_one_graph()
    assert torch.equal(actual[2][0], actual[1][0])
    assert not torch.equal(actual[2][1], actual[1][1])
    assert_same(actual, path(build, None, bad=2))


def test_a_step_on_a_device_is_one_graph():
    for name in ("muon", "experiments", "batch", "sgdm"):
        fresh_compiler()
        params = [Parameter(w.to("meta")) for w in drawn(100)]
        optimizer = BUILDS[name](params, lr=torch.tensor(0.1, device="meta"))
        step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
        for _ in range(3):
            for p in params:
                p.grad = torch.empty_like(p)
            step()
        assert_one_graph()


ignore_imports_of_inductor = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")  # torch's own mkldnn


@pytest.mark.slow
@ignore_imports_of_inductor
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", BUILDS)
def test_inductor_gives_the_numbers_of_the_plain_step(name, tensor_lr):
    actual = path(BUILDS[name], "inductor", tensor_lr=tensor_lr)
    assert_one_graph()
    # Inductor rounds a momentum otherwise in its last bit; Polar Express magnifies that up to a thousandfold.
    steep = name not in ("paper", "sgdm", "experiments")
    assert_same(actual, path(BUILDS[name], None, tensor_lr=tensor_lr), tolerance=1e-5 if steep else 1e-6)
