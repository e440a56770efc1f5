"""The real folders, through the real library: counts, pixels, labels, tokens."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from muonlab.lab.data.images import balanced_order
from muonlab.lab.data.loading import identify, load
from muonlab.lab.data.registry import registered_dataset

FOLDERS = {
    "mnist": ("mnist", 60_000, 10_000, "complete"),
    "cifar10": ("cifar10-subset", 10_000, 2_000, "subset"),
    "cifar100": ("cifar100-standin", 5_000, 1_000, "stand-in"),
    "tiny-imagenet": ("tiny-imagenet-subset", 5_000, 1_000, "subset"),
}
IMAGES = [
    pytest.param(name, marks=[pytest.mark.data(folder), *([pytest.mark.slow] if name != "cifar100" else [])])
    for name, (folder, *_) in FOLDERS.items()
]
"""One folder in ``make test``; decoding the larger ones takes most of a minute."""


def raw(name, split):
    """Return the rows of a split as its parquet file has them."""
    (file,) = (Path(os.environ["MUONLAB_DATA"]) / FOLDERS[name][0]).rglob(f"{split}-*.parquet")
    return parquet.read_table(file)


@pytest.mark.parametrize("name", IMAGES)
def test_counts_origin_pixels_and_labels_are_those_of_the_folder(name, shared_cache, monkeypatch):
    folder, train, test, label = FOLDERS[name]
    data = load(name, cache=shared_cache)
    entry, origin = registered_dataset(name), data.origin
    assert (len(data.train), len(data.test)) == (origin.train, origin.test) == (train, test)
    assert (origin.source, origin.where, origin.label) == ("folder", folder, label)
    assert origin.words.endswith(f"from the folder {folder}")
    assert (origin.full_train, origin.full_test) == ((None, None) if label == "stand-in" else (entry.train, entry.test))
    for split, examples in zip(entry.splits, (data.train, data.test), strict=True):
        table = raw(name, split)
        labels = np.array(table[entry.columns[1]].to_pylist())
        order = balanced_order(labels)
        assert examples.labels.tolist() == labels[order].tolist()
        assert examples.labels.unique().tolist() == list(range(entry.classes))
        for position in (0, 1, len(order) // 2, len(order) - 1):
            content = table[entry.columns[0]][int(order[position])].as_py()["bytes"]
            image = Image.open(io.BytesIO(content)).convert("L" if entry.shape[0] == 1 else "RGB")
            expected = torch.from_numpy(np.array(image)).reshape(*entry.shape[1:], -1).permute(2, 0, 1)
            assert torch.equal(examples.pixels[position], expected)
    for package in ("datasets", "PIL"):  # the second time it comes from the cache
        monkeypatch.setitem(sys.modules, package, None)
    again = load(name, cache=shared_cache, train=500, test=200)
    assert again.hash == data.hash
    assert len(again.train) == 500


@pytest.mark.slow
@pytest.mark.data("mnist")
def test_mnist_is_normalised_by_its_own_mean_and_deviation(shared_cache):
    pixels = load("mnist", cache=shared_cache).train.pixels
    counts = np.bincount(pixels.numpy().ravel(), minlength=256) / pixels.numel()
    values = np.arange(256) / 255
    mean = counts @ values
    assert registered_dataset("mnist").mean[0] == pytest.approx(mean, abs=5e-5)
    assert registered_dataset("mnist").std[0] == pytest.approx(np.sqrt(counts @ (values - mean) ** 2), abs=5e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cifar10", marks=[pytest.mark.slow, pytest.mark.data("cifar10-subset")]),
        pytest.param("tiny-imagenet", marks=[pytest.mark.slow, pytest.mark.data("tiny-imagenet-subset")]),
    ],
)
def test_the_published_normalisation_fits_the_real_images(name, shared_cache):
    data = load(name, cache=shared_cache)
    x, _ = data.train.batch(torch.arange(len(data.train)))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=0.03, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=0.02, rtol=0)


@pytest.mark.slow
@pytest.mark.data("web-text")
def test_tokens_without_separators_are_as_many_as_the_corpus_has(shared_cache):
    found = identify("fineweb", cache=shared_cache)
    data = load("fineweb", cache=shared_cache, block=256)
    assert (found.origin.where, found.origin.label) == ("web-text", "stand-in")
    streams = [examples.stream.numpy().view(np.uint16) for examples in (data.train, data.test)]
    separators = [int((stream == 50_256).sum()) for stream in streams]
    assert sum(separators) == 2_290 - 2
    assert sum(map(len, streams)) - sum(separators) == 1_522_590
    assert separators[1] / 2_290 == pytest.approx(0.1, abs=0.02)
    assert max(int(stream.max()) for stream in streams) == 50_256
