"""NCCL on as many GPUs as there are, against one of them. NEVER RUN SO FAR: no machine with a GPU was at hand.

The same program has run over gloo on CPUs (``python -m tests.distributed.test_gpu RANK SIZE STORE FOLDER cpu``), which
says that it is a program, and nothing about NCCL or CUDA. On a machine with GPUs:

    python -m pytest tests/distributed/test_gpu.py -m gpu
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from muonlab import SGDM, Muon, MuonWithAux, split_params
from muonlab.diagnostics import Recorder

ROOT = Path(__file__).parents[2]
STEPS, LR, CLOSE, DEADLINE = 5, 0.02, 1e-5, 300.0
SHAPES = ((96, 64), (64, 160), (33, 20), (3, 50), (96, 64))
GPUS = torch.cuda.device_count()


# ------------------------------------------------------------------------------------------------ what each rank does


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def drawn(seed: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def injected(device: torch.device, **options: Any) -> list[Tensor]:
    """Return weights after some steps on gradients that are the same everywhere."""
    params = [nn.Parameter(W) for W in drawn(100, device)]
    muon = Muon.paper(params, LR, momentum=0.9, q=5, **options)
    for step in range(STEPS):
        for p, G in zip(params, drawn(step, device), strict=True):
            p.grad = G
        muon.step()
    return [p.detach() for p in params]


def network(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Linear(24, 40),
        nn.Tanh(),
        nn.Linear(40, 40),
        nn.Tanh(),
        nn.Linear(40, 33),
        nn.Tanh(),
        nn.Linear(33, 5),
    ]
    return nn.Sequential(*layers).to(device)


def trained(net: nn.Module, device: torch.device, **options: Any) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Return the whole weights of a network after some steps on the same batch on every rank, and all rows."""
    split = split_params(net)
    muon = Muon.paper(split.matrices, LR, momentum=0.9, q=5, **options)
    optimizer = MuonWithAux(muon, SGDM(split.rest, LR, 0.9))
    generator = torch.Generator().manual_seed(7)
    inputs, targets = torch.randn(32, 24, generator=generator), torch.randint(5, (32,), generator=generator)
    with Recorder(optimizer, every=1) as recorder:
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
    return [whole(p.detach()) for p in net.parameters()], recorder.rows


def apart(these: list[Tensor], those: list[Tensor]) -> float:
    """Return the largest difference of an entry, relative to the largest entry of its tensor."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(these, those, strict=True))


def alike(tensors: list[Tensor]) -> bool:
    """Tell whether all ranks have the same bits."""
    flat = torch.cat([t.flatten() for t in tensors])
    everyones = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, flat)
    return all(torch.equal(one, flat) for one in everyones)


def found_by(device: torch.device) -> dict[str, Any]:
    world, size = dist.group.WORLD, dist.get_world_size()
    mesh = init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    one, copies = injected(device), injected(device, process_group=world)
    half = injected(device, process_group=world, comm_dtype=torch.bfloat16)
    alone, rows_alone = trained(network(device), device)
    shards, rows = trained(fully_shard(network(device), mesh=mesh), device)
    return {
        "replicated": apart(copies, one),
        "replicas alike": alike(copies),
        "sharded": apart(shards, alone),
        "half": float(max((a - b).abs().max() for a, b in zip(half, one, strict=True))),
        "half alike": alike(half),
        "rows": [(row["step"], row["name"], row["alignment"]) for row in rows if row["event"] == "matrix"],
        "rows alone": [(row["step"], row["name"], row["alignment"]) for row in rows_alone if row["event"] == "matrix"],
    }


def main(rank: int, size: int, store: str, folder: Path, kind: str) -> None:
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    deadline = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=deadline)
    (folder / f"{rank}.json").write_text(json.dumps(found_by(device)))
    dist.destroy_process_group()


# -------------------------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what each rank found; one spawn for all tests."""
    if not GPUS:
        pytest.skip("torch sees no CUDA device")
    return spawned(GPUS, tmp_path_factory.mktemp("gpu"), "cuda")


def spawned(size: int, folder: Path, kind: str) -> list[dict[str, Any]]:
    """Run all ranks with a deadline; none of them is left behind."""
    command = [sys.executable, "-m", "tests.distributed.test_gpu"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank in range(size):
            words = [str(rank), str(size), str(folder / "store"), str(folder), kind]
            with (folder / f"{rank}.stderr").open("w") as stderr:
                ranks.append(subprocess.Popen([*command, *words], cwd=ROOT, env=env, stdout=stderr, stderr=stderr))
        until = time.monotonic() + DEADLINE
        codes = [process.wait(max(0.0, until - time.monotonic())) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    words = "\n".join((folder / f"{rank}.stderr").read_text()[-2000:] for rank in range(size))
    assert codes == [0] * size, words
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.gpu
def test_copies_on_all_gpus_are_those_of_one_gpu(found):
    assert all(one["replicated"] <= CLOSE for one in found)
    assert all(one["replicas alike"] for one in found)


@pytest.mark.gpu
def test_shards_on_all_gpus_are_those_of_one_gpu(found):
    assert all(one["sharded"] <= CLOSE for one in found)


@pytest.mark.gpu
def test_bfloat16_on_the_wire_keeps_all_gpus_alike_and_near(found):
    assert all(one["half alike"] for one in found)
    assert all(0 < one["half"] < STEPS * LR * 2**-7 for one in found)


@pytest.mark.gpu
def test_every_gpu_has_the_rows_of_all_matrices(found):
    for one in found:
        assert one["rows"] == found[0]["rows"]
        names = [(step, name) for step, name, _ in one["rows"]]
        assert names == [(step, name) for step, name, _ in one["rows alone"]]
        pairs = zip(one["rows"], one["rows alone"], strict=True)
        assert all(mine[2] == pytest.approx(alone[2], abs=1e-3) for mine, alone in pairs)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5])
