from __future__ import annotations

import errno
import subprocess
import sys

import pytest
import torch

from muonlab.lab.files import disk
from muonlab.lab.training import checkpoint
from muonlab.lab.training.snapshot import named_tensors, restore_random_state
from muonlab.optim import SGDM

OF_A_CELL = {"key": "0" * 64, "rows": {}}
"""What the manifest of every checkpoint of a cell has."""


def save(folder, step):
    checkpoint.save(folder, step, {"w": torch.full((4,), float(step))}, {"step": step, **OF_A_CELL})


def load(folder):
    """Return the step that was loaded; the tensors must be of that step, or untouched if there is none."""
    w = torch.full((4,), -1.0)
    manifest = checkpoint.newest(folder)
    if manifest is not None:
        checkpoint.fill({"w": w}, folder, manifest)
    step = None if manifest is None else manifest["values"]["step"]
    assert torch.equal(w, torch.full((4,), -1.0 if step is None else float(step)))
    return step


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    for step in (1, 2, 30):
        save(tmp_path, step)
    assert load(tmp_path) == 30
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "000000002.json", "000000002.safetensors", "000000030.json", "000000030.safetensors",
    ]  # fmt: skip


def test_damage_is_seen_and_the_checkpoint_before_is_used(tmp_path):
    """Flipped bits in the tensors, changed and broken manifests, missing tensors."""
    assert load(tmp_path) is None
    save(tmp_path, 1)
    save(tmp_path, 2)
    data, manifest = (tmp_path / "checkpoints" / f"000000002{suffix}" for suffix in (".safetensors", ".json"))
    content, text = data.read_bytes(), manifest.read_bytes()
    for bit in range(0, 8 * len(content), 37):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        data.write_bytes(changed)
        with pytest.warns(UserWarning, match="checkpoint 000000002 of .* is damaged"):
            assert load(tmp_path) == 1
    data.write_bytes(content)
    value = b'"values": {\n    "step": '
    for changed in (b"", b"{", b"[]", b'{"sha256": 3}', b"\xff", text.replace(value + b"2", value + b"6")):
        assert changed != text
        manifest.write_bytes(changed)
        with pytest.warns(UserWarning, match="is damaged"):
            assert load(tmp_path) == 1
    manifest.write_bytes(text)
    assert load(tmp_path) == 2
    data.unlink()
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
    checkpoint.remove_incomplete_files(tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["000000001.json", "000000001.safetensors", "notes.txt"]
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "done.json.part").exists()


def test_tensors_are_filled_in_place_whatever_their_strides_dtype_and_gradients(tmp_path):
    saved = {
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "nothing": torch.zeros(0, 3),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "parameter": torch.nn.Parameter(torch.arange(4.0).bfloat16()),
    }
    checkpoint.save(tmp_path, 1, saved, OF_A_CELL)
    fresh = {name: tensor.detach().clone().zero_() for name, tensor in saved.items()}
    fresh["parameter"] = torch.nn.Parameter(fresh["parameter"])
    places = {name: tensor.data_ptr() for name, tensor in fresh.items()}
    assert fresh["transposed"].stride() == (1, 3)
    checkpoint.fill(fresh, tmp_path, checkpoint.newest(tmp_path))
    assert all(torch.equal(fresh[name], tensor) for name, tensor in saved.items())
    assert {name: tensor.data_ptr() for name, tensor in fresh.items()} == places


def test_a_folder_that_is_a_link_is_refused_and_nothing_is_removed(tmp_path):
    cell, elsewhere = tmp_path / "cell", tmp_path / "elsewhere"
    cell.mkdir()
    elsewhere.mkdir()
    (elsewhere / "000000001.safetensors").touch()
    (cell / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="checkpoints must be a directory of its cell, got a link in cell"):
        checkpoint.remove_incomplete_files(cell)
    assert [path.name for path in elsewhere.iterdir()] == ["000000001.safetensors"]


def test_a_full_disk_while_safetensors_writes_is_an_os_error(tmp_path):
    """A limit on the size of files stands for the disk: the real library fails with an error of its own."""
    script = (
        "import resource, sys, torch; from pathlib import Path; from muonlab.lab.training import checkpoint\n"
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


def test_a_full_disk_leaves_the_last_checkpoint_and_no_part_of_a_new_one(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert not list((tmp_path / "checkpoints").glob("*.part"))
    assert load(tmp_path) == 1


def test_named_tensors_are_no_copies_and_restore_the_random_state(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = SGDM(model.parameters(), 0.1, 0.9)
    checkpoint.save(tmp_path, 1, named_tensors(model, optimizer), OF_A_CELL)
    expected = model.weight.detach().clone(), torch.rand(5)
    with torch.no_grad():
        model.weight.zero_()
    tensors = named_tensors(model, optimizer)
    assert sorted(tensors) == [
        "model.bias", "model.weight", "optimizer.bias.momentum_buffer", "optimizer.weight.momentum_buffer",
        "random.cpu",
    ]  # fmt: skip
    checkpoint.fill(tensors, tmp_path, checkpoint.newest(tmp_path))
    restore_random_state(model, tensors)
    assert torch.equal(model.weight, expected[0])
    assert torch.equal(torch.rand(5), expected[1])


def test_another_shape_is_an_error_and_is_not_broadcast(tmp_path):
    checkpoint.save(tmp_path, 1, {"w": torch.ones(1)}, OF_A_CELL)
    with pytest.raises(ValueError, match=r"w must have shape \[4\], got \[1\] in .*000000001"):
        checkpoint.fill({"w": torch.zeros(4)}, tmp_path, checkpoint.newest(tmp_path))
