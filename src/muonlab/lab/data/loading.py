"""Loads a dataset: decoded once, then mapped from the cache with its content checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from muonlab.lab.data import cache as caching
from muonlab.lab.data.batches import Examples, Images, Tokens
from muonlab.lab.data.identity import Directory, Origin, Place, checked_request, identity
from muonlab.lab.data.images import Progress
from muonlab.lab.data.registry import Dataset, dataset


@dataclass(frozen=True)
class Data:
    """A dataset that is ready to train on.

    Args:
        name: of the dataset.
        kind: ``images`` or ``tokens``.
        train: to train on.
        test: to test on.
        shape: of one input: channels, height and width, or the tokens in a block.
        classes: how many labels, or entries of the vocabulary, there are.
        hash: of the content of the whole decoded dataset.
        origin: where it comes from, and whether it is complete.
    """

    name: str
    kind: Literal["images", "tokens"]
    train: Examples
    test: Examples
    shape: tuple[int, ...]
    classes: int
    hash: str
    origin: Origin


def load(
    name: str,
    *,
    root: Directory = None,
    cache: Directory = None,
    train: int | None = None,
    test: int | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> Data:
    """Load a dataset from its folder, the hub, or the cache of an earlier time.

    Images of a subset are the first of a fixed order with equally many of each class. Text is divided by document: one
    in ten is for validation, by a hash of its identifier; end-of-text stands between documents. Where the cache turns
    out damaged the data are decoded again.

    Args:
        name: of a registered dataset.
        root: a directory with a folder per dataset; None is ``MUONLAB_DATA``, and without it the hub.
        cache: where decoded data are kept; None is ``MUONLAB_CACHE``, or the user's cache directory.
        train: how many images (tokens) to train on; None is all there are, of text at most the registry's amount.
        test: how many to test on.
        block: tokens in a block, for text; None is the registry's.
        progress: called with done, total and what, while data are decoded.

    Example:
        >>> import tempfile
        >>> data = load("digits", cache=tempfile.mkdtemp(), train=100)
        >>> x, y = data.train.batch(torch.arange(20))
        >>> x.shape, y.bincount().tolist(), len(data.test)
        (torch.Size([20, 1, 8, 8]), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], 360)
    """
    entry = dataset(name)
    train, test, block = checked_request(entry, train, test, block)
    place = Place.of(entry, root, cache, (train, test))
    stored, arrays = caching.fetch_arrays(place.home, place.key, partial(place.fill, progress=progress))
    found = identity(place, stored, train, test)
    used = {"train": found.origin.train, "test": found.origin.test}
    if entry.kind == "images":
        examples: list[Examples] = [_images(entry, arrays, split, n) for split, n in used.items()]
    else:
        examples = [_tokens(entry, arrays[f"{split}_tokens"][:n], split, block) for split, n in used.items()]
    shape = entry.shape if entry.kind == "images" else (block,)
    return Data(entry.name, entry.kind, examples[0], examples[1], shape, entry.classes, found.hash, found.origin)


def _images(entry: Dataset, arrays: dict[str, NDArray[Any]], split: str, n: int) -> Images:
    pixels, labels = (torch.from_numpy(arrays[f"{split}_{what}"][:n]) for what in ("images", "labels"))
    return Images.of(pixels, labels.to(torch.int64), entry.mean, entry.std, entry.brightest)


def _tokens(entry: Dataset, stream: NDArray[Any], split: str, block: int) -> Tokens:
    if len(stream) <= block:
        raise ValueError(
            f"block must be less than the {len(stream):,} tokens of the {split} part of {entry.name}, got {block:,}: "
            f"ask for a shorter block or for more tokens"
        )
    return Tokens(torch.from_numpy(stream.view(np.int16)), block)
