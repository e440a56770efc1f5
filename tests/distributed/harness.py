"""The parent's side: starts the ranks of one N once, gives them a deadline, and hands out what each case found.

Ranks are processes of their own (``python -m tests.distributed.rank``). They run every case in lockstep and write one
JSON file per case and rank; the store through which they find each other lives here, so that it outlives any of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
DEADLINE = 170.0
"""Seconds for all cases of one N; they take a quarter of it on two idle cores."""
GRACE = 30.0
"""Seconds that the ranks have to end by themselves after one of them has died."""
FINISHED = "finished"


@dataclass(frozen=True)
class Run:
    """What the ranks of one N left behind."""

    size: int
    folder: Path

    def values(self, case: str) -> list[object]:
        """Return what each rank found in a case; fails with what went wrong on any of them."""
        found = [self._read(case, rank) for rank in range(self.size)]
        wrong = [f"rank {rank}: {one['error']}" for rank, one in enumerate(found) if "error" in one]
        assert not wrong, f"{case} on {self.size} ranks\n" + "\n".join(wrong)
        return [one["value"] for one in found]

    def _read(self, case: str, rank: int) -> dict[str, object]:
        path = self.folder / f"{case}.{rank}.json"
        if path.exists():
            return json.loads(path.read_text())
        return {"error": f"did not finish it; {self._last_words(rank)}"}

    def _last_words(self, rank: int) -> str:
        now, stderr = self.folder / f"rank{rank}.now", self.folder / f"rank{rank}.stderr"
        case = now.read_text() if now.exists() else "no case"
        lines = stderr.read_text(errors="replace").splitlines()[-12:] if stderr.exists() else []
        how = (self.folder / FINISHED).read_text() if (self.folder / FINISHED).exists() else "still running"
        return f"it was in {case} when the ranks ended ({how}); its stderr ends with\n  " + "\n  ".join(lines)


def once(shared: Path, size: int, *, names: tuple[str, ...] = (), deadline: float = DEADLINE) -> Run:
    """Return the run of one N; the first to ask for it starts it, also if several test workers ask."""
    folder = shared / "-".join((f"ranks{size}", *names))
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(shared / "lock"):  # one lock for every N: more ranks than cores wait for each other most of the time
        if not (folder / FINISHED).exists():
            (folder / FINISHED).write_text(spawn(size, folder, names, deadline))
    return Run(size, folder)


@contextmanager
def _locked(path: Path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def spawn(size: int, folder: Path, names: tuple[str, ...], deadline: float) -> str:
    """Run the cases on ``size`` processes and return how they ended; none of them is left behind."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    command = [sys.executable, "-m", "tests.distributed.rank"]
    ranks = []
    try:
        for rank in range(size):
            arguments = [str(rank), str(size), str(store.port), str(folder), *names]
            with (folder / f"rank{rank}.stderr").open("w") as stderr:
                ranks.append(subprocess.Popen([*command, *arguments], cwd=ROOT, env=env, stdout=stderr, stderr=stderr))
        return _wait(ranks, deadline)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait(ranks: list[subprocess.Popen[bytes]], deadline: float) -> str:
    start = time.monotonic()
    end = start + deadline
    while any(process.poll() is None for process in ranks):
        dead = [rank for rank, process in enumerate(ranks) if process.poll()]
        if dead:
            end = min(end, time.monotonic() + GRACE)
            deadline = GRACE
        if time.monotonic() > end:
            alive = [rank for rank, process in enumerate(ranks) if process.poll() is None]
            return f"ranks {alive} were killed after {deadline:g} s; ended by themselves before: {dead}"
        time.sleep(0.05)
    return f"exit codes {[process.returncode for process in ranks]} after {time.monotonic() - start:.1f} s"
