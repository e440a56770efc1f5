"""The optimizers that the contract runs over, a small problem for them, and exact comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer
from torch.optim import lr_scheduler as schedulers

from muonlab.optim import SGDM, Muon, MuonWithAux
from muonlab.optim.step import sgdm_step

LR, MOMENTUM = 0.05, 0.9
MATRICES = {"square": (6, 6), "wide": (5, 12), "tall": (12, 5), "conv": (4, 3, 2, 2)}
VECTORS = {"vector": (7,), "scalar": ()}


@dataclass(frozen=True)
class Case:
    """An optimizer under test.

    Args:
        name: for the test's id.
        construct: makes it from parameters or groups, ``lr`` and ``momentum``.
        any_shape: whether it takes vectors.
        joint: whether it is two optimizers in one, of which the second is torch's.
    """

    name: str
    construct: Callable[..., Optimizer]
    any_shape: bool
    joint: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the problem by name."""
        return MATRICES | VECTORS if self.any_shape else MATRICES

    def build(self, params: Iterable[Any], *, lr=LR, momentum=MOMENTUM, **options: Any) -> Optimizer:
        """Make the optimizer with one group that has the options, without weight decay unless they say so."""
        group = {"params": list(params), "weight_decay": 0.0, **options}
        return self.construct([group], lr=lr, momentum=momentum)


def joined(groups: Iterable[Any], *, lr: float | Tensor, momentum: float) -> MuonWithAux:
    """Send matrices to Muon and the rest to AdamW, group by group."""
    muon, aux = [], []
    for group in groups if isinstance(groups, list) and isinstance(groups[0], dict) else [{"params": list(groups)}]:
        tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in group["params"]]
        pairs = list(zip(group["params"], tensors, strict=True))
        known = {key: group[key] for key in ("lr", "weight_decay", "maximize", "tag") if key in group}
        muon.append({**group, "params": [entry for entry, p in pairs if p.ndim >= 2]})
        aux.append({**known, "params": [entry for entry, p in pairs if p.ndim < 2]})
    kept = ([group for group in side if group["params"]] for side in (muon, aux))
    matrices, rest = kept
    return MuonWithAux(
        Muon(matrices, lr=lr, momentum=momentum),
        AdamW(rest, lr=float(lr), betas=(float(momentum), 0.99), weight_decay=0.0),
    )


MUON, SGD_MOMENTUM = Case("muon", Muon, any_shape=False), Case("sgdm", SGDM, any_shape=True)
JOINT = Case("muon with aux", joined, any_shape=True, joint=True)
every_momentum_optimizer = pytest.mark.parametrize("case", [MUON, SGD_MOMENTUM], ids=lambda case: case.name)
every_optimizer = pytest.mark.parametrize("case", [MUON, SGD_MOMENTUM, JOINT], ids=lambda case: case.name)


def broken(kind: type[SGDM]) -> Case:
    """Return a wrong optimizer as a case, to see that a check rejects it."""
    return Case(kind.__name__, kind, any_shape=True)


# ------------------------------------------------------------------------------------------------------- the problem


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return random tensors of norm √rows."""
    generator = torch.Generator().manual_seed(seed)
    normal = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: (math.sqrt(len(x) if x.ndim else 1) * x / x.norm()).to(dtype) for name, x in normal.items()}


def parameters(case: Case, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Parameter]:
    """Return the parameters of the problem."""
    return {name: Parameter(x) for name, x in draw(case.shapes, seed, dtype).items()}


def gradients(params: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
    """Return the gradients of one step."""
    drawn = draw({name: tuple(p.shape) for name, p in params.items()}, 100 + step)
    return {name: drawn[name].to(p.dtype) for name, p in params.items()}


def run(optimizer: Optimizer, params: Mapping[str, Tensor], steps: Iterable[int]) -> None:
    """Take steps along given gradients."""
    for step in steps:
        for name, g in gradients(params, step).items():
            params[name].grad = g
        optimizer.step()


def trained(case: Case, steps: int = 3, **options: Any) -> tuple[dict[str, Parameter], Optimizer]:
    """Return parameters and their optimizer after some steps."""
    params = parameters(case)
    optimizer = case.build(params.values(), **options)
    run(optimizer, params, range(steps))
    return params, optimizer


def loss_of(params: Mapping[str, Tensor]) -> Tensor:
    """Return ``½ Σ ‖W - target‖²`` with random targets."""
    targets = draw({name: tuple(p.shape) for name, p in params.items()}, 50)
    return sum(((p - targets[name].to(p.dtype)) ** 2).sum() for name, p in params.items()) / 2


def descend(params: Mapping[str, Tensor], optimizer: Optimizer, scheduler: Any = None, steps: int = 20) -> list[float]:
    """Minimise the loss and return its values, the first before any step."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if isinstance(scheduler, schedulers.ReduceLROnPlateau):
            scheduler.step(losses[-1])
        elif scheduler is not None:
            scheduler.step()
    return [*losses, loss_of(params).item()]


