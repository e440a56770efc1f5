"""The status of datasets: where each comes from, how much there is, whether it is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from muonlab.lab.data import cache as data_cache
from muonlab.lab.data.images import Progress
from muonlab.lab.data.loading import Directory, identity_of, label_of, locate
from muonlab.lab.data.registry import Dataset, datasets, registered_dataset

Names = Iterable[str] | None


def status(names: Names = None, root: Directory = None, cache: Directory = None) -> dict[str, Any]:
    """Return a row per dataset; decodes nothing and does not contact the hub.

    Counts are those of the cache or of parquet files, None if unknown; ``problem`` says why a dataset cannot be loaded.

    Args:
        names: of datasets; None is all.
        root: as in :func:`muonlab.lab.data.loading.load`.
        cache: as in :func:`muonlab.lab.data.loading.load`.
    """
    return {"datasets": [_row(entry, root, cache) for entry in _chosen(names)]}


def prepare(
    names: Names = None,
    root: Directory = None,
    cache: Directory = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Decode datasets into the cache; return the rows of :func:`status` and a ``status``, "done" or "failed".

    The arguments are those of :func:`muonlab.lab.data.loading.load`. If one dataset fails, its row has the reason in
    ``problem`` and the others are still prepared.
    """
    rows = []
    for entry in _chosen(names):
        problem = None
        try:
            location = locate(entry, root, cache)
            decode = partial(location.decode, progress=progress)
            data_cache.get_or_decode_arrays(location.directory, location.key, decode)
        except (ValueError, OSError) as error:
            problem = str(error)
        row = _row(entry, root, cache)
        rows.append(row | {"problem": problem or row["problem"]})
    return {"status": "failed" if any(row["problem"] for row in rows) else "done", "datasets": rows}


def _chosen(names: Names) -> list[Dataset]:
    return [registered_dataset(name) for name in (datasets() if names is None else names)]


def _row(entry: Dataset, root: Directory, cache: Directory) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "title": entry.title, "source": "folder"}
    row |= {"where": None, "label": None, "train": None, "test": None, "cached": False, "hash": None, "problem": None}
    try:
        location = locate(entry, root, cache)
    except ValueError as error:
        return row | {"problem": str(error)}
    source = location.source
    row |= {"source": source.kind, "where": source.where}
    cached = data_cache.read(location.directory / location.key)
    if cached is not None:
        origin = identity_of(location, cached, None, None).origin
        row |= {"label": origin.label, "train": origin.train, "test": origin.test}
        return row | {"cached": True, "hash": cached.hash}
    if source.kind == "embedded":
        return row | {"label": source.label, "train": entry.train, "test": entry.test}
    if source.folder is None or entry.kind == "tokens":
        return row | {"label": source.label}
    train, test = (_parquet_rows(source.folder, split) for split in entry.splits)
    label = source.label if train is None or test is None else label_of(entry, source.label, (train, test))
    return row | {"label": label, "train": train, "test": test}


def _parquet_rows(folder: Path, split: str) -> int | None:
    """Return the number of rows in the parquet files of a split, or None if it cannot be read."""
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]

        files = [path for path in folder.rglob("*.parquet") if path.stem.split("-")[0] == split]
        return sum(parquet.read_metadata(path).num_rows for path in files) if files else None
    except Exception:  # loading will say what is wrong with the file
        return None
