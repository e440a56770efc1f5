"""Parameters of many shapes and placements, gradients that every rank knows, and the comparison with one process."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer

from tests.distributed.registry import World

STEPS = 8
Where = int | str
"""``"plain"``, ``"replicate"``, or the dimension that is sharded."""


@dataclass(frozen=True)
class Matrix:
    """A parameter: its shape when whole, how it is seen as matrices, and where its entries lie."""

    shape: tuple[int, ...]
    view: Any = "flatten"
    where: Where = 0
    name: str = ""

    @property
    def label(self) -> str:
        """The name, or one that tells all."""
        return self.name or f"{'x'.join(map(str, self.shape))} at {self.where} as {self.view}"


SHAPES = (
    # rows over 2, 3 and 4 ranks: even, uneven, one or more ranks with nothing
    Matrix((24, 16)),
    Matrix((16, 40)),
    Matrix((15, 9)),
    Matrix((5, 12)),
    Matrix((3, 7)),
    Matrix((2, 6)),
    Matrix((1, 5)),
    Matrix((30, 4)),
    Matrix((8, 3, 3, 3)),  # filters
    Matrix((5, 2, 3, 3)),
)
FUSED = (
    Matrix((24, 8), (8, 8, 8)),
    Matrix((21, 8), (9, 5, 7)),  # blocks straddle shards of any number
    Matrix((6, 10), (1, 4, 1)),
)
STACKS = (
    Matrix((4, 6, 5), "batch"),
    Matrix((3, 5, 8), "batch"),
    Matrix((2, 3, 4, 6), "batch"),
)
CUT = (
    # every word of the language of views; interleaved rows and columns in whole turns for 1 to 4 shards
    Matrix((10, 21), "columns(9, 5, 7)"),
    Matrix((15, 8), "row_heads(5)"),
    Matrix((8, 15), "transposed column_heads(5)"),
    Matrix((24, 7), "interleaved_rows(2, 1)"),
    Matrix((36, 5), "interleaved_rows(2, 1, 2)"),
    Matrix((7, 24), "transposed interleaved_columns(2, 1)"),
    Matrix((4, 9, 5), "batch rows(4, 5)"),
    Matrix((3, 5, 9), "batch columns(4, 5)"),
    Matrix((3, 8, 5), "batch row_heads(4)"),
    Matrix((3, 24, 5), "batch interleaved_rows(2, 1)"),
    Matrix((3, 36, 4), "batch interleaved_rows(2, 1, 2)"),
    Matrix((4, 5, 24), "batch transposed interleaved_columns(2, 1)"),
)


def everywhere(matrices: Sequence[Matrix], where: Where) -> tuple[Matrix, ...]:
    """Return the parameters placed so; those without that dimension are left out."""
    fits = [one for one in matrices if not isinstance(where, int) or where < len(one.shape)]
    return tuple(replace(one, where=where) for one in fits)


MIXED = (
    *everywhere((Matrix((12, 16)), Matrix((5, 12)), Matrix((1, 9)), Matrix((21, 8), (9, 5, 7))), 0),
    *everywhere((Matrix((12, 16)), Matrix((10, 5)), Matrix((6, 1)), Matrix((9, 7), (4, 5))), 1),
    Matrix((5, 2, 3, 3)),
    *(Matrix((3, 4, 5), "batch", where) for where in (0, 1, 2)),
    *(Matrix((7, 11), "flatten", where) for where in ("plain", "replicate")),
    Matrix((14, 6), "flatten", "plain"),
)
"""Every placement in one optimizer."""


def weights(matrices: Sequence[Matrix], seed: int = 0) -> list[Tensor]:
    """Return the whole parameters at the start, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(one.shape, generator=generator) for one in matrices]


def gradients(matrices: Sequence[Matrix], step: int, seed: int = 0) -> list[Tensor]:
    """Return the whole gradients of a step, the same on every rank."""
    return weights(matrices, zlib.crc32(f"{seed} {step}".encode()))


def placed(world: World, whole: Tensor, where: Where, shape: tuple[int, ...] = ()) -> Tensor:
    """Return the part of a tensor that this rank holds; on a mesh of two dimensions the first one replicates."""
    if where == "plain":
        return whole.clone()
    mesh = world.mesh(*shape)
    last = Replicate() if where == "replicate" else Shard(where)
    placements = [*[Replicate()] * (mesh.ndim - 1), last]
    return distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None)


