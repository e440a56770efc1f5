"""One rank: runs the cases of its N in lockstep with the others, and writes down what each found.

    python -m tests.distributed.rank RANK SIZE PORT FOLDER [CASE ...]

After each case the ranks tell each other through the store, not by a collective, whether it went well; if it did not on
any of them, their process group may be out of step, and all make a new one.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.harness import HOST
from tests.distributed.registry import World, cases


def main(rank: int, size: int, port: int, folder: Path, names: list[str]) -> None:
    """Run the named cases, or all of this N."""
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # full_tensor() of odd placements is slow
    store = dist.TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=60))
    world = World(rank, size, store, folder)
    world.connect()
    for one in cases():
        if size not in one.sizes or (names and one.name not in names):
            continue
        (folder / f"rank{rank}.now").write_text(one.name)
        start = time.perf_counter()
        try:
            found = {"value": one.run(world)}
        except Exception:
            found = {"error": traceback.format_exc(limit=-6)}
        found["seconds"] = time.perf_counter() - start
        (folder / f"{one.name}.{rank}.json").write_text(json.dumps(found))
        if not _all_well(store, f"{one.name}/", rank, size, "error" not in found):
            world.reconnect()
    dist.destroy_process_group()


def _all_well(store: dist.Store, case: str, rank: int, size: int, well: bool) -> bool:
    store.set(f"{case}{rank}", "1" if well else "0")
    keys = [f"{case}{other}" for other in range(size)]
    store.wait(keys, timedelta(seconds=90))
    return all(store.get(key) == b"1" for key in keys)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
