import sys

import numpy as np
import pytest
import torch

from muonlab.lab.data.images import balanced_order
from muonlab.lab.data.loading import identify, load
from muonlab.lab.data.registry import datasets, registered_dataset
from tests.lab.data.folders import encoded, image_folder, kept, write_split

IMAGES = sorted(name for name, entry in datasets().items() if entry.kind == "images" and entry.hub is not None)


@pytest.mark.parametrize("name", IMAGES)
def test_every_image_dataset_loads_from_a_folder_of_its_own_making(name, tmp_path):
    entry = registered_dataset(name)
    pixels = image_folder(tmp_path / "in", name, f"{name}-standin")
    data = load(name, root=tmp_path / "in", cache=tmp_path / "cache")
    assert (data.name, data.shape, data.classes) == (name, entry.shape, entry.classes)
    assert (len(data.train), len(data.test)) == (2 * entry.classes, entry.classes)
    for split, examples in zip(entry.splits, (data.train, data.test), strict=True):
        labels = np.tile(np.arange(entry.classes), len(examples) // entry.classes)
        rows = balanced_order(labels)
        assert examples.labels.tolist() == labels[rows].tolist()
        assert torch.equal(examples.pixels, torch.from_numpy(pixels[split][rows]))
    x, y = data.train.batch(torch.arange(entry.classes))
    assert x.shape == (entry.classes, *entry.shape)
    assert sorted(y.tolist()) == list(range(entry.classes))


def test_the_embedded_digits_are_stratified_and_normalised(tmp_path):
    data = load("digits", cache=tmp_path)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (1437, 360, (1, 8, 8), 10)
    x, y = data.train.batch(torch.arange(1437))
    assert float(x.mean()) == pytest.approx(0, abs=1e-3)
    assert float(x.std()) == pytest.approx(1, abs=1e-3)
    assert data.test.batch(torch.arange(360))[1].bincount().tolist() == [36] * 10
    assert int(y.bincount().min()) >= 138
    assert data.origin.words == (
        "handwritten digits of scikit-learn, complete: 1,437 training and 360 test images, from scikit-learn"
    )


def test_the_balanced_order_deals_classes_out_until_the_small_ones_run_out():
    labels = np.repeat([0, 1, 2], [5, 9, 2])
    dealt = labels[balanced_order(labels)]
    assert sorted(balanced_order(labels)) == list(range(16))
    assert [sorted(dealt[i : i + 3]) for i in (0, 3)] == [[0, 1, 2]] * 2
    assert [sorted(dealt[i : i + 2]) for i in (6, 8, 10)] == [[0, 1]] * 3
    assert dealt[12:].tolist() == [1] * 4
    assert len({tuple(balanced_order(np.tile(np.arange(5), 40))[i : i + 5] % 5) for i in range(0, 200, 5)}) > 20


def test_the_balanced_order_never_changes():
    assert balanced_order(np.arange(40) % 4)[:6].tolist() == [33, 7, 2, 16, 25, 10]


def test_a_subset_begins_the_whole_with_equally_many_of_each_class_and_the_same_hash(tmp_path):
    whole = load("digits", cache=tmp_path)
    for n in (10, 55, 100):
        part = load("digits", cache=tmp_path, train=n, test=20)
        counts = part.train.batch(torch.arange(n))[1].bincount(minlength=10)
        assert int(counts.max() - counts.min()) <= 1
        assert (len(part.train), len(part.test), part.origin.label) == (n, 20, "subset")
        assert f"a subset: {n} of 1,437 training and 20 of 360 test images" in part.origin.words
        assert torch.equal(part.train.pixels, whole.train.pixels[:n])
        assert part.hash == whole.hash == identify("digits", cache=tmp_path, test=9).hash
        assert (part.origin.full_train, part.origin.full_test) == (1437, 360)


def test_more_images_than_there_are_is_refused_with_both_counts(tmp_path):
    image_folder(tmp_path, "mnist", "mnist-subset")
    for call in (load, identify):
        with pytest.raises(ValueError, match=r"mnist has 20 training images in the folder mnist-subset, got a request"):
            call("mnist", root=tmp_path, cache=tmp_path / "cache", train=21)
    with pytest.raises(ValueError, match=r"360 test images in scikit-learn, got a request for 361: ask for fewer$"):
        load("digits", cache=tmp_path, test=361)


def test_numbers_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="train must be at least 1, got 0"):
        load("digits", cache=tmp_path, train=0)
    with pytest.raises(TypeError, match="test must be an integer"):
        load("digits", cache=tmp_path, test=2.5)
    with pytest.raises(ValueError, match="block is for tokens, got 8 for the images of digits: omit it"):
        load("digits", cache=tmp_path, block=8)


def test_greyscale_and_palette_images_are_converted_to_three_channels(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (1, 32, 32), dtype=np.uint8)

    def change(contents, labels):
        return [encoded(grey), *contents[1:]], labels

    image_folder(tmp_path, "cifar10", train=change)
    data = load("cifar10", root=tmp_path, cache=tmp_path / "cache")
    position = balanced_order(np.tile(np.arange(10), 2)).tolist().index(0)
    assert torch.equal(data.train.pixels[position], torch.from_numpy(grey).expand(3, 32, 32))