def like(whole: Tensor, param: Tensor) -> Tensor:
    """Return a whole tensor in the place of a parameter."""
    if not isinstance(param, DTensor):
        return whole.clone()
    return distribute_tensor(whole.clone(), param.device_mesh, param.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """Return all entries of a tensor, wherever they lie."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def params_of(world: World, matrices: Sequence[Matrix], shape: tuple[int, ...] = ()) -> list[nn.Parameter]:
    """Return parameters in their places."""
    return [
        nn.Parameter(placed(world, W, one.where, shape)) for one, W in zip(matrices, weights(matrices), strict=True)
    ]


def grouped(matrices: Sequence[Matrix], params: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return parameter groups by view, with names."""
    groups: dict[Any, list[tuple[str, Tensor]]] = {}
    for one, p in zip(matrices, params, strict=True):
        groups.setdefault(one.view, []).append((one.label, p))
    return [{"params": named, "matrix_view": view} for view, named in groups.items()]


Build = Callable[..., Optimizer]
"""Makes an optimizer from groups; ``process_group`` comes as a keyword for the ranks and not at all for one process."""


@dataclass
class Training:
    """Parameters under an optimizer, driven by gradients from outside."""

    matrices: Sequence[Matrix]
    params: list[Tensor]
    optimizer: Optimizer
    taken: int = 0
    everything: Sequence[Matrix] = ()
    """All parameters that gradients are drawn for, where these are a share of them."""

    def step(self, steps: int = 1, change: Callable[[int, list[Tensor]], Any] | None = None) -> None:
        """Take steps; ``change(step, whole gradients)`` may alter them, and drop one by putting None in its place."""
        for _ in range(steps):
            drawn = gradients(self.everything or self.matrices, self.taken)
            grads = [G for one, G in zip(self.everything or self.matrices, drawn, strict=True) if one in self.matrices]
            if change:
                change(self.taken, grads)
            for p, G in zip(self.params, grads, strict=True):
                p.grad = None if G is None else like(G, p)
            self.taken += 1
            self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and every tensor of the state by name, whole."""
        found = {}
        for one, p in zip(self.matrices, self.params, strict=True):
            found[one.label] = whole(p)
            found |= {f"{key} of {one.label}": whole(t) for key, t in sorted(self._state(p).items())}
        return found

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        return {key: t for key, t in self.optimizer.state[p].items() if isinstance(t, Tensor) and t.ndim}


def distributed(
    world: World, matrices: Sequence[Matrix], build: Build, shape: tuple[int, ...] = (), **options: Any
) -> Training:
    """Return the training of parameters that lie over the ranks."""
    import torch.distributed as dist

    params = params_of(world, matrices, shape)
    if any(one.where == "plain" for one in matrices):
        options["process_group"] = dist.group.WORLD
    return Training(matrices, params, build(grouped(matrices, params), **options))


def alone(matrices: Sequence[Matrix], build: Build, share: Sequence[Matrix] | None = None) -> Training:
    """Return the same training in one process, or a share of it."""
    chosen = [(one, W) for one, W in zip(matrices, weights(matrices), strict=True) if share is None or one in share]
    kept, params = [one for one, _ in chosen], [nn.Parameter(W) for _, W in chosen]
    optimizer = build(grouped(kept, params)) if kept else torch.optim.SGD([torch.zeros(1)])
    return Training(kept, params, optimizer, everything=matrices)


def bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as integers, so that NaN equals itself and zeros have signs."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(integers[tensor.element_size()])


def differing(these: dict[str, Tensor], those: dict[str, Tensor]) -> list[str]:
    """Say which tensors differ in any bit, and by how much."""
    wrong = [f"{name} is only on one side" for name in these.keys() ^ those.keys()]
    for name in these.keys() & those.keys():
        a, b = these[name], those[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f"{name}: {tuple(a.shape)} {a.dtype} against {tuple(b.shape)} {b.dtype}")
        elif not torch.equal(bits(a), bits(b)):
            count = int((bits(a) != bits(b)).sum())
            wrong.append(f"{name}: {count} of {a.numel()} entries, by up to {float((a - b).abs().max()):.3g}")
    return sorted(wrong)


def agree(these: Training, those: Training) -> None:
    """Fail unless weights and states are the same to the bit, and states lie where their parameters do."""
    expected = those.tensors()
    wrong = differing({name: t for name, t in these.tensors().items() if name in expected}, expected)
    assert not wrong, "not the bits of one process: " + "; ".join(wrong)
    for one, p in zip(these.matrices, these.params, strict=True):
        for key, t in these._state(p).items():
            assert type(t) is type(p.data), f"{key} of {one.label} is a {type(t).__name__}"
            if isinstance(t, DTensor):
                assert t.placements == p.placements, f"{key} of {one.label} lies at {t.placements}"
                assert t.device_mesh == p.device_mesh, f"{key} of {one.label} lies on {t.device_mesh}"


def compare(
    world: World,
    matrices: Sequence[Matrix],
    build: Build,
    shape: tuple[int, ...] = (),
    steps: int = STEPS,
    *,
    apart: bool = True,
) -> None:
    """Train over the ranks and alone, and fail unless both are the same to the bit.

    One process costs as much as all ranks together, so each rank plays it for its share of the parameters only, and
    all compare what they hold; not so if the optimizer cannot be built of some parameters (``apart=False``).
    """
    share = matrices[world.rank :: world.size] if apart else matrices
    these, those = distributed(world, matrices, build, shape), alone(matrices, build, share)
    these.step(steps)
    those.step(steps)
    still = [name for name, t in those.tensors().items() if torch.equal(t, torch.zeros_like(t))]
    assert not still, f"a reference that stands still proves nothing: {still}"
    agree(these, those)
    alike(world, these)


def alike(world: World, training: Training) -> None:
    """Fail unless all ranks have the same bits, whole."""
    import torch.distributed as dist

    found = training.tensors()
    mine = torch.tensor([zlib.crc32(bits(t).numpy().tobytes()) for t in found.values()])
    everyones = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(everyones, mine)
    apart = [name for name, *crcs in zip(found, *(one.tolist() for one in everyones), strict=True) if len({*crcs}) > 1]
    assert not apart, f"ranks differ in {apart}"
