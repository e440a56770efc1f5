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
from muonlab.lab.runner.machine import describe_machine, environment
from muonlab.lab.runner.needs import check_needs
from muonlab.lab.runner.planning import PlannedCell, StudyRequest, check_cells, is_own, needs_run, plan_cells
from muonlab.lab.runner.results import cell_names, earlier_names, sessions_of
from muonlab.lab.runner.signals import StopSignal
from muonlab.lab.runner.store import hold_directory, key_of
from muonlab.lab.studies import studies


@contextmanager
def open_session(
    request: StudyRequest, stop: StopSignal, ranks: Ranks = ALONE, *, visible: bool = False
) -> Iterator[StudySession]:
    """Plan and check the cells of a request, then hold its run directory for writing."""
    head, cells = plan_cells(request, stop, visible=visible)
    to_run = [cell for cell in cells if needs_run(cell, request)]
    if to_run:
        check_cells(request.study, cells, ranks)
        check_needs(request, to_run)
    with hold_directory(request.folder, head):
        _create_folders(request, cells)
        yield StudySession(request, cells, ranks)


def _create_folders(request: StudyRequest, cells: Sequence[PlannedCell]) -> None:
    """Create the folder of each cell, and list the cells in ``cells.json``.

    Cells of an earlier definition of the user's own study stay in the directory, listed as ``earlier``.
    """
    folder = request.folder
    names, listed, earlier = [planned.folder.path.name for planned in cells], cell_names(folder), earlier_names(folder)
    seeds = {planned.cell.spec.seed for planned in cells}
    replaced = [name for name in listed if name not in names and any(f"-seed{seed}-" in name for seed in seeds)]
    if replaced and not is_own(request.study, cells):
        raise ValueError(
            f"a run directory holds the cells of one study, got {folder} with {replaced[0]}, which is not one of them: "
            f"the definition of the study has changed since: choose another --out"
        )
    for planned in cells:
        planned.folder.create(planned.cell, planned.identity)
    kept = [*names, *(name for name in listed if name not in {*names, *replaced})]
    aside = sorted({*earlier, *replaced} - set(kept))
    if set(kept) != set(listed) or aside != earlier:
        write_json(folder / "cells.json", {"cells": kept, **({"earlier": aside} if aside else {})})


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
                **_about_own_study(self.request),
                **self.request.notes,
                "ranks": self._ranks.size,
                "parallel": self._ranks.parallel,
                "command": [program, *sys.argv[1:]],
            }
            write_json(self.request.folder / "env.json", {"sessions": [*sessions, entry]})
            self._entry = len(sessions), entry
        return self._entry


def _about_own_study(request: StudyRequest) -> dict[str, Any]:
    """Return what a page needs to know of a study that the package does not have."""
    study = request.study
    if study == studies().get(study.name):
        return {}
    differences = study.profiles[request.profile].differences
    return {"title": study.title, "differences": differences, "file": Path(study.file).name}


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
        spec = self.planned.cell.spec
        return CellJob(
            folder=self.folder,
            spec=spec,
            work=request.study.work,
            data=request.data,
            checkpoint_seconds=request.checkpoint_seconds,
            jobs=request.jobs,
            session=number,
            data_hash=self.planned.identity["data"],
            keep_weights=request.keep_weights,
            key=key_of(self.planned.identity),
            machine=describe_machine(entry),
            cores=entry["cores"],
            planned=spec.to_dict() if spec.own_parts() else None,
        )
