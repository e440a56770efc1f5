"""Running a study: what is written, what is never run again, failures, refused directories, workers."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from muonlab.lab import load_results, run
from muonlab.lab.runner import cells, run_study, store
from muonlab.lab.runner.summary import summarize
from muonlab.lab.settings import Settings
from muonlab.lab.study import Axis, Cell, Point
from tests.lab.runner.work import HERE, StopAfter
from tests.lab.tiny import SPEC, assert_same_cells, study

SUCCEED = study(work=f"{HERE}:succeed")
FAIL = study(work=f"{HERE}:fail_with_muon")


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------- files and finished cells


def test_a_run_directory_has_all_its_files(tmp_path):
    results = run(study(), out=tmp_path, seeds=2)
    assert results.status == "done"
    assert [(cell.label, cell.seed) for cell in results.cells] == [
        ("SGD-M", 0), ("SGD-M", 1), ("Muon (q=3)", 0), ("Muon (q=3)", 1),
    ]  # fmt: skip
    head = json.loads((tmp_path / "study.json").read_text())
    assert head["study"] == "tiny"
    assert head["settings"] == {"device": "cpu", "threads": 1}
    assert head["data"]["digits"]["label"] == "subset"  # 256 of the 1,437 images
    (environment,) = json.loads((tmp_path / "env.json").read_text())["sessions"]
    assert environment["libraries"]["torch"].startswith("2.")
    assert environment["cores"] == os.cpu_count()
    for cell in results.cells:
        assert {p.name for p in cell.folder.iterdir()} == {
            "spec.json", "metrics.jsonl", "done.json", "weights.safetensors", "lock",
        }  # fmt: skip
        assert json.loads((cell.folder / "spec.json").read_text())["spec"] == dict(cell.spec)
        assert [row["step"] for row in cell.metrics] == [0, 5, 10, 12]


def test_a_finished_cell_is_never_run_again(tmp_path, monkeypatch):
    first = run(study(), out=tmp_path)
    before = snapshot(tmp_path)
    monkeypatch.setattr(cells, "import_function", lambda work: pytest.fail(f"{work} was run again"))
    assert run(study(), out=tmp_path).status == "done"
    for cell, planned in zip(first.cells, study().cells("smoke"), strict=True):  # finished since it was planned
        job = cells.CellJob(cell.folder, planned.spec, study().work, None, 60.0)
        assert cells.run_cell(job, lambda: False, lambda *_: None) == "done"
    assert snapshot(tmp_path) == before


def test_more_seeds_are_added_to_a_finished_study_with_its_threads(tmp_path):
    run(SUCCEED, out=tmp_path, threads=3)
    first = {cell.folder: (cell.folder / "done.json").read_bytes() for cell in load_results(tmp_path).cells}
    more = run(SUCCEED, out=tmp_path, seeds=3)
    assert [cell.seed for cell in more.cells] == [0, 1, 2, 0, 1, 2]
    assert {cell.spec["threads"] for cell in more.cells} == {3}
    assert all((folder / "done.json").read_bytes() == content for folder, content in first.items())
    assert len(run(SUCCEED, out=tmp_path, seeds=1).cells) == 2
    assert len(load_results(tmp_path).cells) == 6


def key(cell, data="d"):
    return store.key_of(store.identity(cell, data))


def test_a_key_depends_on_every_field_numerics_and_data_and_not_on_the_version(monkeypatch):
    cell = study().cells("smoke")[0]
    plain, before = cell.spec.to_dict(), key(cell)
    monkeypatch.setattr("muonlab.__version__", "9.9.9")
    assert key(cell) == before
    keys = {before, key(cell, "e")}
    monkeypatch.setattr(store, "NUMERICS", store.NUMERICS + 1)
    keys.add(key(cell))
    for name in plain:
        monkeypatch.setattr(type(cell.spec), "to_dict", lambda _, name=name: {**plain, name: "another value"})
        keys.add(key(cell))
    assert len(keys) == 3 + len(plain)


@dataclasses.dataclass(frozen=True)
class LaterSettings(Settings):
    new: int = 7


def test_a_new_field_keeps_the_key_and_a_changed_default_is_refused(tmp_path):
    """A later version adds a field whose default changes nothing; another one changes that default."""
    cell, later = (Cell({"axis": "point"}, kind(seed=1)) for kind in (Settings, LaterSettings))
    assert key(cell) == key(later)
    assert key(later) != key(Cell(later.points, LaterSettings(seed=1, new=8)))
    folder = store.CellFolder(tmp_path / "cell")
    folder.create(cell, store.identity(cell, None))
    folder.create(later, store.identity(later, None))
    changed = Cell(later.points, LaterSettings(seed=2))  # as if the default of seed were another one
    with pytest.raises(ValueError, match=r"the spec that it began with, got cell with seed = 1 where this run has 2"):
        folder.create(changed, store.identity(cell, None))


def test_the_history_of_a_cell_keeps_the_most_jobs_and_all_sessions_machines_and_ranks(tmp_path):
    folder = store.CellFolder(tmp_path)
    folder.start("key", 2, 0, "A", 2, 1)
    history = folder.start("key", 1, 1, "B", 4, 2)
    expected = {"jobs": 2, "sessions": [0, 1], "machines": ["A", "B"], "cores": 4, "ranks": [1, 2]}
    assert history == {"key": "key", **expected}


def test_a_study_may_use_several_parts_of_one_dataset(tmp_path):
    parts = Axis("part", (Point("some", {"train": 128}), Point("more", {"train": 256})))
    two = dataclasses.replace(study(), axes=(parts,))
    results = run(two, out=tmp_path)
    assert set(results.head["data"]) == {"digits, train=128, test=64", "digits, train=256, test=64"}
    assert run(two, out=tmp_path).status == "done"


# -------------------------------------------------------------------------------------------------------- failures


def test_a_failure_is_recorded_the_others_are_run_and_it_is_retried_on_demand(tmp_path):
    results = run(FAIL, out=tmp_path)
    failed = results.cells[1]
    assert [cell.status for cell in results.cells] == ["done", "failed"]
    assert results.status == "failed"
    assert failed.error == "ArithmeticError: no luck"
    kept = json.loads((failed.folder / "failed.json").read_text())
    assert "fail_with_muon" in kept["traceback"]
    assert summarize(results)["failures"] == [{"cell": failed.folder.name, "error": "ArithmeticError: no luck"}]
    (failed.folder / "mended").touch()
    assert run(FAIL, out=tmp_path).status == "failed"
    assert run(FAIL, out=tmp_path, retry=True).status == "done"
    assert not (failed.folder / "failed.json").exists()


def test_a_loss_that_is_not_finite_is_a_failure_and_not_a_result(tmp_path):
    results = run(study(SPEC.changed({"lr": 1e30, "clip": None})), out=tmp_path)
    assert results.cells[0].status == "failed"
    assert "the loss must stay finite" in results.cells[0].error


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_stops_the_study_with_one_line_and_fails_no_cell(tmp_path, jobs):
    with pytest.raises(ValueError, match="the disk must have free space") as caught:
        run(study(work=f"{HERE}:fill_the_disk"), out=tmp_path, jobs=jobs)
    assert "\n" not in str(caught.value)
    assert "failed" not in [cell.status for cell in load_results(tmp_path).cells]


def test_a_study_that_was_stopped_after_a_failure_is_open(tmp_path):
    results = run(study(work=f"{HERE}:fail_then_terminate"), out=tmp_path)
    assert [cell.status for cell in results.cells] == ["failed", "open"]
    assert results.status == "open"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# --------------------------------------------------------------------------------------------------- run directories


def test_another_study_profile_setting_or_numerics_is_refused_and_another_version_is_not(tmp_path, monkeypatch):
    run(SUCCEED, out=tmp_path)
    before = snapshot(tmp_path)
    for attempt in (
        lambda: run(study(name="other"), out=tmp_path),
        lambda: run(study(), "small", out=tmp_path),
        lambda: run(study(), out=tmp_path, settings={"lr": 0.5}),
        lambda: run(study(), out=tmp_path, threads=2),
    ):
        with pytest.raises(ValueError, match=r"a run directory holds one study, got .* choose another --out"):
            attempt()
    monkeypatch.setattr(store, "NUMERICS", 9)
    with pytest.raises(ValueError, match=r"numerics 1 where this run has 9"):
        run(study(), out=tmp_path)
    assert snapshot(tmp_path) == before
    monkeypatch.undo()
    monkeypatch.setattr("muonlab.__version__", "9.9.9")
    assert run(SUCCEED, out=tmp_path).status == "done"
    assert snapshot(tmp_path) == before


def test_a_directory_that_is_not_a_run_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.tex").write_text("years of work")
    for out, message in (
        (tmp_path, "--out must be a run directory or empty"),
        (tmp_path / "thesis.tex", "--out must be a directory"),
        ("", "--out must name a directory"),
    ):
        with pytest.raises(ValueError, match=message):
            run(SUCCEED, out=out)
    assert {p.name for p in tmp_path.iterdir()} == {"thesis.tex"}
    with pytest.raises(ValueError, match=r"results are read from a run directory, got .* without a study\.json"):
        load_results(tmp_path)


def test_a_wrong_setting_leaves_no_directory_behind(tmp_path):
    out = tmp_path / "new"
    for settings in ({"model": "vgg"}, {"nonsense": 1}, {"optimizer": "sgdm"}, {"seed": 3}):
        with pytest.raises(ValueError, match=r"model|setting"):
            run(study(), out=out, settings=settings)
    assert not out.exists()


def test_a_directory_whose_creation_was_killed_can_be_used(tmp_path):
    (tmp_path / "study.json.part").write_bytes(b"{")
    (tmp_path / "lock").touch()
    assert run(SUCCEED, out=tmp_path).status == "done"


def test_checkpoints_behind_a_link_are_refused(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.safetensors").touch()
    cell = run(FAIL, out=tmp_path / "run").cells[1]
    (cell.folder / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="got a link"):
        run(FAIL, out=tmp_path / "run", retry=True)
    assert (elsewhere / "mine.safetensors").exists()


def test_a_second_writer_is_refused(tmp_path):
    with store.hold_lock(tmp_path), pytest.raises(ValueError, match="a run directory has one writer"):
        run(SUCCEED, out=tmp_path)


# ---------------------------------------------------------------------------------------------- stopping and workers


def test_a_study_that_is_stopped_again_and_again_ends_with_the_same_bits(tmp_path, monkeypatch):
    whole = run(study(), out=tmp_path / "whole")
    for checks in (4, 7):
        monkeypatch.setattr(run_study, "handle_signals", lambda checks=checks, **_: nullcontext(StopAfter(checks)))
        stops = 0
        while (cut := run(study(), out=tmp_path / f"cut{checks}")).status != "done":
            stops += 1
            assert stops < 100
        assert stops >= 3
        assert_same_cells(whole.cells, cut.cells)


def test_cells_in_workers_give_the_bits_of_cells_in_one_process(tmp_path):
    single = run(study(), out=tmp_path / "single")
    parallel = run(study(), out=tmp_path / "parallel", jobs=2, threads=1)
    assert_same_cells(single.cells, parallel.cells)
    assert [(a.jobs, b.jobs) for a, b in zip(single.cells, parallel.cells, strict=True)] == [(1, 2)] * 2
    assert summarize(parallel)["clock"] == "cpu"


def test_a_worker_that_is_killed_is_a_failure_of_its_cell_alone(tmp_path):
    results = run(study(work=f"{HERE}:die"), out=tmp_path, jobs=2)
    assert [cell.status for cell in results.cells] == ["done", "failed"]
    assert results.cells[1].error == "its process ended with code -9: out of memory?"


@pytest.mark.parametrize("at", ["running", pytest.param("starting", marks=pytest.mark.slow)])
def test_sigterm_reaches_workers_which_save_once_and_fail_no_cell(tmp_path, at):
    def terminate():
        while at == "running" and len(list(tmp_path.glob("cells/*/started"))) < 2:
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate, daemon=True)
    thread.start()
    results = run(study(work=f"{HERE}:save_slowly"), out=tmp_path, jobs=2)
    assert [cell.status for cell in results.cells] == ["open", "open"]
    assert len(list(tmp_path.glob("cells/*/saved"))) == len(list(tmp_path.glob("cells/*/started")))
    assert at == "starting" or len(list(tmp_path.glob("cells/*/saved"))) == 2
