from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest
import torch

from muonlab.lab import checkpoint, disk


def save(folder, step):
    checkpoint.save(folder, step, {"w": torch.full((4,), float(step))}, {"step": step})


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    for step in (1, 2, 30):
        save(tmp_path, step)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 30}
    assert torch.equal(found.tensors["w"], torch.full((4,), 30.0))
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
    with pytest.warns(UserWarning, match="is damaged"):
        found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sha256": 3}', b"\xff"])
def test_a_damaged_manifest_is_passed_over(tmp_path, content):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "000000002.json").write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}


def test_a_changed_value_in_a_manifest_is_seen(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "checkpoints" / "000000002.json"
    path.write_text(path.read_text().replace('"values": {"step": 2}', '"values": {"step": 6}'))
    with pytest.warns(UserWarning, match="is damaged"):
        found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}


def test_a_new_checkpoint_outlives_damaged_ones_of_later_steps(tmp_path):
    for step in (100, 200):
        save(tmp_path, step)
        (tmp_path / "checkpoints" / f"{step:09d}.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        assert checkpoint.load(tmp_path) is None
    save(tmp_path, 5)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 5}


def test_what_kills_have_left_is_swept_and_checkpoints_stay(tmp_path):
    save(tmp_path, 1)
    place = tmp_path / "checkpoints"
    for name in ("000000002.safetensors.part", ".tmpAbC123", "000000002.safetensors"):
        (place / name).write_bytes(b"x")
    (tmp_path / "done.json.part").write_bytes(b"x")
    checkpoint.sweep(tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["000000001.json", "000000001.safetensors"]
    assert not (tmp_path / "done.json.part").exists()


def test_the_librarys_own_error_of_a_full_disk_is_an_error_of_the_system(tmp_path):
    """A limit on the size of files stands for the disk: the real library fails in its own words."""
    script = (
        "import resource, sys, torch; from pathlib import Path; from muonlab.lab import checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: checkpoint.save_tensors(Path(sys.argv[1]) / 'w.safetensors', {'w': torch.zeros(10**6)})\n"
        "except OSError as error: print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_weights_have_the_mode_of_other_files(tmp_path):
    checkpoint.save_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(3)})
    (tmp_path / "other").touch()
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_manifest_without_its_tensors_is_none(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "000000001.safetensors").unlink()
    with pytest.warns(UserWarning, match="is damaged"):
        assert checkpoint.load(tmp_path) is None


def test_a_full_disk_leaves_the_last_checkpoint_and_no_part_of_a_new_one(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert not list((tmp_path / "checkpoints").glob("*.part"))
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.values == {"step": 1}


def test_a_write_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    disk.write(path, json.dumps({"old": 1}).encode())
    monkeypatch.setattr(disk.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "gone")))
    with pytest.raises(OSError, match="gone"):
        disk.write(path, b"{}")
    assert json.loads(path.read_text()) == {"old": 1}
    assert not path.with_name("a.json.part").exists()
