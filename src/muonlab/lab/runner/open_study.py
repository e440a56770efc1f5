"""A study whose run directory is held for writing, and the cells of it that are to be run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from muonlab import _checks
from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.files.hashed_json import write_json
from muonlab.lab.runner.cells import Job
from muonlab.lab.runner.environment import describe_machine, environment
from muonlab.lab.runner.planning import Planned, by_name, check, identified, planned
from muonlab.lab.runner.results import listed, sessions_of
from muonlab.lab.runner.signals import Bell
from muonlab.lab.runner.store import head, key_of, opened
from muonlab.lab.spec import Spec
from muonlab.lab.study import Study


@dataclass(frozen=True)
class Request:
    """What of a study is to be run, where and how: the arguments of :func:`run`, checked.

    ``retry_killed`` tries only those failed cells again whose process was killed.
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


class StudyRun:
    """A study whose run directory is held for writing, and the cells of it that are to be run.

    Attributes:
        names: of the folders of all cells that were asked for.
        tasks: the cells to run.
    """

    def __init__(self, request: Request, cells: Sequence[Planned], ranks: Ranks) -> None:
        self.request, self.names = request, [cell.folder.path.name for cell in cells]
        self._about = {**request.notes, "ranks": ranks.size, "parallel": ranks.parallel}
        self._session: tuple[int, dict[str, Any]] | None = None
        _write_cells(request.folder, cells)
        self.tasks = [Task(self, cell) for cell in _todo(cells, request)]

    def session(self) -> tuple[int, dict[str, Any]]:
        """Return the number and the content of this session in ``env.json``, written when the first cell is begun."""
        if self._session is None:
            sessions, study = sessions_of(self.request.folder), self.request.study
            about = {"claims": list(study.claims), "items": list(study.items), **self._about}
            program = Path(sys.argv[0]).name.replace("__main__.py", "muonlab")  # python -m muonlab
            sessions.append({**environment(), **about, "command": [program, *sys.argv[1:]]})
            write_json(self.request.folder / "env.json", {"sessions": sessions})
            self._session = len(sessions) - 1, sessions[-1]
        return self._session


class Task(NamedTuple):
    """A cell to run, and the study that it is of."""

    run: StudyRun
    planned: Planned

    @property
    def name(self) -> str:
        """What progress calls it."""
        return f"{self.planned.cell.label}, seed {self.planned.cell.spec.seed}"

    @property
    def folder(self) -> Path:
        """Of the cell."""
        return self.planned.folder.path

    def begin(self) -> Job:
        """Return the job for a worker, now that it is begun."""
        request, (number, session) = self.run.request, self.run.session()
        return Job(
            folder=self.folder,
            spec=self.planned.cell.spec,
            work=request.study.work,
            data=request.data,
            checkpoint_seconds=request.checkpoint_seconds,
            jobs=request.jobs,
            session=number,
            data_hash=self.planned.data_hash,
            keep_weights=request.keep_weights,
            key=key_of(self.planned.identity),
            machine=describe_machine(session),
            cores=session["cores"],
        )


@contextmanager
def opened_study(request: Request, bell: Bell, ranks: Ranks = ALONE, *, visible: bool = False) -> Iterator[StudyRun]:
    """Hold the run directory of a study for writing: its cells are planned and checked before anything is written."""
    cells = request.study.cells(
        request.profile, seeds=request.seeds, device=request.device, threads=request.threads, settings=request.settings
    )
    origins = identified(cells, request.data, bell, visible=visible)
    settings = {**request.settings, "device": request.device, "threads": request.threads}
    of = head(request.study, request.profile, settings, by_name(origins))
    all_cells = planned(request.folder, cells, origins)
    if _todo(all_cells, request):
        check(request.study, all_cells)
        _check_spread(all_cells, ranks)
    with opened(request.folder, of):
        yield StudyRun(request, all_cells, ranks)


def _write_cells(folder: Path, cells: Sequence[Planned]) -> None:
    """Make the folder of each cell, and list the cells in order."""
    names, earlier = [one.folder.path.name for one in cells], listed(folder)
    seeds = {one.cell.spec.seed for one in cells}
    for name in earlier:
        if name not in names and any(f"-seed{seed}-" in name for seed in seeds):
            raise ValueError(
                f"a run directory holds the cells of one study, got {folder} with {name}, which is not one of them: "
                f"the profile or the data were changed, choose another --out"
            )
    for one in cells:
        one.folder.create(one.cell, one.identity)
    if not set(names) <= set(earlier):
        write_json(folder / "cells.json", {"cells": [*names, *(name for name in earlier if name not in names)]})


def _todo(cells: Sequence[Planned], request: Request) -> list[Planned]:
    return [
        one
        for one in cells
        if (status := one.folder.status) == "open"
        or (status == "failed" and (request.retry or (request.retry_killed and one.folder.was_killed)))
    ]


def _check_spread(cells: Sequence[Planned], ranks: Ranks) -> None:
    if ranks.is_distributed:
        from muonlab.lab.training.setup import check as check_spec

        for one in cells:
            assert isinstance(one.cell.spec, Spec)
            check_spec(one.cell.spec, one.examples, ranks)
