from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from muonlab.lab import load_results, run
from muonlab.lab.cell_context import Stopped
from muonlab.lab.files.hashed_json import write_json
from muonlab.lab.runner import cells, store
from muonlab.lab.runner import run_study as runner
from muonlab.lab.runner.summary import report
from muonlab.lab.settings import Settings
from muonlab.lab.study import Cell
from tests.lab.tiny import SPEC, study, without_clock

# Works of cells that the tests below name as "tests.lab.test_runner:…".


def succeed(spec, desk):
    desk.begin({})
    desk.write({"event": "measured", "seed": spec.seed})
    return {"seconds": 1.0}


def fail_with_muon(spec, desk):
    desk.begin({})
    if spec.optimizer == "muon" and not (desk.folder / "mended").exists():
        raise ArithmeticError("no luck\nsecond line")
    return {}


def fill_the_disk(spec, desk):
    desk.begin({})
    if spec.optimizer == "muon":
        raise OSError(errno.ENOSPC, "No space left on device")
    return {}


def ring_the_bell(spec, desk):
    desk.begin({})
    if spec.optimizer == "sgdm":
        os.kill(os.getpid(), signal.SIGTERM)
    while not desk.stopping:
        time.sleep(0.01)
    raise Stopped


def wait_for_the_bell(_, desk):
    desk.begin({})
    (desk.folder / "started").touch()
    while not desk.stopping:
        time.sleep(0.01)
    raise Stopped


def fail_then_ring(spec, desk):
    desk.begin({})
    if spec.optimizer == "sgdm":
        raise ArithmeticError("no luck")
    os.kill(os.getpid(), signal.SIGTERM)
    while not desk.stopping:
        time.sleep(0.01)
    raise Stopped


def wait_for_a_friend(_, desk):
    desk.begin({})
    if not (desk.folder / "friend").exists():
        raise ArithmeticError("alone")
    return {}


def save_slowly(_, desk):
    """Take a second to stop, and report meanwhile: each report is a chance to be asked again."""
    desk.begin({})
    (desk.folder / "started").touch()
    while not desk.stopping:
        time.sleep(0.01)
    for done in range(10):
        desk.progress(done, 10)
        time.sleep(0.1)
    (desk.folder / "saved").touch()
    raise Stopped


def die(spec, desk):
    desk.begin({})
    if spec.optimizer == "muon":
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


HERE = "tests.lab.test_runner"


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------------- artefacts


def test_a_run_directory_has_everything_that_it_should(tmp_path):
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


def test_a_finished_study_is_not_touched_again(tmp_path, monkeypatch):
    run(study(), out=tmp_path)
    before = snapshot(tmp_path)
    monkeypatch.setattr(cells, "function_of", lambda work: pytest.fail(f"{work} was run again"))
    again = run(study(), out=tmp_path)
    assert again.status == "done"
    assert snapshot(tmp_path) == before


def test_more_seeds_are_added_to_a_finished_study(tmp_path):
    run(study(work=f"{HERE}:succeed"), out=tmp_path)
    first = {cell.folder: (cell.folder / "done.json").read_bytes() for cell in load_results(tmp_path).cells}
    more = run(study(work=f"{HERE}:succeed"), out=tmp_path, seeds=3)
    assert [cell.seed for cell in more.cells] == [0, 1, 2, 0, 1, 2]
    assert all((folder / "done.json").read_bytes() == content for folder, content in first.items())
    fewer = run(study(work=f"{HERE}:succeed"), out=tmp_path, seeds=1)
    assert len(fewer.cells) == 2
    assert len(load_results(tmp_path).cells) == 6


def key(cell, data="d"):
    return store.key_of(store.identity(cell, data))


def test_a_key_depends_on_numerics_and_data_and_not_on_the_version(monkeypatch):
    cell = study().cells("smoke")[0]
    before = key(cell)
    assert key(cell, "e") != before
    monkeypatch.setattr("muonlab.__version__", "9.9.9")
    assert key(cell) == before
    monkeypatch.setattr(store, "NUMERICS", store.NUMERICS + 1)
    assert key(cell) != before


