"""A changed bit in a run directory is noticed: in every file, wherever it is."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from muonlab.lab import load_results, run
from muonlab.lab.files.hashed_json import read_json, sealed, write_json
from muonlab.lab.runner import run_study as runner
from muonlab.lab.runner.results import read_cell, sessions_of
from muonlab.lab.runner.store import read_head
from muonlab.lab.training import checkpoint
from tests.lab.test_runner import RungAfter
from tests.lab.tiny import SPEC, study, without_clock

RECORDED = study(SPEC.changed({"record_every": 5}))


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """Seed 0 is done with weights and certificates; of seed 1 a cell failed, and one was stopped."""
    out = tmp_path_factory.mktemp("sealed") / "run"
    run(RECORDED, out=out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muonlab.lab.training.loop.Training.check_finite", _fail_at_the_end_with_sgdm)
        patch.setattr(runner, "listening", lambda **_: nullcontext(RungAfter(30)))
        results = run(RECORDED, out=out, seeds=2, checkpoint_seconds=0)
    assert [cell.status for cell in results.cells] == ["done", "failed", "done", "open"]
    assert results.cells[1].metrics
    assert len(list(results.cells[3].folder.glob("checkpoints/*.safetensors"))) == 2
    return out


def _fail_at_the_end_with_sgdm(training, loss):
    if training.spec.optimizer == "sgdm" and training.step == training.updates:
        raise ArithmeticError("no luck")
    return loss


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


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def test_none_of_1000_flipped_bits_is_silent(run_directory, tmp_path):
    folder = shutil.copytree(run_directory, tmp_path / "run")
    read_everything(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    kinds = {path.name if path.parent.name != "checkpoints" else path.suffix for path in files}
    assert kinds >= {
        "study.json", "cells.json", "env.json", "spec.json", "done.json", "failed.json", "history.json",
        "metrics.jsonl", "certificates.jsonl", "weights.safetensors", ".json", ".safetensors",
    }  # fmt: skip
    choose, silent = random.Random(0), []
    for _ in range(1_000):
        path = choose.choice(files)
        content = path.read_bytes()
        bit = choose.randrange(8 * len(content))
        flip(path, bit)
        try:
            read_everything(folder)
        except (ValueError, AssertionError, UserWarning):
            pass
        else:
            silent.append((path.relative_to(folder), bit))
        path.write_bytes(content)
    assert silent == []
    read_everything(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study.json", "cells.json", "spec.json"])
def test_every_flipped_bit_of_what_identifies_a_run_is_noticed(run_directory, tmp_path, name):
    folder = shutil.copytree(run_directory, tmp_path / "run")
    path = next(folder.rglob(name))
    read = {"study.json": lambda: read_head(folder), "spec.json": lambda: read_cell(path.parent)}
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flip(path, bit)
        with pytest.raises(ValueError, match=r"damaged|format|named after"):
            read.get(name, lambda: read_json(path))()
        path.write_bytes(content)


# ------------------------------------------------------------------------------------------ changes that fit together


def reseal(path, change):
    """Change a file as one would who also writes its hash anew."""
    value = read_json(path)
    change(value)
    write_json(path, value)


def refused(folder, match):
    with pytest.raises(ValueError, match=match) as caught:
        load_results(folder)
    assert "\n" not in str(caught.value)


@pytest.fixture
def finished(run_directory, tmp_path):
    """Only seed 0, which is done."""
    folder = shutil.copytree(run_directory, tmp_path / "run")
    for path in [*folder.glob("cells/*seed1*")]:
        shutil.rmtree(path)
    reseal(folder / "cells.json", lambda value: value.update(cells=[n for n in value["cells"] if "seed0" in n]))
    assert load_results(folder).status == "done"
    return folder


def test_another_label_or_spec_does_not_go_with_the_folder_of_a_cell(finished):
    path = next(finished.glob("cells/muon*/spec.json"))
    content = path.read_bytes()
    for change in (
        lambda value: value.update(label="Muon (q=1)", points={"optimizer": "Muon (q=1)"}),
        lambda value: value.update(label="Muon (q=1)"),
        lambda value: value["spec"].update(lr=0.06),
        lambda value: value["identity"]["spec"].update(lr=0.06),
        lambda value: value["spec"].update(seed=3),
    ):
        reseal(path, change)
        refused(finished, "must be named after its label, seed and key")
        path.write_bytes(content)


def test_missing_unlisted_and_repeated_cells_are_refused(finished):
    path = finished / "cells.json"
    first, second = read_json(path)["cells"]
    for names, problem in (
        ([first, "other"], "other listed without a folder"),
        ([first], f"{second} in a folder that is not listed"),
        ([first, second, second], f"{second} listed twice"),
    ):
        reseal(path, lambda value, names=names: value.update(cells=names))
        refused(finished, problem)
    reseal(path, lambda value: value.update(cells=[first, second]))
    shutil.rmtree(finished / "cells" / second)
    refused(finished, "listed without a folder")


def test_one_seed_with_two_numbers_of_threads_is_not_two_runs(finished):
    """What happened when threads was changed in study.json: the same command added the cells once more."""
    reseal(finished / "study.json", lambda value: value["settings"].update(threads=2))
    with pytest.raises(ValueError, match="which is not one of them"):
        run(RECORDED, out=finished)
    refused(finished, "must belong to its run directory")


def test_files_of_one_cell_do_not_pass_for_those_of_another(run_directory, tmp_path):
    """Each file is sound, and in the wrong place."""
    results = load_results(run_directory)
    (sgdm, failed, muon, open_) = (cell.folder.name for cell in results.cells)
    rows = ("metrics.jsonl", "certificates.jsonl")
    for of, to, names in (
        (sgdm, muon, ("done.json", *rows)),
        (sgdm, failed, ("done.json", *rows)),
        (failed, open_, ("failed.json", *rows)),
        (sgdm, open_, ("history.json",)),
        (open_, failed, ("history.json",)),
    ):
        folder = shutil.copytree(run_directory, tmp_path / "run")
        if "history.json" in names and not (folder / "cells" / of / "history.json").exists():
            reseal(folder / "cells" / to / "history.json", lambda value: value.update(key="0" * 64))
        for name in names:
            if (folder / "cells" / of / name).exists():
                shutil.copy(folder / "cells" / of / name, folder / "cells" / to / name)
        refused(folder, "the files of a cell must be its own")
        shutil.rmtree(folder)


def test_a_checkpoint_of_another_cell_is_not_resumed(run_directory, tmp_path):
    folder = shutil.copytree(run_directory, tmp_path / "run")
    *_, cell = load_results(folder).cells
    other = run(RECORDED, out=tmp_path / "other", settings={"lr": 0.04}, checkpoint_seconds=0).cells[1]
    assert other.status == "done"
    for path in (cell.folder / "checkpoints").glob("*.json"):
        reseal(path, lambda value: value["values"].update(key=other.folder.name))
    refused(folder, "the files of a cell must be its own")
    resumed = run(RECORDED, out=folder, seeds=2).cells[3]
    assert resumed.status == "failed"
    assert "a cell must resume from its own checkpoint" in resumed.error


def test_cells_must_belong_to_the_study_and_the_sessions_of_their_directory(finished, tmp_path):
    longer = run(study(SPEC.changed({"record_every": 5, "steps": 13})), out=tmp_path / "longer", settings={"lr": 0.04})
    for name, change, message in (
        ("study.json", lambda value: value["settings"].update(lr=0.04), "must belong to its run directory"),
        ("study.json", lambda value: value["data"]["digits"].update(hash="0"), "must belong to its run directory"),
        ("study.json", lambda value: value.update(numerics=7), "must belong to its run directory"),
        ("env.json", lambda value: value.update(sessions=[]), "whose session is not in env.json"),
        ("env.json", lambda value: value["sessions"][0].update(cpu="another"), "whose session is not in env.json"),
    ):
        content = (finished / name).read_bytes()
        reseal(finished / name, change)
        refused(finished, message)
        (finished / name).write_bytes(content)
    shutil.copy(longer.folder / "study.json", finished / "study.json")
    refused(finished, "must belong to its run directory")


def test_a_changed_profile_is_refused_before_anything_is_written(finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    changed = study(SPEC.changed({"record_every": 5, "steps": 13}))
    with pytest.raises(ValueError, match="the profile or the data were changed, choose another --out"):
        run(changed, out=finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_changed_row_before_a_checkpoint_is_not_carried_into_a_result(run_directory, tmp_path):
    folder = shutil.copytree(run_directory, tmp_path / "run")
    cell = load_results(folder).cells[3]
    rows = cell.folder / "metrics.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"test_loss": 2', b'"test_loss": 3', 1))
    refused(folder, "rows of a cell must be those that it saved")
    for retry in (False, True):
        again = run(RECORDED, out=folder, seeds=2, retry=retry).cells[3]
        assert again.status == "failed"
        assert "rows of a cell must be those that it saved" in again.error
    assert not (cell.folder / "done.json").exists()


def test_rows_after_the_last_checkpoint_are_not_shown_and_written_again(run_directory, tmp_path):
    folder = shutil.copytree(run_directory, tmp_path / "run")
    before = load_results(folder).cells[3]
    with (before.folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "evaluation", "step": 999}\n{"event":')
    assert load_results(folder).cells[3].metrics == before.metrics
    whole = run(RECORDED, out=tmp_path / "whole", seeds=2).cells[3]
    resumed = run(RECORDED, out=folder, seeds=2, retry=True).cells[3]
    assert without_clock(resumed.metrics) == without_clock(whole.metrics)
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]


# ------------------------------------------------------------------------------------------------------------ weights


def test_a_finished_cell_stays_finished_without_its_weights(finished, monkeypatch):
    cell = load_results(finished).cells[0]
    (cell.folder / "weights.safetensors").unlink()
    monkeypatch.setattr("muonlab.lab.runner.cells.function_of", lambda work: pytest.fail(f"{work} was run again"))
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


def test_a_sealed_file_is_plain_json_that_names_its_hash(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1, 2.5, None, "é"], "b": {}})
    assert read_json(path) == {"a": [1, 2.5, None, "é"], "b": {}}
    assert json.loads(path.read_bytes())["file_sha256"]
    for content in (b"", b"3\n", b"{}", sealed({"a": 1})[:-1], sealed({"a": 1}) + b" ", b"[" * 200_000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must match the hash that it carries"):
            read_json(path)
    with pytest.raises(ValueError, match=r"must have all of its files, got .* missing"):
        read_json(tmp_path / "none.json")
    assert read_json(tmp_path / "none.json", default={"x": 1}) == {"x": 1}
    assert sessions_of(tmp_path) == []
