"""The user's own data, ready for training: which they are, and their examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from muonlab import _checks
from muonlab.lab.data.batches import Examples, Pairs, Tokens
from muonlab.lab.data.loading import Data, Directory, Identity, Origin
from muonlab.lab.own.datasets import OwnDataset, content_hash

if TYPE_CHECKING:
    from muonlab.lab.own.datasets import Arrays


def identify_own(data: OwnDataset, root: Directory, train: int | None, test: int | None) -> Identity:
    """Return the hash of the content of own data, and what a run uses of them."""
    splits = data.splits(root)
    counts = {name: len(arrays[0]) for name, arrays in splits.items()}
    used = {name: _used(data, name, counts[name], asked) for name, asked in (("train", train), ("test", test))}
    unit = "tokens" if len(splits["train"]) == 1 else "examples"
    parts = [f"{n:,}" if n == counts[name] else f"{n:,} of {counts[name]:,}" for name, n in used.items()]
    words = f"the study's own data {data.title}: {parts[0]} training and {parts[1]} test {unit}"
    source: Literal["folder", "own"] = "folder" if data.reads_folder else "own"
    origin = Origin(source, data.title, "own data", used["train"], used["test"], counts["train"], counts["test"], words)
    return Identity(data.title, content_hash(splits), origin)


def load_own(data: OwnDataset, root: Directory, train: int | None, test: int | None, block: int | None) -> Data:
    """Return own data with their examples; ``block`` is for tokens, which need it."""
    identity, splits = identify_own(data, root, train, test), data.splits(root)
    is_text = len(splits["train"]) == 1
    if is_text != (block is not None):
        problem = "tokens without one: set block=…" if is_text else f"{block} for pairs (x, y): omit it"
        raise ValueError(f"block is the length of a sequence of tokens, got {problem}")
    counts = {"train": identity.origin.train, "test": identity.origin.test}
    parts = {name: tuple(array[: counts[name]] for array in arrays) for name, arrays in splits.items()}
    made = {name: _examples(part, block) for name, part in parts.items()}
    for name, examples in made.items():
        if not len(examples):
            raise ValueError(
                f"block must be less than the {counts[name]:,} {name} tokens of {data.title}, got {block}: lower it"
            )
    shape = (block,) if block is not None else tuple(splits["train"][0].shape[1:])
    return Data(data.title, identity.hash, identity.origin, made["train"], made["test"], shape, _classes(data, splits))


def shape_and_classes(data: OwnDataset, block: int | None) -> tuple[tuple[int, ...], int]:
    """Return the shape of an input and the number of classes of data that have been identified in this process."""
    splits = data.any_splits()
    return (block,) if block is not None else tuple(splits["train"][0].shape[1:]), _classes(data, splits)


def first_examples(data: OwnDataset, block: int | None, count: int) -> tuple[Tensor, Tensor]:
    """Return a batch of the first training examples of data that have been identified in this process."""
    examples = _examples(data.any_splits()["train"], block)
    return examples.batch(torch.arange(min(count, len(examples))))


def _examples(part: Arrays, block: int | None) -> Examples:
    if block is None:
        x, y = part
        return Pairs(x, y)
    return Tokens(part[0].int() if part[0].element_size() == 2 else part[0], block)  # int16 is for bits of uint16


def _classes(data: OwnDataset, splits: dict[str, Arrays]) -> int:
    """Return the number of classes, at least 2; for targets that are not whole numbers the size of one target."""
    if data.classes is not None:
        return data.classes
    targets = [arrays[-1] for arrays in splits.values()]
    if targets[0].is_floating_point():
        return max(2, targets[0][0].numel())
    return max(2, 1 + max(int(target.max()) for target in targets))


def _used(data: OwnDataset, split: str, available: int, asked: int | None) -> int:
    if asked is None:
        return available
    if _checks.integer(split, asked, at_least=1) > available:
        raise ValueError(f"{data.title} has {available:,} {split} examples, got a request for {asked:,}: ask for fewer")
    return asked
