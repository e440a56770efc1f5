"""One rank of a training with Accelerate's FSDP2 on gloo: ``python fsdp2_rank.py RANK RANKS FOLDER start|resume``.

Accelerate chooses FSDP2 on accelerators alone: with ``cpu=True`` its state has the distributed type MULTI_CPU, and the
plugin is ignored. The assignments in ``accelerator_on_cpu`` make the choice that it would make on a GPU; all that
follows (``prepare``, ``save_state``, ``load_state``) is Accelerate's own code.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from muonlab import Muon, MuonWithAux, split_params

STEPS = 3
"""Steps before the state is saved, and after it."""


def network() -> nn.Module:
    """Return a small network; its matrices have rows that two ranks share unevenly."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 15), nn.LayerNorm(15), nn.ReLU(), nn.Linear(15, 12, bias=False), nn.ReLU(), nn.Linear(12, 4)
    )


def optimizer_of(model: nn.Module) -> MuonWithAux:
    """Return Muon for the matrices, both cut into two, and AdamW for the rest."""
    split = split_params(model, rules={"0.weight": "rows(5, 10)", "3.weight": "interleaved_rows(2, 3)"})
    muon = Muon(split.matrices, lr=0.05, weight_decay=0.1)
    return MuonWithAux(muon, torch.optim.AdamW(split.rest, lr=0.01, weight_decay=0.1, foreach=False))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, the same on every rank: averages of equal gradients are exact."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)


def losses(model, optimizer, steps, *, backward=lambda loss: loss.backward(), clip=None) -> list[float]:
    """Train for the given steps and return their losses."""
    result = []
    for step in steps:
        X, Y = batch(step)
        loss = (model(X) - Y).square().mean()
        optimizer.zero_grad()
        backward(loss)
        if clip is not None:
            clip()
        optimizer.step()
        result.append(loss.item())
    return result


def accelerator_on_cpu(*, through_meta: bool):
    """Return an Accelerator that uses FSDP2 on the CPU, with or without a model on the meta device in between."""
    from accelerate import Accelerator, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=through_meta)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    return accelerator


def main(rank: int, ranks: int, folder: Path, mode: str) -> None:
    """Train, save and train on; or load what was saved and train on."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / mode}{ranks}.store", rank=rank, world_size=ranks)
    accelerator = accelerator_on_cpu(through_meta=mode == "resume")
    model = network()
    optimizer = optimizer_of(model)
    old = [weakref.ref(p) for p in model.parameters()]
    model, optimizer = accelerator.prepare(model, optimizer)
    inner = optimizer.optimizer
    placements = sorted({str(p.placements) for group in inner.param_groups for p in group["params"]})
    result = {"placements": placements, "before": []}
    train = {"backward": accelerator.backward}
    if mode == "start":
        result["before"] = losses(model, optimizer, range(STEPS), **train)
        accelerator.save_state(str(folder / "checkpoint"))
    else:
        accelerator.load_state(str(folder / "checkpoint"))
    result["after"] = losses(model, optimizer, range(STEPS, 2 * STEPS), **train)
    gc.collect()
    result["alive"] = sum(reference() is not None for reference in old)
    result["states"] = len(inner.state)
    result["orthogonalized"] = inner.muon.orthogonalized
    result["weights"] = {name: p.full_tensor().tolist() for name, p in model.named_parameters()}
    result["clipped"] = losses(
        model, optimizer, range(2), **train, clip=lambda: accelerator.clip_grad_norm_(model.parameters(), 0.1)
    )
    (folder / f"{mode}.{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