def _swap(row, content):
    return lambda contents, labels: ([*contents[:row], content, *contents[row + 1 :]], labels)


def _relabel(row, label):
    return lambda contents, labels: (contents, [*labels[:row], label, *labels[row + 1 :]])


WHOLE = encoded(np.random.default_rng(0).integers(0, 256, (1, 28, 28), dtype=np.uint8))
DAMAGE = {
    "a split is missing": ({"test": None}, r"must have the splits train and test of MNIST, got train: fetch"),
    "no rows": ({"test": lambda *_: ([], [])}, r"the folder mnist must hold MNIST .*\"test\" corresponds to no data"),
    "a cut file": (
        {"train": _swap(3, WHOLE[:80])},
        r"image 3 of split 'train' of the folder mnist must be a complete PNG",
    ),
    "not an image": ({"test": _swap(7, b"hello")}, r"image 7 of split 'test' .* cannot be decoded \(Unidentified"),
    "no bytes": ({"test": _swap(7, None)}, r"image 7 of split 'test' .* must be a complete PNG"),
    "another format": (
        {"test": _swap(2, encoded(np.zeros((1, 28, 28), np.uint8), "BMP"))},
        r"image 2 of split 'test' .* must be a complete PNG or JPEG",
    ),
    "another size": (
        {"train": _swap(4, encoded(np.zeros((1, 28, 28), np.uint8), size=(28, 30)))},
        r"image 4 of split 'train' of the folder mnist must be 28×28 pixels, got 28×30: use a copy of ylecun/mnist",
    ),
    "a label too large": (
        {"train": _relabel(5, 10)},
        r"row 5 of split 'train' .* a label from 0 to 9, got 10: correct",
    ),
    "a negative label": ({"test": _relabel(1, -1)}, r"row 1 of split 'test' .* a label from 0 to 9, got -1"),
    "no label": ({"test": _relabel(1, None)}, r"row 1 of split 'test' .* a label from 0 to 9, got None"),
}


def test_damage_is_named_in_one_line_and_leaves_nothing_in_the_cache(tmp_path):
    for number, (changes, message) in enumerate(DAMAGE.values()):
        root = tmp_path / str(number)
        image_folder(root, "mnist", **changes)
        with pytest.raises(ValueError, match=message) as error:
            load("mnist", root=root, cache=tmp_path / "cache")
        assert "\n" not in str(error.value)
    assert kept(tmp_path / "cache") == []


def test_a_folder_of_another_dataset_is_told_by_its_columns(tmp_path):
    contents = [encoded(np.zeros((3, 32, 32), np.uint8))]
    for split in ("train", "test"):
        write_split(tmp_path / "cifar100", "cifar10", split, contents, [0])
    with pytest.raises(
        ValueError, match=r"must have the columns img and fine_label, got img, label: use a copy of"
    ) as e:
        load("cifar100", root=tmp_path, cache=tmp_path / "cache")
    assert "\n" not in str(e.value)
    assert kept(tmp_path / "cache") == []


def test_a_folder_without_readable_files_is_refused_in_one_line(tmp_path):
    for number, content in enumerate((None, b"this is no parquet file", b"")):
        root = tmp_path / str(number)
        (root / "mnist").mkdir(parents=True)
        if content is not None:
            for split in ("train", "test"):
                (root / "mnist" / f"{split}.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"the folder mnist must hold MNIST in the hub's layout, got") as error:
            load("mnist", root=root, cache=tmp_path / "cache")
        assert "\n" not in str(error.value)
    assert kept(tmp_path / "cache") == []


def test_a_missing_package_names_the_extra_that_contains_it(tmp_path, monkeypatch):
    image_folder(tmp_path, "mnist")
    for package, name, extra in (("PIL", "mnist", "data"), ("sklearn.datasets", "digits", "lab")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=rf"pip install muonlab\[{extra}\]") as error:
            load(name, root=tmp_path, cache=tmp_path / "cache")
        assert "\n" not in str(error.value)


def test_a_folder_may_have_any_path_that_the_library_does_not_take_for_a_pattern(tmp_path, monkeypatch):
    for place in ("with space", "ümläut"):
        image_folder(tmp_path / place, "mnist")
        first = load("mnist", root=tmp_path / place, cache=tmp_path / f"{place} cache")
        monkeypatch.chdir(tmp_path / place)
        assert load("mnist", root=".", cache=tmp_path / "other").hash == first.hash
    for name in ("run [1]", "run*", "run?", "a::b", "two\nlines"):
        (tmp_path / name / "mnist").mkdir(parents=True)
        with pytest.raises(ValueError, match="a path to data must have no") as caught:
            load("mnist", root=tmp_path / name, cache=tmp_path / "cache")
        assert "\n" not in str(caught.value)
