"""Ranks that train one cell together: two processes, started once, against a single process that does the same."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from muonlab.lab import run
from muonlab.lab.cell_context import Stopped
from muonlab.lab.distributed import ranks as module
from muonlab.lab.distributed.ranks import (
    ALONE,
    LostRankError,
    OtherRankError,
    Ranks,
    process_group,
    started_by_torchrun,
)
from muonlab.lab.studies import find
from muonlab.lab.training.clipping import clip_gradients
from muonlab.lab.training.loop import Training, train
from muonlab.lab.training.setup import check_spec
from muonlab.optim import split_params
from muonlab.optim.distributed.tensors import whole
from tests.lab.tiny import SPEC, Bench, study

ROOT = Path(__file__).parents[3]
ODD = SPEC.changed({"batch_size": 31, "micro_batch": 8, "test": 63, "steps": 6, "evaluate_every": 3})
ODD = ODD.changed({"watch": "hidden.0.weight"})
"""Shares of 16 and 15 examples in parts of 8, and of 32 and 31 held-out examples."""
SHARDED = ODD.changed({"micro_batch": 15})  # the first share has two parts, the second one


# -------------------------------------------------------------------------------------------------- inside of a rank


def of_a_rank(folder: Path) -> None:
    """Do on one of two ranks what the tests below look at."""
    torch.set_num_threads(1)
    with process_group("ddp") as ranks:
        found = {"messages": messages(ranks), "ddp": trained(folder / "ddp", ODD, ranks)}
        found["pixels"] = pixels(folder, ranks)
        found["stopped"] = stopped(folder / "stopped", ranks)
        ranks.parallel = "fsdp"
        found["fsdp"] = trained(folder / "fsdp", SHARDED, ranks)
        found["split"] = [
            str(row).replace("FSDP", "") for row in split_params(Training(SPEC, Bench(folder), ranks).model).table
        ]
        found["clipped"] = clipped(folder, ranks)
        (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


def messages(ranks: Ranks) -> dict[str, object]:
    """Return what this rank learns from the other."""
    if ranks.rank == 0:
        ranks.publish("first", {"a": 1})
        ranks.publish("first", {"a": 2})
    received = None if ranks.rank == 0 else [ranks.wait_for("first"), ranks.wait_for("first")]
    module.AGREEMENT_SECONDS = 1.0
    agreed = [ranks.all_ranks_agree("the same"), ranks.all_ranks_agree(f"of {ranks.rank}")]
    return {
        "sum": ranks.sum(torch.tensor([1.0, ranks.rank])).tolist(),
        "any": ranks.any(ranks.rank == 1, False, True),
        "broadcast": ranks.broadcast("rank", ranks.rank),
        "received": received,
        "agreed": [*agreed, ranks.rank == 0 and ranks.all_ranks_agree("alone")],
    }


def trained(folder: Path, spec, ranks: Ranks) -> list[dict[str, object]]:
    bench = Bench(folder)
    folder.mkdir(exist_ok=True)
    train(spec, bench, ranks)
    return bench.rows["metrics"]


def pixels(folder: Path, ranks: Ranks) -> float:
    part = Training(ODD.changed({"augmentation": "flip+translate"}), Bench(folder), ranks)
    part.step = 9
    found = part.batch()
    save_file({"x": torch.cat([x for x, *_ in found])}, folder / f"pixels{ranks.rank}.safetensors")
    return sum(share for *_, share in found)


def stopped(folder: Path, ranks: Ranks) -> list[object]:
    folder.mkdir(exist_ok=True)
    bench = Bench(folder, stop_after=4 if ranks.rank else None)
    with pytest.raises(Stopped):
        train(SPEC, bench, ranks)
    return [path.stem for path in (folder / "checkpoints").glob("*.json")]


def clipped(folder: Path, ranks: Ranks) -> float:
    training = Training(SHARDED.changed({"clip": None}), Bench(folder), ranks)
    training.update()
    norm = float(clip_gradients(training.trained_parameters, 1e-3))
    gradients = {name: whole(p.grad) for name, p in training.model.named_parameters()}
    if ranks.rank == 0:
        save_file(gradients, folder / "gradients.safetensors")
    return norm


# ------------------------------------------------------------------------------------------------------ two of them


@pytest.fixture
def two(tmp_path_factory, worker_id):
    """Return the results of two ranks and their folder; the first test worker to ask starts them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "two-ranks"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / "ended").exists():
            (folder / "ended").write_text(_spawned(folder))
    assert (folder / "ended").read_text() == "[0, 0]", (folder / "stderr").read_text()[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], folder


