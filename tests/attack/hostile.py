"""67 hostile files, read in this process by the commands that read files; prints what happened as JSON.

python -m tests.attack.hostile FOLDER EVERY
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import resource
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from muonlab.cli.app import main
from muonlab.lab.files.hashed_json import hashed_bytes, read_json
from muonlab.report import figures
from tests.report.rundirs import seal, write_run

MEGABYTE = 2**20


class Runs:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def run_with(canary: Path) -> Iterator[Runs]:
    """Yield pickles that would create the canary, each in another way."""
    yield Runs(os.system, f"touch {canary}")
    yield Runs(exec, f"open({str(canary)!r}, 'w')")
    yield Runs(eval, f"open({str(canary)!r}, 'w')")
    yield Runs(open, str(canary), "w")
    yield Runs(os.mkdir, str(canary))
    yield Runs(getattr, Runs(__import__, "os"), "system")


def npy(shape: tuple[int, ...], descr: str = "<f4", extra: bytes = b"") -> bytes:
    """Return the bytes of an array file with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode() + extra + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header


def zeros(path: Path, name: str, size: int, header: bytes = b"") -> Path:
    """Write a zip file whose only member unpacks to ``size`` zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        member.write(header)
        for _ in range(size // MEGABYTE):
            member.write(bytes(MEGABYTE))
    return path


def certified(folder: Path, canary: Path) -> Iterator[Path]:
    """Write files for ``muonlab certify``."""
    for i, value in enumerate(run_with(canary)):
        for protocol in (0, 2, 4):
            (folder / f"pickle-{i}-{protocol}.pt").write_bytes(pickle.dumps(value, protocol))
            yield folder / f"pickle-{i}-{protocol}.pt"
        torch.save({"state": {0: {"momentum_buffer": value}}, "param_groups": []}, folder / f"saved-{i}.pt")
        yield folder / f"saved-{i}.pt"
    np.save(folder / "objects.npy", np.array([Runs(os.system, f"touch {canary}")], dtype=object), allow_pickle=True)
    yield folder / "objects.npy"
    np.savez(folder / "objects.npz", np.array([Runs(os.system, f"touch {canary}")], dtype=object))
    yield folder / "objects.npz"
    yield zeros(folder / "bomb.npz", "a.npy", 64 * MEGABYTE, npy((12_000, 12_000), "<f8"))
    yield zeros(folder / "bomb.pt", "x/data.pkl", 64 * MEGABYTE)
    for name, content in {
        "shape.npy": npy((10**9, 10**9)),
        "negative.npy": npy((-1, 5)),
        "descr.npy": npy((3, 3), f"__import__('os').system('touch {canary}')"),
        "header.npy": npy((3, 3), extra=b" " * 5_000_000),
        "parentheses.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 9_000) + b"(" * 8_999 + b"\n",
        "length.safetensors": struct.pack("<Q", 2**63) + b"{}",
        "long.safetensors": struct.pack("<Q", 90_000_000) + b"{",
        "deep.safetensors": struct.pack("<Q", 100_000) + b"[" * 100_000,
        "offsets.safetensors": _safetensors({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 10**12]}}),
        "shape.safetensors": _safetensors({"w": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 4]}}),
        "bytearray.pt": b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        "loop.pt": pickle.dumps({"state": {}, "param_groups": [{"params": [0] * 10}]}, 2),
        "names.npz": b"PK\x05\x06" + bytes(18),
    }.items():
        (folder / name).write_bytes(content)
        yield folder / name
    with (folder / "sparse.safetensors").open("wb") as file:  # takes no room on the disk
        file.write(_safetensors({"w": {"dtype": "F32", "shape": [50_000, 50_000], "data_offsets": [0, 10**10]}}))
        file.truncate(file.tell() + 10**10)
    yield folder / "sparse.safetensors"
    value: list[object] = [torch.eye(3)]
    for _ in range(40):
        value = [value, value]
    torch.save(value, folder / "doubled.pt")
    yield folder / "doubled.pt"
    torch.save({"w": torch.zeros(1).expand(2**20, 2**20)}, folder / "expanded.pt")
    yield folder / "expanded.pt"
    save_file({f"w{i}\x1b[2J": torch.eye(2) for i in range(3)}, folder / "terminal.safetensors")
    yield folder / "terminal.safetensors"
    os.mkfifo(folder / "pipe.pt")
    yield folder / "pipe.pt"
    (folder / "zero.npy").symlink_to("/dev/zero")
    yield folder / "zero.npy"


def _safetensors(header: dict[str, object]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def run_directories(folder: Path, outside: Path) -> Iterator[Path]:
    """Write run directories for ``muonlab report``."""

    def run(name: str) -> Path:
        return write_run(folder / name, ["SGD-M"], 1)

    for i, name in enumerate(("study.json", "cells.json", "env.json")):
        made = run(f"deep-{i}")
        (made / name).write_bytes(b'{"a":' * 50_000)
        yield made
        made = run(f"pipe-{i}")
        (made / name).unlink()
        os.mkfifo(made / name)
        yield made
        made = run(f"sparse-{i}")
        with (made / name).open("wb") as file:
            file.truncate(2**40)
        yield made
    made = run("cells-link")
    (made / "cells").rename(folder / "cells-elsewhere")
    (made / "cells").symlink_to(folder / "cells-elsewhere")
    yield made
    made = run("rows-name")
    (cell,) = (made / "cells").iterdir()
    done = read_json(cell / "done.json")
    seal(cell / "done.json", **{**done, "rows": {f"../../../../{outside.name}/x": done["rows"]["metrics"]}})
    yield made
    made = run("report-link")
    (made / "report").symlink_to(outside)
    yield made
    made = run("page-link")
    (made / "report.html").symlink_to(outside / "page")
    yield made
    made = run("made-of-nested")
    (made / "report").mkdir()
    (made / "report" / "made-of.json").write_bytes(b"[" * 500_000)
    yield made
    made = run("rows-nested")
    (cell,) = (made / "cells").iterdir()
    (cell / "metrics.jsonl").write_bytes(b"[" * 200_000 + b"\n")
    yield made
    made = run("number")
    (made / "env.json").write_bytes(hashed_bytes({"sessions": [{"cores": 10**4_000}]}))
    yield made


def data_folders(folder: Path, canary: Path) -> Iterator[Path]:
    """Write folders for ``muonlab data prepare fineweb --data``."""
    levels = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    for name, file, content in (
        ("yaml", "README.md", "\n".join(["---", *levels, "---"]).encode()),
        ("python", "README.md", f"---\nconfigs: !!python/object/apply:os.system ['touch {canary}']\n---\n".encode()),
        ("nested", "README.md", b"---\na: " + b"[" * 100_000 + b"\n---\n"),
        ("gz", "sample/a.json.gz", gzip.compress(b'{"text":"' + bytes(80 * MEGABYTE), 1)),
    ):
        made = folder / name / "fineweb"
        (made / "sample").mkdir(parents=True)
        (made / file).write_bytes(content)
        (folder / name / "gpt2-tokenizer").mkdir()
        (folder / name / "gpt2-tokenizer" / "tokenizer.json").write_bytes(b"[" * 100_000)
        yield folder / name


def peak() -> float:
    """Return the largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def attempt(words: list[str]) -> dict[str, object]:
    """Run a command; return its exit code, what it printed to the standard error, and the peak of memory."""
    out, error = io.StringIO(), io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            warnings.simplefilter("ignore")
            code: object = main(words)
    except BaseException as raised:
        code = f"{type(raised).__name__}: {raised}"[:300]
    return {
        "words": words,
        "code": code,
        "error": error.getvalue()[-300:],
        "printed": out.getvalue()[:300],
        "peak": peak(),
    }


