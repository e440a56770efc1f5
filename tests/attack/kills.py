"""Kill a study in the middle of its writes, or at a random time, and resume it; prints what the resumed runs give.

    python -m tests.attack.kills WRITES TIMES FOLDER

Each run is a fork of this process, which has imported everything. A kill inside a write comes at the n-th event of the
writes: half of a row, half of a file, before and after each sync and each rename.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from muonlab.lab import load_results, run
from muonlab.lab.files import disk, row_files
from tests.lab.tiny import SPEC, study, without_clock

STUDY = study(SPEC.changed({"steps": 4, "evaluate_every": 2, "record_every": 2, "train": 64, "test": 32}))


class Events:
    """Counts the events of writes, and ends this process at one of them."""

    def __init__(self, last: int | None) -> None:
        self.count, self.last = 0, last

    def here(self, before: Callable[[], object] = lambda: None) -> None:
        """Count an event; at the last one leave half of the work done, and die as by kill −9."""
        self.count += 1
        if self.count == self.last:
            with suppress(OSError):  # the file that is cut may be a directory
                before()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Put an event before and after every sync and rename, and inside of every row and file."""
        sync, replace, write, write_row = disk._sync_descriptor, Path.replace, disk.write_file, row_files.RowFiles.write

        def synced(descriptor: int) -> None:
            self.here(lambda: os.truncate(f"/proc/self/fd/{descriptor}", _half(descriptor)))
            sync(descriptor)
            self.here()

        def replaced(path: Path, target: Any) -> Path:
            self.here()
            moved = replace(path, target)
            self.here()
            return moved

        def written(path: Path, content: bytes, *, durable: bool = True) -> None:
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            self.here(lambda: part.write_bytes(content[: len(content) // 2]))
            write(path, content, durable=durable)

        def row_written(rows: Any, row: dict[str, Any], name: str) -> None:
            line = json.dumps(row).encode()
            self.here(lambda: (rows.folder / f"{name}.jsonl").open("ab").write(line[: len(line) // 2]))
            write_row(rows, row, name)

        disk._sync_descriptor = synced
        Path.replace = replaced  # type: ignore[method-assign]
        disk.write_file = written  # type: ignore[assignment]
        row_files.RowFiles.write = row_written  # type: ignore[method-assign]


def _half(descriptor: int) -> int:
    return os.fstat(descriptor).st_size // 2


def forked(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Run in a fork; kill it after so many seconds if that is given; return the number of its signal, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(3)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"a run failed with {os.WEXITSTATUS(status)}")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def trained(folder: Path, last: int | None, count_in: Path | None = None) -> None:
    """Run the study with events, until the one it dies at."""
    warnings.simplefilter("ignore")  # of damaged checkpoints
    events = Events(last)
    events.watch()
    run(STUDY, out=folder, checkpoint_seconds=0)
    if count_in is not None:
        count_in.write_text(str(events.count))


def bits(folder: Path) -> list[Any]:
    """Return everything that a finished run must have in every bit."""
    results = load_results(folder)
    assert results.status == "done"
    return [
        [cell.summary["weights_sha256"], without_clock([*cell.metrics]), [*cell.certificates()]]
        for cell in results.cells
    ]


def main(inside: int, timed: int, folder: Path) -> None:
    """Kill, resume, compare."""
    torch.set_num_threads(1)
    choose = random.Random(0)
    run(STUDY, out=folder / "first")  # imports and loads everything that the forks need
    whole = folder / "whole"
    start = time.monotonic()
    forked(lambda: trained(whole, None, folder / "events"))
    seconds, events, expected = time.monotonic() - start, int((folder / "events").read_text()), bits(whole)
    places = [("write", 1 + n * events // inside) for n in range(inside)]
    places += [("time", choose.random() * seconds) for _ in range(timed)]
    killed, same = {"write": 0, "time": 0}, 0
    for kind, place in places:
        out = folder / "cut"
        shutil.rmtree(out, ignore_errors=True)
        if kind == "write":
            number = forked(lambda out=out, place=place: trained(out, int(place)))
        else:
            number, seconds_left = 0, place
            while number != signal.SIGKILL:  # again, earlier, if the run was done before
                shutil.rmtree(out, ignore_errors=True)
                number = forked(lambda out=out: trained(out, None), seconds_left)
                seconds_left /= 2
        killed[kind] += number == signal.SIGKILL
        forked(lambda out=out: trained(out, None))
        same += bits(out) == expected
    print(json.dumps({"events": events, "killed": killed, "same": same}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