def _spawned(folder: Path) -> str:
    here = "tests.lab.distributed.test_ranks"
    # os._exit: threads of torch that are alive when the interpreter ends sometimes abort the process
    script = f"import os; from pathlib import Path; from {here} import of_a_rank; of_a_rank(Path({str(folder)!r})); "
    script += "os._exit(0)"
    env = {**os.environ, **environment(2), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    with (folder / "stderr").open("w") as stderr:
        started = [
            subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env={**env, "RANK": str(rank)}, stderr=stderr)
            for rank in range(2)
        ]
        try:
            return str([process.wait(timeout=120) for process in started])
        finally:
            for process in started:
                process.kill()
                process.wait()


def environment(size: int) -> dict[str, str]:
    """Return the variables that torchrun would set, without the rank, with a free port."""
    from torch.distributed import TCPStore

    port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**variables, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(size)}


def test_ranks_sum_agree_and_receive_what_rank_0_publishes(two):
    (first, second), _ = two
    a, b = first["messages"], second["messages"]
    assert a["sum"] == b["sum"] == [2.0, 1.0]
    assert a["any"] == b["any"] == [True, False, True]
    assert a["broadcast"] == b["broadcast"] == 0
    assert b["received"] == [{"a": 1}, {"a": 2}]
    assert a["agreed"] == b["agreed"] == [True, False, False]


@pytest.mark.parametrize(("kind", "spec"), [("ddp", ODD), ("fsdp", SHARDED)])
def test_two_ranks_train_like_one_process(two, tmp_path, kind, spec):
    """Losses, held-out numbers and the watched norm, with uneven shares in parts, and zero-weight passes."""
    (first, second), folder = two
    alone = Bench(tmp_path)
    train(spec, alone)
    assert len(first[kind]) == len(alone.rows["metrics"]) == 3
    for ours, theirs, one in zip(first[kind], second[kind], alone.rows["metrics"], strict=True):
        for name in ("test_loss", "test_cross_entropy", "test_accuracy", "train_loss", "gradient_nuclear_norm"):
            if name in one:
                assert ours[name] == theirs[name]
                assert ours[name] == pytest.approx(one[name], rel=1e-5)
    together, weights = (load_file(place / "weights.safetensors") for place in (folder / kind, tmp_path))
    for name, tensor in weights.items():
        torch.testing.assert_close(together[name], tensor, rtol=1e-5, atol=1e-5)


def test_shares_are_the_batch_without_overlap_and_augmented_as_one(two, tmp_path):
    found, folder = two
    assert [one["pixels"] for one in found] == pytest.approx([16 / 31, 15 / 31])
    alone = Training(ODD.changed({"augmentation": "flip+translate", "micro_batch": None}), Bench(tmp_path))
    alone.step = 9
    ((x, _, _),) = alone.batch()
    parts = [load_file(folder / f"pixels{rank}.safetensors")["x"] for rank in range(2)]
    assert torch.equal(torch.cat(parts), x)


def test_gradients_in_shards_are_clipped_like_whole_ones(two, tmp_path):
    found, folder = two
    alone = Training(SHARDED.changed({"clip": None}), Bench(tmp_path))
    alone.update()
    norm = float(clip_gradients(alone.trained_parameters, 1e-3))
    assert [one["clipped"] for one in found] == pytest.approx([norm, norm], rel=1e-6)
    gradients = load_file(folder / "gradients.safetensors")
    for name, p in alone.model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-9)
    total = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    assert total == pytest.approx(1e-3, rel=1e-3)


def test_one_rank_that_is_asked_to_stop_stops_both_at_the_same_update(two):
    found, folder = two
    assert [one["stopped"] for one in found] == [["000000003"]] * 2  # asked once before the first update
    assert not list(folder.glob("stopped/*.part"))


def test_shards_are_split_between_optimizers_like_whole_parameters(two, tmp_path):
    found, _ = two
    expected = [str(row) for row in split_params(Training(SPEC, Bench(tmp_path)).model).table]
    assert [one["split"] for one in found] == [expected, expected]


# ------------------------------------------------------------------------------------------------------- alone


