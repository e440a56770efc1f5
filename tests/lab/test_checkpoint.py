from __future__ import annotations

import errno
import json

import pytest
import torch

from muonlab.lab import checkpoint


def save(folder, step):
    checkpoint.save(folder, step, {"w": torch.full((4,), float(step))}, {"step": step})


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    for step in (1, 2, 30):
        save(tmp_path, step)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 30}
    assert torch.equal(found.tensors["w"], torch.full((4,), 30.0))
    assert found.damaged == ()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "000000002.json", "000000002.safetensors", "000000030.json", "000000030.safetensors",
    ]  # fmt: skip


def test_without_any_there_is_none(tmp_path):
    assert checkpoint.load(tmp_path) is None


@pytest.mark.parametrize("bit", range(0, 8 * 40, 37))
def test_a_flipped_bit_is_seen_and_the_one_before_is_used(tmp_path, bit):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "checkpoints" / "000000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1 - bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(content))
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}
    assert found.damaged == ("000000002",)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sha256": 3}', b"\xff"])
def test_a_damaged_manifest_is_passed_over(tmp_path, content):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "000000002.json").write_bytes(content)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}


def test_a_manifest_without_its_tensors_is_none(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "000000001.safetensors").unlink()
    assert checkpoint.load(tmp_path) is None


def test_a_full_disk_leaves_the_last_checkpoint_and_no_part_of_a_new_one(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert not list((tmp_path / "checkpoints").glob("*.part"))
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}


def test_a_write_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    checkpoint.write(path, json.dumps({"old": 1}).encode())
    monkeypatch.setattr(checkpoint.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "gone")))
    with pytest.raises(OSError, match="gone"):
        checkpoint.write(path, b"{}")
    assert json.loads(path.read_text()) == {"old": 1}
    assert not path.with_name("a.json.part").exists()
