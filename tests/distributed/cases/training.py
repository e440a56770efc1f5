"""Real training without injected gradients: each rank has its part of the batch, and one process has all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from muonlab.lab.models.gpt import GPT
from muonlab.optim import SGDM, Muon, MuonWithAux, split_params
from tests.distributed.problems import World, whole
from tests.distributed.registry import case

STEPS, BATCH = 50, 24
"""The batch divides by 1, 2, 3 and 4 ranks, and by 4 micro-batches of them for 1 and 2."""


def digits(step: int) -> tuple[Tensor, Tensor]:
    """Return a batch of images of digits."""
    images, targets = _all_digits()
    chosen = torch.randperm(len(targets), generator=torch.Generator().manual_seed(step))[:BATCH]
    return images[chosen], targets[chosen]


@cache
def _all_digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


def text(step: int) -> tuple[Tensor, Tensor]:
    """Return a batch of sequences of letters, and the letters that follow."""
    letters = torch.tensor([ord(c) % 32 for c in (str(dist.__doc__) + str(torch.optim.SGD.__doc__)).lower()])
    first = torch.randint(len(letters) - 13, (BATCH,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([letters[i : i + 13] for i in first])
    return rows[:, :-1], rows[:, 1:]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 10))


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT(12, 32, layers=1, heads=2, width=16)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]]]] = {
    "mlp": (mlp, digits),
    "gpt": (gpt, text),
}


def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return functional.cross_entropy(net(inputs).flatten(0, -2), targets.flatten())


def optimizer_of(net: nn.Module, polar: str, **options: Any) -> MuonWithAux:
    bare = net.module if isinstance(net, DistributedDataParallel) else net
    split = split_params(bare, rules=getattr(bare, "matrix_rules", None))
    muon = Muon.paper(split.matrices, 0.02, momentum=0.9, q=5, variant="experiments", polar=polar, **options)
    aux = SGDM(split.rest, 0.05, 0.9, process_group=options.get("process_group"))
    return MuonWithAux(muon, aux)


def train(net: nn.Module, optimizer: Any, data: Any, mine: slice, pieces: int = 1, steps: int = STEPS) -> list[float]:
    """Train on a rank's part of each batch, in so many micro-batches, and return its losses."""
    losses = []
    for step in range(steps):
        inputs, targets = (part[mine] for part in data(step))
        total = 0.0
        for i, batch in enumerate(zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)):
            _sync(net, i == pieces - 1)
            loss = loss_of(net, batch) / pieces
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _sync(net: nn.Module, last: bool) -> None:
    """Average gradients over the ranks in the last micro-batch only."""
    if isinstance(net, DistributedDataParallel):
        net.require_backward_grad_sync = last
    elif hasattr(net, "set_requires_gradient_sync"):
        net.set_requires_gradient_sync(last)


def parallel(world: World, net: nn.Module, how: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network as DDP, FSDP2 or HSDP would have it, and the options of its optimizer."""
    if how == "ddp":
        return DistributedDataParallel(net), {"process_group": dist.group.WORLD}
    mesh = world.mesh(2, world.size // 2) if how == "hsdp" else world.mesh()
    for block in getattr(net, "blocks", ()):
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh), {}


def apart(these: Mapping[str, Tensor], those: Mapping[str, Tensor]) -> float:
    """Return the largest difference of any weight, relative to the largest entry of that parameter."""
    assert these.keys() == those.keys()
    pairs = [(whole(these[name]), whole(those[name])) for name in these]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


REFERENCES = (("mlp", "newton_schulz"), ("gpt", "newton_schulz"), ("mlp", "svd"))


@case(2, 4, family="references")
def real_references(world: World) -> None:
    """One process on whole batches, each network on another rank; left in files for all."""
    wanted = REFERENCES if world.size == 2 else REFERENCES[:1]
    for net, polar in wanted[world.rank :: world.size]:
        make, data = NETS[net]
        one = make()
        losses = train(one, optimizer_of(one, polar), data, slice(None))
        tensors = {name: p.detach() for name, p in one.named_parameters()}
        save_file({**tensors, "losses": torch.tensor(losses)}, world.folder / f"{net} {polar}.safetensors")
    dist.barrier()


def _real(world: World, how: str, net: str, polar: str, pieces: int = 1) -> dict[str, float]:
    make, data = NETS[net]
    reference = load_file(world.folder / f"{net} {polar}.safetensors")
    expected = reference.pop("losses")
    mine, options = parallel(world, make(), how)
    share = BATCH // world.size
    part = slice(world.rank * share, (world.rank + 1) * share)
    losses = torch.tensor(train(mine, optimizer_of(mine, polar, **options), data, part, pieces))
    dist.all_reduce(losses)
    off = (losses / world.size - expected).abs() / expected
    weights = {name.removeprefix("module."): p for name, p in mine.named_parameters()}
    ends = {"first": float(expected[0]), "last": float(expected[-1])}
    return {"apart": apart(weights, reference), "loss": float(off.max()), **ends}


for sizes, how, net, polar, pieces in (
    ((2,), "ddp", "gpt", "newton_schulz", 1),
    ((2,), "fsdp", "gpt", "newton_schulz", 1),
    ((2,), "ddp", "mlp", "svd", 1),
    ((2,), "fsdp", "mlp", "newton_schulz", 4),
    ((4,), "fsdp", "mlp", "newton_schulz", 1),
):
    name = f"real_{how}_{net}_{polar}_{pieces}"
    family = "real polar" if polar == "svd" else "real"
    case(*sizes, family=family, name=f"{name}_on_{sizes[0]}", how=how, net=net, polar=polar, pieces=pieces)(_real)
