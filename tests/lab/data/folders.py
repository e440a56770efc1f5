"""Tiny folders in the hub's layout, built in code, so that every path runs where there are no data."""

from __future__ import annotations

import io
from pathlib import Path

import datasets
import numpy as np
import tokenizers
from PIL import Image

from muonlab.lab.data.registry import registered_dataset

END = 50_256


def encoded(pixels, kind="PNG", size=None):
    """Return the bytes of an image file; pixels are (channels, height, width)."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2))
    file = io.BytesIO()
    (image if size is None else image.resize(size)).save(file, kind)
    return file.getvalue()


def random_images(name, labels, seed=0):
    """Return random pixels of the dataset's shape, one image per label."""
    shape = registered_dataset(name).shape
    return np.random.default_rng(seed).integers(0, 256, (len(labels), *shape), dtype=np.uint8)


def write_split(folder: Path, name: str, split: str, contents, labels, columns=None, label_type=None):
    """Write one split as parquet, as the hub's repositories have it."""
    image, label = columns or registered_dataset(name).columns
    features = datasets.Features({image: datasets.Image(), label: label_type or datasets.Value("int64")})
    rows = {image: [content and {"bytes": content, "path": None} for content in contents], label: list(labels)}
    folder.joinpath("data").mkdir(parents=True, exist_ok=True)
    written = datasets.Dataset.from_dict(rows, features=features)
    written.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))


def image_folder(root: Path, name: str, folder: str | None = None, each: int = 2, **changes):
    """Write a small dataset with ``each`` images of every class to train on and one to test on; returns the pixels.

    ``changes`` may name a split and give ``(contents, labels)`` in place of the drawn ones, or None to leave it away.
    """
    entry = registered_dataset(name)
    pixels = {}
    for split, count in zip(entry.splits, (each, 1), strict=True):
        labels = list(range(entry.classes)) * count
        drawn = random_images(name, labels, seed=count)
        pixels[split] = drawn
        contents = [encoded(image) for image in drawn]
        if split in changes:
            if changes[split] is None:
                continue
            contents, labels = changes[split](contents, labels)
        write_split(root / (folder or name), name, split, contents, labels)
    return pixels


def bytes_tokenizer(folder: Path, size: int = END + 1):
    """Write a tokenizer of GPT-2's size that makes a token of every byte."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"unused{i}" for i in range(size - 1 - len(alphabet))), "<|endoftext|>"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def text_folder(root: Path, texts, identifiers=None, folder: str = "fineweb"):
    """Write documents, with identifiers or without, and a tokenizer beside them."""
    rows = {"text": list(texts)} | ({} if identifiers is None else {"id": list(identifiers)})
    (root / folder / "sample").mkdir(parents=True, exist_ok=True)
    features = datasets.Features({column: datasets.Value("string") for column in rows})
    written = datasets.Dataset.from_dict(rows, features=features)
    written.to_parquet(str(root / folder / "sample" / "train-00000-of-00001.parquet"))
    if not (root / "gpt2-tokenizer").exists():
        bytes_tokenizer(root / "gpt2-tokenizer")


def kept(cache: Path):
    """Return the names of the directories in a cache of decoded data."""
    home = cache / "data"
    return sorted(path.name for path in home.iterdir() if path.is_dir()) if home.exists() else []
