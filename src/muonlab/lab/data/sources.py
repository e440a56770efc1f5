"""Where a dataset comes from: a folder in the hub's layout, the hub itself, or a library that brings it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from muonlab.lab.data.registry import Dataset

DECODING = 1
"""Raised when the same source decodes into other arrays, so that caches of before are not taken."""

_OTHERWISE = "leave --data and MUONLAB_DATA away to use the hub"
Label = Literal["complete", "subset", "stand-in"]
_SUFFIXES: tuple[tuple[str, Label], ...] = (
    ("", "complete"),
    ("-subset", "subset"),
    ("-standin", "stand-in"),
    ("-stand-in", "stand-in"),
)


@dataclass(frozen=True)
class Source:
    """Where one dataset comes from.

    Args:
        kind: ``hub``, ``folder`` or ``embedded``.
        where: the hub's repository, the folder's name, or the library's.
        label: what the folder's name says; counts may lower ``complete`` to ``subset``.
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
        """The source in a sentence, as in "60,000 images in …"."""
        return {"hub": "the hub's ", "folder": "the folder ", "embedded": ""}[self.kind] + self.where


def find(entry: Dataset, root: str | os.PathLike[str] | None = None) -> Source:
    """Return the source of a dataset: its folder under ``root`` or ``MUONLAB_DATA`` where one of these is given.

    A folder is named as the dataset or as the last part of its hub repository, with ``-subset`` or ``-standin`` behind
    where it is one; of several the first in that order is taken.
    """
    if entry.hub is None:
        return Source("embedded", "scikit-learn")
    chosen = root if root is not None else os.environ.get("MUONLAB_DATA") or None
    if chosen is None:
        return Source("hub", entry.hub)
    base = Path(chosen)
    if not base.is_dir():
        raise ValueError(f"data must be a directory, got {str(base)!r}, which is none: {_OTHERWISE}")
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
    """Return the folder names that serve for a dataset, and what each says about it."""
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
    """Return 16 hexadecimal digits that change with the files of a source, without reading them.

    Args:
        entry: the dataset.
        source: where it comes from.
        limits: tokens to keep for training and validation, for text.
    """
    form = [entry.config, entry.columns, entry.splits, entry.classes, entry.shape]
    key = [DECODING, entry.name, form, source.kind, source.where, limits]
    for folder in (source.folder, source.tokenizer):
        key.append([] if folder is None else _files(folder))
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        facts = path.stat()
        found.append((name.as_posix(), facts.st_size, facts.st_mtime_ns))
    return found
