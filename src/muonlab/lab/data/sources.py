"""The source of a dataset: a folder in the hub's layout, the hub, or a library that contains it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from muonlab import _checks
from muonlab.lab.data.registry import Dataset

DECODING = 2
"""Part of the cache key; increased when the same source decodes into other arrays or metadata."""

_OTHERWISE = "omit --data and MUONLAB_DATA to use the hub"
Label = Literal["complete", "subset", "stand-in"]
_SUFFIXES: tuple[tuple[str, Label], ...] = (
    ("", "complete"),
    ("-subset", "subset"),
    ("-standin", "stand-in"),
    ("-stand-in", "stand-in"),
)


@dataclass(frozen=True)
class Source:
    """The source of one dataset.

    Args:
        kind: ``hub``, ``folder`` or ``embedded``.
        where: the hub's repository, the folder's name, or the library's.
        label: from the folder's name; ``complete`` becomes ``subset`` if fewer data are used.
        folder: the folder itself, for ``folder``.
        tokenizer: the folder of the tokenizer, for text in a folder.
    """

    kind: Literal["hub", "folder", "embedded"]
    where: str
    label: Label = "complete"
    folder: Path | None = None
    tokenizer: Path | None = None

    @property
    def phrase(self) -> str:
        """The source as part of a sentence, as in "60,000 images in …"."""
        return {"hub": "the hub's ", "folder": "the folder ", "embedded": ""}[self.kind] + self.where


def find_source(entry: Dataset, root: str | os.PathLike[str] | None = None) -> Source:
    """Return the source of a dataset: its folder in ``root`` or ``MUONLAB_DATA`` if one of these is given.

    A folder has the name of the dataset or the last part of its hub repository, with ``-subset`` or ``-standin``
    appended if it is one; the first that exists in that order is used.
    """
    if entry.hub is None:
        return Source("embedded", "scikit-learn")
    chosen = root if root is not None else os.environ.get("MUONLAB_DATA") or None
    if chosen is None:
        return Source("hub", entry.hub)
    base = _checks.path("data", chosen)
    if not base.is_dir():
        raise ValueError(f"data must be a directory, got {str(base)!r}: {_OTHERWISE}")
    names = folder_names(entry)
    for name, label in names.items():
        if (base / name).is_dir():
            tokenizer = None if entry.tokenizer is None else _tokenizer(entry, entry.tokenizer, base)
            return Source("folder", name, label, base / name, tokenizer)
    raise ValueError(
        f"{entry.title} must be a folder of {str(base)!r}, got none named {', '.join(names)}: "
        f"put it there, or {_OTHERWISE}"
    )


def folder_names(entry: Dataset) -> dict[str, Label]:
    """Return the folder names that are recognized for a dataset, with the label of each."""
    bases = dict.fromkeys((entry.name, (entry.hub or entry.name).rpartition("/")[2]))
    names: dict[str, Label] = {f"{base}{suffix}": label for suffix, label in _SUFFIXES for base in bases}
    return names | dict.fromkeys(entry.stand_ins, "stand-in")


def _tokenizer(entry: Dataset, hub: str, base: Path) -> Path:
    last = hub.rpartition("/")[2]
    for name in (f"{last}-tokenizer", last):
        if (base / name / "tokenizer.json").is_file():
            return base / name
    raise ValueError(
        f"{entry.title} needs tokenizer.json of {hub} in {str(base)!r}, got none in {last}-tokenizer or {last}: "
        f"put it there, or {_OTHERWISE}"
    )


def fingerprint(entry: Dataset, source: Source, limits: tuple[int, int] | None = None) -> str:
    """Return 16 hexadecimal digits of the names, sizes and times of the files of a source; reads no content.

    Args:
        entry: the dataset.
        source: where it comes from.
        limits: numbers of training and validation tokens to keep, for text.
    """
    form = [entry.config, entry.columns, entry.splits, entry.classes, entry.shape]
    key = [DECODING, entry.name, form, source.kind, source.where, limits]
    for folder in (source.folder, source.tokenizer):
        key.append([] if folder is None else _files(folder))
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        facts = path.stat()
        files.append((name.as_posix(), facts.st_size, facts.st_mtime_ns))
    return files