def test_a_single_process_needs_no_group():
    tensor = torch.ones(2)
    assert not ALONE.is_distributed
    assert ALONE.sum(tensor) is tensor
    assert ALONE.any(True, False) == (True, False)
    assert ALONE.all_ranks_agree("anything")
    ALONE.barrier()
    assert ALONE.broadcast("topic", 1) == 1
    assert ALONE.device("cuda") == "cuda"
    assert Ranks(3, 8, local_rank=1, group=object()).device("cuda") == "cuda:1"


def test_whole_gradients_are_clipped_by_torch_to_the_same_bits():
    models = [nn.Linear(7, 5) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, clipping in zip(models, (clip_gradients, nn.utils.clip_grad_norm_), strict=True):
        model(torch.linspace(0, 1, 7)).sum().backward()
        clipping(list(model.parameters()), 0.1)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(*(m.parameters() for m in models), strict=True))


def test_a_network_error_is_a_lost_rank_and_other_errors_stay():
    ranks = Ranks(0, 2)
    for message, short in (
        (
            "[/gloo/pair.cc:537] Read error [::1]:9: Connection reset by peer. Advice!",
            "Read error [::1]:9: ",
        ),
        ("Timed out waiting 600000ms for recv operation to complete", "Timed out waiting"),
    ):
        with pytest.raises(LostRankError) as caught, ranks.detect_lost_ranks():
            raise RuntimeError(message)
        assert str(caught.value).startswith(short)
        assert "pair.cc" not in str(caught.value)
        assert "Advice" not in str(caught.value)
        with pytest.raises(RuntimeError, match=re.escape(message)), ALONE.detect_lost_ranks():
            raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), ranks.detect_lost_ranks():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_rank_0_raises_the_error_that_a_lost_rank_has_reported():
    from torch.distributed import HashStore

    store = HashStore()
    first, second = (Ranks(rank, 2, store=store, group=object()) for rank in (0, 1))
    lost = "Connection closed by peer [127.0.0.1]:1"
    with pytest.raises(LostRankError), first.detect_lost_ranks():
        raise RuntimeError(lost)
    second.report_error("LinAlgError: no convergence")
    with pytest.raises(OtherRankError, match=r"got on rank 1 LinAlgError: no convergence"), first.detect_lost_ranks():
        raise RuntimeError(lost)
    with pytest.raises(LostRankError), second.detect_lost_ranks():  # rank 0 prints the error
        raise RuntimeError(lost)


def test_torchrun_is_recognized_by_its_variables(monkeypatch):
    for name in module.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not started_by_torchrun()
    for name in module.VARIABLES:
        monkeypatch.setenv(name, "0")
    assert started_by_torchrun()


def ranks_of(size: int, parallel: module.Parallel) -> Ranks:
    return Ranks(0, size, parallel=parallel, group=object())


def test_a_spec_that_ranks_cannot_train_together_is_refused_in_one_line():
    batch_norm = {"model": "cifarnet", "dataset": "cifar10"}
    for size, parallel, settings, message in (
        (128, "ddp", {}, "batch_size must be at least the number of ranks, 128, got 64"),
        (2, "ddp", {"device": "cuda:0"}, "--device must leave the number to torchrun, got 'cuda:0'"),
        (2, "fsdp", batch_norm, "--parallel fsdp needs a model without BatchNorm, got CifarNet"),
        (3, "hsdp", {}, "--parallel hsdp needs an even number of ranks, at least 4"),
        (2, "hsdp", {}, "--parallel hsdp needs an even number of ranks, at least 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            check_spec(SPEC.changed(settings), ranks=ranks_of(size, parallel))
        assert "\n" not in str(caught.value)


def test_jobs_and_measurements_are_refused_under_torchrun(tmp_path):
    ranks = ranks_of(2, "ddp")
    with pytest.raises(ValueError, match="--jobs must be 1 under torchrun"):
        run(study(), out=tmp_path / "run", jobs=2, ranks=ranks)
    with pytest.raises(ValueError, match="wall-clock measures one process, got torchrun: run it as muonlab run"):
        run(find("wall-clock"), out=tmp_path / "run", ranks=ranks)
    with pytest.raises(ValueError, match="batch_size must be at least the number of ranks, 99"):
        run(study(), out=tmp_path / "run", ranks=ranks_of(99, "ddp"))
    assert not (tmp_path / "run").exists()
