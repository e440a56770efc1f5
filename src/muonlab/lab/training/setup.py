"""From a spec to what is trained: checks, the length of the run, the model, the watched parameter."""

from __future__ import annotations

import torch
from torch import nn

from muonlab import _checks
from muonlab.lab.data import Data, datasets
from muonlab.lab.distributed.parallel_model import check_parallel
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.models import build, models
from muonlab.lab.spec import Spec
from muonlab.optim.distributed.tensors import whole
from muonlab.optim.views import as_matrices
from muonlab.polynomials import preset

FITTED_ON = 5_000
"""Training images that ``fit`` of a model gets."""


def check(spec: Spec, available: int | None = None, ranks: Ranks = ALONE) -> None:
    """Raise ``ValueError`` if a spec cannot be trained; called before any cell is run.

    Args:
        spec: of a cell.
        available: number of training images (tokens for text), if known.
        ranks: the ranks that are to train it.
    """
    _checks.one_of("model", spec.model, tuple(models()))
    data = _checks.one_of("dataset", spec.dataset, tuple(datasets()))
    shape = datasets()[data].shape if spec.block is None else (spec.block,)
    with torch.device("meta"):
        model = build(spec.model, shape=shape, classes=datasets()[data].classes, **model_options(spec))
    watched_parameter(spec, model)
    check_parallel(model, spec.batch_size, spec.device, ranks)
    if available is not None:
        run_length(spec, available if len(shape) > 1 else (available - 1) // shape[0])
    if spec.polynomial != "taylor":
        preset(spec.polynomial)
    check_device(spec.device)
    if (spec.epochs is None) == (spec.steps is None):
        got = f"epochs={spec.epochs} and steps={spec.steps}"
        raise ValueError(f"a run must have a length in epochs or in steps, got {got}: set one, the other to none")


def check_device(name: str) -> None:
    """Raise ``ValueError`` if this machine does not have a device."""
    kind, _, number = name.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if not (number or "0").isdecimal() or int(number or 0) >= count:
        raise ValueError(f"device must be on this machine, got {name!r} with {count} such devices: use --device cpu")


def run_length(spec: Spec, examples: int) -> tuple[int, int]:
    """Return the number of updates per epoch and in the run."""
    per_epoch = examples // spec.batch_size
    if not per_epoch:
        raise ValueError(
            f"batch_size must be at most the {examples:,} training examples, got {spec.batch_size:,}: lower it"
        )
    return per_epoch, spec.steps or per_epoch * (spec.epochs or 0)


def model_options(spec: Spec) -> dict[str, float]:
    """Return the model options that a spec sets."""
    given = {"first_width": spec.first_width, "logit_scale": spec.logit_scale}
    return {name: value for name, value in given.items() if value is not None}


def build_model(spec: Spec, data: Data) -> nn.Module:
    """Build the model of a spec from its seed; a model with a method ``fit`` is fitted to training images."""
    torch.manual_seed(spec.seed)
    model = build(spec.model, shape=data.shape, classes=data.classes, **model_options(spec))
    fit = getattr(model, "fit", None)
    if fit is not None:
        images, _ = data.train.batch(torch.arange(min(FITTED_ON, len(data.train))))
        fit(images)
    return model


def watched_parameter(spec: Spec, model: nn.Module) -> nn.Parameter | None:
    """Return the parameter that ``spec.watch`` names, or None."""
    if spec.watch is None:
        return None
    known = dict(model.named_parameters())
    if spec.watch not in known:
        raise ValueError(f"watch must name a parameter of the model, got {spec.watch!r}: {', '.join(known)}")
    return known[spec.watch]


def gradient_nuclear_norm(p: nn.Parameter) -> float:
    """Return the nuclear norm of a parameter's gradient as an (out, rest) matrix."""
    assert p.grad is not None
    return float(torch.linalg.svdvals(as_matrices(whole(p.grad), "flatten").cpu().double()).sum())
