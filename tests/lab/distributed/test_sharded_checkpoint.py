"""Checkpoints of sharded models: saved by four ranks, read by four, two, one and none, and never by halves.

One spawn of four ranks runs every case below in turn (``python test_sharded_checkpoint.py RANK PORT FOLDER``), and each
writes down what it found. At its end the ranks save for ever, and are killed while they do.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch import distributed as dist

from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.files import disk
from muonlab.lab.training import checkpoint
from muonlab.lab.training.snapshot import named_tensors

pytestmark = pytest.mark.slow  # four ranks on two cores
SIZE = 4
DEADLINE = 120.0
OF_A_CELL = {"key": "0" * 64, "rows": {}}
"""What the manifest of every checkpoint of a cell has."""


# ------------------------------------------------------------------------------------------------ what the ranks train


class Net(nn.Module):
    """Layers of 3, 5 and 2 rows: over four ranks some shards are smaller and some are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 3), nn.Linear(3, 5), nn.Linear(5, 2)
        self.norm = nn.BatchNorm1d(5)  # plain buffers, one of them an integer without dimensions

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.norm(self.b(self.a(x))))


def extras(mesh: dist.DeviceMesh | None, rank: int, fill: int = 1) -> dict[str, Tensor]:
    """Tensors that a model has not, sharded over the mesh's last dimension, or whole without a mesh."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    columns = fill * torch.arange(15.0).view(3, 5)
    strided = fill * torch.arange(24.0).view(8, 3)
    plain = {
        "extra.scalar": torch.tensor(fill * 0.1, dtype=torch.float64),
        "extra.bytes": torch.full((7,), fill, dtype=torch.uint8),
        "extra.nothing": torch.zeros(0, 4),
        "extra.transposed": (fill * torch.arange(6.0).view(2, 3)).t(),
        "extra.own": torch.tensor([fill * (rank + 10)]),  # differs: that of rank 0 is saved
    }
    if mesh is None:
        return {**plain, "extra.columns": columns, "extra.strided": strided, "extra.whole": columns.bfloat16()}
    last = mesh.ndim * [Replicate()]
    last[-1] = Shard(1)
    rows = [*last[:-1], Shard(0)]
    piece = strided.chunk(mesh.shape[-1])[mesh.get_local_rank(mesh.ndim - 1)]
    return {
        **plain,
        "extra.columns": distribute_tensor(columns, mesh, last),
        "extra.strided": DTensor.from_local(piece.t().contiguous().t(), mesh, rows, shape=(8, 3), stride=(3, 1)),
        "extra.whole": distribute_tensor(columns.bfloat16(), mesh, mesh.ndim * [Replicate()]),
    }


def tensors_of(mesh: dist.DeviceMesh | None, rank: int, *, steps: int, fill: int = 1) -> dict[str, Tensor]:
    """Every tensor of a model after some updates; after one with rate 0 it has its state, but nothing of the other."""
    torch.manual_seed(fill)
    net = Net()
    if mesh is not None:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard

        fully_shard(net, mesh=mesh, shard_placement_fn=lambda p: Shard(1) if p.shape == (3, 8) else Shard(0))
    adam = torch.optim.AdamW(net.parameters(), lr=0.1 if steps else 0.0)
    for _ in range(max(steps, 1)):
        net(torch.randn(6, 8)).square().sum().backward()
        adam.step()
        adam.zero_grad()
    return named_tensors(net, adam) | extras(mesh, rank, fill)


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
        for name, tensor in tensors.items()
    }


def differing(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not the same to the bit."""
    assert found.keys() == expected.keys()
    return [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])]


# --------------------------------------------------------------------------------------------------- the ranks' cases


def load_newest(cell: Path, tensors: dict[str, Tensor], ranks: Ranks = ALONE) -> dict | None:
    manifest = checkpoint.newest(cell, ranks)
    if manifest is None:
        return None
    checkpoint.fill(tensors, cell, manifest, ranks)
    return manifest["values"]