# ------------------------------------------------------------------------------- strides, schedules, wrong options

LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim >= 2 else x.clone(),
    "every other entry": lambda x: torch.stack([x, x], -1)[..., 0],
    "columns of a wider one": lambda x: torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]] if x.ndim else x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.clone(),
}


def laid_out(params: Mapping[str, Tensor], layout: str) -> dict[str, Parameter]:
    """Return the same parameters with other strides."""
    return {name: Parameter(LAYOUTS[layout](p.detach())) for name, p in params.items()}


def _has_momentum(optimizer: Optimizer) -> bool:
    return all("momentum" in group for group in optimizer.param_groups)


SCHEDULES = {
    "StepLR": lambda o: schedulers.StepLR(o, step_size=5, gamma=0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [4, 9], gamma=0.5),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, gamma=0.95),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: 1 / math.sqrt(1 + t)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.95),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=20),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, T_max=20),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=7),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(
        o, max_lr=LR, total_steps=21, cycle_momentum=_has_momentum(o), base_momentum=0.7, max_momentum=0.9
    ),
    "CyclicLR": lambda o: schedulers.CyclicLR(
        o, LR / 5, LR, step_size_up=5, cycle_momentum=_has_momentum(o), base_momentum=0.7, max_momentum=0.9
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, threshold=0.2, patience=1),
    "warm-up": lambda o: schedulers.LinearLR(o, start_factor=0.1, total_iters=5),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=5), schedulers.CosineAnnealingLR(o, 15)], milestones=[5]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, 0.2, total_iters=5), schedulers.ExponentialLR(o, 0.98)]
    ),
}

BAD_OPTIONS = [
    *(("lr", value) for value in (-1.0, math.nan, math.inf, 10**400, True, "0.1", None, [0.1])),
    *(("momentum", value) for value in (-0.1, 1.0, 1.5, math.nan, -math.inf, False, "0.9", None)),
    *(("weight_decay", value) for value in (-1e-9, math.nan, math.inf, True, "0", None)),
    *(("maximize", value) for value in (1, "yes", None)),
    *(("nesterov", value) for value in (0, "False")),
    ("nonfinite", "ignore"),
]


def refused(option: str, value: object) -> Any:
    """Expect an error with the rule, the value that was received, and a way out."""
    shown = "inf" if value == 10**400 else re.escape(repr(value))
    return pytest.raises((TypeError, ValueError), match=rf"^{option} must be .+, got {shown}.*: \w+")


# ---------------------------------------------------------------------------------------------------------- compare


def frozen(params: Mapping[str, Tensor], optimizer: Optimizer) -> Any:
    """Return a copy of everything that a step or a load may change."""
    weights = {name: p.detach().clone() for name, p in params.items()}
    return deepcopy((weights, optimizer.state_dict(), optimizer.defaults))


def same(a: Any, b: Any, *, ordered: bool = False) -> bool:
    """Return whether two nested values agree in types and every bit; in the order of keys only if asked."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        bits = [x.detach().reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, Mapping):
        keys = list(a) == list(b) if ordered else set(a) == set(b)
        return keys and all(same(a[key], b[key], ordered=ordered) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, ordered=ordered) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def same_weights(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of weights agree in every bit."""
    return list(a) == list(b) and all(same(a[name].detach(), b[name].detach()) for name in a)


def close_weights(a: Mapping[str, Tensor], b: Mapping[str, Tensor], tolerance: float = 1e-6) -> bool:
    """Return whether two sets of weights agree up to rounding."""
    return list(a) == list(b) and all(torch.allclose(a[n], b[n], atol=tolerance, rtol=tolerance) for n in a)


class SGDMWithUpdate(SGDM):
    """SGDM whose step calls a method that wrong optimizers override."""

    @torch.no_grad()
    def step(self, closure=None):
        loss, params = self._begin_step(closure)
        self._update(params)
        return loss

    def _update(self, params):
        sgdm_step(params, self._layouts)