def main_(folder: Path, every: int) -> None:
    """Make the files, read them, and print the outcome."""
    outside, canary = folder / "outside", folder / "canary"
    for name in dir(figures):
        if name.endswith("_figure"):  # they take most of the time of a page, and read nothing
            setattr(figures, name, lambda *_, **__: None)
    for name in ("outside", "certify", "runs", "data"):
        (folder / name).mkdir()
    torch.save({"w": torch.eye(64)}, folder / "good.pt")
    first = attempt(["certify", str(folder / "good.pt"), "--weights"])  # imports everything
    attempt(["report", str(write_run(folder / "good", ["SGD-M"], 1))])
    start = peak()
    files = list(certified(folder / "certify", canary)), list(run_directories(folder / "runs", outside))
    made = peak()
    found = [attempt(["certify", str(path), "--weights", "--max-gigabytes", "0.05"]) for path in files[0][::every]]
    found += [attempt(["report", str(path)]) for path in files[1][::every]]
    found += [
        attempt(["data", "prepare", "fineweb", "--data", str(path)])
        for path in data_folders(folder / "data", canary)
        if every == 1
    ]
    left = sorted(str(path) for path in outside.iterdir())
    print(
        json.dumps(
            {"first": first, "start": start, "made": made, "found": found, "outside": left, "canary": canary.exists()}
        )
    )


if __name__ == "__main__":
    main_(Path(sys.argv[1]), int(sys.argv[2]))
