"""Decodes labelled images into an array of pixels and an array of labels; every row is checked."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muonlab.lab.data.cache import array_writer, write_array
from muonlab.lab.data.reading import missing_package, open_splits
from muonlab.lab.data.registry import Dataset
from muonlab.lab.data.sources import Source

Progress = Callable[[int, int, str], None]
"""Called with the number done, the total, and a description."""

_FORMATS = ("PNG", "JPEG")
_BATCH = 256


def write_images(part: Path, entry: Dataset, source: Source, progress: Progress | None) -> Mapping[str, Any]:
    """Decode both splits into ``part``, in the order of :func:`balanced_order`; errors name the row of the source."""
    with open_splits(entry, source, part / "scratch") as (splits, revision):
        labels = {name: _labels(entry, source, name, split) for name, split in splits.items()}
        total, done = sum(map(len, labels.values())), 0
        for saved, name in zip(("train", "test"), entry.splits, strict=True):
            order = balanced_order(labels[name])
            write_array(part / f"{saved}_labels.npy", labels[name][order].astype(_label_type(entry)))
            with array_writer(part / f"{saved}_images.npy", "u1", (len(order), *entry.shape)) as write_pixels:
                for rows, pixels in _decoded(entry, source, name, splits[name], order):
                    write_pixels(pixels)
                    done += len(rows)
                    if progress is not None:
                        progress(done, total, f"{entry.name}: images")
    return {"revision": revision}


def write_digits(part: Path, entry: Dataset, progress: Progress | None) -> Mapping[str, Any]:
    """Write scikit-learn's digits: 36 images of each class for testing, the others for training."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise missing_package("scikit-learn", "lab") from None
    digits = load_digits()
    pixels, labels = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
    order = balanced_order(labels)
    for saved, chosen in (("test", order[: entry.test]), ("train", order[entry.test :])):
        rows = chosen[balanced_order(labels[chosen])]
        write_array(part / f"{saved}_images.npy", pixels[rows])
        write_array(part / f"{saved}_labels.npy", labels[rows].astype(_label_type(entry)))
    if progress is not None:
        progress(len(order), len(order), f"{entry.name}: images")
    return {"revision": None}


def balanced_order(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a fixed order of rows in which every prefix has equally many rows of each class, as nearly as possible.

    Each class is shuffled; then each round takes one row of every class that has rows left, the classes in another
    order each round. All shuffling is by the sha256 of the row's number, so that it never changes with a library.

    Example:
        >>> labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
        >>> [sorted(labels[balanced_order(labels)][i : i + 3].tolist()) for i in (0, 3, 6)]
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    keys = np.array(
        [int.from_bytes(hashlib.sha256(b"row %d" % row).digest()[:8]) for row in range(len(labels))], dtype=np.uint64
    )
    shuffled = np.lexsort((keys, labels))
    starts = np.searchsorted(labels[shuffled], labels[shuffled])
    rounds = np.arange(len(labels)) - starts
    return shuffled[np.lexsort((keys[shuffled], rounds))]


def _label_type(entry: Dataset) -> str:
    return "u1" if entry.classes <= 256 else "<i8"


def _labels(entry: Dataset, source: Source, name: str, split: Any) -> NDArray[np.int64]:
    column = split.select_columns([entry.columns[1]]).with_format("arrow")[:][entry.columns[1]]
    here = f"split {name!r} of {source.phrase}"
    if not len(column):
        raise ValueError(f"{here} must hold images, got no row: fetch it again")
    values = column.to_pylist()
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < entry.classes:
            raise ValueError(
                f"row {row} of {here} must have a label from 0 to {entry.classes - 1}, got {value!r}: "
                f"correct it, or fetch {entry.title} again"
            )
    return np.array(values, dtype=np.int64)


def _decoded(entry: Dataset, source: Source, name: str, split: Any, order: NDArray[np.int64]) -> Any:
    """Yield row numbers and their pixels, (n, channels, height, width), in batches."""
    import datasets  # type: ignore[import-untyped]

    column = entry.columns[0]
    if not isinstance(split.features[column], datasets.Image):
        raise ValueError(
            f"column {column!r} of split {name!r} of {source.phrase} must hold images, got {split.features[column]}: "
            f"use a copy of {entry.hub}"
        )
    raw = split.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        channels, height, width = entry.shape
        pixels = np.empty((len(rows), height, width, channels), dtype=np.uint8)
        for i, (row, content) in enumerate(zip(rows, raw[rows][column], strict=True)):
            pixels[i] = _pixels(entry, content, f"image {row} of split {name!r} of {source.phrase}")
        yield rows, pixels.transpose(0, 3, 1, 2)


def _pixels(entry: Dataset, content: Mapping[str, Any] | None, description: str) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise missing_package("pillow", "data") from None
    channels, height, width = entry.shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(io.BytesIO((content or {}).get("bytes") or b""), formats=_FORMATS) as image:
            if image.size == (width, height):  # the header, before a possibly large image is decoded
                converted = image if image.mode == mode else image.convert(mode)
                return np.asarray(converted, dtype=np.uint8).reshape(height, width, channels)
            size = image.size
    except Exception as error:  # the decoder raises many types for a damaged file
        raise ValueError(
            f"{description} must be a complete PNG or JPEG, got bytes that cannot be decoded ({type(error).__name__}): "
            f"fetch {entry.title} again"
        ) from error
    raise ValueError(
        f"{description} must be {width}×{height} pixels, got {size[0]}×{size[1]}: use a copy of {entry.hub}"
    )
