"""The runs that are committed under results/runs can be read, continued and made into the pages that are there."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from muonlab.lab import load_results, run
from muonlab.lab.grid_optima import optima_of
from muonlab.lab.runner.machine import describe_machine, environment
from muonlab.lab.runner.summary import summarize
from muonlab.lab.studies import find
from muonlab.report.publish import write_report
from tests.lab.tiny import without_clock

ROOT = Path(__file__).parents[2]
MOST_BYTES = 25_000_000
NOT_COMMITTED = {"weights.safetensors", "history.json", "lock", "report.html"}


def git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """The files as they are committed: a queue may be writing to the working tree."""
    out = tmp_path_factory.mktemp("committed")
    archive = git("archive", "HEAD", "results")
    if archive.returncode:  # not a repository: the files that there are
        shutil.copytree(ROOT / "results", out / "results")
    else:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(out, filter="data")
    return out / "results" / "runs"


@pytest.fixture(scope="module")
def runs(committed):
    return {path.parent.name: load_results(path.parent) for path in sorted(committed.glob("*/study.json"))}


def test_they_are_small_and_hold_no_weights_no_checkpoints_and_no_path_of_a_machine(committed):
    files = [path for path in committed.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        assert path.name not in NOT_COMMITTED, path
        assert "checkpoints" not in path.parts, path
    for path in committed.glob("*/env.json"):
        assert not re.search(r'"/\w', path.read_text()), path


def test_they_were_made_from_clean_commits_with_one_thread(runs):
    assert {"theory-at-work-small", "wall-clock-small", "quickstart-small", "mlp-mnist-paper"} <= set(runs)
    for name, results in runs.items():
        assert results.head["settings"]["threads"] == 1, name
        for session in results.environments:
            assert re.fullmatch(r"[0-9a-f]{40}", session["commit"]), name  # a plus would say that files were changed


@pytest.mark.slow
def test_their_pages_are_made_again_with_the_same_numbers(committed, tmp_path):
    again = tmp_path / "runs"
    shutil.copytree(committed, again)
    made = [path.relative_to(committed) for path in committed.rglob("*") if _is_made(path.relative_to(committed))]
    assert {path.parent.parent.name for path in committed.glob("*/report/claims.json")} == {
        path.parent.name for path in committed.glob("*/study.json")
    }
    for path in made:
        (again / path).unlink()
    assert write_report(again)["problems"] == []
    for path in made:
        assert _without_version(again / path) == _without_version(committed / path), path
    tables = {path.relative_to(again) for path in again.glob("*/report/tables/*.md")}
    assert tables == {path for path in made if path.suffix == ".md"}


def _without_version(path):
    """Return the text of a file without the version of muonlab, which may be newer than that which wrote the page."""
    return re.sub(r'"muonlab": "[\d.]+"', "", path.read_text())


def _is_made(path):
    return path.name == "claims.json" or path.suffix == ".md"


def test_the_readme_says_what_the_ledger_says(committed):
    ledger = json.loads((committed / "claims.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(ROOT / "results"))
    try:
        from readme import updated
    finally:
        sys.path.pop(0)
    archive = git("show", "HEAD:README.md")
    readme = archive.stdout.decode() if archive.returncode == 0 else (ROOT / "README.md").read_text(encoding="utf-8")
    assert updated(readme, ledger) == readme
    count = Counter(claim["verdict"] for claim in ledger["claims"])
    assert f"Of {len(ledger['claims'])} claims {count['held']} held, {count['not held']} did not, and" in readme
    assert count["held"] + count["not held"] > 13
    other = {**ledger, "claims": [{**claim, "verdict": "held"} for claim in ledger["claims"]]}
    assert updated(readme, other) != readme


def test_the_table_of_the_quickstart_is_the_committed_run(runs):
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    places = summarize(runs["quickstart-small"])["places"]
    assert {place["done"] for place in places} == {3}
    for place in places:
        losses = [f"{place[name]['mean']:.3f} ± {place[name]['std']:.3f}" for name in ("train_loss", "test_loss")]
        aligned = f"{place['alignment']['mean']:.2f}" if "alignment" in place else "–"
        cells = [place["label"], *losses, f"{place['test_accuracy']['mean']:.1%}".replace("%", " %"), aligned]
        assert f"| {' | '.join(cells)} |" in page, place["label"]


def test_the_shifts_on_the_page_of_other_analyses_are_those_of_the_committed_run(runs):
    if "lr-by-steps-small" not in runs:
        pytest.skip("the run lr-by-steps-small is not committed yet")
    page = (ROOT / "docs/theory/other-analyses.md").read_text(encoding="utf-8")
    rows = {(row["network"], row["optimizer"]): row for row in optima_of(runs["lr-by-steps-small"])}
    for q in (1, 2, 3, 5):
        shown = []
        for name in ("shift_log_lr", "shift_log_descent", "shift_log_memory"):
            of = [rows[network, f"Muon (q={q})"] for network in ("digits", "MNIST")]
            shown += [f"{row[name]:.2f} ± {row[f'{name}_error']:.2f}".replace("-", "−") for row in of]
        assert f"| q = {q} | {' | '.join(shown)} |" in page
    largest = [2 ** rows[network, "Muon (q=1)"]["shift_log_lr"] for network in ("digits", "MNIST")]
    assert [f"{factor:.1f}" for factor in largest] == ["2.5", "4.9"]


@pytest.mark.parametrize(
    ("name", "labels"),
    [("quickstart-small", ["Muon (q=3)"]), ("theory-at-work-small", ["bowl", "muon_svd"])],
)
def test_a_committed_cell_is_run_again_with_the_same_rows(runs, tmp_path, name, labels):
    committed = runs[name]
    label = ", ".join(labels)
    before = next(cell for cell in committed.cells if (cell.label, cell.seed) == (label, 0))
    here = describe_machine(environment())
    if _bits(before.machines[0]) != _bits(here):
        pytest.skip(f"bits hold for one type of processor: the cell ran on {before.machines[0]}, this is {here}")
    study = find(committed.study)
    axes = {axis.name: axis for axis in (*study.axes, *study.profiles[committed.profile].axes)}
    chosen = tuple(
        dataclasses.replace(axis, points=tuple(point for point in axis.points if point.label == label))
        for axis, label in zip(axes.values(), labels, strict=True)
    )
    profile = dataclasses.replace(study.profiles[committed.profile], axes=chosen)
    only = dataclasses.replace(study, profiles={**study.profiles, committed.profile: profile})
    (again,) = run(only, committed.profile, seeds=1, threads=1, out=tmp_path / "run").cells
    assert again.folder.name == before.folder.name  # the same key
    assert without_clock(again.metrics) == without_clock(before.metrics)
    assert again.certificates() == before.certificates()
    assert again.summary.get("weights_sha256") == before.summary.get("weights_sha256")


def _bits(machine):
    """The part of a machine's description that its rounding depends on."""
    return re.sub(r", \d+ cores.*(, torch [^,]*).*", r"\1", machine)


def test_a_committed_run_is_continued_where_it_is(committed, tmp_path):
    """A finished study that is asked for once more runs nothing, although its weights are not there."""
    folder = shutil.copytree(committed / "quickstart-small", tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}
    results = run("quickstart", "small", out=folder)
    assert results.status == "done"
    assert {path: path.read_bytes() for path in before} == before
    assert os.path.samefile(results.folder, folder)