class World:
    """What the cases of one rank share."""

    def __init__(self, rank: int, store: dist.Store, folder: Path) -> None:
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

        self.rank, self.folder = rank, folder
        self.cell = folder / "cell"
        self.mesh = init_device_mesh("cpu", (SIZE,))
        self.grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        self.ranks = Ranks(rank, SIZE, store=dist.PrefixStore("all", store), group=dist.group.WORLD, parallel="fsdp")
        self.smaller = {}
        for size in (2, 1):
            groups = [dist.new_group(list(range(i, i + size))) for i in range(0, SIZE, size)]
            group, own_store = groups[rank // size], dist.PrefixStore(f"{size}/{rank // size}", store)
            ranks = Ranks(rank % size, size, store=own_store, group=group, parallel="fsdp")
            self.smaller[size] = ranks, DeviceMesh.from_group(group, "cpu")

    def expected(self, name: str = "whole") -> dict[str, Tensor]:
        return load_file(self.folder / f"{name}.safetensors")

    def load(self, cell: Path, ranks: Ranks, mesh: dist.DeviceMesh) -> tuple[dict | None, list[str], list[str]]:
        """Load into a fresh model; return the values, what differs from what was saved, and the warnings."""
        tensors = tensors_of(mesh, self.rank, steps=0, fill=3)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            values = load_newest(cell, tensors, ranks)
        name = "whole" if values is None or values["step"] == 2 else "earlier"
        return values, differing(whole(tensors), self.expected(name)), [str(one.message) for one in said]


def four_ranks_save(world: World):
    for step, name in ((0, "first"), (1, "earlier"), (2, "whole")):
        tensors = tensors_of(world.mesh, world.rank, steps=step)
        checkpoint.save(
            world.cell, step, tensors, {"step": step, "said": "by", "rank": world.rank, **OF_A_CELL}, world.ranks
        )
        everything = whole(tensors)
        if world.rank == 0:
            checkpoint.save_tensors(world.folder / f"{name}.safetensors", everything)
    world.ranks.barrier()
    return sorted(str(path.relative_to(world.cell)) for path in world.cell.rglob("*"))


def four_ranks_load(world: World):
    return world.load(world.cell, world.ranks, world.mesh)


def two_ranks_load(world: World):
    return world.load(world.cell, *world.smaller[2])


def one_rank_loads(world: World):
    return world.load(world.cell, *world.smaller[1])


def a_bit_is_flipped(world: World):
    """In each file in turn; the one before is loaded, and the leader says so."""
    found = []
    for path in sorted((world.cell / "checkpoints" / "000000002").iterdir()):
        content = path.read_bytes()
        world.ranks.barrier()
        if world.rank == 0:
            changed = bytearray(content)
            changed[-1] ^= 4
            path.write_bytes(changed)
        world.ranks.barrier()
        found.append(world.load(world.cell, world.ranks, world.mesh))
        world.ranks.barrier()
        if world.rank == 0:
            path.write_bytes(content)
    world.ranks.barrier()
    return found


def a_grid_saves(world: World):
    """Return the elements in all files and in all tensors, and what four ranks load."""
    cell = world.folder / "grid"
    tensors = tensors_of(world.grid, world.rank, steps=2)
    checkpoint.save(cell, 2, tensors, {"step": 2, **OF_A_CELL}, world.ranks)
    saved = 0
    for path in (cell / "checkpoints" / "000000002").iterdir():
        with safe_open(path, "pt") as file:
            saved += sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - it is no dict
    expected = whole(tensors)
    fresh = tensors_of(world.mesh, world.rank, steps=0, fill=3)
    load_newest(cell, fresh, world.ranks)
    expected["extra.own"] = torch.tensor([10])
    return saved, sum(t.numel() for t in tensors.values()), differing(whole(fresh), expected)


def one_file_is_loaded(world: World):
    cell = world.folder / "plain"
    if world.rank == 0:
        checkpoint.save(cell, 2, world.expected(), {"step": 2, **OF_A_CELL})
    world.ranks.barrier()
    return [world.load(cell, *who) for who in ((world.ranks, world.mesh), world.smaller[2], (world.ranks, world.grid))]


def a_disk_is_full(world: World):
    """Of one rank only, first not the leader's, then the leader's: all are told, none waits."""
    found = []
    for full in (2, 0):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if world.rank == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        try:
            tensors = tensors_of(world.mesh, world.rank, steps=1)
            checkpoint.save(world.cell, 3, tensors, {"step": 3, **OF_A_CELL}, world.ranks)
        except OSError as error:
            found.append(error.errno)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    world.ranks.barrier()
    left = sorted(path.name for path in (world.cell / "checkpoints").iterdir())
    return found, left, world.load(world.cell, world.ranks, world.mesh)


def another_fails(world: World):
    """An error that is no full disk, on the leader or on another rank: a RuntimeError on the rest."""
    found = []
    for failing in (0, 3):
        try:
            with world.ranks.fail_together():
                if world.rank == failing:
                    raise KeyError("mine")
        except (KeyError, RuntimeError) as error:
            found.append(str(error))
    return found


def a_step_is_saved_again(world: World):
    """The manifest of a step that is saved twice goes from one folder to the other at once."""
    cell = world.folder / "again"
    seen = []
    for value in range(3):
        checkpoint.save(cell, 5, extras(world.mesh, 0, fill=value), {"value": value, **OF_A_CELL}, world.ranks)
        fresh = extras(world.mesh, 0, fill=9)
        values = load_newest(cell, fresh, world.ranks)
        same = not differing(whole(fresh), whole(extras(None, 0, fill=value)))
        seen.append([values, same, sorted(path.name for path in (cell / "checkpoints").iterdir())])
        world.ranks.barrier()
    return seen


CASES = [
    four_ranks_save, four_ranks_load, two_ranks_load, one_rank_loads,
    a_bit_is_flipped, a_grid_saves, one_file_is_loaded, a_disk_is_full, another_fails,
    a_step_is_saved_again,
]  # fmt: skip


def main(rank: int, port: int, folder: Path) -> None:
    """Run the cases as one of the ranks, then save until killed."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=20))
    world = World(rank, store, folder)
    for case in CASES:
        start = time.perf_counter()
        try:
            found = {"value": case(world)}
        except BaseException:
            found = {"error": traceback.format_exc(limit=-6)}
        found["seconds"] = time.perf_counter() - start
        disk.write_file(folder / f"{case.__name__}.{rank}.json", json.dumps(found).encode(), durable=False)
        if "error" in found:
            return
    from torch.distributed.tensor import Shard, distribute_tensor

    step = 0
    while True:
        step += 1
        w = distribute_tensor(torch.full((4, 10**5), float(step)), world.mesh, [Shard(0)])
        checkpoint.save(folder / "killed", step, {"w": w}, {"step": step, **OF_A_CELL}, world.ranks)


# ------------------------------------------------------------------------------------------------------- their parent


@cache
def run(folder: Path) -> Path:
    """Start the ranks, and kill them in the middle of a save; the first test worker to ask does it for all."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "finished").exists():
            for cell in ("cell", "grid", "plain", "again", "killed"):
                (folder / cell).mkdir()
            spawn(folder)
            (folder / "finished").touch()
    return folder


def spawn(folder: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    try:
        for rank in range(SIZE):
            command = [sys.executable, __file__, str(rank), str(store.port), str(folder)]
            with (folder / f"rank{rank}.stderr").open("w") as stderr:
                ranks.append(subprocess.Popen(command, env=env, stdout=stderr, stderr=stderr))
        wait_for_the_middle_of_a_save(ranks, folder / "killed" / "checkpoints")
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


def wait_for_the_middle_of_a_save(ranks: list[subprocess.Popen[bytes]], place: Path) -> None:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and all(process.poll() is None for process in ranks):
        if len(list(place.glob("*.json"))) == 2 and list(place.glob("*.part/*")):
            for process in ranks:
                process.send_signal(signal.SIGSTOP)
            if list(place.glob("*.part/*")):
                return  # still there, and nobody moves
            for process in ranks:
                process.send_signal(signal.SIGCONT)
        time.sleep(0.002)


@pytest.fixture
def found(tmp_path_factory, worker_id):
    """Return a function that gives what each rank found in a case."""
    base = tmp_path_factory.getbasetemp()
    folder = run((base if worker_id == "master" else base.parent) / "sharded-checkpoints")

    def values(case) -> list:
        each = []
        for rank in range(SIZE):
            path = folder / f"{case.__name__}.{rank}.json"
            assert path.exists(), (folder / f"rank{rank}.stderr").read_text()[-2000:]
            one = json.loads(path.read_text())
            assert "error" not in one, f"rank {rank}: {one['error']}"
            each.append(one["value"])
        return each

    values.folder = folder
    return values


SAVED = {"step": 2, "said": "by", "rank": 0, **OF_A_CELL}


def test_ranks_write_one_file_each_and_two_checkpoints_are_kept(found):
    for files in found(four_ranks_save):
        shards = [f"shard-0000{i}-model-00001-of-00001.safetensors" for i in range(1, 5)]
        of_one = [f"checkpoints/{step}{rest}" for step in ("000000001", "000000002")
                  for rest in ("", *(f"/{name}" for name in shards), ".json")]  # fmt: skip
        assert files == sorted(["checkpoints", *of_one])


@pytest.mark.parametrize("case", [four_ranks_load, two_ranks_load, one_rank_loads])
def test_what_four_ranks_saved_any_number_loads_to_the_bit(found, case):
    assert found(case) == [[SAVED, [], []]] * SIZE


def test_one_process_without_a_group_loads_it_too(found):
    tensors = tensors_of(None, 5, steps=0, fill=3)
    values = load_newest(found.folder / "cell", tensors)
    assert values == SAVED
    assert differing(tensors, load_file(found.folder / "whole.safetensors")) == []


def test_the_comparisons_can_fail(found):
    """What was saved at two steps, and what it is loaded into, differ in all that training changes."""
    earlier, last = (load_file(found.folder / f"{name}.safetensors") for name in ("earlier", "whole"))
    assert {"model.a.weight", "model.c.bias", "optimizer.b.weight.exp_avg", "random.cpu"} <= {*differing(earlier, last)}
    assert {*differing(tensors_of(None, 5, steps=0, fill=3), last)} == last.keys() - {"extra.nothing"}


def test_a_flipped_bit_in_any_file_is_seen_and_the_one_before_is_used(found):
    for rank, loads in enumerate(found(a_bit_is_flipped)):
        assert len(loads) == SIZE
        for values, wrong, said in loads:
            assert values == {**SAVED, "step": 1}
            assert wrong == []
            assert [words[:38] for words in said] == ["checkpoint 000000002 of cell is damaged"[:38]] * (rank == 0)


def test_replicas_are_saved_once(found):
    for saved, tensors, wrong in found(a_grid_saves):
        assert saved == tensors
        assert wrong == []


def test_one_file_is_loaded_into_shards(found):
    assert found(one_file_is_loaded) == [[[{"step": 2, **OF_A_CELL}, [], []]] * 3] * SIZE


def test_a_full_disk_of_one_rank_is_an_error_of_all_and_leaves_the_last_checkpoint(found):
    kept = ["000000001", "000000001.json", "000000002", "000000002.json"]
    assert found(a_disk_is_full) == [[[errno.EFBIG] * 2, kept, [SAVED, [], []]]] * SIZE


def test_an_error_of_one_rank_ends_the_others(found):
    said = found(another_fails)
    assert [words[0] for words in said] == ["'mine'", *[said[1][0]] * 3]
    assert [words[1] for words in said] == [*[said[1][0]] * 3, "'mine'"]
    assert "got an error on another rank" in said[1][0]


def test_a_step_that_is_saved_again_takes_the_place_of_the_first(found):
    for seen in found(a_step_is_saved_again):
        folders = ["000000005", "000000005-again", "000000005"]
        assert seen == [
            [{"value": i, **OF_A_CELL}, True, sorted([folder, "000000005.json"])] for i, folder in enumerate(folders)
        ]


def test_a_kill_in_the_middle_of_a_save_leaves_the_last_two(found, tmp_path):
    cell = tmp_path / "cell"
    shutil.copytree(found.folder / "killed", cell)
    place = cell / "checkpoints"
    assert list(place.glob("*.part/*")), "nothing was left half written: the kill came at another time"
    steps = sorted(int(path.stem) for path in place.glob("*.json"))
    assert len(steps) == 2
    for swept in (False, True):
        if swept:
            checkpoint.remove_incomplete_files(cell)
        w = {"w": torch.zeros(4, 10**5)}
        assert load_newest(cell, w) == {"step": steps[-1], **OF_A_CELL}
        assert torch.equal(w["w"], torch.full((4, 10**5), float(steps[-1])))
    assert sorted(path.name for path in place.iterdir()) == sorted(
        f"{step:09d}{suffix}" for step in steps for suffix in ("", ".json")
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
