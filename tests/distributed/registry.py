"""What runs inside the ranks: every case by name, and what a case is told about its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = (
    "layouts",
    "options",
    "traffic",
    "faults",
    "placements",
    "states",
    "training",
    "diagnostics",
    "corners",
    "hazards",
)
ALL = (1, 2, 3, 4)
RARE = (1, 3, 4)
"""Numbers of ranks that only ``make soak`` runs."""
TIMEOUT = timedelta(seconds=10)
"""Of a collective: a rank that waits for one that has failed gives up after it."""


@dataclass
class World:
    """This process among the ranks of a run."""

    rank: int
    size: int
    store: Any
    folder: Path
    _groups: int = 0
    _meshes: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def connect(self) -> None:
        """Make a process group of all ranks; a further one has names of its own in the store."""
        import torch.distributed as dist

        self._groups += 1
        store = dist.PrefixStore(f"group{self._groups}/", self.store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)

    def reconnect(self) -> None:
        """Leave a group that may be out of step, and make a new one."""
        import torch.distributed as dist

        dist.destroy_process_group()
        self._meshes.clear()
        self.connect()

    def mesh(self, *shape: int) -> Any:
        """Return the device mesh of this shape (one dimension with all ranks by default), made once."""
        from torch.distributed.device_mesh import init_device_mesh

        shape = shape or (self.size,)
        if shape not in self._meshes:
            # a name of its own for every process group: meshes of one that is gone would be equal to new ones
            names = ("replicate", f"shard{self._groups}")[-len(shape) :]
            self._meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
        return self._meshes[shape]


@dataclass(frozen=True)
class Case:
    """A function that all ranks call; it returns something that JSON can hold, or raises.

    Args:
        name: of its files and tests.
        run: called with the World.
        sizes: numbers of ranks that it is for.
        family: whose test it belongs to.
    """

    name: str
    run: Callable[[World], Any]
    sizes: tuple[int, ...]
    family: str


_CASES: dict[str, Case] = {}


def case(*sizes: int, family: str, name: str = "", **options: Any) -> Callable[[Any], Any]:
    """Register a function as a case; ``options`` are passed on to it."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        label = name or function.__name__
        if label in _CASES:
            raise ValueError(f"a case is called {label!r} already")
        _CASES[label] = Case(label, partial(function, **options), sizes or ALL, family)
        return function

    return add


def cases() -> list[Case]:
    """Return every case, in the order of the modules."""
    for module in MODULES:
        import_module(f"tests.distributed.cases.{module}")
    return list(_CASES.values())


def each_size(family: str) -> Any:
    """Return the decorator that runs a test once for each N, over the names of all cases of a family.

    Two ranks belong to ``make test``, the other numbers to ``make soak``.
    """
    import pytest

    by_size = {size: [one.name for one in cases() if one.family == family and size in one.sizes] for size in ALL}
    params = [
        pytest.param(size, names, id=f"{size}-ranks", marks=[pytest.mark.slow] if size in RARE else [])
        for size, names in by_size.items()
        if names
    ]
    return pytest.mark.parametrize(("size", "cases"), params)
