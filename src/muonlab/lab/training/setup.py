"""What a spec means: the length of the run, the model, the parameter that is watched."""

from __future__ import annotations

import torch
from torch import nn

from muonlab import _checks
from muonlab.lab.data import Data, datasets
from muonlab.lab.distributed import parallel_model as parallel
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.models import build, models
from muonlab.lab.spec import Spec
from muonlab.optim.distributed.tensors import whole
from muonlab.optim.views import as_matrices
from muonlab.polynomials import preset

FITTED_ON = 5_000
"""Training images from which a model with ``fit`` takes its fixed first layer."""


def check(spec: Spec, available: int | None = None, ranks: Ranks = ALONE) -> None:
    """Refuse a spec that asks for what is not there, before any cell is run.

    Args:
        spec: of a cell.
        available: training examples (tokens of text), as far as known.
        ranks: that are to train it together.
    """
    _checks.one_of("model", spec.model, tuple(models()))
    data = _checks.one_of("dataset", spec.dataset, tuple(datasets()))
    shape = datasets()[data].shape if spec.block is None else (spec.block,)
    with torch.device("meta"):
        model = build(spec.model, shape=shape, classes=datasets()[data].classes, **model_options(spec))
    watched_parameter(spec, model)
    parallel.check(model, spec.batch_size, spec.device, ranks)
    if available is not None:
        lengths(spec, available if len(shape) > 1 else (available - 1) // shape[0])
    if spec.polynomial != "taylor":
        preset(spec.polynomial)
    check_device(spec.device)
    if (spec.epochs is None) == (spec.steps is None):
        got = f"epochs={spec.epochs} and steps={spec.steps}"
        raise ValueError(f"a run must have a length in epochs or in steps, got {got}: set one, and the other to none")


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    kind, _, number = name.partition(":")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if not (number or "0").isdecimal() or int(number or 0) >= there:
        raise ValueError(f"device must be on this machine, got {name!r}, of which there are {there}: use --device cpu")


def lengths(spec: Spec, examples: int) -> tuple[int, int]:
    """Return the updates of an epoch and of the run."""
    per_epoch = examples // spec.batch_size
    if not per_epoch:
        raise ValueError(
            f"batch_size must be at most the {examples:,} training examples, got {spec.batch_size:,}: lower it"
        )
    return per_epoch, spec.steps or per_epoch * (spec.epochs or 0)


def model_options(spec: Spec) -> dict[str, float]:
    """Return the options of the model that a spec sets."""
    given = {"first_width": spec.first_width, "logit_scale": spec.logit_scale}
    return {name: value for name, value in given.items() if value is not None}


def model_of(spec: Spec, data: Data) -> nn.Module:
    """Build a spec's model from its seed, and fit its fixed layer to the data if it has one."""
    torch.manual_seed(spec.seed)
    model = build(spec.model, shape=data.shape, classes=data.classes, **model_options(spec))
    fit = getattr(model, "fit", None)
    if fit is not None:
        images, _ = data.train.batch(torch.arange(min(FITTED_ON, len(data.train))))
        fit(images)
    return model


def watched_parameter(spec: Spec, model: nn.Module) -> nn.Parameter | None:
    """Return the parameter that a spec watches."""
    if spec.watch is None:
        return None
    known = dict(model.named_parameters())
    if spec.watch not in known:
        raise ValueError(f"watch must name a parameter of the model, got {spec.watch!r}: {', '.join(known)}")
    return known[spec.watch]


def nuclear_norm(p: nn.Parameter) -> float:
    """Return the nuclear norm of a parameter's gradient, seen as a matrix of out × rest."""
    assert p.grad is not None
    return float(torch.linalg.svdvals(as_matrices(whole(p.grad), "flatten").cpu().double()).sum())
