import datasets
import huggingface_hub
import pytest
from huggingface_hub import constants

from muonlab.lab.data.loading import identify, load
from tests.lab.data.folders import image_folder, kept, text_folder


@pytest.fixture
def offline(monkeypatch):
    """The hub out of reach, as a machine without a network sees it."""

    def fail(*_, **__):
        raise ConnectionError("[Errno -2] Name or service not known\nand more lines")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that serves the folders of tmp_path/hub, through the real library."""
    real, asked = datasets.load_dataset, []

    class Info:
        sha = "0123abc"

    def load_dataset(path, name=None, *, revision=None, **how):
        asked.append({"path": path, "name": name, "revision": revision, **how, "downloads": constants.HF_HUB_CACHE})
        return real(str(tmp_path / "hub" / path.rpartition("/")[2]), **how)

    def download(repository, file, cache_dir):
        assert repository == "openai-community/gpt2"
        assert str(cache_dir).startswith(str(tmp_path / "cache"))
        return str(tmp_path / "hub" / "gpt2-tokenizer" / file)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: Info())
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


@pytest.mark.usefixtures("offline")
def test_without_a_network_one_line_names_the_repository_and_the_folder_as_way_out(tmp_path):
    for name in ("mnist", "fineweb"):
        with pytest.raises(
            ValueError, match=r"must come from the hub's .*got no answer \(ConnectionError\).*--data DIR"
        ) as e:
            load(name, cache=tmp_path)
        assert "\n" not in str(e.value)
    assert kept(tmp_path) == []


def test_images_of_the_hub_are_asked_for_by_name_part_and_revision(hub, tmp_path):
    image_folder(tmp_path / "hub", "mnist")
    before = constants.HF_HUB_CACHE
    calls = []
    data = load("mnist", cache=tmp_path / "cache", progress=lambda *what: calls.append(what))
    assert calls[0] == (0, 1, "mnist: fetching from the hub")
    assert calls[-1][:2] == (30, 30)
    assert [(a["path"], a["name"], a["revision"]) for a in hub] == [("ylecun/mnist", "mnist", "0123abc")]
    assert all(a[place].startswith(str(tmp_path / "cache")) for a in hub for place in ("cache_dir", "downloads"))
    assert before == constants.HF_HUB_CACHE
    assert (data.origin.source, data.origin.where, data.origin.label) == ("hub", "ylecun/mnist", "subset")
    assert data.origin.words.endswith("from the hub's ylecun/mnist")
    assert load("mnist", cache=tmp_path / "cache").hash == data.hash
    assert len(hub) == 1
    assert data.hash == identify("mnist", root=tmp_path / "hub", cache=tmp_path / "cache").hash


def test_text_of_the_hub_is_streamed(hub, tmp_path):
    text_folder(tmp_path / "hub", [f"text {i}" * 9 for i in range(60)], [f"doc {i}" for i in range(60)])
    data = load("fineweb", cache=tmp_path / "cache", block=4)
    assert [(a["path"], a["name"], a["streaming"]) for a in hub] == [("HuggingFaceFW/fineweb", "sample-10BT", True)]
    assert data.origin.source == "hub"
    with pytest.raises(
        ValueError, match=r"in the hub's HuggingFaceFW/fineweb, got a request for 999,999: ask for fewer$"
    ):
        load("fineweb", cache=tmp_path / "cache", train=999_999)


@pytest.mark.usefixtures("hub")
def test_a_connection_lost_on_the_way_is_one_line(tmp_path, monkeypatch):
    class Stream:
        features = {"text": None, "id": None}  # noqa: RUF012

        def __iter__(self):
            yield {"text": "abc", "id": "doc 0"}
            raise ConnectionError("lost\nmany lines")

    text_folder(tmp_path / "hub", ["text"])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": Stream()})
    with pytest.raises(
        ValueError, match=r"must be complete, got an error at document 1 \(ConnectionError: lost\)"
    ) as error:
        load("fineweb", cache=tmp_path / "cache")
    assert "\n" not in str(error.value)
    assert kept(tmp_path / "cache") == []
