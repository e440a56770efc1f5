"""Which cells a study has, which of them have to be run, and whether they can be; nothing is written here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from muonlab import _checks
from muonlab.lab.cell_context import Stopped
from muonlab.lab.distributed.ranks import Ranks
from muonlab.lab.own.datasets import OwnDataset
from muonlab.lab.own.part import OwnPart
from muonlab.lab.runner.progress import reading_progress
from muonlab.lab.runner.signals import StopSignal
from muonlab.lab.runner.store import CellFolder, folder_name, identity, key_of, study_head
from muonlab.lab.settings import Settings
from muonlab.lab.spec import Spec
from muonlab.lab.study import Cell, Study

DataPart = tuple[str | OwnDataset, int | None, int | None, int | None]
"""A dataset and the part of it that is used: training examples, held-out examples, block."""


@dataclass(frozen=True)
class StudyRequest:
    """What to run of a study, where and how: the checked arguments of :func:`muonlab.lab.run`.

    ``retry_killed`` retries only those failed cells whose process was killed.
    """

    study: Study
    profile: str
    folder: Path
    threads: int
    seeds: int | None = None
    data: Path | None = None
    device: str = "cpu"
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry: bool = False
    retry_killed: bool = False
    keep_weights: bool = True
    checkpoint_seconds: float = 60.0
    jobs: int = 1
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.non_negative("checkpoint_seconds", self.checkpoint_seconds)


@dataclass(frozen=True)
class PlannedCell:
    """A cell, its folder, its identity (everything that decides its numbers), and the size of its training data."""

    cell: Cell
    folder: CellFolder
    identity: Mapping[str, Any]
    examples: int | None


def plan_cells(request: StudyRequest, stop: StopSignal, *, visible: bool) -> tuple[dict[str, Any], list[PlannedCell]]:
    """Return the content of ``study.json`` and all cells of a request, finished ones included.

    Data that are not in the cache are decoded into it; ``visible`` shows the progress.

    Raises:
        Stopped: if a stop is requested while data are read.
        ValueError: if a cell has a part that cannot be identified, and the study keeps finished cells.
    """
    study = request.study
    code = code_of(study)
    cells = study.cells(
        request.profile, seeds=request.seeds, device=request.device, threads=request.threads, settings=request.settings
    )
    origins: dict[DataPart, dict[str, Any]] = {}
    planned = []
    for cell in cells:
        part, origin = _data_part(cell.spec), {}
        if part is not None:
            if part not in origins:
                origins[part] = _identify_data(part, request.data, stop, visible=visible)
            origin = origins[part]
        if study.cache or request.jobs > 1:  # a part without a name cannot be sent to a worker either
            for part_of_spec in cell.spec.own_parts():
                part_of_spec.check_hashable()
        decides = identity(cell, origin.get("hash"), code)
        name = folder_name(cell.label, cell.spec.seed, key_of(decides))
        folder = CellFolder(request.folder / "cells" / name)
        planned.append(PlannedCell(cell, folder, decides, origin.get("train")))
    settings = {**request.settings, "device": request.device, "threads": request.threads}
    return study_head(study, request.profile, settings, origins_by_name(origins)), planned


def code_of(study: Study) -> dict[str, Any]:
    """Return what a study adds to the identity of its cells: the source of its own function that runs them.

    Without ``cache``, a random number makes the cells of every session new ones.
    """
    code: dict[str, Any] = {}
    if not isinstance(study.work, str):
        own = OwnPart(study.work)
        if study.cache:
            own.check_hashable()
        code = {"work": own.identity}
    return code if study.cache else {**code, "session": secrets.token_hex(8)}


def is_own(study: Study, cells: Sequence[PlannedCell]) -> bool:
    """Return whether a study is the user's own: from a file, or with the user's model, data, optimizer or function."""
    return bool(study.file) or not isinstance(study.work, str) or any(cell.cell.spec.own_parts() for cell in cells)


def needs_run(planned: PlannedCell, request: StudyRequest) -> bool:
    """Return whether a cell is run: an open one always, a failed one only if it is retried, a finished one never.

    A changed spec, data or ``NUMERICS`` gives another key; the same run directory then refuses the run
    (``store._check_same``, ``session._create_folders``), and with another ``--out`` the cell is open. In a study of the
    user's own, changed code or a changed spec is a new cell of the same run directory, and the old one stays.
    """
    status = planned.folder.status
    if status == "failed":
        return request.retry or (request.retry_killed and planned.folder.was_killed)
    return status == "open"


def check_cells(study: Study, cells: Sequence[PlannedCell], ranks: Ranks) -> None:
    """Raise ValueError for a spec that cannot be run on this machine; a function of the user checks its own specs."""
    from muonlab.lab.training.setup import check_device, check_spec

    for planned in cells if isinstance(study.work, str) else ():
        spec = planned.cell.spec
        if isinstance(spec, Spec):
            check_spec(spec, planned.examples, ranks)
        else:
            check_device(spec.device)


def _data_part(spec: Settings) -> DataPart | None:
    return (spec.dataset, spec.train, spec.test, spec.block) if isinstance(spec, Spec) else None


def _identify_data(part: DataPart, root: Path | None, stop: StopSignal, *, visible: bool) -> dict[str, Any]:
    """Return the hash and the origin of a part of a dataset."""
    from muonlab.lab.data.loading import identify

    name, train, test, block = part
    with reading_progress(_data_name(name), visible=visible) as show:

        def progress(done: int, total: int, what: str) -> None:
            if stop.requested:
                raise Stopped
            show(done, total, what)

        data = identify(name, root=root, train=train, test=test, block=block, progress=progress)
    return {"hash": data.hash, **asdict(data.origin)}


def _data_name(data: str | OwnDataset) -> str:
    return data if isinstance(data, str) else data.name


def origins_by_name(origins: Mapping[DataPart, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return origins by the name of the dataset; where a study uses several parts of one, by name and part.

    Example:
        >>> parts = {("digits", None, None, None): {}, ("mnist", 10, None, None): {}, ("mnist", 20, None, None): {}}
        >>> origins_by_name(parts)
        {'digits': {}, 'mnist, train=10': {}, 'mnist, train=20': {}}
    """
    names = [_data_name(data) for data, *_ in origins]
    by_name: dict[str, Mapping[str, Any]] = {}
    for name, (_, *sizes), origin in zip(names, origins.keys(), origins.values(), strict=True):
        given = [f"{k}={v}" for k, v in zip(("train", "test", "block"), sizes, strict=True) if v is not None]
        full_name = name if names.count(name) == 1 else ", ".join([name, *given])
        if by_name.setdefault(full_name, origin) != origin:
            raise ValueError(f"data must have names of their own, got two {full_name!r}: use dataset(…, name=…)")
    return by_name
