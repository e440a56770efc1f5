"""Kill a rank in each phase of a step and of a save; the others must exit, and the same command must resume.

    python -m tests.attack.ranks SIZE FOLDER PHASE...

Each rank is a fork of this process with torchrun's variables. Prints, for each phase, the exit codes of all ranks, the
seconds until the last one ended, and whether the resumed run gives the bits of a run that was not interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from muonlab.cli.app import main as command_line
from muonlab.lab import load_results, run
from muonlab.lab.distributed import sharded_tensors
from muonlab.lab.runner import store
from muonlab.lab.training import checkpoint
from muonlab.optim import step as muon_step
from tests.lab.runner import test_torchrun
from tests.lab.tiny import without_clock

PHASES: dict[str, tuple[Any, str]] = {
    "backward": (torch.autograd, "backward"),
    "collect": (muon_step, "collect"),
    "momentum": (muon_step, "update_momentum"),
    "weights": (muon_step, "update_weights"),
    "communication": (distributed, "all_reduce"),
    "save": (checkpoint, "save"),
    "shards": (sharded_tensors, "write_shards"),
    "manifest": (checkpoint, "write_json"),
    "removal": (checkpoint, "_remove_strays"),
    "finish": (store.CellFolder, "finish"),
}
"""A function that each phase calls; the rank dies before one call of it."""
PATIENCE = 90.0
WORDS = ("run", "tiny", "--checkpoint-seconds", "0", "--threads", "1", "--set", "steps=8", "evaluate_every=4")


def die_in(phase: str, call: int) -> None:
    """End this process by kill −9 at so many calls of the function of a phase."""
    place, name = PHASES[phase]
    original, left = getattr(place, name), [call]

    def counted(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(place, name, counted)


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ranks(
    size: int, out: Path, victim: int = -1, prepare: Callable[[], None] = lambda: None
) -> tuple[list[int], float]:
    """Run the study on ranks; return their exit codes (negative for a signal) and the seconds it took."""
    port, children, start = free_port(), [], time.monotonic()
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 3
            with suppress(BaseException):
                os.environ.update(
                    {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
                    | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
                )
                log = os.open(out.with_name("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                if rank == victim:
                    prepare()
                code = command_line([*WORDS[:2], "--parallel", "fsdp", "--out", str(out), *WORDS[2:]])
            os._exit(code)
        children.append(child)
    codes: dict[int, int] = {}
    while len(codes) < size and time.monotonic() - start < PATIENCE:
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for child in children:
        if child not in codes:  # a rank that waits without end
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            codes[child] = -1000
    return [codes[child] for child in children], time.monotonic() - start


def bits(folder: Path) -> list[Any]:
    """Return what every run of these ranks must have in every bit."""
    results = load_results(folder)
    return [[cell.status, cell.summary.get("weights_sha256"), without_clock([*cell.metrics])] for cell in results.cells]


def main(size: int, folder: Path, *phases: str) -> None:
    """Kill in each phase, a rank that changes from phase to phase, and resume."""
    torch.set_num_threads(1)
    find = test_torchrun.registry.find
    test_torchrun.registry.find = lambda name: test_torchrun.study() if name == "tiny" else find(name)
    run(test_torchrun.study(), out=folder / "first", settings={"steps": 1})  # loads what the forks need
    codes, _ = ranks(size, folder / "whole")
    expected, found = bits(folder / "whole"), {}
    assert codes == [0] * size, (folder / "log").read_text()
    for i, phase in enumerate(phases):
        out = folder / phase
        only_first = phase in ("manifest", "removal", "finish")
        victim = 0 if only_first else (i + 1) % size
        killed, seconds = ranks(size, out, victim, lambda phase=phase: die_in(phase, 1 if phase == "finish" else 3))
        resumed, _ = ranks(size, out)
        same = bits(out) == expected
        found[phase] = {"victim": killed[victim], "others": sorted({c for r, c in enumerate(killed) if r != victim})}
        found[phase] |= {"seconds": seconds, "resumed": resumed, "same": same}
        shutil.rmtree(out)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
