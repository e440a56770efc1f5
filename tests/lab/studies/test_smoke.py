"""Every study at its smoke profile, from the command line to its artefacts, on the real path of its data."""

from __future__ import annotations

import json
import os

import pytest

from muonlab.cli.app import main
from muonlab.lab import load_results
from muonlab.lab.studies import studies

FALLS = {
    "q-ablation": 0.05,
    "mlp-mnist": 0.4,
    "resnet18-cifar100": 0.06,
    "wrn-tiny-imagenet": 0.08,
    "gpt-124m-fineweb": 0.02,
    "gpt-1.3b-fineweb": 0.02,
    "degree": 0.05,
    "rank": 0.05,
    "batch-size": 0.04,
    "adhoc": 0.05,
    "quickstart": 0.35,
}
"""The smallest fraction by which the training loss of each cell falls from the first evaluation to the last."""
MEASURED = ("wall-clock", "theory-at-work", "lr-by-steps")
"""Studies whose cells have other rows than the losses of one run."""
FOLDERS = {
    "mnist": "mnist",
    "cifar10": "cifar10-subset",
    "cifar100": "cifar100-standin",
    "tiny-imagenet": "tiny-imagenet-subset",
    "fineweb": "web-text",
}


QUICK = ("quickstart", "theory-at-work")
"""Studies that `make test` runs: embedded data, and problems of known constants."""


def marked():
    for name, study in studies().items():
        folder = FOLDERS.get(getattr(study.base, "dataset", ""))
        marks = [pytest.mark.data(folder)] if folder else []
        yield pytest.param(name, marks=[*marks, *([pytest.mark.slow] if name not in QUICK else [])])


def test_every_study_has_its_margin():
    assert {*FALLS, *MEASURED} == set(studies())


@pytest.mark.parametrize("name", [*marked()])
def test_a_study_runs_and_learns_and_leaves_all_its_artefacts(capsys, tmp_path, name):
    out = tmp_path / "run"
    assert main(["run", name, "--profile", "smoke", "--threads", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    results = load_results(out)
    assert results.status == "done"
    assert len(results.cells) == len(studies()[name].cells("smoke"))
    left = {"study.json", "env.json", "cells.json", "lock", "cells", "report", "report.html"}
    assert {path.name for path in out.iterdir()} == left
    assert f"Done: {out}" in shown
    assert shown.rstrip().endswith(f"Page: {out / 'report.html'}")
    assert list((out / "report" / "figures").glob("*.svg"))
    assert list((out / "report" / "tables").glob("*.tex"))
    for cell in results.cells:
        assert cell.label in shown
        assert cell.summary.get("violated", 0) == 0
        assert cell.metrics
        present = {path.name for path in cell.folder.iterdir()}
        assert {"spec.json", "metrics.jsonl", "done.json"} <= present
        if name in MEASURED:
            continue
        rows = [row for row in cell.metrics if row["event"] == "evaluation"]
        assert len(rows) >= 2
        assert rows[-1]["train_loss"] <= (1 - FALLS[name]) * rows[0]["train_loss"], cell.label
        assert "weights.safetensors" in present
        if cell.spec["record_every"] and cell.spec["optimizer"] != "sgdm":
            assert any(row["event"] == "whole" for row in cell.certificates())
    dataset = getattr(studies()[name].base, "dataset", None)
    if dataset in FOLDERS:
        origin = results.head["data"][dataset]
        assert origin["where"] == FOLDERS[dataset]
        assert origin["label"] == ("stand-in" if dataset in ("cifar100", "fineweb") else "subset")
        assert origin["words"] in shown  # a subset or stand-in is labelled where its numbers appear
        assert os.environ["MUONLAB_DATA"] not in json.dumps(dict(results.head))
    assert "not the paper's setting" in shown


@pytest.mark.data("cifar10-subset")
def test_the_rank_study_measures_the_gradients_of_its_layer(tmp_path):
    words = ["run", "rank", "--threads", "1", "--out", str(tmp_path / "run"), "--set", "steps=2", "epochs=none"]
    assert main(words) == 0
    for cell in load_results(tmp_path / "run").cells:
        assert cell.metrics[-1]["gradient_nuclear_norm"] > 0
