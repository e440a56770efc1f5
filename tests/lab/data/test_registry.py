import json
import subprocess
import sys
from dataclasses import replace

import pytest

from muonlab.lab.data import registry
from muonlab.lab.data.registry import Dataset, datasets, describe, register, registered_dataset
from muonlab.lab.data.sources import folder_names


def test_every_entry_says_where_it_is_and_how_it_is_normalised():
    assert set(datasets()) >= {"digits", "mnist", "cifar10", "cifar100", "tiny-imagenet", "fineweb"}
    for name, entry in datasets().items():
        assert entry.name == name
        assert entry.title
        assert (entry.hub is None) == (not entry.columns) == (not entry.splits)
        assert entry.hub is None or entry.hub.count("/") == 1
        if entry.kind == "images":
            assert len(entry.shape) == 3
            assert entry.normalisation
            assert all(0 < m < 1 for m in entry.mean)
            assert all(0 < s < 0.5 for s in entry.std)  # values within [0, 1] have no larger one
    names = [folder for entry in datasets().values() for folder in folder_names(entry)]
    assert len(names) == len(set(names))  # no folder name is of two datasets


def test_bad_names_and_entries_are_refused():
    mnist = registered_dataset("mnist")
    for make, message in (
        (lambda: register(mnist), "'mnist' is registered already: choose another name"),
        (lambda: registered_dataset("minst"), r"unknown dataset 'minst': registered are 'cifar10', .*'mnist'"),
        (lambda: registered_dataset(["mnist"]), "unknown dataset"),
        (lambda: replace(mnist, mean=(0.1, 0.1)), "mean and std of 'mnist' need 1 values each"),
        (lambda: replace(mnist, tokenizer="a/b"), "tokens, and only they, need a tokenizer, got 'a/b' for 'mnist'"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError):
        datasets()["other"] = mnist


def test_a_new_entry_appears_in_the_list(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(datasets()))
    register(Dataset("other", "Other", "images", 2, (1, 4, 4), 3, 4, mean=(0.5,), std=(0.1,), normalisation="mine"))
    row = describe()["datasets"][-1]
    assert row == json.loads(json.dumps(row))
    assert (row["name"], row["embedded"], row["shape"]) == ("other", True, [1, 4, 4])
    assert (row["train"], row["test"], row["classes"]) == (3, 4, 2)


def test_the_list_needs_neither_torch_nor_numpy_nor_datasets():
    program = (
        "import sys; from muonlab.lab.data.registry import describe; describe(); "
        "sys.exit(len({'torch', 'numpy', 'datasets', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_identifying_data_needs_no_torch(tmp_path):
    program = (
        "import sys; from muonlab.lab.data.inventory import status; from muonlab.lab.data.loading import identify; "
        f"identify('digits', cache={str(tmp_path)!r}); status(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
