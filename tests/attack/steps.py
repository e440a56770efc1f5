"""Many steps on tiny matrices, with or without a recorder: memory and processor time as the steps go on, as JSON.

python -m tests.attack.steps COUNT recorder|plain FILE
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import torch

from muonlab import Muon
from muonlab.diagnostics import Recorder

PARTS = 10
FIRST = 1_000


def resident() -> float:
    """Return the memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def main(count: int, kind: str, file: str) -> None:
    """Take the steps; norms change by many powers of two, and every hundredth gradient is zero."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    W = torch.nn.Parameter(torch.randn(4, 3))
    opt = Muon([W], lr=1e-3)
    recorder = Recorder(opt, every=20, to=file, keep=False) if kind == "recorder" else None
    gradients = [torch.randn(4, 3) * 2.0 ** (10 * (i % 13 - 6)) * (i % 100 > 0) for i in range(1_300)]
    memory, seconds = [], []
    start = time.process_time()
    for i in range(FIRST + count):
        if i >= FIRST and (i - FIRST) % (count // PARTS) == 0:
            memory.append(resident())
            seconds.append(time.process_time() - start)
        W.grad = gradients[i % len(gradients)]
        opt.step()
    memory.append(resident())
    seconds.append(time.process_time() - start)
    parts = [after - before for before, after in itertools.pairwise(seconds)]
    if recorder is not None:
        recorder.close()
    print(json.dumps({"growth": max(memory) - memory[0], "seconds": parts, "finite": bool(W.isfinite().all())}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
