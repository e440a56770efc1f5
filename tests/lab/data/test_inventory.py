import json

import pytest

from muonlab.lab.data.inventory import prepare, status
from muonlab.lab.data.loading import DataLocation
from muonlab.lab.data.registry import datasets
from tests.lab.data.folders import image_folder, kept, text_folder

KEYS = {"name", "title", "source", "where", "label", "train", "test", "cached", "hash", "problem"}


def rows_of(answer):
    assert answer == json.loads(json.dumps(answer))
    assert all(set(row) == KEYS for row in answer["datasets"])
    return {row["name"]: row for row in answer["datasets"]}


@pytest.fixture
def root(tmp_path):
    image_folder(tmp_path / "in", "mnist")
    image_folder(tmp_path / "in", "cifar10", "cifar10-standin")
    text_folder(tmp_path / "in", [f"text {i}" * 9 for i in range(60)], [f"doc {i}" for i in range(60)], "web-text")
    return tmp_path / "in"


def test_status_says_where_data_are_without_decoding(root, tmp_path, monkeypatch):
    monkeypatch.setattr(DataLocation, "decode", None)
    rows = rows_of(status(root=root, cache=tmp_path / "cache"))
    assert list(rows) == list(datasets())
    mnist, cifar10, fineweb, digits = (rows[name] for name in ("mnist", "cifar10", "fineweb", "digits"))
    assert (mnist["source"], mnist["where"], mnist["label"]) == ("folder", "mnist", "subset")
    assert (mnist["train"], mnist["test"], mnist["cached"], mnist["hash"]) == (20, 10, False, None)
    assert (cifar10["label"], cifar10["problem"]) == ("stand-in", None)
    assert (fineweb["where"], fineweb["label"], fineweb["train"]) == ("web-text", "stand-in", None)
    assert (digits["source"], digits["train"], digits["test"]) == ("embedded", 1437, 360)
    assert "got none named cifar100" in rows["cifar100"]["problem"]
    assert kept(tmp_path / "cache") == []


def test_prepare_decodes_and_reports_what_fails(root, tmp_path):
    rows = rows_of(prepare(root=root, cache=tmp_path / "cache"))
    assert {name for name, row in rows.items() if row["cached"]} == {"digits", "mnist", "cifar10", "fineweb"}
    assert all((row["hash"] is not None) == row["cached"] == (row["problem"] is None) for row in rows.values())
    assert rows == rows_of(status(root=root, cache=tmp_path / "cache"))
    assert rows["fineweb"]["train"] > rows["fineweb"]["test"] > 0


def test_damage_is_a_problem_of_its_row_alone(root, tmp_path):
    (root / "mnist" / "data" / "train-00000-of-00001.parquet").write_bytes(b"none")
    row = rows_of(status(root=root, cache=tmp_path / "cache"))["mnist"]
    assert (row["train"], row["test"]) == (None, 10)
    rows = rows_of(prepare(["mnist", "cifar10"], root, tmp_path / "cache"))
    assert "cannot be read" in rows["mnist"]["problem"]
    assert "\n" not in rows["mnist"]["problem"]
    assert rows["cifar10"]["cached"]


def test_prepare_mends_a_damaged_cache(root, tmp_path):
    first = rows_of(prepare(["mnist"], root, tmp_path / "cache"))
    file = tmp_path / "cache" / "data" / kept(tmp_path / "cache")[0] / "train_images.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert rows_of(prepare(["mnist"], root, tmp_path / "cache")) == first
    assert not file.read_bytes().endswith(b"?")
