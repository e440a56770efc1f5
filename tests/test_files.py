"""Only regular files of limited size and JSON of limited depth are read; only regular files are replaced."""

from __future__ import annotations

import json
import os

import pytest

from muonlab import _files


def unusual(folder):
    """What may stand in place of a file, by its kind in messages."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "target").write_text("{}")
    (folder / "link").symlink_to(folder / "target")
    (folder / "device").symlink_to("/dev/zero")
    return {"a pipe": "pipe", "a directory": "folder", "a link": "link"}


def test_a_pipe_a_folder_and_a_link_are_refused_without_waiting(tmp_path):
    for kind, name in unusual(tmp_path).items():
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND | os.O_CREAT):
            with pytest.raises(ValueError, match=f"a file must be a regular one, got .*, which is {kind}: give a"):
                _files.open_regular(tmp_path / name, flags)
    with pytest.raises(ValueError, match="which is a device"):
        _files.read_bytes(tmp_path / "device", follow_link=True)
    assert _files.read_bytes(tmp_path / "link", follow_link=True) == b"{}"
    with pytest.raises(FileNotFoundError):
        _files.read_bytes(tmp_path / "none")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(
        ValueError, match=r"at most 268,435,456 bytes, got .* with 1,099,511,627,776: use a smaller one"
    ):
        _files.read_bytes(tmp_path / "large")


def test_json_is_read_to_a_depth_and_not_beyond():
    deepest = _files.DEEPEST_JSON
    for left, right in (("[", "]"), ('{"a":', "}")):
        assert _files.parse_json((left * deepest + "1" + right * deepest).encode())
        for depth in (deepest + 1, 500, 200_000):
            with pytest.raises(ValueError, match="JSON must be nested at most 64 deep"):
                _files.parse_json((left * depth + "1" + right * depth).encode())
    wide = [[i] for i in range(10_000)]
    assert _files.parse_json(json.dumps(wide).encode()) == wide


def test_only_a_regular_file_is_replaced(tmp_path):
    unusual(tmp_path)
    for name in ("pipe", "folder", "device"):
        with pytest.raises(ValueError, match="only a regular file is replaced"):
            _files.require_replaceable(tmp_path / name)
    for name in ("target", "link", "none", "none/below"):
        _files.require_replaceable(tmp_path / name)
