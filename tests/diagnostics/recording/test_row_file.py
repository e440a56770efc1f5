"""A file of rows: JSON on every line whatever happens, and what was there before stays there."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.nn import Parameter

from muonlab import Muon
from muonlab.diagnostics.recording.recorder import Recorder
from muonlab.diagnostics.recording.row_file import RowFile

MIB = 1 << 20


def strict(path):
    """Return the rows of a file; NaN and infinity, which are not JSON, are refused."""
    text = path.read_bytes().decode("ascii")
    assert text == "" or text.endswith("\n")

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def written(path, *rows):
    file = RowFile(path)
    file.write(rows)
    file.close()


def rows_of(count, seed=0):
    return [{"event": "matrix", "step": seed + i, "name": f"layers.{i}", "value": i / 7} for i in range(count)]


# ------------------------------------------------------------------------------------------------------ well-formed


def test_every_line_is_json_and_numbers_that_are_not_finite_are_null(tmp_path):
    path = tmp_path / "rows.jsonl"
    written(path, {"a": math.nan, "b": [1.5, -math.inf, {"c": math.inf}], "d": "NaN, straße\nü\u2028", "e": None})
    assert strict(path) == [{"a": None, "b": [1.5, None, {"c": None}], "d": "NaN, straße\nü\u2028", "e": None}]


def test_a_row_that_is_no_json_is_refused_and_leaves_no_half_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    file = RowFile(path)
    file.write(rows_of(1))
    with pytest.raises(TypeError, match="not JSON serializable"):
        file.write([*rows_of(1), {"tensor": object()}])
    file.close()
    file.close()
    assert strict(path) == rows_of(1)


# ----------------------------------------------------------------------------------------------------- half a line


TRAINING = """
import sys, torch
from muonlab import Muon
from muonlab.diagnostics.recording.recorder import Recorder
W = torch.nn.Parameter(torch.eye(3))
names = [("layer." + "x" * 20000, W)]  # long lines: a kill often falls inside one
optimizer = Muon(names, lr=0.01)
recorder = Recorder(optimizer, every=1, to=sys.argv[1])
while True:
    W.grad = torch.randn(3, 3)
    optimizer.step()
"""


def test_a_process_killed_while_writing_leaves_a_file_that_parses_after_resuming(tmp_path):
    path = tmp_path / "rows.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        deadline = time.monotonic() + 300
        while not (path.exists() and path.stat().st_size > MIB // 4) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    left = path.read_bytes()
    with path.open("ab") as file:  # where the kill fell between lines, cut one by hand
        file.write(b'{"event": "matrix", "st' if left.endswith(b"\n") else b"")
    W = Parameter(torch.eye(3))
    with Recorder(optimizer := Muon([("W", W)]), every=1, to=path):
        W.grad = torch.eye(3)
        optimizer.step()
    rows = strict(path)
    assert [row["event"] for row in rows[-2:]] == ["matrix", "whole"]
    assert rows[-2]["name"] == "W"
    kept = len(left.splitlines()) - (not left.endswith(b"\n"))
    assert len(rows) == kept + 2
    assert [row["step"] for row in rows[:-2]] == [1 + i // 2 for i in range(kept)]


# ----------------------------------------------------------------------------------------------------- wrong places


ROW = b'{"event": "whole", "step": 1}\n'


OTHERS = [
    b"PK\x03\x04 weights",
    b"step,loss\n1,2",
    b"\n",
    b"[1, 2]",
    b'{\n  "lr": 0.1\n}',
    b'{\n  "lr": 0.1\n}\n',
    b'{"lr": 0.1}',
    b'{"lr": 0.1}\n{"lr": 0.2}\n',
    b'{"event": "party"}\n',
    b'{"event": "party"}',
    b'{"event": ["matrix"]}\n',
    b"{",
    b'{"ev',
    b"[" * 100_000,
    b'{"a": ' + b"[" * 100_000,
    ROW + b"[" * 100_000,
    ROW + b"}",
    ROW + b'{"lr": 0.1}',
    ROW + b"\xff\xfe",
    b"{\x00\n\x00",
]


def test_a_file_of_something_else_is_refused_and_keeps_every_byte(tmp_path):
    for content in OTHERS:
        refused(tmp_path / "model.pt", content)
    with pytest.raises(ValueError, match=r"^a recording is a file, got the directory .+: add a name"):
        RowFile(tmp_path)
    with pytest.raises(ValueError, match=r"^a recording needs a directory that exists, got .+: create it first"):
        RowFile(tmp_path / "runs" / "rows.jsonl")
    assert not (tmp_path / "runs").exists()


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^only a recording can be appended to, got .+: choose a new name"):
        RowFile(path)
    assert path.read_bytes() == content


def test_opening_a_file_changes_no_byte_of_it_before_the_first_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    for content in (ROW + b'{"event": "mat', ROW + ROW[:-1], b'{"event": "mat', ROW):
        path.write_bytes(content)
        RowFile(path).close()
        assert path.read_bytes() == content


def test_a_line_may_be_cut_anywhere_after_a_whole_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    for kept in range(len(ROW)):
        path.write_bytes(ROW + ROW[:kept])
        written(path, *rows_of(1))
        whole = [json.loads(ROW)] * (1 + (kept == len(ROW) - 1))  # if only the newline is lost, the row is kept
        assert strict(path) == [*whole, *rows_of(1)]
    path.write_bytes(b'{"event": "ma')
    written(path, *rows_of(2))
    assert strict(path) == rows_of(2)
    many = rows_of(16_000)
    written(str(path), *many[2:])
    with path.open("ab") as file:
        file.write(b'{"event": "' + b"x" * 3 * MIB)
    written(path, {"after": 1})
    assert strict(path) == [*many, {"after": 1}]


def test_rows_that_another_wrote_after_the_file_was_opened_stay(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROW + b'{"event": "mat')
    late = RowFile(path)
    written(path, *rows_of(2))
    late.write(rows_of(1))
    late.close()
    assert strict(path) == [json.loads(ROW), *rows_of(2), *rows_of(1)]


FULL = """
import resource, sys, torch
from muonlab import Muon
from muonlab.diagnostics import Recorder
torch.manual_seed(0)
W = torch.nn.Parameter(torch.randn(4, 3))
opt = Muon([W], lr=0.1)
if sys.argv[2] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))
with Recorder(opt, every=1, to=sys.argv[1]) as rec:
    for _ in range(20):
        W.grad = W.detach().clone()
        opt.step()
print(rec.step, len(rec.rows), W.double().sum().item())
"""


def test_a_full_disk_ends_the_recording_with_one_warning_and_not_the_training(tmp_path):
    """A limit on the size of files stops a write in the middle of a row, as a full disk does."""
    outputs = {}
    for disk in ("free", "full"):
        words = [sys.executable, "-W", "always", "-c", FULL, str(tmp_path / disk), disk]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        outputs[disk] = done.stdout
        assert done.stderr.count("the training goes on without it") == (disk == "full"), done.stderr
        assert "Traceback" not in done.stderr
    assert outputs["free"] == outputs["full"]
    assert 0 < (tmp_path / "full").stat().st_size <= 3_000
    RowFile(tmp_path / "full").close()  # a resumed training can append to it
    assert len((tmp_path / "free").read_bytes().splitlines()) == 40
