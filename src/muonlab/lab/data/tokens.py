"""Tokenizes documents into two streams of tokens, for training and for validation."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muonlab.lab.data.cache import write_array
from muonlab.lab.data.images import Progress
from muonlab.lab.data.reading import first_line, missing_package, open_splits, tokenizer_file
from muonlab.lab.data.registry import Dataset
from muonlab.lab.data.sources import Source

_END = "<|endoftext|>"
_BATCH = 128
LONGEST_DOCUMENT = 2**22
"""Most characters of a document; the tokenizer may take time quadratic in a word."""


def write_tokens(
    part: Path, entry: Dataset, source: Source, limits: tuple[int, int], progress: Progress | None
) -> Mapping[str, Any]:
    """Tokenize documents into ``part`` until both streams have reached their limits or no document is left.

    Args:
        part: directory for the arrays.
        entry: the dataset.
        source: where its documents come from.
        limits: numbers of tokens to keep for training and for validation.
        progress: called with the number of tokens.
    """
    with open_splits(entry, source, part / "scratch") as (splits, revision):
        encoder, end = _encoder(entry, tokenizer_file(entry, source, part / "scratch"))
        documents = _documents(entry, source, splits[entry.splits[0]])
        streams = (_Stream(limits[0], end), _Stream(limits[1], end))
        whole = True
        for texts, held_out in _batches(documents):
            encodings = encoder.encode_batch_fast(list(texts), add_special_tokens=False)
            for encoding, is_validation in zip(encodings, held_out, strict=True):
                streams[is_validation].add(encoding.ids)
            if progress is not None:
                progress(sum(min(s.length, s.limit) for s in streams), sum(limits), f"{entry.name}: tokens")
            if all(stream.length >= stream.limit for stream in streams):
                whole = False
                break
    for name, stream in zip(("train", "test"), streams, strict=True):
        if stream.length < 2:
            raise ValueError(
                f"{source.phrase} must hold documents for both training and validation, got {stream.length} tokens for "
                f"{'training' if name == 'train' else 'validation'}: use a larger copy of {entry.hub}"
            )
        write_array(part / f"{name}_tokens.npy", stream.array())
    return {"revision": revision, "whole": whole}


def is_held_out(identifier: str) -> bool:
    """Return whether a document is for validation: one in ten is, by the sha256 of its identifier.

    The first eight bytes of the hash, as a fraction of 2⁶⁴, are at least 0.9. Other documents have no influence:
    a larger corpus never moves a document from training to validation.
    """
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:8]) * 10 >= 9 << 64


class _Stream:
    """The tokens of documents, separated by end-of-text tokens."""

    def __init__(self, limit: int, end: int) -> None:
        self.limit, self.length = limit, 0
        self._pieces: list[NDArray[np.uint16]] = []
        self._end = np.array([end], dtype=np.uint16)

    def add(self, ids: list[int]) -> None:
        if self.length >= self.limit:
            return
        piece = np.array(ids, dtype=np.uint16)
        self._pieces.append(np.concatenate((self._end, piece)) if self._pieces else piece)
        self.length += len(self._pieces[-1])

    def array(self) -> NDArray[np.uint16]:
        return np.concatenate(self._pieces)[: self.limit]


def _documents(entry: Dataset, source: Source, split: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield non-empty texts and whether each is held out; a text without an identifier is its own identifier."""
    column, identifier = entry.columns
    rows = iter(split)
    for row in itertools.count():
        try:
            document = next(rows, None)
        except Exception as error:  # damage and lost connections show only while the stream is read
            raise ValueError(
                f"{source.phrase} must be complete, got an error at document {row} ({first_line(error)}): "
                f"fetch it again"
            ) from error
        if document is None:
            return
        text = document[column]
        if not isinstance(text, str):
            raise ValueError(
                f"row {row} of {source.phrase} must have a {column}, got {type(text).__name__}: "
                f"use a copy of {entry.hub}"
            )
        if len(text) > LONGEST_DOCUMENT:
            raise ValueError(
                f"a document must have at most {LONGEST_DOCUMENT:,} characters, got {len(text):,} in row {row} of "
                f"{source.phrase}: split it"
            )
        if text:
            yield text, is_held_out(str(document.get(identifier) or text))


def _batches(documents: Iterator[tuple[str, bool]]) -> Iterator[tuple[tuple[str, ...], tuple[bool, ...]]]:
    """Yield texts and whether each is held out, in batches."""
    while batch := tuple(itertools.islice(documents, _BATCH)):
        texts, held_out = zip(*batch, strict=True)
        yield texts, held_out


def _encoder(entry: Dataset, path: Path) -> tuple[Any, int]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise missing_package("tokenizers", "data") from None
    try:
        encoder = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(
            f"the tokenizer of {entry.title} must be tokenizer.json of {entry.tokenizer}, got one that cannot be read "
            f"({first_line(error)}): fetch it again"
        ) from error
    size, end = encoder.get_vocab_size(), encoder.token_to_id(_END)
    if size != entry.classes or end is None:
        raise ValueError(
            f"the tokenizer of {entry.title} must have {entry.classes:,} entries with {_END} among them, "
            f"got {size:,}{'' if end is not None else ' without it'}: use tokenizer.json of {entry.tokenizer}"
        )
    encoder.no_truncation()
    encoder.no_padding()
    return encoder, int(end)
