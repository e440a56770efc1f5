"""The spec of one training run: model, data, optimizer, schedule, seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from muonlab import _checks
from muonlab.lab.own.datasets import OwnDataset, own_dataset
from muonlab.lab.own.models import OwnModel, model
from muonlab.lab.own.optimizers import OwnOptimizer, optimizer
from muonlab.lab.own.part import OwnLoss, loss
from muonlab.lab.settings import Settings

MOST_KAPPA = 64
if TYPE_CHECKING:  # callables are given, too, and are wrapped when a spec is made
    ModelField = Any
    DatasetField = Any
    OptimizerField = Any
    LossField = Any
else:
    ModelField = str | OwnModel
    DatasetField = str | OwnDataset
    OptimizerField = Literal["sgdm", "muon", "svd"] | OwnOptimizer
    LossField = Literal["mean", "sum"] | OwnLoss
Augmentation = Literal["none", "flip", "flip+translate"]


@dataclass(frozen=True)
class Spec(Settings):
    """The spec of one training run. Fields that the paper does not specify say what was chosen, and why.

    Args:
        model: a name of ``muonlab list models``; or a class or function, or :func:`muonlab.lab.model` of one.
        dataset: a name of ``muonlab list datasets``; or :func:`muonlab.lab.dataset`, or a function of data.
        optimizer: of the hidden matrices and filters: ``"sgdm"`` (Algorithm 3), ``"muon"`` (Algorithm 1 as the
            experiments run it: ``M/‖M‖_F``, weights renormalised to √out) or ``"svd"`` (Algorithm 2, likewise). Or any
            other optimizer: :func:`muonlab.lab.optimizer`, or what it takes.
        q: Newton-Schulz steps; 0 only normalizes.
        kappa: degree of the Taylor polynomial.
        polynomial: ``"taylor"``, or a preset of ``muonlab list polynomials`` (the paper's ad-hoc one is ``jordan``).
        lr: η of the main optimizer.
        momentum: β of the main optimizer, heavy-ball.
        aux_lr: of the auxiliary Nesterov SGD on biases, norms and embeddings. None is ``lr``: where the paper
            gives one learning rate, all parameters use it.
        head_lr: of the same on the output layer; None is ``aux_lr``.
        aux_momentum: of the same; None is ``momentum``.
        weight_decay: decoupled, of the main optimizer only. The paper names none.
        main_on: ``"hidden"`` trains the output layer and embeddings with the auxiliary optimizer, as the paper does for
            CifarNet (it does not say for other models); ``"all"`` trains every matrix except embeddings.
        smoothing: of labels.
        clip: largest norm of all gradients together; None does not clip.
        loss: cross-entropy, ``"mean"`` or ``"sum"`` over a batch. The paper does not say; after clipping to 1 the two
            differ little. Reported losses are means. Or a function of outputs and targets that returns the mean.
        augmentation: of training images. The paper describes none, so none is the default.
        batch_size: examples per update. The paper's "8" on 8 GPUs is read as 8 in total; it may mean 64.
        micro_batch: largest number of examples in one forward and backward pass; gradients are accumulated.
        epochs: passes over the training data (an incomplete last batch is dropped), or None with ``steps``.
        steps: updates, or None with ``epochs``.
        warmup: fraction of the updates in which the learning rates rise linearly; then they follow ``schedule``.
        schedule: ``"cosine"`` or ``"linear"`` to 0, or ``"constant"``.
        evaluate_every: updates between evaluations; None is an epoch.
        train: training examples (tokens of text) to use; None is all of them.
        validation: training examples (tokens of text) that are not trained with but evaluated, so that settings can be
            chosen without the test data; None sets none aside.
        test: held-out examples (tokens of text) to use; None is all of them.
        block: tokens in a sequence of text; None for images.
        first_width: output channels of CifarNet's first convolution in its first group; None is the model's default.
        precision: ``"float32"``, or ``"bfloat16"`` for autocast in forward and backward passes.
        record_every: updates between recorded certificates; 0 records none.
        watch: name of a parameter whose gradient's nuclear norm is measured at every update; None watches none.
    """

    model: ModelField = "mlp-small"
    dataset: DatasetField = "digits"
    optimizer: OptimizerField = "muon"
    q: int = 3
    kappa: int = 2
    polynomial: str = "taylor"
    lr: float = 0.08
    momentum: float = 0.7
    aux_lr: float | None = None
    head_lr: float | None = None
    aux_momentum: float | None = None
    weight_decay: float = 0.0
    main_on: Literal["hidden", "all"] = "hidden"
    smoothing: float = 0.0
    clip: float | None = 1.0
    loss: LossField = "mean"
    augmentation: Augmentation = "none"
    batch_size: int = 128
    micro_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    warmup: float = 0.05
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    evaluate_every: int | None = None
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    block: int | None = None
    first_width: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    record_every: int = 0
    watch: str | None = None

    def __post_init__(self) -> None:
        self._wrap_plain_objects()
        super().__post_init__()
        for name in ("lr", "aux_lr", "head_lr", "clip"):
            if getattr(self, name) is not None:
                _checks.real(name, getattr(self, name), low=0.0, low_open=True, high=_checks.LARGEST_RATE)
        for name in ("momentum", "aux_momentum", "warmup", "smoothing"):
            if getattr(self, name) is not None:
                _checks.real(name, getattr(self, name), low=0.0, high=1.0, high_open=True)
        _checks.real("weight_decay", self.weight_decay, low=0.0, high=_checks.LARGEST_RATE)
        for name in ("q", "record_every"):
            _checks.integer(name, getattr(self, name), at_least=0)
        counts = (
            "epochs",
            "steps",
            "micro_batch",
            "evaluate_every",
            "train",
            "validation",
            "test",
            "block",
            "first_width",
        )
        for name in ("kappa", "batch_size", *counts):
            if getattr(self, name) is not None:
                _checks.integer(name, getattr(self, name), at_least=1)
        if self.kappa > MOST_KAPPA:  # exact ranges of polynomials of degrees in the hundreds take minutes
            raise ValueError(f"kappa must be at most {MOST_KAPPA}, got {self.kappa}: the paper goes to 5")

    def _wrap_plain_objects(self) -> None:
        """Replace classes and functions by parts of a spec, and names of other optimizers than the paper's."""
        for name, wrap in (("model", model), ("dataset", own_dataset), ("optimizer", optimizer), ("loss", loss)):
            if callable(getattr(self, name)):
                object.__setattr__(self, name, wrap(getattr(self, name)))
        if isinstance(self.optimizer, str) and self.optimizer not in ("sgdm", "muon", "svd"):
            object.__setattr__(self, "optimizer", optimizer(self.optimizer))
        if isinstance(self.optimizer, OwnOptimizer) and "lr" in self.optimizer.options:
            given = self.optimizer.options["lr"]
            raise ValueError(f"the learning rate is a field of the spec, got an option lr={given!r}: write Spec(lr=…)")

    @property
    def recorded(self) -> bool:
        """Whether certificates are recorded, as for Newton-Schulz and exact polar steps; not for other optimizers."""
        orthogonalizes = (
            self.optimizer.is_muon if isinstance(self.optimizer, OwnOptimizer) else self.optimizer != "sgdm"
        )
        return self.record_every > 0 and orthogonalizes
