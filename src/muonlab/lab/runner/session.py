"""A run directory that is held for writing, and the cells of it that have to be run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muonlab.lab.distributed.ranks import ALONE, Ranks
from muonlab.lab.files.hashed_json import write_json
from muonlab.lab.runner.cells import CellJob
from muonlab.lab.runner.environment import describe_machine, environment
from muonlab.lab.runner.planning import PlannedCell, StudyRequest, check_cells, needs_run, plan_cells
from muonlab.lab.runner.results import cell_names, sessions_of
from muonlab.lab.runner.signals import StopSignal
from muonlab.lab.runner.store import hold_directory, key_of


@contextmanager
def open_session(
    request: StudyRequest, stop: StopSignal, ranks: Ranks = ALONE, *, visible: bool = False
) -> Iterator[StudySession]:
    """Plan and check the cells of a request, then hold its run directory for writing."""
    head, cells = plan_cells(request, stop, visible=visible)
    if any(needs_run(cell, request) for cell in cells):
        check_cells(request.study, cells, ranks)
    with hold_directory(request.folder, head):
        _create_folders(request.folder, cells)
        yield StudySession(request, cells, ranks)


def _create_folders(folder: Path, cells: Sequence[PlannedCell]) -> None:
    """Create the folder of each cell, and list the cells in ``cells.json``."""
    names, listed = [planned.folder.path.name for planned in cells], cell_names(folder)
    seeds = {planned.cell.spec.seed for planned in cells}
    for name in listed:
        if name not in names and any(f"-seed{seed}-" in name for seed in seeds):
            raise ValueError(
                f"a run directory holds the cells of one study, got {folder} with {name}, which is not one of them: "
                f"the definition of the study has changed since: choose another --out"
            )
    for planned in cells:
        planned.folder.create(planned.cell, planned.identity)
    if not set(names) <= set(listed):
        write_json(folder / "cells.json", {"cells": [*names, *(name for name in listed if name not in names)]})


class StudySession:
    """One session of work on a run directory.

    Attributes:
        request: what was asked for.
        names: names of the folders of all requested cells.
        tasks: the cells to run.
    """

    def __init__(self, request: StudyRequest, cells: Sequence[PlannedCell], ranks: Ranks) -> None:
        self.request, self.names = request, [planned.folder.path.name for planned in cells]
        self.tasks = [
            CellTask(self, planned, f"{planned.cell.label}, seed {planned.cell.spec.seed}")
            for planned in cells
            if needs_run(planned, request)
        ]
        self._ranks = ranks
        self._entry: tuple[int, dict[str, Any]] | None = None

    def entry(self) -> tuple[int, dict[str, Any]]:
        """Return the index and the content of this session in ``env.json``, written when the first cell is started."""
        if self._entry is None:
            sessions, study = sessions_of(self.request.folder), self.request.study
            program = Path(sys.argv[0]).name.replace("__main__.py", "muonlab")  # python -m muonlab
            entry = {
                **environment(),
                "claims": list(study.claims),
                "items": list(study.items),
                **self.request.notes,
                "ranks": self._ranks.size,
                "parallel": self._ranks.parallel,
                "command": [program, *sys.argv[1:]],
            }
            write_json(self.request.folder / "env.json", {"sessions": [*sessions, entry]})
            self._entry = len(sessions), entry
        return self._entry


@dataclass(frozen=True)
class CellTask:
    """A cell to run, its session, and the name that progress displays use."""

    session: StudySession
    planned: PlannedCell
    name: str

    @property
    def folder(self) -> Path:
        """The cell's folder."""
        return self.planned.folder.path

    def start(self) -> CellJob:
        """Return the job of the cell; the first one of a session writes its environment to ``env.json``."""
        request, (number, entry) = self.session.request, self.session.entry()
        return CellJob(
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
            machine=describe_machine(entry),
            cores=entry["cores"],
        )