def test_every_field_of_a_spec_is_in_the_key(monkeypatch):
    cell = study().cells("smoke")[0]
    plain = cell.spec.to_dict()
    keys = {key(cell)}
    for name in plain:
        monkeypatch.setattr(type(cell.spec), "to_dict", lambda _, name=name: {**plain, name: "another value"})
        keys.add(key(cell))
    assert len(keys) == 1 + len(plain)


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


def test_threads_of_a_run_directory_hold_for_its_later_cells(tmp_path):
    run(study(work=f"{HERE}:succeed"), out=tmp_path, threads=3)
    again = run(study(work=f"{HERE}:succeed"), out=tmp_path, seeds=2, jobs=1)
    assert {cell.spec["threads"] for cell in again.cells} == {3}


# -------------------------------------------------------------------------------------------------------- failures


def test_a_failure_is_recorded_and_the_others_are_run(tmp_path):
    results = run(study(work=f"{HERE}:fail_with_muon"), out=tmp_path)
    assert [cell.status for cell in results.cells] == ["done", "failed"]
    assert results.status == "failed"
    assert results.cells[1].error == "ArithmeticError: no luck"
    kept = json.loads((results.cells[1].folder / "failed.json").read_text())
    assert "Traceback" in kept["traceback"]
    assert "fail_with_muon" in kept["traceback"]
    assert report(results)["failures"] == [{"cell": results.cells[1].folder.name, "error": "ArithmeticError: no luck"}]


def test_a_failure_is_tried_again_only_on_demand(tmp_path):
    failed = run(study(work=f"{HERE}:fail_with_muon"), out=tmp_path).cells[1]
    (failed.folder / "mended").touch()
    assert run(study(work=f"{HERE}:fail_with_muon"), out=tmp_path).status == "failed"
    mended = run(study(work=f"{HERE}:fail_with_muon"), out=tmp_path, retry=True)
    assert mended.status == "done"
    assert not (failed.folder / "failed.json").exists()


def test_a_loss_that_is_not_finite_is_a_failure_and_not_a_result(tmp_path):
    spec = SPEC.changed({"lr": 1e30, "clip": None})
    results = run(study(spec), out=tmp_path)
    assert results.cells[0].status == "failed"
    assert "the loss must stay finite" in results.cells[0].error


def test_a_full_disk_stops_the_study_with_one_line_and_loses_nothing(tmp_path):
    with pytest.raises(ValueError, match="there must be room on the disk") as caught:
        run(study(work=f"{HERE}:fill_the_disk"), out=tmp_path)
    assert "\n" not in str(caught.value)
    assert [cell.status for cell in load_results(tmp_path).cells] == ["done", "open"]


# --------------------------------------------------------------------------------------------------- run directories


