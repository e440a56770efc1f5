"""Every dataset by name: where it lies on the hub, its columns and splits, and how its pixels are normalised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from muonlab import _checks

AUGMENTATIONS = ("none", "flip", "flip+translate")
"""What :func:`muonlab.lab.data.augment` can do to a batch of images."""


@dataclass(frozen=True)
class Dataset:
    """A registered dataset.

    Args:
        name: the registry's key, and a folder's name under ``--data DIR``.
        title: its name in sentences.
        kind: ``images`` with labels, or ``tokens`` of text.
        hub: its repository on the hub; None if a library brings it (``config``, ``columns``, ``splits`` stay empty).
        config: the hub's name of the part that is used, where there are several.
        columns: image and label, or text and the document's identifier.
        splits: for training and for test; text has one, which is divided by document.
        classes: how many labels, or entries of the vocabulary, there are.
        shape: channels, height and width, or the default length of a block of tokens.
        train: images (tokens) to train on in the complete dataset.
        test: images (tokens) to test on in the complete dataset.
        mean: subtracted from each channel, on a scale where the brightest pixel is 1.
        std: divides each channel after that.
        normalisation: whose ``mean`` and ``std`` these are.
        brightest: the pixel value that stands for 1.
        stand_ins: further folder names that are taken for a stand-in.
        tokenizer: the tokenizer's repository on the hub; folders of its last part, or that with ``-tokenizer``, serve.
    """

    name: str
    title: str
    kind: Literal["images", "tokens"]
    classes: int
    shape: tuple[int, ...]
    train: int
    test: int
    hub: str | None = None
    config: str | None = None
    columns: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    normalisation: str = ""
    brightest: int = 255
    stand_ins: tuple[str, ...] = ()
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ValueError(f"a dataset's name must be lower-case words joined by '-', got {self.name!r}: rename it")
        _checks.one_of(f"kind of {self.name!r}", self.kind, ("images", "tokens"))
        for field in ("classes", "train", "test"):
            _checks.integer(f"{field} of {self.name!r}", getattr(self, field), at_least=1)
        sides, splits = (3, 2) if self.kind == "images" else (1, 1)
        channels = self.shape[0] if self.kind == "images" else 0
        found = {
            "shape": (len(self.shape), sides),
            "mean": (len(self.mean), channels),
            "std": (len(self.std), channels),
        }
        if self.hub is not None:
            found |= {"columns": (len(self.columns), 2), "splits": (len(self.splits), splits)}
        for field, (got, expected) in found.items():
            if got != expected:
                raise ValueError(f"{field} of {self.name!r} must have {expected} values, got {got}: correct its entry")
        if channels and not self.normalisation:
            raise ValueError(f"dataset {self.name!r} needs a source of its mean and std, got none: say whose they are")
        if (self.kind == "tokens") != (self.tokenizer is not None):
            raise ValueError(
                f"a tokenizer belongs to tokens alone, got {self.tokenizer!r} for {self.name!r}: correct it"
            )


_REGISTRY: dict[str, Dataset] = {}


def register(entry: Dataset) -> Dataset:
    """Add a dataset; a name that is taken is refused."""
    if entry.name in _REGISTRY:
        raise ValueError(f"a dataset named {entry.name!r} is registered already: choose another name")
    _REGISTRY[entry.name] = entry
    return entry


def datasets() -> Mapping[str, Dataset]:
    """Return every registered dataset by name.

    Example:
        >>> datasets()["mnist"].hub
        'ylecun/mnist'
    """
    return MappingProxyType(_REGISTRY)


def dataset(name: str) -> Dataset:
    """Return a registered dataset."""
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(f"unknown dataset {name!r}: registered are {', '.join(map(repr, sorted(_REGISTRY)))}")
    return _REGISTRY[name]


def describe() -> dict[str, Any]:
    """Return what each registered dataset is, for lists and programs."""
    return {
        "datasets": [
            {
                "name": entry.name,
                "title": entry.title,
                "kind": entry.kind,
                "hub": entry.hub,
                "classes": entry.classes,
                "shape": list(entry.shape),
                "train": entry.train,
                "test": entry.test,
                "embedded": entry.hub is None,
            }
            for entry in _REGISTRY.values()
        ]
    }


register(
    Dataset(
        "digits",
        "handwritten digits of scikit-learn",
        "images",
        classes=10,
        shape=(1, 8, 8),
        train=1_437,
        test=360,
        mean=(0.3040,),
        std=(0.3754,),
        normalisation="of the training part itself, four decimals",
        brightest=16,
    )
)
register(
    Dataset(
        "mnist",
        "MNIST",
        "images",
        hub="ylecun/mnist",
        config="mnist",
        columns=("image", "label"),
        splits=("train", "test"),
        classes=10,
        shape=(1, 28, 28),
        train=60_000,
        test=10_000,
        mean=(0.1307,),
        std=(0.3081,),
        normalisation="of the training images themselves, four decimals, as in PyTorch's example of MNIST",
    )
)
register(
    Dataset(
        "cifar10",
        "CIFAR-10",
        "images",
        hub="uoft-cs/cifar10",
        config="plain_text",
        columns=("img", "label"),
        splits=("train", "test"),
        classes=10,
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        normalisation="of the training images themselves, four decimals, the common ones",
    )
)
register(
    Dataset(
        "cifar100",
        "CIFAR-100",
        "images",
        hub="uoft-cs/cifar100",
        config="cifar100",
        columns=("img", "fine_label"),
        splits=("train", "test"),
        classes=100,
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        normalisation="of the training images themselves, as published in weiaicunzai/pytorch-cifar100, four decimals",
    )
)
register(
    Dataset(
        "tiny-imagenet",
        "Tiny-ImageNet",
        "images",
        hub="zh-plus/tiny-imagenet",
        columns=("image", "label"),
        splits=("train", "valid"),
        classes=200,
        shape=(3, 64, 64),
        train=100_000,
        test=10_000,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        normalisation="of the training images themselves, four decimals, the common ones",
    )
)
register(
    Dataset(
        "fineweb",
        "FineWeb (10 million tokens of sample-10BT)",
        "tokens",
        hub="HuggingFaceFW/fineweb",
        config="sample-10BT",
        columns=("text", "id"),
        splits=("train",),
        classes=50_257,
        shape=(1_024,),
        train=10_000_000,
        test=1_000_000,
        stand_ins=("web-text",),
        tokenizer="openai-community/gpt2",
    )
)
