"""Which datasets are at hand: where each would come from, how much there is, whether it is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from muonlab.lab.data import cache as caching
from muonlab.lab.data.identity import Directory, Place, identity, labelled
from muonlab.lab.data.images import Progress
from muonlab.lab.data.registry import Dataset, dataset, datasets

Names = str | Iterable[str] | None


def status(names: Names = None, root: Directory = None, cache: Directory = None) -> dict[str, Any]:
    """Return a row per dataset on what is at hand, without decoding anything or asking the hub.

    Counts are read off the metadata of the cache or of parquet files, and None where neither says; ``problem`` is why
    a dataset cannot be loaded as things are.

    Args:
        names: of datasets; None is all.
        root: as in :func:`muonlab.lab.data.load`.
        cache: as there.
    """
    return {"datasets": [_row(entry, root, cache) for entry in _chosen(names)]}


def prepare(
    names: Names = None,
    root: Directory = None,
    cache: Directory = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Decode datasets into the cache and return the rows of :func:`status` for them.

    One that fails has its reason in ``problem``; the others are prepared all the same. ``status`` says "failed" then.

    Args:
        names: of datasets; None is all.
        root: as in :func:`muonlab.lab.data.load`.
        cache: as there.
        progress: as there.
    """
    rows = []
    for entry in _chosen(names):
        problem = None
        try:
            place = Place.of(entry, root, cache)
            caching.fetch_arrays(place.home, place.key, partial(place.fill, progress=progress))
        except (ValueError, OSError) as error:
            problem = str(error)
        row = _row(entry, root, cache)
        rows.append(row | {"problem": problem or row["problem"]})
    return {"status": "failed" if any(row["problem"] for row in rows) else "done", "datasets": rows}


def _chosen(names: Names) -> list[Dataset]:
    return [dataset(name) for name in (datasets() if names is None else [names] if isinstance(names, str) else names)]


def _row(entry: Dataset, root: Directory, cache: Directory) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "title": entry.title, "source": "folder"}
    row |= {"where": None, "label": None, "train": None, "test": None, "cached": False, "hash": None, "problem": None}
    try:
        place = Place.of(entry, root, cache)
    except ValueError as error:
        return row | {"problem": str(error)}
    source = place.source
    row |= {"source": source.kind, "where": source.where}
    stored = caching.read(place.home / place.key)
    if stored is not None:
        found = identity(place, stored, None, None)
        origin = found.origin
        row |= {"label": origin.label, "train": origin.train, "test": origin.test}
        return row | {"cached": True, "hash": found.hash}
    if source.kind == "embedded":
        return row | {"label": source.label, "train": entry.train, "test": entry.test}
    if source.folder is None or entry.kind == "tokens":
        return row | {"label": source.label}
    train, test = (_parquet_rows(source.folder, split) for split in entry.splits)
    label = source.label if train is None or test is None else labelled(entry, source.label, (train, test))
    return row | {"label": label, "train": train, "test": test}


def _parquet_rows(folder: Path, split: str) -> int | None:
    """Return how many rows the parquet files of a split say they have, or None where they do not say."""
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]

        files = [path for path in folder.rglob("*.parquet") if path.stem.split("-")[0] == split]
        return sum(parquet.read_metadata(path).num_rows for path in files) if files else None
    except Exception:  # a file that is none: loading says what is wrong with it
        return None
