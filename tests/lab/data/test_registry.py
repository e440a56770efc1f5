import json
import subprocess
import sys
from dataclasses import replace

import pytest

from muonlab.lab.data import datasets, describe, registry
from muonlab.lab.data.registry import Dataset, dataset, register
from muonlab.lab.data.sources import folder_names

NAMES = sorted(datasets())


def test_the_datasets_of_the_paper_and_the_embedded_one_are_registered():
    assert set(datasets()) >= {"digits", "mnist", "cifar10", "cifar100", "tiny-imagenet", "fineweb"}


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_says_where_it_lies_and_how_large_it_is(name):
    entry = datasets()[name]
    assert entry.name == name
    assert entry.title
    assert (entry.hub is None) == (not entry.columns)
    assert entry.hub is None or entry.hub.count("/") == 1
    if entry.kind == "images":
        assert len(entry.mean) == len(entry.std) == entry.shape[0]
        assert all(0 < m < 1 for m in entry.mean)
        assert all(0 < s < 0.5 for s in entry.std)  # values within [0, 1] have no larger one


def test_no_folder_name_serves_for_two_datasets():
    names = [folder for entry in datasets().values() for folder in folder_names(entry)]
    assert len(names) == len(set(names))


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match="'mnist' is registered already: choose another name"):
        register(dataset("mnist"))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown dataset 'minst': registered are 'cifar10', .*'mnist'"):
        dataset("minst")
    with pytest.raises(ValueError, match="unknown dataset"):
        dataset(["mnist"])


def test_the_registry_cannot_be_written():
    with pytest.raises(TypeError):
        datasets()["other"] = dataset("mnist")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "My Data"}, "lower-case words"),
        ({"kind": "sounds"}, "kind of 'mnist' must be one of"),
        ({"classes": 0}, "classes of 'mnist' must be at least 1"),
        ({"shape": (28, 28)}, "shape of 'mnist' must have 3 values, got 2"),
        ({"mean": (0.1, 0.1)}, "mean of 'mnist' must have 1 values, got 2"),
        ({"columns": ("image",)}, "columns of 'mnist' must have 2 values, got 1"),
        ({"normalisation": ""}, "needs a source of its mean and std"),
        ({"tokenizer": "a/b"}, "a tokenizer belongs to tokens alone"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(dataset("mnist"), **change)


def test_a_new_entry_appears_in_the_list(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(datasets()))
    register(Dataset("other", "Other", "images", 2, (1, 4, 4), 3, 4, mean=(0.5,), std=(0.1,), normalisation="mine"))
    row = describe()["datasets"][-1]
    assert row == json.loads(json.dumps(row))
    assert row["name"] == "other"
    assert row["embedded"] is True
    assert row["shape"] == [1, 4, 4]
    assert (row["train"], row["test"], row["classes"]) == (3, 4, 2)


def test_the_list_needs_neither_torch_nor_numpy_nor_datasets():
    program = (
        "import sys; from muonlab.lab.data import describe, datasets, AUGMENTATIONS; describe(); "
        "sys.exit(len({'torch', 'numpy', 'datasets', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_attribute_names_the_public_ones():
    import muonlab.lab.data

    with pytest.raises(AttributeError, match=r"no attribute 'lode': public names are .*load"):
        _ = muonlab.lab.data.lode
    assert "load" in dir(muonlab.lab.data)
