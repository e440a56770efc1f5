"""The step is the update in Muon's docstring, line by line, and it visits few files."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from muonlab import SGDM, ExactPolar, Muon, NewtonSchulz, newton_schulz, optim
from muonlab.optim.orthogonalizer import DEFAULT_SCHEDULE

SHAPES = ((6, 9), (9, 6), (5, 5), (4, 3, 2))
STEPS = 5
POLAR_EXPRESS = partial(newton_schulz, polynomial=DEFAULT_SCHEDULE, accuracy="half")
JORDAN = partial(newton_schulz, polynomial="jordan", steps=5)


def drawn(seed: int) -> list[Tensor]:
    """Return standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def exact(Z: Tensor) -> Tensor:
    """Return the polar factor ``U Vᵀ`` of a matrix of full rank."""
    U, _, Vh = torch.linalg.svd(Z, full_matrices=False)
    return U @ Vh


def at_norm(W: Tensor) -> Tensor:
    """Return a weight rescaled to the Frobenius norm √m."""
    return W * (math.sqrt(len(W)) / W.norm())


def original(m: int, n: int) -> float:
    return math.sqrt(max(1, m / n))


def documented(
    W: Tensor,
    M: Tensor,
    G: Tensor,
    *,
    eta: float = 0.02,
    mu: float = 0.95,
    decay: float = 0.0,
    polar=POLAR_EXPRESS,
    momentum=lambda mu, M, G: mu * M + (1 - mu) * G,
    direction=lambda mu, M, G: mu * M + (1 - mu) * G,
    scale=original,
    before=lambda W: W,
    after=lambda W: W,
    sign: int = -1,
) -> tuple[Tensor, Tensor]:
    """Return W_t and M_t by the lines of Muon's docstring; an option of Muon replaces one of them."""
    M = momentum(mu, M, G)
    Z = direction(mu, M, G)
    O = polar(Z.flatten(1)).view(W.shape)
    m, n = Z.flatten(1).shape
    return after((1 - eta * decay) * before(W) + sign * eta * scale(m, n) * O), M


def heavy_ball(mu: float, M: Tensor, G: Tensor) -> Tensor:
    return mu * M + G


TABLE = [
    ({}, {}),
    ({"lr": 0.1, "momentum": 0.8, "weight_decay": 0.3}, {"eta": 0.1, "mu": 0.8, "decay": 0.3}),
    ({"momentum_form": "heavy_ball"}, {"momentum": heavy_ball, "direction": heavy_ball}),
    ({"nesterov": False}, {"direction": lambda mu, M, G: M}),  # noqa: ARG005
    ({"orthogonalizer": ExactPolar(), "weight_decay": 0.1}, {"polar": exact, "decay": 0.1}),
    ({"orthogonalizer": NewtonSchulz("jordan", steps=5)}, {"polar": JORDAN}),
    ({"scale": "none"}, {"scale": lambda m, n: 1.0}),  # noqa: ARG005
    ({"scale": "match_rms_adamw"}, {"scale": lambda m, n: 0.2 * math.sqrt(max(m, n))}),
    ({"scale": "spectral"}, {"scale": lambda m, n: math.sqrt(m / n)}),
    ({"renormalize": "before", "weight_decay": 0.1}, {"before": at_norm, "decay": 0.1}),
    ({"renormalize": "after", "weight_decay": 0.1}, {"after": at_norm, "decay": 0.1}),
    ({"maximize": True}, {"sign": 1}),
]
"""Options of Muon, and the lines that they change."""


def assert_documented(options: dict, lines: dict) -> None:
    """Compare weights and momenta with the docstring's after every step."""
    params = [Parameter(W) for W in drawn(100)]
    weights, momenta = drawn(100), [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    optimizer = Muon(params, **options)
    for t in range(STEPS):
        for i, (p, G) in enumerate(zip(params, drawn(t), strict=True)):
            p.grad = G
            weights[i], momenta[i] = documented(weights[i], momenta[i], G, **lines)
        optimizer.step()
        for p, W, M in zip(params, weights, momenta, strict=True):
            torch.testing.assert_close(p.detach(), W, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], M, rtol=1e-12, atol=1e-12)


def test_a_step_is_the_update_in_the_docstring_with_every_option_of_its_table():
    for options, lines in TABLE:
        assert_documented(options, lines)


def test_no_option_follows_the_lines_of_another():
    for i, (options, _) in enumerate(TABLE):
        for j, (_, lines) in enumerate(TABLE):
            if i != j:
                with pytest.raises(AssertionError):
                    assert_documented(options, lines)


def test_only_params_and_lr_go_by_position():
    params = [Parameter(torch.ones(3, 4))]
    with pytest.raises(TypeError, match=r"got a third argument 0\.1: write momentum=0\.1 or weight_decay=0\.1"):
        Muon(params, 1e-3, 0.1)
    for recipe in (Muon.paper, Muon.airbench, Muon.moonlight):
        with pytest.raises(TypeError, match="positional"):
            recipe(params, 1e-3, 0.1)
    assert Muon.torch(params, 1e-3, 0.2).param_groups[0]["weight_decay"] == 0.2
    assert Muon.keller_jordan(params, 1e-3, 0.2, 0.7).param_groups[0]["momentum"] == 0.7


def test_what_only_muon_has_is_not_on_other_optimizers():
    param = Parameter(torch.ones(4, 3, 5))
    assert Muon([param], matrix_view="batch").owned_matrices(param) == range(4)
    sgdm = SGDM([param], 0.1, 0.9)
    for name in ("owned_matrices", "share", "orthogonalized", "register_orthogonalize_hook"):
        assert not hasattr(sgdm, name)


# ------------------------------------------------------------------------------------------- the way of one gradient

FILES = {"base.py", "muon.py", "step.py", "layout.py", "orthogonalizer.py", "scaling.py", "hooks.py", "options.py"}
FILES |= {"views.py", "distributed/tensors.py"}


def files_entered(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the files of muonlab.optim whose functions a step calls."""
    folder, entered = Path(optim.__file__).parent, set()

    def record(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(folder):
            entered.add(path.relative_to(folder).as_posix())

    sys.setprofile(record)
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    return entered


def test_a_gradient_on_one_process_visits_ten_files_and_none_for_several_processes():
    entered = set()
    for options in ({}, {"nonfinite": "raise", "weight_decay": 0.1}, {"nonfinite": "skip", "renormalize": "before"}):
        param = Parameter(drawn(0)[0].float())
        muon = Muon([param], **options, matrix_view=(2, 4))
        muon.register_orthogonalize_hook(lambda *_: None, gradients=True)
        param.grad = torch.ones_like(param)
        entered |= files_entered(muon)
        sgdm = SGDM([param], 0.1, 0.9)
        assert files_entered(sgdm) < FILES - {"muon.py"} | {"sgdm.py"}
    assert entered == FILES
