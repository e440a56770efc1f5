"""Changed, missing and foreign files of a run directory are detected when they are read."""

from __future__ import annotations

import shutil
import warnings
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from muonlab.lab import load_results, run
from muonlab.lab.files.hashed_json import read_json, write_json
from muonlab.lab.runner import run_study
from muonlab.lab.training import checkpoint
from tests.lab.runner.work import StopAfter
from tests.lab.tiny import SPEC, assert_same_cells, study

RECORDED = study(SPEC.changed({"record_every": 5}))


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """Seed 0 is done with weights and certificates; of seed 1 a cell failed, and one was stopped."""
    out = tmp_path_factory.mktemp("damaged") / "run"
    run(RECORDED, out=out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muonlab.lab.training.loop.Training.check_finite", _fail_at_the_end_with_sgdm)
        patch.setattr(run_study, "handle_signals", lambda **_: nullcontext(StopAfter(30)))
        results = run(RECORDED, out=out, seeds=2, checkpoint_seconds=0)
    assert [cell.status for cell in results.cells] == ["done", "failed", "done", "open"]
    assert results.cells[1].metrics
    assert len(list(results.cells[3].folder.glob("checkpoints/*.safetensors"))) == 2
    return out


def _fail_at_the_end_with_sgdm(training, loss):
    if training.spec.optimizer == "sgdm" and training.step == training.updates:
        raise ArithmeticError("no luck")
    return loss


@pytest.fixture
def copied(run_directory, tmp_path):
    return shutil.copytree(run_directory, tmp_path / "run")


@pytest.fixture
def finished(copied):
    """Only seed 0, which is done."""
    for path in [*copied.glob("cells/*seed1*")]:
        shutil.rmtree(path)
    rewrite(copied / "cells.json", lambda value: value.update(cells=[n for n in value["cells"] if "seed0" in n]))
    assert load_results(copied).status == "done"
    return copied


def rewrite(path, change):
    """Change a file together with its hash."""
    value = read_json(path)
    change(value)
    write_json(path, value)


def refused(folder, match):
    with pytest.raises(ValueError, match=match) as caught:
        load_results(folder)
    assert "\n" not in str(caught.value)


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def read_everything(folder):
    """Read all that the lab ever reads of a run directory; raise if a file is not what was written."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cell in load_results(folder).cells:
            cell.certificates()
            if cell.status == "done":
                cell.weights()
            for path in (cell.folder / "checkpoints").glob("*.json"):
                assert checkpoint.is_undamaged(path, read_json(path)), "a checkpoint is damaged"


def test_damage_to_a_finished_run_is_one_line_and_never_taken_for_a_result(finished):
    cell = load_results(finished).cells[1].folder
    for path, content in (
        (cell / "metrics.jsonl", b'{"event": "start"}\n'),
        (cell / "metrics.jsonl", None),
        (cell / "done.json", b"{}"),
        (cell / "spec.json", b"{}"),
        (finished / "cells.json", b'{"cells": null}'),
        (finished / "env.json", b'{"sessions": "ab"}'),
        (finished / "study.json", b"[" * 200_000),
        (finished / "study.json", b'{"format": 2, "study": "tiny"}'),
    ):
        original = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        refused(finished, "damaged")
        with pytest.raises(ValueError, match="damaged"):
            run(RECORDED, out=finished, seeds=2)
        path.write_bytes(original)
    rewrite(finished / "study.json", lambda value: value.update(format=1))
    refused(finished, "must have the format 2")


def test_a_cell_in_the_wrong_folder_or_run_directory_is_refused(finished):
    first, second = read_json(finished / "cells.json")["cells"]
    spec = finished / "cells" / second / "spec.json"
    for path, change, message in (
        (spec, lambda value: value.update(label="Muon (q=1)", points={"optimizer": "Muon (q=1)"}), "named after its"),
        (spec, lambda value: value["spec"].update(lr=0.06), "named after its label, seed and key"),
        (finished / "study.json", lambda value: value["settings"].update(lr=0.04), "must belong to its run directory"),
        (finished / "study.json", lambda value: value["data"]["digits"].update(hash="0"), "must belong to its run"),
        (finished / "study.json", lambda value: value.update(numerics=7), "must belong to its run directory"),
        (finished / "env.json", lambda value: value.update(sessions=[]), "whose session is not in env.json"),
        (finished / "env.json", lambda value: value["sessions"][0].update(cpu="B"), "session is not in env.json"),
        (finished / "cells.json", lambda value: value.update(cells=[first]), f"{second}, which is not listed"),
        (finished / "cells.json", lambda value: value["cells"].append("other"), "must have all of its files"),
    ):
        content = path.read_bytes()
        rewrite(path, change)
        refused(finished, message)
        path.write_bytes(content)
    (finished / "cells" / second).rename(finished / "cells" / "other")
    rewrite(finished / "cells.json", lambda value: value.update(cells=[first, "other"]))
    refused(finished, "must be named after its label, seed and key")


def test_files_of_one_cell_are_refused_in_the_folder_of_another(run_directory, tmp_path):
    """Each file is intact, and in the wrong place."""
    (sgdm, failed, muon, open_) = (cell.folder.name for cell in load_results(run_directory).cells)
    rows = ("metrics.jsonl", "certificates.jsonl")
    for source, target, names in (
        (sgdm, muon, ("done.json", *rows)),
        (sgdm, failed, ("done.json", *rows)),
        (failed, open_, ("failed.json", *rows)),
        (open_, failed, ("history.json",)),
    ):
        folder = shutil.copytree(run_directory, tmp_path / "run")
        for name in names:
            if (folder / "cells" / source / name).exists():
                shutil.copy(folder / "cells" / source / name, folder / "cells" / target / name)
        refused(folder, "the files of a cell must be its own")
        shutil.rmtree(folder)


def test_a_changed_profile_or_number_of_threads_is_refused_before_anything_is_written(finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="the definition of the study has changed since: choose another --out"):
        run(study(SPEC.changed({"record_every": 5, "steps": 13})), out=finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
    rewrite(finished / "study.json", lambda value: value["settings"].update(threads=2))
    with pytest.raises(ValueError, match="which is not one of them"):
        run(RECORDED, out=finished)


# ----------------------------------------------------------------------------------------------------- resumed cells


def test_a_cell_is_not_resumed_from_the_checkpoint_of_another(copied):
    *_, cell = load_results(copied).cells
    for path in (cell.folder / "checkpoints").glob("*.json"):
        rewrite(path, lambda value: value["values"].update(key="another"))
    refused(copied, "the files of a cell must be its own")
    resumed = run(RECORDED, out=copied, seeds=2).cells[3]
    assert resumed.status == "failed"
    assert "a cell must resume from its own checkpoint" in resumed.error


def test_a_cell_is_not_resumed_with_changed_rows(copied):
    cell = load_results(copied).cells[3]
    rows = cell.folder / "metrics.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"test_loss": 2', b'"test_loss": 3', 1))
    refused(copied, "rows of a cell must be those that it saved")
    for retry in (False, True):
        again = run(RECORDED, out=copied, seeds=2, retry=retry).cells[3]
        assert again.status == "failed"
        assert "rows of a cell must be those that it saved" in again.error
    assert not (cell.folder / "done.json").exists()


def test_a_resumed_cell_skips_a_damaged_checkpoint_and_rows_after_the_last_one(copied, tmp_path):
    before = load_results(copied).cells[3]
    with (before.folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "evaluation", "step": 999}\n{"event":')
    assert load_results(copied).cells[3].metrics == before.metrics
    newest = max(before.folder.glob("checkpoints/*.safetensors"))
    flip(newest, 8 * newest.stat().st_size - 30)
    whole = run(RECORDED, out=tmp_path / "whole", seeds=2).cells[3]
    with pytest.warns(UserWarning, match=f"checkpoint {newest.stem} of"):
        resumed = run(RECORDED, out=copied, seeds=2, retry=True).cells[3]
    assert_same_cells([whole], [resumed])


# ----------------------------------------------------------------------------------------------------------- weights


def test_a_finished_cell_stays_finished_without_its_weights(finished, monkeypatch):
    cell = load_results(finished).cells[0]
    (cell.folder / "weights.safetensors").unlink()
    monkeypatch.setattr("muonlab.lab.runner.cells.import_function", lambda work: pytest.fail(f"{work} was run again"))
    again = run(RECORDED, out=finished)
    assert again.status == "done"
    with pytest.raises(ValueError, match=r"got sgd-m-seed0-\w+ without weights\.safetensors: run the study with"):
        again.cells[0].weights()


def test_weights_that_are_not_kept_have_the_hash_of_those_that_are(finished, tmp_path):
    kept = load_results(finished)
    light = run(RECORDED, out=tmp_path / "light", keep_weights=False)
    assert not list((tmp_path / "light").rglob("*.safetensors"))
    for a, b in zip(kept.cells, light.cells, strict=True):
        assert a.summary["weights_sha256"] == b.summary["weights_sha256"]
        weights, file = a.weights(), load_file(a.folder / "weights.safetensors")
        assert weights.keys() == file.keys()
        assert all(torch.equal(weights[name], file[name]) for name in file)
