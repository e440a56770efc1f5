"""From the name of a dataset to its examples: located, decoded once, then mapped from the cache.

Without torch up to :func:`load`: :func:`identify` and the status of datasets need none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from muonlab import _checks
from muonlab.lab.data import cache as data_cache
from muonlab.lab.data import images, tokens
from muonlab.lab.data.images import Progress
from muonlab.lab.data.registry import Dataset, registered_dataset
from muonlab.lab.data.sources import Label, Source, find_source, fingerprint
from muonlab.lab.own.datasets import OwnDataset

if TYPE_CHECKING:
    from muonlab.lab.data.batches import Examples

Directory = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Origin:
    """Where data come from, and whether they are complete.

    Args:
        source: ``hub``, ``folder``, ``embedded``, or ``own`` for data of the user that are not in the folder.
        where: the hub's repository, the folder's name, the library's, or the name of the user's data.
        label: ``complete``, a ``subset``, a ``stand-in`` that only exercises the code, or ``own data``.
        train: number of images (tokens) used for training.
        test: number of images (tokens) used for testing.
        full_train: number in the complete dataset; None for a stand-in.
        full_test: the same for testing.
        words: a sentence with all of it.
    """

    source: Literal["hub", "folder", "embedded", "own"]
    where: str
    label: Label | Literal["own data"]
    train: int
    test: int
    full_train: int | None
    full_test: int | None
    words: str


@dataclass(frozen=True)
class Identity:
    """Which data these are.

    Args:
        name: of the dataset.
        hash: of the content of the whole decoded dataset, of which a run may use a part.
        origin: where they come from.
    """

    name: str
    hash: str
    origin: Origin


@dataclass(frozen=True)
class Data(Identity):
    """A dataset that is ready for training.

    Args:
        train: training examples.
        test: held-out examples.
        shape: of one input: channels, height and width, or the tokens in a block.
        classes: number of labels, or size of the vocabulary.
    """

    train: Examples
    test: Examples
    shape: tuple[int, ...]
    classes: int


def identify(
    name: str | OwnDataset,
    *,
    root: Directory = None,
    cache: Directory = None,
    train: int | None = None,
    test: int | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> Identity:
    """Return which data :func:`load` would load, with the same arguments; reads only metadata if they are cached."""
    if isinstance(name, OwnDataset):
        from muonlab.lab.data.own_data import identify_own

        return identify_own(name, root, train, test)
    entry = registered_dataset(name)
    train, test, _ = _check_request(entry, train, test, block)
    location = locate(entry, root, cache, (train, test))
    cached = data_cache.get_or_decode(location.directory, location.key, partial(location.decode, progress=progress))
    return identity_of(location, cached, train, test)


def load(
    name: str | OwnDataset,
    *,
    root: Directory = None,
    cache: Directory = None,
    train: int | None = None,
    test: int | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> Data:
    """Load a dataset from its folder, the hub, or the cache.

    Images of a subset are the first of a fixed order with equally many of each class. Text is divided by document: one
    in ten is for validation, by a hash of its identifier; end-of-text tokens separate documents. If the cache is
    damaged, the data are decoded again.

    Args:
        name: of a registered dataset, or data of the user.
        root: a directory with a folder per dataset; None is ``MUONLAB_DATA``, or else the hub.
        cache: directory of decoded data; None is ``MUONLAB_CACHE``, or else the user's cache directory.
        train: number of training images (tokens); None is all, for text at most the registry's number.
        test: number of test images (tokens).
        block: tokens in a block, for text; None is the registry's number.
        progress: called with done, total and a description while data are decoded.

    Example:
        >>> import tempfile, torch
        >>> data = load("digits", cache=tempfile.mkdtemp(), train=100)
        >>> x, y = data.train.batch(torch.arange(20))
        >>> x.shape, y.bincount().tolist(), len(data.test)
        (torch.Size([20, 1, 8, 8]), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], 360)
    """
    from muonlab.lab.data.batches import Images, Tokens

    if isinstance(name, OwnDataset):
        from muonlab.lab.data.own_data import load_own

        return load_own(name, root, train, test, block)
    entry = registered_dataset(name)
    train, test, block = _check_request(entry, train, test, block)
    location = locate(entry, root, cache, (train, test))
    decode = partial(location.decode, progress=progress)
    cached, arrays = data_cache.get_or_decode_arrays(location.directory, location.key, decode)
    identity = identity_of(location, cached, train, test)
    examples: list[Examples] = []
    for split, count in (("train", identity.origin.train), ("test", identity.origin.test)):
        if entry.kind == "images":
            pixels, labels = (arrays[f"{split}_{what}"][:count] for what in ("images", "labels"))
            examples.append(Images.from_arrays(pixels, labels, entry.mean, entry.std, entry.brightest))
            continue
        if count <= block:
            raise ValueError(
                f"block must be less than the {count:,} tokens of the {split} part of {entry.name}, got {block:,}: "
                f"ask for a shorter block or for more tokens"
            )
        examples.append(Tokens.from_array(arrays[f"{split}_tokens"][:count], block))
    shape = entry.shape if entry.kind == "images" else (block,)
    return Data(entry.name, identity.hash, identity.origin, examples[0], examples[1], shape, entry.classes)


def _check_request(
    entry: Dataset, train: int | None, test: int | None, block: int | None
) -> tuple[int | None, int | None, int]:
    """Return the checked numbers of a request; the block is the registry's if none is given."""
    least = 1 if entry.kind == "images" else 2
    train = None if train is None else _checks.integer("train", train, at_least=least)
    test = None if test is None else _checks.integer("test", test, at_least=least)
    if block is not None and entry.kind == "images":
        raise ValueError(f"block is for tokens, got {block} for the images of {entry.name}: omit it")
    return train, test, entry.shape[0] if block is None else _checks.integer("block", block, at_least=1)


