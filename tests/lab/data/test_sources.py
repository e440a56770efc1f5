import os

import pytest

from muonlab.lab.data.registry import registered_dataset
from muonlab.lab.data.sources import find_source, fingerprint


def test_a_folder_s_name_says_what_it_contains(tmp_path):
    for folder, name, label in (
        ("mnist", "mnist", "complete"),
        ("cifar10-subset", "cifar10", "subset"),
        ("cifar100-standin", "cifar100", "stand-in"),
        ("tiny-imagenet", "tiny-imagenet", "complete"),
    ):
        (tmp_path / folder).mkdir()
        found = find_source(registered_dataset(name), tmp_path)
        assert (found.kind, found.where, found.label, found.folder) == ("folder", folder, label, tmp_path / folder)
    assert find_source(registered_dataset("digits"), tmp_path).kind == "embedded"


def test_the_complete_folder_goes_before_a_subset_and_that_before_a_stand_in(tmp_path):
    for folder in ("mnist-standin", "mnist-subset", "mnist"):
        (tmp_path / folder).mkdir()
        assert find_source(registered_dataset("mnist"), tmp_path).where == folder


def test_the_environment_names_the_folder_and_the_argument_goes_before_it(tmp_path, monkeypatch):
    for place, folder in (("a", "mnist"), ("b", "mnist-subset")):
        (tmp_path / place / folder).mkdir(parents=True)
    monkeypatch.setenv("MUONLAB_DATA", str(tmp_path / "a"))
    assert find_source(registered_dataset("mnist")).where == "mnist"
    assert find_source(registered_dataset("mnist"), tmp_path / "b").where == "mnist-subset"
    monkeypatch.setenv("MUONLAB_DATA", "")
    assert find_source(registered_dataset("mnist")).kind == "hub"


def test_a_missing_folder_lists_the_names_that_were_looked_for(tmp_path):
    with pytest.raises(
        ValueError, match=r"got none named mnist, mnist-subset, mnist-standin, .*omit --data and MUONLAB_DATA"
    ) as e:
        find_source(registered_dataset("mnist"), tmp_path)
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match=r"data must be a directory, got .*nowhere.*omit --data and MUONLAB_DATA"):
        find_source(registered_dataset("mnist"), tmp_path / "nowhere")


def test_text_needs_its_tokenizer_beside_it(tmp_path):
    (tmp_path / "web-text").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer\.json of openai-community/gpt2 .* gpt2-tokenizer or gpt2: put it"):
        find_source(registered_dataset("fineweb"), tmp_path)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "tokenizer.json").touch()
    found = find_source(registered_dataset("fineweb"), tmp_path)
    assert (found.where, found.label, found.tokenizer) == ("web-text", "stand-in", tmp_path / "gpt2")


def test_the_fingerprint_follows_names_sizes_times_and_limits(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    file = folder / "train.parquet"
    file.write_bytes(b"abc")
    seen = []

    def look(limits=None):
        seen.append(
            fingerprint(registered_dataset("mnist"), find_source(registered_dataset("mnist"), tmp_path), limits)
        )

    look()
    os.utime(file, ns=(0, 0))
    look()
    file.write_bytes(b"abcd")
    os.utime(file, ns=(0, 0))
    look()
    file.rename(folder / "test.parquet")
    look()
    look((1, 2))
    assert len(set(seen)) == 5
    (folder / ".git").mkdir()
    (folder / ".git" / "index").touch()
    look()
    assert seen[-1] == seen[3]
