from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest
import torch

from muonlab.lab.files import disk
from muonlab.lab.files.hashed_json import write_json
from muonlab.lab.training import checkpoint
from muonlab.lab.training.snapshot import set_random, snapshot
from muonlab.optim import SGDM


def save(folder, step):
    checkpoint.save(folder, step, {"w": torch.full((4,), float(step))}, {"step": step})


def load(folder):
    """Return the step that was loaded; the tensors must be of that step, or untouched if there is none."""
    w = torch.full((4,), -1.0)
    values = checkpoint.load(folder, {"w": w})
    step = -1 if values is None else values["step"]
    assert torch.equal(w, torch.full((4,), float(step)))
    return None if values is None else step


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    for step in (1, 2, 30):
        save(tmp_path, step)
    assert load(tmp_path) == 30
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "000000002.json", "000000002.safetensors", "000000030.json", "000000030.safetensors",
    ]  # fmt: skip


def test_without_any_there_is_none(tmp_path):
    assert load(tmp_path) is None


@pytest.mark.parametrize("bit", range(0, 8 * 40, 37))
def test_a_flipped_bit_is_seen_and_the_one_before_is_used(tmp_path, bit):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "checkpoints" / "000000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1 - bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="is damaged"):
        assert load(tmp_path) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sha256": 3}', b"\xff"])
def test_a_damaged_manifest_is_passed_over(tmp_path, content):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "000000002.json").write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        assert load(tmp_path) == 1


def test_a_changed_value_in_a_manifest_is_seen(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "checkpoints" / "000000002.json"
    assert '"values": {\n    "step": 2' in path.read_text()
    path.write_text(path.read_text().replace('"values": {\n    "step": 2', '"values": {\n    "step": 6'))
    with pytest.warns(UserWarning, match="is damaged"):
        assert load(tmp_path) == 1


def test_a_new_checkpoint_outlives_damaged_ones_of_later_steps(tmp_path):
    for step in (100, 200):
        save(tmp_path, step)
        (tmp_path / "checkpoints" / f"{step:09d}.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        assert load(tmp_path) is None
    save(tmp_path, 5)
    assert load(tmp_path) == 5


def test_what_kills_have_left_is_swept_and_checkpoints_stay(tmp_path):
    save(tmp_path, 1)
    place = tmp_path / "checkpoints"
    for name in ("000000002.safetensors.part", ".tmpAbC123", "000000002.safetensors"):
        (place / name).write_bytes(b"x")
    for name in ("000000002", "000000002-again", "000000003.0a1b2c3d.part"):
        (place / name).mkdir()
        (place / name / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"x")
    (place / "000000009").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (place / "notes.txt").touch()
    (tmp_path / "done.json.part").write_bytes(b"x")
    checkpoint.sweep(tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["000000001.json", "000000001.safetensors", "notes.txt"]
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "done.json.part").exists()


def test_a_manifest_of_files_that_are_not_there_or_too_many_is_damaged(tmp_path):
    save(tmp_path, 1)
    place = tmp_path / "checkpoints"
    values = {"step": 2}
    (place / "000000002").mkdir()
    (place / "000000002" / "a.safetensors").write_bytes(b"x")
    for files in ({}, {"b.safetensors": "0"}, {"a.safetensors": "0"}, {"../000000001.safetensors": "0"}, None, 3):
        write_json(place / "000000002.json", {"folder": "000000002", "files": files, "values": values})
        with pytest.warns(UserWarning, match="checkpoint 000000002 of .* is damaged"):
            assert load(tmp_path) == 1


@pytest.mark.parametrize(
    ("name", "shape", "got"), [("w", (2, 2), r"shape \[4\]"), ("w", (), r"shape \[4\]"), ("v", (4,), "none")]
)
def test_a_missing_name_and_another_shape_are_errors_that_change_nothing(tmp_path, name, shape, got):
    checkpoint.save(tmp_path, 1, {"w": torch.ones(4), "u": torch.ones(2)}, {})
    tensors = {"u": torch.zeros(2), name: torch.zeros(shape)}
    with pytest.raises(
        ValueError, match=rf"checkpoint 000000001 of .* must have {name} of shape .*, got {got}: remove"
    ):
        checkpoint.load(tmp_path, tensors)
    assert all(torch.equal(tensor, torch.zeros_like(tensor)) for tensor in tensors.values())


def test_tensors_are_filled_in_place_whatever_their_strides_dtype_and_gradients(tmp_path):
    saved = {
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "nothing": torch.zeros(0, 3),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "parameter": torch.nn.Parameter(torch.arange(4.0).bfloat16()),
    }
    checkpoint.save(tmp_path, 1, saved, {})
    fresh = {name: tensor.detach().clone().zero_() for name, tensor in saved.items()}
    fresh["parameter"] = torch.nn.Parameter(fresh["parameter"])
    places = {name: tensor.data_ptr() for name, tensor in fresh.items()}
    assert fresh["transposed"].stride() == (1, 3)
    assert checkpoint.load(tmp_path, fresh) == {}
    assert all(torch.equal(fresh[name], tensor) for name, tensor in saved.items())
    assert {name: tensor.data_ptr() for name, tensor in fresh.items()} == places


@pytest.mark.parametrize("do", [lambda folder: save(folder, 1), load, checkpoint.sweep])
def test_a_folder_that_leads_elsewhere_is_refused(tmp_path, do):
    cell, elsewhere = tmp_path / "cell", tmp_path / "elsewhere"
    cell.mkdir()
    elsewhere.mkdir()
    (elsewhere / "000000001.safetensors").touch()
    (cell / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="checkpoints must be a directory of its cell, got a link in cell"):
        do(cell)
    assert [path.name for path in elsewhere.iterdir()] == ["000000001.safetensors"]


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
        assert load(tmp_path) is None


def test_a_full_disk_leaves_the_last_checkpoint_and_no_part_of_a_new_one(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert not list((tmp_path / "checkpoints").glob("*.part"))
    assert load(tmp_path) == 1


def test_a_write_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    disk.write(path, json.dumps({"old": 1}).encode())
    monkeypatch.setattr(disk.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "gone")))
    with pytest.raises(OSError, match="gone"):
        disk.write(path, b"{}")
    assert json.loads(path.read_text()) == {"old": 1}
    assert not path.with_name("a.json.part").exists()


def test_a_snapshot_holds_the_tensors_themselves_and_sets_the_random_state(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = SGDM(model.parameters(), 0.1, 0.9)
    checkpoint.save(tmp_path, 1, snapshot(model, optimizer), {})
    expected = model.weight.detach().clone(), torch.rand(5)
    with torch.no_grad():
        model.weight.zero_()
    tensors = snapshot(model, optimizer)
    assert sorted(tensors) == [
        "model.bias", "model.weight", "optimizer.bias.momentum_buffer", "optimizer.weight.momentum_buffer",
        "random.cpu",
    ]  # fmt: skip
    assert checkpoint.load(tmp_path, tensors) == {}
    set_random(model, tensors)
    assert torch.equal(model.weight, expected[0])
    assert torch.equal(torch.rand(5), expected[1])
