"""From a spec to what is trained: checks, the length of the run, the model, the watched parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from muonlab import _checks
from muonlab.lab.data.loading import Data
from muonlab.lab.data.registry import datasets
from muonlab.lab.distributed.parallel_model import check_parallel
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.models import build, models
from muonlab.lab.own.datasets import OwnDataset
from muonlab.lab.own.models import OwnModel
from muonlab.lab.own.optimizers import OwnOptimizer
from muonlab.lab.spec import Spec
from muonlab.lab.training.evaluation import criterion
from muonlab.lab.training.recipe import build_optimizer
from muonlab.optim.distributed.tensors import whole
from muonlab.polynomials import preset

FITTED_ON = 5_000
"""Training images that ``fit`` of a model gets."""


def check_spec(spec: Spec, available: int | None = None, ranks: Ranks = ALONE) -> None:
    """Raise ``ValueError`` if a spec cannot be trained; called before any cell is run.

    Args:
        spec: of a cell.
        available: number of training images (tokens for text), if known.
        ranks: the ranks that are to train it.
    """
    if not isinstance(spec.dataset, OwnDataset):
        _checks.one_of("dataset", spec.dataset, tuple(datasets()))
    if not isinstance(spec.model, OwnModel):
        _checks.one_of("model", spec.model, tuple(models()))
    if isinstance(spec.dataset, OwnDataset):
        check_targets(spec, spec.dataset)
    model = model_for_checks(spec)
    if isinstance(spec.model, OwnModel) and callable(spec.model.target):
        check_forward(spec, model)
    watched_parameter(spec, model)
    check_parallel(model, spec.batch_size, spec.device, ranks)
    if isinstance(spec.optimizer, OwnOptimizer):
        check_optimizer(spec, spec.optimizer)
        build_optimizer(spec, model)
    if available is not None:
        if spec.validation is not None and spec.validation >= available:
            raise ValueError(
                f"validation must leave some of the {available:,} training examples, got {spec.validation:,}: lower it"
            )
        available -= spec.validation or 0
        block = spec.block or (None if isinstance(spec.dataset, OwnDataset) else _block(spec.dataset))
        run_length(spec, available if block is None else (available - 1) // block)
    if spec.polynomial != "taylor":
        preset(spec.polynomial)
    check_device(spec.device)
    if (spec.epochs is None) == (spec.steps is None):
        got = f"epochs={spec.epochs} and steps={spec.steps}"
        raise ValueError(f"a run must have a length in epochs or in steps, got {got}: set one, the other to none")


def model_for_checks(spec: Spec) -> nn.Module:
    """Return the model of a spec; a registered one on the meta device, without memory."""
    if isinstance(spec.dataset, OwnDataset):
        from muonlab.lab.data.own_data import shape_and_classes

        shape, classes = shape_and_classes(spec.dataset, spec.block)
    else:
        entry = datasets()[spec.dataset]
        shape, classes = entry.shape if spec.block is None else (spec.block,), entry.classes
    if isinstance(spec.model, OwnModel) and callable(spec.model.target):
        if model_options(spec):
            raise ValueError(
                f"{' and '.join(model_options(spec))} are for registered models, got {spec.model.name}: pass options "
                f"as model({spec.model.name}, …)"
            )
        with torch.random.fork_rng(devices=[]):
            return spec.model.build()
    with torch.device("meta"):
        return _build(spec, shape, classes)


@torch.no_grad()
def check_forward(spec: Spec, model: nn.Module) -> None:
    """Raise ``ValueError`` if the user's model does not take the data, or the loss not its outputs: with two examples.

    Data of the package are stood in for by zeros.
    """
    x, y = _two_examples(spec)
    try:
        criterion(model.eval(), x, y, spec)
    except Exception as error:
        shapes = f"x of shape {list(x.shape)} and y of shape {list(y.shape)}"
        raise ValueError(
            f"the model must take a batch of the data, and the loss its outputs, got {type(error).__name__} with "
            f"{shapes} and {spec.model.name}: {error}"
        ) from error
    model.train()


def _two_examples(spec: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(spec.dataset, OwnDataset):
        from muonlab.lab.data.own_data import first_examples

        return first_examples(spec.dataset, spec.block, 2)
    shape = datasets()[spec.dataset].shape if spec.block is None else (spec.block,)
    if _block(spec.dataset) is not None:
        return torch.zeros(2, *shape, dtype=torch.int64), torch.zeros(2, *shape, dtype=torch.int64)
    return torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64)


def check_optimizer(spec: Spec, chosen: OwnOptimizer) -> None:
    """Raise ``ValueError`` if the optimizer takes an option that is set as a field of the spec, where it is ignored."""
    for name in ("momentum", "weight_decay"):
        if getattr(spec, name) != getattr(Spec, name) and chosen.accepts(name) and name not in chosen.options:
            raise ValueError(
                f"{name} of a spec is for the optimizers of the paper, got {name}={getattr(spec, name)} with "
                f"{chosen.name}: write optimizer(…, {name}=…)"
            )


def check_targets(spec: Spec, data: OwnDataset) -> None:
    """Raise ``ValueError`` if the loss cannot take the targets."""
    from muonlab.lab.data.own_data import first_examples

    _, y = first_examples(data, spec.block, 1)
    if y.is_floating_point() and isinstance(spec.loss, str):
        raise ValueError(
            f"cross-entropy needs whole numbers as targets, got {str(y.dtype).removeprefix('torch.')} in {data.name}: "
            f"set a loss, such as Spec(loss=torch.nn.functional.mse_loss)"
        )


def _block(dataset: str) -> int | None:
    """Return the usual block of a dataset of text; None for images."""
    entry = datasets()[dataset]
    return entry.shape[0] if entry.kind == "tokens" else None


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
    return {} if spec.first_width is None else {"first_width": spec.first_width}


def build_model(spec: Spec, data: Data) -> nn.Module:
    """Build the model of a spec from its seed; a model with a method ``fit`` is fitted to training images."""
    torch.manual_seed(spec.seed)
    model = _build(spec, data.shape, data.classes)
    fit = getattr(model, "fit", None)
    if fit is not None:
        images, _ = data.train.batch(torch.arange(min(FITTED_ON, len(data.train))))
        fit(images)
    return model


def _build(spec: Spec, shape: Sequence[int], classes: int) -> nn.Module:
    if not isinstance(spec.model, OwnModel):
        return build(spec.model, shape=shape, classes=classes, **model_options(spec))
    return spec.model.changed(model_options(spec)).build(shape, classes)


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
    return float(torch.linalg.svdvals(whole(p.grad).flatten(1).cpu().double()).sum())
