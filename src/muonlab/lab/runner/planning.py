"""What a study has to do: its data by hash, its cells with folders and keys, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from muonlab.lab.cell_context import Stopped
from muonlab.lab.runner.progress import reading
from muonlab.lab.runner.signals import Bell
from muonlab.lab.runner.store import CellFolder, folder_name, identity, key_of
from muonlab.lab.settings import Settings
from muonlab.lab.spec import Spec
from muonlab.lab.study import Cell, Study

Request = tuple[str, int | None, int | None, int | None]
"""A dataset, and how much of it: training examples, held-out examples, block."""
Origins = Mapping[Request, Mapping[str, Any]]


class Planned(NamedTuple):
    """A cell, its folder, what decides its numbers, and the hash and size of its data."""

    cell: Cell
    folder: CellFolder
    identity: Mapping[str, Any]
    data_hash: str | None
    examples: int | None


def identified(cells: Sequence[Cell], root: Path | None, bell: Bell, *, visible: bool) -> Origins:
    """Return hash and origin of the data that cells ask for, decoded into the cache if they are not there yet."""
    from muonlab.lab.data import identify

    def unless_rung(show: Callable[[int, int, str], None], done: int, total: int, what: str) -> None:
        if bell.rung:
            raise Stopped
        show(done, total, what)

    found: dict[Request, dict[str, Any]] = {}
    for cell in cells:
        request = _request(cell.spec)
        if request is None or request in found:
            continue
        name, train, test, block = request
        with reading(name, visible=visible) as show:
            found_data = identify(
                name, root=root, train=train, test=test, block=block, progress=partial(unless_rung, show)
            )
        found[request] = {"hash": found_data.hash, **asdict(found_data.origin)}
    return found


def by_name(origins: Origins) -> dict[str, Mapping[str, Any]]:
    """Return origins by name of the dataset; where a study uses several parts of one, by name and part.

    Example:
        >>> by_name({("digits", None, None, None): {}, ("mnist", 10, None, None): {}, ("mnist", 20, None, None): {}})
        {'digits': {}, 'mnist, train=10': {}, 'mnist, train=20': {}}
    """
    names = [name for name, *_ in origins]
    return {
        name
        if names.count(name) == 1
        else ", ".join(
            [name, *(f"{k}={v}" for k, v in zip(("train", "test", "block"), sizes, strict=True) if v is not None)]
        ): origin
        for (name, *sizes), origin in origins.items()
    }


def planned(folder: Path, cells: Sequence[Cell], origins: Origins) -> list[Planned]:
    """Return each cell with its folder."""
    found = []
    for cell in cells:
        request = _request(cell.spec)
        origin = origins[request] if request else {}
        decides = identity(cell, origin.get("hash"))
        name = folder_name(cell.label, cell.spec.seed, key_of(decides))
        place = CellFolder(folder / "cells" / name)
        found.append(Planned(cell, place, decides, origin.get("hash"), origin.get("train")))
    return found


def check(study: Study, todo: Sequence[Planned]) -> None:
    """Let the work refuse specs that it cannot run."""
    module = import_module(study.work.partition(":")[0])
    if hasattr(module, "check"):
        for one in todo:
            module.check(one.cell.spec, one.examples)


def _request(spec: Settings) -> Request | None:
    return (spec.dataset, spec.train, spec.test, spec.block) if isinstance(spec, Spec) else None
