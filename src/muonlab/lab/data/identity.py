"""Which data a run uses: the hash of their content, and in words what they are; without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from muonlab import _checks
from muonlab.lab.data import cache as caching
from muonlab.lab.data import images, tokens
from muonlab.lab.data.images import Progress
from muonlab.lab.data.registry import Dataset, dataset
from muonlab.lab.data.sources import Label, Source, find, fingerprint

Directory = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Origin:
    """Where data come from and whether they are the real thing.

    Args:
        source: ``hub``, ``folder`` or ``embedded``.
        where: the hub's repository, the folder's name, or the library's.
        label: ``complete``, a ``subset``, or a ``stand-in`` that only exercises the code.
        train: images (tokens) that are used for training.
        test: images (tokens) that are used for testing.
        full_train: as many as the complete dataset has; None for a stand-in.
        full_test: the same for testing.
        words: all of it in one sentence.
    """

    source: Literal["hub", "folder", "embedded"]
    where: str
    label: Label
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


def identify(
    name: str,
    *,
    root: Directory = None,
    cache: Directory = None,
    train: int | None = None,
    test: int | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> Identity:
    """Return which data :func:`muonlab.lab.data.load` would load; decodes them if the cache does not have them yet.

    With the data in the cache it reads their small metadata and nothing else.

    Args:
        name: of a registered dataset.
        root: a directory with a folder per dataset; None is ``MUONLAB_DATA``, and without it the hub.
        cache: where decoded data are kept; None is ``MUONLAB_CACHE``, or the user's cache directory.
        train: how many images (tokens) to train on; None is all there are.
        test: how many to test on.
        block: tokens in a block, for text.
        progress: called with done, total and what, while data are decoded.
    """
    entry = dataset(name)
    train, test, _ = checked_request(entry, train, test, block)
    place = Place.of(entry, root, cache, (train, test))
    stored = caching.fetch(place.home, place.key, partial(place.fill, progress=progress))
    return identity(place, stored, train, test)


@dataclass(frozen=True)
class Place:
    """Where a dataset comes from and where it goes in the cache.

    Args:
        entry: the dataset.
        source: where it comes from.
        home: the directory of decoded data.
        key: the directory of this one in it.
        limits: tokens that are kept, for text.
    """

    entry: Dataset
    source: Source
    home: Path
    key: str
    limits: tuple[int, int]

    @classmethod
    def of(
        cls, entry: Dataset, root: Directory, cache: Directory, request: tuple[int | None, int | None] = (None, None)
    ) -> Place:
        """Return the place of a dataset, of which at least as much as is requested will be decoded.

        Of text the amounts of the registry are kept whatever the request, so that runs of all sizes share one hash;
        more than that only where it is asked for and there is more.
        """
        source, home = find(entry, root), caching.home(cache)
        usual = (entry.train, entry.test)
        larger = (max(entry.train, request[0] or 0), max(entry.test, request[1] or 0))
        for limits in (usual, larger):
            key = f"{entry.name}-{fingerprint(entry, source, limits if entry.kind == 'tokens' else None)}"
            stored = caching.read(home / key) if limits == usual != larger else None
            if entry.kind == "images" or larger == usual or (stored is not None and stored.facts.get("whole")):
                break
        return cls(entry, source, home, key, limits)

    def fill(self, part: Path, progress: Progress | None) -> Mapping[str, Any]:
        """Decode the dataset into a directory."""
        if self.source.kind == "embedded":
            return images.write_digits(part, self.entry, progress)
        if self.source.kind == "hub" and progress is not None:
            progress(0, 1, f"{self.entry.name}: fetching from the hub")
        if self.entry.kind == "images":
            return images.write(part, self.entry, self.source, progress)
        return tokens.write(part, self.entry, self.source, self.limits, progress)


def checked_request(
    entry: Dataset, train: int | None, test: int | None, block: int | None
) -> tuple[int | None, int | None, int]:
    """Return the numbers of a request, each checked by itself; the block is the registry's where none is given."""
    least = 1 if entry.kind == "images" else 2
    train = None if train is None else _checks.integer("train", train, at_least=least)
    test = None if test is None else _checks.integer("test", test, at_least=least)
    if block is not None and entry.kind == "images":
        raise ValueError(f"block is for tokens, got {block} for the images of {entry.name}: leave it away")
    return train, test, entry.shape[0] if block is None else _checks.integer("block", block, at_least=1)


def identity(place: Place, stored: caching.Stored, train: int | None, test: int | None) -> Identity:
    """Return which data a request uses, once it is known how many there are."""
    entry, source = place.entry, place.source
    used = (_used(place, stored, "train", train), _used(place, stored, "test", test))
    label = labelled(entry, source.label, used)
    origin = Origin(
        source.kind,
        source.where,
        label,
        train=used[0],
        test=used[1],
        full_train=None if label == "stand-in" else entry.train,
        full_test=None if label == "stand-in" else entry.test,
        words=in_words(entry, source, label, used),
    )
    return Identity(entry.name, stored.hash, origin)


def labelled(entry: Dataset, label: Label, used: tuple[int, int]) -> Label:
    """Return what data are: what their folder says, but complete only with all there are."""
    fewer = used[0] < entry.train or used[1] < entry.test
    return "subset" if label == "complete" and fewer else label


def in_words(entry: Dataset, source: Source, label: Label, used: tuple[int, int]) -> str:
    """Return one sentence on what is used and where it comes from."""
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


def _used(place: Place, stored: caching.Stored, split: Literal["train", "test"], asked: int | None) -> int:
    """Return how many of a split a request uses: what it asks for, else all images, or the registry's many tokens."""
    entry, source = place.entry, place.source
    has = stored.count(f"{split}_{entry.kind}")
    if asked is None:
        return has if entry.kind == "images" else min(has, entry.train if split == "train" else entry.test)
    if asked <= has:
        return asked
    part = "training" if split == "train" else "test" if entry.kind == "images" else "validation"
    other = f", or use the hub's {entry.hub}" if source.kind == "folder" else ""
    raise ValueError(
        f"{entry.name} has {has:,} {part} {entry.kind} in {source.phrase}, got a request for {asked:,}: "
        f"ask for fewer{other}"
    )
