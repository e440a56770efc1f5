"""The registered datasets: hub repository, columns, splits, and normalisation of the pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

AUGMENTATIONS = ("none", "flip", "flip+translate")
"""What :func:`muonlab.lab.data.batches.augment` can do to a batch of images."""


@dataclass(frozen=True)
class Dataset:
    """A registered dataset.

    Args:
        name: the registry's key, and a folder's name in ``--data DIR``.
        title: its name in sentences.
        kind: ``images`` with labels, or ``tokens`` of text.
        classes: number of labels, or size of the vocabulary.
        shape: channels, height and width, or the default length of a block of tokens.
        train: training images (tokens) in the complete dataset.
        test: test images (tokens) in the complete dataset.
        hub: its repository on the hub; None if a library contains it (``config``, ``columns``, ``splits`` are empty).
        config: the configuration in the repository, if there are several.
        columns: image and label, or text and the document's identifier.
        splits: for training and for testing; text has one, which is divided by document.
        mean: subtracted from each channel, on a scale where the brightest pixel is 1.
        std: divides each channel after that.
        normalisation: source of ``mean`` and ``std``.
        brightest: the pixel value that becomes 1.
        stand_ins: further folder names of stand-ins.
        tokenizer: the tokenizer's repository on the hub; a folder with its last part, or that with ``-tokenizer``,
            is used if there is one.
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
        channels = self.shape[0] if self.kind == "images" else 0
        if len(self.mean) != channels or len(self.std) != channels:
            raise ValueError(
                f"mean and std of {self.name!r} need {channels} values each, got {self.mean} and {self.std}"
            )
        if (self.kind == "tokens") != (self.tokenizer is not None):
            raise ValueError(f"tokens, and only they, need a tokenizer, got {self.tokenizer!r} for {self.name!r}")


_REGISTRY: dict[str, Dataset] = {}


def register(entry: Dataset) -> Dataset:
    """Add a dataset; raise ``ValueError`` if its name is taken."""
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


def registered_dataset(name: str) -> Dataset:
    """Return a registered dataset."""
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(f"unknown dataset {name!r}: registered are {', '.join(map(repr, sorted(_REGISTRY)))}")
    return _REGISTRY[name]


def describe() -> dict[str, Any]:
    """Return the registered datasets as plain values, for ``muonlab list datasets``."""
    return {
        "datasets": [
            {
                **{name: getattr(entry, name) for name in ("name", "title", "kind", "hub", "classes")},
                "shape": list(entry.shape),
                "train": entry.train,
                "test": entry.test,
                "embedded": entry.hub is None,
            }
            for entry in _REGISTRY.values()
        ]
    }


register(Dataset(
    "digits", "handwritten digits of scikit-learn", "images", classes=10, shape=(1, 8, 8), train=1_437, test=360,
    mean=(0.3040,), std=(0.3754,), normalisation="of the training part itself, four decimals", brightest=16,
))  # fmt: skip
register(Dataset(
    "mnist", "MNIST", "images", hub="ylecun/mnist", config="mnist", columns=("image", "label"),
    splits=("train", "test"), classes=10, shape=(1, 28, 28), train=60_000, test=10_000, mean=(0.1307,), std=(0.3081,),
    normalisation="of the training images themselves, four decimals, as in PyTorch's example of MNIST",
))  # fmt: skip
register(Dataset(
    "cifar10", "CIFAR-10", "images", hub="uoft-cs/cifar10", config="plain_text", columns=("img", "label"),
    splits=("train", "test"), classes=10, shape=(3, 32, 32), train=50_000, test=10_000, mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616), normalisation="of the training images themselves, four decimals, the common ones",
))  # fmt: skip
register(Dataset(
    "cifar100", "CIFAR-100", "images", hub="uoft-cs/cifar100", config="cifar100", columns=("img", "fine_label"),
    splits=("train", "test"), classes=100, shape=(3, 32, 32), train=50_000, test=10_000, mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    normalisation="of the training images themselves, as published in weiaicunzai/pytorch-cifar100, four decimals",
))  # fmt: skip
register(Dataset(
    "tiny-imagenet", "Tiny-ImageNet", "images", hub="zh-plus/tiny-imagenet", columns=("image", "label"),
    splits=("train", "valid"), classes=200, shape=(3, 64, 64), train=100_000, test=10_000,
    mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821),
    normalisation="of the training images themselves, four decimals, the common ones",
))  # fmt: skip
register(Dataset(
    "fineweb", "FineWeb (10 million tokens of sample-10BT)", "tokens", hub="HuggingFaceFW/fineweb",
    config="sample-10BT", columns=("text", "id"), splits=("train",), classes=50_257, shape=(1_024,), train=10_000_000,
    test=1_000_000, stand_ins=("web-text",), tokenizer="openai-community/gpt2",
))  # fmt: skip