def test_another_study_profile_setting_or_numerics_is_refused_and_another_version_is_not(tmp_path, monkeypatch):
    run(study(work=f"{HERE}:succeed"), out=tmp_path)
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
    assert run(study(work=f"{HERE}:succeed"), out=tmp_path).status == "done"
    assert snapshot(tmp_path) == before


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="--out must be a run directory or empty"):
        run(study(work=f"{HERE}:succeed"), out=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--out must be a directory"):
        run(study(work=f"{HERE}:succeed"), out=tmp_path / "file")
    assert {p.name for p in tmp_path.iterdir()} == {"thesis.tex", "file"}


def test_a_damaged_head_is_refused(tmp_path):
    for content, message in (("{", "must match the hash that it carries"), ('{"format": 1}', "must have the format 2")):
        (tmp_path / "study.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            run(study(work=f"{HERE}:succeed"), out=tmp_path)
    write_json(tmp_path / "study.json", {"format": store.FORMAT})
    with pytest.raises(ValueError, match=r"study\.json must say what a run directory is"):
        run(study(work=f"{HERE}:succeed"), out=tmp_path)


def test_a_wrong_setting_leaves_no_directory_behind(tmp_path):
    out = tmp_path / "new"
    for settings in ({"model": "vgg"}, {"nonsense": 1}, {"optimizer": "sgdm"}, {"seed": 3}):
        with pytest.raises(ValueError, match=r"model|setting"):
            run(study(), out=out, settings=settings)
    assert not out.exists()


DAMAGES = {
    "metrics cut": ("cells/{cell}/metrics.jsonl", b'{"event": "start"}\n'),
    "metrics gone": ("cells/{cell}/metrics.jsonl", None),
    "rows that are none": ("cells/{cell}/metrics.jsonl", b"3\n"),
    "done without numbers": ("cells/{cell}/done.json", b"{}"),
    "done of another shape": ("cells/{cell}/done.json", b'{"summary": {}, "rows_sha256": {}, "sessions": 3}'),
    "spec without fields": ("cells/{cell}/spec.json", b"{}"),
    "cells that are no list": ("cells.json", b'{"cells": null}'),
    "cells that are no names": ("cells.json", b'{"cells": [1, 2]}'),
    "sessions that are no list": ("env.json", b'{"sessions": "ab"}'),
    "deep": ("study.json", b"[" * 200_000),
    "head without settings": ("study.json", b'{"format": 2, "study": "tiny"}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_a_finished_run_is_told_in_one_line_and_never_taken_for_a_result(tmp_path, damage):
    cell = run(study(), out=tmp_path).cells[1]
    name, content = DAMAGES[damage]
    path = tmp_path / name.format(cell=cell.folder.name)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for attempt in (lambda: load_results(tmp_path), lambda: run(study(), out=tmp_path, seeds=2)):
        with pytest.raises(ValueError, match="damaged") as caught:
            attempt()
        assert "\n" not in str(caught.value)


def test_a_directory_that_was_killed_at_its_birth_can_be_used(tmp_path):
    (tmp_path / "study.json.part").write_bytes(b"{")
    (tmp_path / "lock").touch()
    assert run(study(work=f"{HERE}:succeed"), out=tmp_path).status == "done"


def test_a_cell_that_another_process_has_finished_meanwhile_is_not_run_again(tmp_path, monkeypatch):
    first = run(study(), out=tmp_path)
    before = snapshot(tmp_path / "cells")
    monkeypatch.setattr(cells, "function_of", lambda work: pytest.fail(f"{work} was run again"))
    for cell, planned in zip(first.cells, study().cells("smoke"), strict=True):
        job = cells.Job(cell.folder, planned.spec, study().work, None, 60.0)
        assert cells.run_cell(job, lambda: False, lambda *_: None) == "done"
    assert snapshot(tmp_path / "cells") == before


def test_checkpoints_that_lead_elsewhere_are_refused(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.safetensors").touch()
    cell = run(study(work=f"{HERE}:fail_with_muon"), out=tmp_path / "run").cells[1]
    (cell.folder / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="got a link"):
        run(study(work=f"{HERE}:fail_with_muon"), out=tmp_path / "run", retry=True)
    assert (elsewhere / "mine.safetensors").exists()


def test_an_empty_name_is_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--out must name a directory"):
        run(study(work=f"{HERE}:succeed"), out="")
    assert list(tmp_path.iterdir()) == []


def test_two_writers_are_refused(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with store.locked(out), pytest.raises(ValueError, match="a run directory has one writer"):
        run(study(work=f"{HERE}:succeed"), out=out)


def test_results_need_a_run_directory(tmp_path):
    with pytest.raises(ValueError, match=r"results are read from a run directory, got .* without a study\.json"):
        load_results(tmp_path)


# ------------------------------------------------------------------------------------------------- bells and workers


def test_sigterm_saves_and_leaves_the_rest_open(tmp_path):
    results = run(study(work=f"{HERE}:ring_the_bell"), out=tmp_path)
    assert [cell.status for cell in results.cells] == ["open", "open"]
    assert results.status == "open"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class RungAfter:
    """A bell that rings when it has been looked at so often."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def rung(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("looks", [4, 7])
def test_a_stopped_study_goes_on_to_the_bits_of_one_that_was_not(tmp_path, monkeypatch, looks):
    whole = run(study(), out=tmp_path / "whole")
    monkeypatch.setattr(runner, "listening", lambda **_: nullcontext(RungAfter(looks)))
    stops = 0
    while (cut := run(study(), out=tmp_path / "cut")).status != "done":
        stops += 1
        assert stops < 100
    assert stops >= 3
    for a, b in zip(whole.cells, cut.cells, strict=True):
        assert a.summary["weights_sha256"] == b.summary["weights_sha256"]
        assert without_clock(a.metrics) == without_clock(b.metrics)


def test_cells_side_by_side_give_the_bits_of_cells_one_by_one(tmp_path):
    one = run(study(), out=tmp_path / "one", seeds=2)
    two = run(study(), out=tmp_path / "two", seeds=2, jobs=2, threads=1)
    assert two.status == "done"
    for a, b in zip(one.cells, two.cells, strict=True):
        assert a.summary["weights_sha256"] == b.summary["weights_sha256"]
        assert without_clock(a.metrics) == without_clock(b.metrics)
        assert (a.jobs, b.jobs) == (1, 2)
    assert report(two)["clock"] == "cpu"


def test_a_worker_that_is_killed_is_a_failure_of_its_cell_alone(tmp_path):
    results = run(study(work=f"{HERE}:die"), out=tmp_path, seeds=2, jobs=2)
    assert [cell.status for cell in results.cells] == ["done", "done", "failed", "failed"]
    assert results.cells[2].error == "its process ended with code -9: out of memory?"
    assert [cell.status for cell in results.cells[:2]] == ["done", "done"]


@pytest.mark.parametrize("work", ["wait_for_the_bell", "save_slowly"])
def test_sigterm_reaches_the_workers(tmp_path, work):
    def once_both_have_started():
        while len(list(tmp_path.glob("cells/*/started"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=once_both_have_started, daemon=True)
    thread.start()
    results = run(study(work=f"{HERE}:{work}"), out=tmp_path, jobs=2)
    assert [cell.status for cell in results.cells] == ["open", "open"]
    assert not thread.is_alive()
    if work == "save_slowly":
        assert len(list(tmp_path.glob("cells/*/saved"))) == 2


def test_sigterm_while_workers_start_fails_no_cell(tmp_path):
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    results = run(study(work=f"{HERE}:wait_for_the_bell"), out=tmp_path, jobs=2)
    assert [cell.status for cell in results.cells] == ["open", "open"]


def test_a_full_disk_in_a_worker_ends_the_study_too(tmp_path):
    with pytest.raises(ValueError, match="there must be room on the disk"):
        run(study(work=f"{HERE}:fill_the_disk"), out=tmp_path, jobs=2, seeds=2)
    assert "failed" not in [cell.status for cell in load_results(tmp_path).cells]


def test_a_study_that_was_stopped_after_a_failure_can_go_on(tmp_path):
    results = run(study(work=f"{HERE}:fail_then_ring"), out=tmp_path)
    assert [cell.status for cell in results.cells] == ["failed", "open"]
    assert results.status == "open"


def test_a_cell_that_once_ran_beside_others_says_so_for_ever(tmp_path):
    run(study(work=f"{HERE}:wait_for_a_friend"), out=tmp_path, jobs=2)
    for cell in load_results(tmp_path).cells:
        (cell.folder / "friend").touch()
    done = run(study(work=f"{HERE}:wait_for_a_friend"), out=tmp_path, jobs=1, retry=True)
    assert [(cell.status, cell.jobs, cell.sessions) for cell in done.cells] == [("done", 2, (0, 1))] * 2
    assert len(done.environments) == 2


def test_a_study_may_use_several_parts_of_one_dataset(tmp_path):
    from muonlab.lab.study import Axis, Point

    parts = Axis("part", (Point("some", {"train": 128}), Point("more", {"train": 256})))
    two = dataclasses.replace(study(), axes=(parts,))
    results = run(two, out=tmp_path)
    assert set(results.head["data"]) == {"digits, train=128, test=64", "digits, train=256, test=64"}
    assert run(two, out=tmp_path).status == "done"


def test_settings_for_a_cpu_hold_for_a_numbered_one_too():
    base = study()
    smoke = dataclasses.replace(base.profiles["smoke"], on_cpu={"batch_size": 32})
    with_fallback = dataclasses.replace(base, profiles={**base.profiles, "smoke": smoke})
    sizes = [with_fallback.cells("smoke", device=device)[0].spec.batch_size for device in ("cpu", "cpu:0", "cuda")]
    assert sizes == [32, 32, 64]
