import bz2
import gzip
import lzma
import os

import numpy as np
import pytest
import torch

from muonlab.lab.data.loading import identify, load
from muonlab.lab.data.registry import registered_dataset
from muonlab.lab.data.tokens import is_held_out
from tests.lab.data.folders import END, bytes_tokenizer, kept, text_folder

IDS = [f"doc {i}" for i in range(60)]
TEXTS = [f"{i} says {'x' * (i % 7 + 20)}" for i in range(60)]


def decoded(examples):
    """Return the documents of a stream of one token per byte."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    stream = examples.stream.numpy().view(np.uint16)
    pieces = np.split(stream, np.flatnonzero(stream == END))
    decoder = tokenizers.decoders.ByteLevel()
    return [decoder.decode([alphabet[i] for i in piece if i != END]) for piece in pieces]


def test_documents_are_joined_by_end_of_text_and_one_in_ten_is_held_out(tmp_path):
    text_folder(tmp_path, TEXTS, IDS)
    data = load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=8)
    out = [is_held_out(identifier) for identifier in IDS]
    assert 0 < sum(out) < 15
    assert decoded(data.train) == [text for text, held in zip(TEXTS, out, strict=True) if not held]
    assert decoded(data.test) == [text for text, held in zip(TEXTS, out, strict=True) if held]
    assert (data.shape, data.classes) == ((8,), 50_257)
    x, y = data.train.batch(torch.arange(len(data.train)))
    assert torch.equal(x.flatten()[1:], y.flatten()[:-1])


def test_membership_of_a_document_never_changes():
    assert [i for i in range(60) if is_held_out(f"doc {i}")] == [5, 26, 34, 39]


def test_more_documents_never_move_one_between_the_parts(tmp_path):
    text_folder(tmp_path / "a", TEXTS[:40], IDS[:40])
    text_folder(tmp_path / "b", TEXTS, IDS)
    small, large = (load("fineweb", root=tmp_path / p, cache=tmp_path / "cache", block=4) for p in "ab")
    assert set(decoded(small.train)) <= set(decoded(large.train))
    assert set(decoded(small.test)) <= set(decoded(large.test))
    assert small.hash != large.hash


def test_without_an_identifier_the_text_decides_and_empty_documents_are_skipped(tmp_path):
    for number, identifiers in enumerate((None, [None] * 62, [""] * 62)):
        root = tmp_path / str(number)
        text_folder(root, ["", *TEXTS, ""], identifiers)
        data = load("fineweb", root=root, cache=tmp_path / "cache", block=4)
        assert decoded(data.test) == [text for text in TEXTS if is_held_out(text)]
        assert "" not in decoded(data.train)


def test_a_request_takes_the_first_tokens_and_keeps_the_hash(tmp_path):
    text_folder(tmp_path, TEXTS, IDS)
    whole = load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=4)
    part = load("fineweb", root=tmp_path, cache=tmp_path / "cache", train=101, test=50, block=10)
    assert (len(part.train.stream), len(part.test.stream), len(part.train)) == (101, 50, 10)
    assert torch.equal(part.train.stream, whole.train.stream[:101])
    assert part.hash == whole.hash
    assert (part.origin.label, part.origin.train, part.origin.test) == ("subset", 101, 50)
    assert "101 of 10,000,000 training and 50 of 1,000,000 validation tokens" in part.origin.words


def test_more_tokens_than_there_are_is_refused_with_both_counts_and_nothing_is_decoded_twice(tmp_path):
    text_folder(tmp_path, TEXTS, IDS, "web-text")
    has = identify("fineweb", root=tmp_path, cache=tmp_path / "cache").origin
    message = (
        rf"fineweb has {has.train:,} training tokens in the folder web-text, got a request for 20,000,000: ask for"
    )
    with pytest.raises(ValueError, match=message) as error:
        load("fineweb", root=tmp_path, cache=tmp_path / "cache", train=20_000_000)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=rf"{has.test:,} validation tokens .* got a request for 1,000,000"):
        identify("fineweb", root=tmp_path, cache=tmp_path / "cache", test=1_000_000)
    assert len(kept(tmp_path / "cache")) == 1
    assert (has.label, has.full_train, has.full_test) == ("stand-in", None, None)


def test_reading_stops_where_the_registry_s_amounts_are_reached(tmp_path, monkeypatch):
    from dataclasses import replace

    from muonlab.lab.data import registry

    entry = replace(registered_dataset("fineweb"), train=500, test=60)
    monkeypatch.setattr(registry, "_REGISTRY", {"fineweb": entry})
    text_folder(tmp_path, TEXTS * 20, [f"{i}/{x}" for i in range(20) for x in IDS])
    usual = load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=4)
    assert (len(usual.train.stream), len(usual.test.stream), usual.origin.label) == (500, 60, "complete")
    fewer = load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=4, train=100)
    assert fewer.hash == usual.hash
    more = load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=4, train=9000)
    assert (len(more.train.stream), len(more.test.stream)) == (9000, 60)
    assert torch.equal(more.train.stream[:500], usual.train.stream)
    assert more.hash != usual.hash
    assert len(kept(tmp_path / "cache")) == 2


def test_a_block_must_fit_into_both_parts(tmp_path):
    text_folder(tmp_path, TEXTS, IDS)
    with pytest.raises(ValueError, match=r"block must be less than the 20 tokens of the test part .* got 64"):
        load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=64, test=20)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=0)


def _write(tmp_path, columns):
    import datasets

    (tmp_path / "fineweb").mkdir()
    datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / "fineweb" / "train.parquet"))
    bytes_tokenizer(tmp_path / "gpt2-tokenizer")


def test_text_of_another_form_is_refused_in_one_line(tmp_path):
    for number, (columns, message) in enumerate(
        (
            ({"content": ["a"]}, r"split 'train' of the folder fineweb must have the columns text and id, got content"),
            ({"text": [1, 2]}, r"row 0 of the folder fineweb must have a text, got int"),
            ({"text": ["a", None]}, r"row 1 of the folder fineweb must have a text, got NoneType"),
            ({"text": ["a", "b"], "id": ["doc 0", "doc 1"]}, r"training and validation, got 0 tokens for validation"),
            ({"text": ["abc"], "id": ["doc 5"]}, r"for both training and validation, got 0 tokens for training"),
        )
    ):
        (tmp_path / str(number)).mkdir()
        _write(tmp_path / str(number), columns)
        with pytest.raises(ValueError, match=message) as error:
            load("fineweb", root=tmp_path / str(number), cache=tmp_path / "cache")
        assert "\n" not in str(error.value)
    assert kept(tmp_path / "cache") == []


def test_another_tokenizer_is_refused(tmp_path):
    size = END
    bytes_tokenizer(tmp_path / "gpt2-tokenizer", size)
    text_folder(tmp_path, TEXTS, IDS)
    with pytest.raises(
        ValueError, match=rf"must have 50,257 entries with <\|endoftext\|> among them, got {size:,}: use"
    ):
        load("fineweb", root=tmp_path, cache=tmp_path / "cache")
    (tmp_path / "gpt2-tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"must be tokenizer.json of openai-community/gpt2, got one that cannot be read"
    ):
        load("fineweb", root=tmp_path, cache=tmp_path / "cache")
    assert kept(tmp_path / "cache") == []


def test_a_copy_of_a_whole_repository_gives_the_named_part(tmp_path):
    text_folder(tmp_path, TEXTS, IDS)
    folder = tmp_path / "fineweb"
    (folder / "sample").rename(folder / "10BT")
    (folder / "data").mkdir()
    (folder / "data" / "train-0.parquet").write_bytes((folder / "10BT" / "train-00000-of-00001.parquet").read_bytes())
    text_folder(tmp_path / "other", ["other"] * 60, IDS)
    (tmp_path / "other" / "fineweb" / "sample" / "train-00000-of-00001.parquet").rename(
        folder / "data" / "train-0.parquet"
    )
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: default\n  data_files:\n  - split: train\n    path: data/*\n"
        "- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: 10BT/*\n---\n"
    )
    data = load("fineweb", root=tmp_path, cache=tmp_path / "cache", block=4)
    assert "other" not in decoded(data.train)


def test_a_folder_that_would_be_read_without_end_is_refused(tmp_path):
    text_folder(tmp_path, [f"document {i} of the folder" for i in range(60)])
    folder, cache = tmp_path / "fineweb", tmp_path / "cache"
    levels = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    (folder / "README.md").write_text("\n".join(["---", *levels, "---", "text"]))
    with pytest.raises(
        ValueError, match=r"must not refer to itself \(\*name\), got it in the folder fineweb, README.md"
    ):
        load("fineweb", root=tmp_path, cache=cache)
    (folder / "README.md").write_text("x" * (2**20 + 1))
    with pytest.raises(ValueError, match="a file must have at most 1,048,576 bytes, got"):
        load("fineweb", root=tmp_path, cache=cache)
    (folder / "README.md").unlink()
    os.mkfifo(folder / "sample" / "more.parquet")
    with pytest.raises(ValueError, match="must have regular files only, got a pipe or device in the folder fineweb"):
        load("fineweb", root=tmp_path, cache=cache)
    (folder / "sample" / "more.parquet").unlink()
    for kind, opened in ((".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)):
        with opened(folder / f"more.json{kind}", "wb") as file:
            for _ in range(65):
                file.write(bytes(2**20))
        with pytest.raises(
            ValueError, match=rf"lines of at most 67,108,864 bytes, got a longer one .*json\{kind}: unpack"
        ):
            load("fineweb", root=tmp_path, cache=cache)
        (folder / f"more.json{kind}").unlink()
    text_folder(tmp_path, ["x" * (2**22 + 1)])
    with pytest.raises(ValueError, match="a document must have at most 4,194,304 characters, got 4,194,305 in row 0"):
        load("fineweb", root=tmp_path, cache=cache)
    assert kept(cache) == []