# ------------------------------------------------------------------------------------------------- source and cache


@dataclass(frozen=True)
class DataLocation:
    """The source of a dataset and its directory in the cache.

    Args:
        entry: the dataset.
        source: where it comes from.
        directory: of all decoded data.
        key: name of this dataset's directory in it.
        limits: numbers of training and validation tokens to keep, for text.
    """

    entry: Dataset
    source: Source
    directory: Path
    key: str
    limits: tuple[int, int]

    def decode(self, part: Path, progress: Progress | None) -> Mapping[str, Any]:
        """Decode the dataset into a directory."""
        if self.source.kind == "embedded":
            return images.write_digits(part, self.entry, progress)
        if self.source.kind == "hub" and progress is not None:
            progress(0, 1, f"{self.entry.name}: fetching from the hub")
        if self.entry.kind == "images":
            return images.write_images(part, self.entry, self.source, progress)
        return tokens.write_tokens(part, self.entry, self.source, self.limits, progress)


def locate(
    entry: Dataset, root: Directory, cache: Directory, request: tuple[int | None, int | None] = (None, None)
) -> DataLocation:
    """Return the location of a dataset of which at least the requested numbers are decoded.

    For text the registry's numbers of tokens are kept whatever the request, so that runs of all sizes share one hash;
    more are kept only if more are requested and the source has more.
    """
    source, directory = find_source(entry, root), data_cache.data_directory(cache)
    usual = (entry.train, entry.test)
    larger = (max(entry.train, request[0] or 0), max(entry.test, request[1] or 0))
    for limits in (usual, larger):
        key = f"{entry.name}-{fingerprint(entry, source, limits if entry.kind == 'tokens' else None)}"
        cached = data_cache.read(directory / key) if limits == usual != larger else None
        if entry.kind == "images" or larger == usual or (cached is not None and cached.facts.get("whole")):
            break
    return DataLocation(entry, source, directory, key, limits)


# --------------------------------------------------------------------------------------------------------- identity


def identity_of(
    location: DataLocation, cached: data_cache.CachedDataset, train: int | None, test: int | None
) -> Identity:
    """Return which of the cached data a request uses."""
    entry, source = location.entry, location.source
    used = (_used_count(location, cached, "train", train), _used_count(location, cached, "test", test))
    label = label_of(entry, source.label, used)
    origin = Origin(
        source.kind,
        source.where,
        label,
        train=used[0],
        test=used[1],
        full_train=None if label == "stand-in" else entry.train,
        full_test=None if label == "stand-in" else entry.test,
        words=_sentence(entry, source, label, used),
    )
    return Identity(entry.name, cached.hash, origin)


def label_of(entry: Dataset, label: Label, used: tuple[int, int]) -> Label:
    """Return the label of a folder's name, lowered from ``complete`` to ``subset`` if not all data are used."""
    fewer = used[0] < entry.train or used[1] < entry.test
    return "subset" if label == "complete" and fewer else label


def _sentence(entry: Dataset, source: Source, label: Label, used: tuple[int, int]) -> str:
    start = {
        "complete": f"{entry.title}, complete",
        "subset": f"{entry.title}, a subset",
        "stand-in": f"not {entry.title} but a stand-in",
    }[label]
    train, test = (
        f"{n:,} of {full:,}" if label == "subset" and n <= full else f"{n:,}"
        for n, full in zip(used, (entry.train, entry.test), strict=True)
    )
    tested = "test images" if entry.kind == "images" else "validation tokens"
    return f"{start}: {train} training and {test} {tested}, from {source.phrase}"


def _used_count(
    location: DataLocation, cached: data_cache.CachedDataset, split: Literal["train", "test"], asked: int | None
) -> int:
    """Return how many of a split a request uses; by default all images, or the registry's number of tokens."""
    entry, source = location.entry, location.source
    available = cached.count(f"{split}_{entry.kind}")
    if asked is None:
        return available if entry.kind == "images" else min(available, entry.train if split == "train" else entry.test)
    if asked <= available:
        return asked
    part = "training" if split == "train" else "test" if entry.kind == "images" else "validation"
    other = f", or use the hub's {entry.hub}" if source.kind == "folder" else ""
    raise ValueError(
        f"{entry.name} has {available:,} {part} {entry.kind} in {source.phrase}, got a request for {asked:,}: "
        f"ask for fewer{other}"
    )
