from __future__ import annotations

import json

import pytest

from muonlab.lab.files.hashed_json import hashed_bytes, read_json, write_json


def test_a_file_is_plain_json_with_its_hash_and_any_change_is_refused(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1, 2.5, None, "é"], "b": {}})
    assert read_json(path) == {"a": [1, 2.5, None, "é"], "b": {}}
    assert json.loads(path.read_bytes())["file_sha256"]
    content = hashed_bytes({"a": 1})
    for changed in (b"", b"3\n", b"{}", content[:-1], content + b" ", b"[" * 200_000):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="must match the hash that it carries"):
            read_json(path)


def test_a_missing_file_is_an_error_or_the_default(tmp_path):
    with pytest.raises(ValueError, match=r"must have all of its files, got .* missing"):
        read_json(tmp_path / "none.json")
    assert read_json(tmp_path / "none.json", default={"x": 1}) == {"x": 1}
