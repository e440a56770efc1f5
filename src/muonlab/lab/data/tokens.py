"""Turns documents into two streams of tokens, one to train on and one to validate on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muonlab.lab.data.cache import write_array
from muonlab.lab.data.images import Progress
from muonlab.lab.data.reading import first_line, missing, opened, tokenizer_file
from muonlab.lab.data.registry import Dataset
from muonlab.lab.data.sources import Source

_END = "<|endoftext|>"
_BATCH = 128


def write(
    part: Path, entry: Dataset, source: Source, limits: tuple[int, int], progress: Progress | None
) -> Mapping[str, Any]:
    """Tokenise documents into ``part`` until both streams have reached their limit, or there is none left.

    Args:
        part: where the arrays go.
        entry: the dataset.
        source: where its documents come from.
        limits: tokens to keep for training and for validation; streams are cut there.
        progress: told how many tokens there are.
    """
    with opened(entry, source, part / "scratch") as (splits, revision):
        encoder, end = _encoder(entry, tokenizer_file(entry, source, part / "scratch"))
        documents = _documents(entry, source, splits[entry.splits[0]])
        streams = (_Stream(limits[0], end), _Stream(limits[1], end))
        whole = True
        for texts, held_out in _batches(documents):
            for encoding, out in zip(encoder.encode_batch_fast(texts, add_special_tokens=False), held_out, strict=True):
                streams[out].add(encoding.ids)
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
    """Say whether a document is for validation: one in ten is, by sha256 of its identifier alone.

    The first eight bytes of the hash, as a fraction of 2⁶⁴, are at least 0.9. No other document matters, so that a
    larger corpus never moves one from training to validation.
    """
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:8]) * 10 >= 9 << 64


class _Stream:
    """Tokens of documents, end-of-text between two of them."""

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
    """Yield texts that are not empty, and whether each is held out; without an identifier the text serves as one."""
    column, identifier = entry.columns
    rows = iter(split)
    for row in range(1 << 62):
        try:
            document = next(rows, None)
        except Exception as error:  # a stream meets damage and lost connections only while it is read
            raise ValueError(
                f"{source.phrase} must be whole, got an error at document {row} ({first_line(error)}): fetch it again"
            ) from error
        if document is None:
            return
        text = document[column]
        if not isinstance(text, str):
            raise ValueError(
                f"row {row} of {source.phrase} must have a {column}, got {type(text).__name__}: "
                f"use a copy of {entry.hub}"
            )
        if text:
            yield text, is_held_out(str(document.get(identifier) or text))


def _batches(documents: Iterator[tuple[str, bool]]) -> Iterator[tuple[list[str], list[bool]]]:
    texts: list[str] = []
    held_out: list[bool] = []
    for text, is_out in documents:
        texts.append(text)
        held_out.append(is_out)
        if len(texts) == _BATCH:
            yield texts, held_out
            texts, held_out = [], []
    if texts:
        yield texts, held_out


def _encoder(entry: Dataset, path: Path) -> tuple[Any, int]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise missing("tokenizers", "data") from None
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
