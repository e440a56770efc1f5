"""A study of a user's own: from one file, with her model, data, loss, optimizer and cell function."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import muonlab
from muonlab.cli import console
from muonlab.cli.app import main
from muonlab.lab import Settings, Spec, Study, dataset, load_results, model, optimizer, run
from muonlab.lab.own.optimizers import UNSUPPORTED
from muonlab.lab.runner.cells import CellJob
from muonlab.lab.runner.results import earlier_names
from muonlab.lab.runner.summary import command as command_of
from muonlab.lab.runner.summary import summarize
from muonlab.lab.studies import find
from muonlab.lab.study import Axis
from muonlab.optim import optimizers
from tests.lab.own.study_files import SMALLEST, loaded, write
from tests.lab.tiny import assert_same_cells

X = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
LABELS = (X.sum(1) > 0).long()
PAIRS = (X[:96], LABELS[:96]), (X[96:], LABELS[96:])


class Wide(nn.Linear):
    def __init__(self, width=4):
        super().__init__(5, width)


class Net(nn.Module):
    def __init__(self, outputs=2):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu())


def of_pairs(**settings) -> Spec:
    return Spec(**{"model": Net, "dataset": dataset(*PAIRS), "batch_size": 16, "steps": 6, "lr": 0.01, **settings})


def losses(results):
    assert results.status == "done", [cell.error for cell in results.cells]
    return {cell.folder.name: cell.last["test_loss"] for cell in results.cells}


# ------------------------------------------------------------------------------------------------------ row 1: tensors


def pairs():
    return PAIRS


def test_own_tensors_are_what_is_trained_on_in_every_form_and_are_labelled_as_own(tmp_path):
    arrays = [tuple(part.numpy() for part in pair) for pair in PAIRS]
    forms = {
        "tensors": dataset(*PAIRS, name="points"),
        "arrays": dataset(*arrays, name="points"),
        "torch-dataset": dataset(*(torch.utils.data.TensorDataset(*pair) for pair in PAIRS), name="points"),
        "function": dataset(pairs, name="points"),
        "changed": dataset((X[:96] + 1e-6, LABELS[:96]), PAIRS[1], name="points"),
    }
    weights, hashes = {}, {}
    for form, data in forms.items():
        results = run(Study("s", of_pairs(dataset=data)), out=tmp_path / form, threads=1)
        about = results.head["data"]["points"]
        assert about["label"] == "own data"
        assert about["words"] == "the study's own data points: 96 training and 24 test examples"
        weights[form], hashes[form] = results.cells[0].summary["weights_sha256"], about["hash"]
    assert weights.pop("changed") not in weights.values()
    assert hashes.pop("changed") not in hashes.values()
    assert len(set(weights.values())) == len(set(hashes.values())) == 1
    two = {"dataset": {"a": dataset(*PAIRS), "b": dataset(PAIRS[1], PAIRS[0])}}
    with pytest.raises(ValueError, match=r"got two 'own-data': use dataset\(…, name=…\)"):
        run(Study("s", of_pairs(), two), out=tmp_path / "two")
    part = run(Study("s", of_pairs(train=48, test=10)), out=tmp_path / "part")
    assert "48 of 96 training and 10 of 24 test examples" in part.head["data"]["own-data"]["words"]


def points_in(folder):
    x, y = torch.load(folder / "points.pt", weights_only=True)
    return (x[:96], y[:96]), (x[96:], y[96:])


def test_a_function_of_data_gets_the_directory_of_the_data_in_worker_processes_too(tmp_path, monkeypatch):
    monkeypatch.delenv("MUONLAB_DATA", raising=False)
    torch.save((X, LABELS), tmp_path / "points.pt")
    study = Study("s", of_pairs(dataset=points_in), seeds=2)
    with pytest.raises(ValueError, match="points_in reads from a directory of data, got none: pass --data"):
        run(study, out=tmp_path / "run")
    results = run(study, out=tmp_path / "run", data=tmp_path, jobs=2, threads=1)
    given = Study("s", of_pairs(dataset=dataset(*PAIRS, name="points_in")), seeds=2)
    alone = run(given, out=tmp_path / "own", threads=1)
    assert_same_cells(results.cells, alone.cells)
    assert " --data DIR " in command_of(results)
    assert "--data" not in command_of(alone)


# -------------------------------------------------------------------------------------------------- row 2: edited code


def test_edited_code_is_a_new_cell_and_the_old_one_stays(tmp_path):
    out = tmp_path / "run"
    first = losses(run(loaded(tmp_path), out=out))
    edits = {
        "the class": SMALLEST.replace("width=8", "width=4"),
        "a constant that a function of the class uses": SMALLEST.replace("SCALE = 1.0", "SCALE = 2.0"),
        "a function that it uses": SMALLEST.replace("SCALE * x", "SCALE + x"),
        "the data": None,
    }
    seen = dict(first)
    for what, text in edits.items():
        if text is None:
            continue
        now = losses(run(loaded(tmp_path, text), out=out))
        assert not set(now) & set(seen), what
        assert set(now.values()).isdisjoint(seen.values()), what
        assert sorted(earlier_names(out)) == sorted(seen), what
        assert losses(load_results(out)) == now, what
        kept = f"Kept, but not shown: {len(seen)} cell{'s' if len(seen) > 1 else ''} of an earlier definition"
        assert kept in console.run({**summarize(load_results(out)), "page": "report.html"}), what
        seen |= now
    assert all((out / "cells" / name / "done.json").exists() for name in seen)
    again = run(loaded(tmp_path, "# a comment\n" + SMALLEST.replace("x):", "x):  # another")), out=out)
    assert again.cells_to_run == 0  # comments do not count
    assert losses(again) == first  # nor has the old cell been lost
    with pytest.raises(ValueError, match=r"with data .* choose another --out"):
        run(loaded(tmp_path, SMALLEST.replace("x.sin()", "x.cos()")), out=out)


def test_a_changed_initialisation_is_a_new_cell_although_the_source_is_the_same(tmp_path, monkeypatch):
    out, study = tmp_path / "run", Study("s", of_pairs())
    first = losses(run(study, out=out))
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda self: nn.init.constant_(self.weight, 0.1))
    now = losses(run(Study("s", of_pairs()), out=out))
    assert set(now).isdisjoint(first)


# --------------------------------------------------------------------------------------------------- row 3: optimizers


def their_own(params, lr, power=1.0):
    return torch.optim.SGD(params, lr=lr**power, momentum=0.5)


def test_every_optimizer_trains_and_its_options_count(tmp_path):
    known = [name for name, value in vars(torch.optim).items() if isinstance(value, type) and name != "Optimizer"]
    assert len(known) > 12
    for name in set(known) & set(UNSUPPORTED):
        with pytest.raises(ValueError, match="the training loop cannot use"):
            optimizer(getattr(torch.optim, name))
    needs_momentum = {"sgdm", "muon.paper"}
    values = {
        **{name: getattr(torch.optim, name) for name in known if name not in UNSUPPORTED},
        **{name: optimizer(name, momentum=0.9) if name in needs_momentum else name for name in optimizers()},
        "a recipe": muonlab.Muon.moonlight,
        "a function": their_own,
        "with an option": optimizer(their_own, power=1.5),
        "with another rest": optimizer(muonlab.Muon.moonlight, rest=optimizer("SGD", lr=0.3)),
        "on hidden matrices": optimizer(their_own, on="hidden"),
    }
    results = run(Study("s", of_pairs(), {"optimizer": values}), out=tmp_path / "run")
    weights = {cell.label: cell.summary.get("weights_sha256", cell.error) for cell in results.cells}
    assert results.status == "done", weights
    assert weights["a recipe"] == weights["muon.moonlight"]
    assert len(set(weights.values())) == len(weights) - 1  # all others differ
    before = next(cell for cell in results.cells if cell.label == "AdamW")
    assert before.last["test_loss"] < before.metrics[0]["test_loss"]


def test_adamw_is_a_baseline_in_a_study_of_ours(tmp_path):
    quickstart = find("quickstart")
    axis = quickstart.axes[0]
    with_adamw = dataclasses.replace(
        axis, points=(*axis.points, *Axis.of("optimizer", {"AdamW": torch.optim.AdamW}).points)
    )
    study = dataclasses.replace(quickstart, name="quickstart-adamw", axes=(with_adamw,))
    of_ours = {cell.label: cell.spec.non_defaults() for cell in quickstart.cells("small", seeds=1)}
    now = {cell.label: cell.spec.non_defaults() for cell in study.cells("small", seeds=1)}
    assert {label: now[label] for label in of_ours} == of_ours
    assert now["AdamW"]["optimizer"] == {"name": "torch.optim.AdamW", "options": {}, "on": "all"}
    assert run(study, "smoke", out=tmp_path / "run", settings={"epochs": None, "steps": 3}).status == "done"


def test_settings_that_an_optimizer_would_ignore_are_refused(tmp_path):
    for settings, message in (
        ({"optimizer": torch.optim.SGD, "momentum": 0.9}, r"write optimizer\(…, momentum=…\)"),
        ({"optimizer": "AdamW", "weight_decay": 0.1}, r"write optimizer\(…, weight_decay=…\)"),
        ({"model": model(Net), "first_width": 3, "optimizer": "AdamW"}, "pass options as model"),
        (
            {"dataset": "digits", "model": "mlp-small", "optimizer": "AdamW", "loss": "mean", "validation": 10_000},
            "val",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            run(Study("s", of_pairs(**settings)), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"write Spec\(lr=…\)"):
        of_pairs(optimizer=optimizer("AdamW", lr=0.1))


# --------------------------------------------------------------------------------------------- row 4: the command line

SEVERAL = SMALLEST.replace(
    "steps=12))", 'steps=12), {"optimizer": {"AdamW": "AdamW", "Muon": "muon"}}, seeds=2, title="Waves and <nets>")'
)


def command(folder, *words, **more):
    """Run the command line in a folder, in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **more}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_a_study_file_is_listed_run_side_by_side_and_reported_like_a_registered_one(tmp_path, capsys):
    write(tmp_path, SEVERAL)
    done = command(tmp_path, "muonlab", "run", "./their_study.py", "--jobs", "2", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["command"] == "muonlab run ./their_study.py --seeds 2 --device cpu --threads 1"
    assert report["folder"] == "runs/mine"
    page = (tmp_path / "runs/mine/report.html").read_text(encoding="utf-8")
    assert "Waves and &lt;nets&gt;" in page
    assert "own data" in page
    assert "scikit-learn&#39;s" not in page
    assert str(tmp_path) not in page
    assert main(["list", "studies", str(tmp_path / "their_study.py")]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^name +title +cells\n.*\nmine +Waves and <nets> +4\n", listed)
    assert listed.endswith(f"Run it: muonlab run {tmp_path}/their_study.py\n")
    alone = run(loaded(tmp_path, SEVERAL), out=tmp_path / "alone", threads=1)
    assert_same_cells(load_results(tmp_path / "runs/mine").cells, alone.cells)
    again = command(tmp_path, "muonlab", "run", "their_study.py", "--threads", "1")
    assert "4 of 4 cells were done already; nothing was run." in again.stdout
    assert main(["report", str(tmp_path / "runs")]) == 0


def test_a_study_file_that_is_stopped_resumes_bit_for_bit(tmp_path):
    longer = SEVERAL.replace("steps=12", "steps=600, evaluate_every=300")
    write(tmp_path, longer)
    words = [sys.executable, "-m", "muonlab", "run", "their_study.py", "--seeds", "1", "--threads", "1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    stopped = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/mine/cells/*/metrics.jsonl")):  # the first cell has begun
        assert time.monotonic() < deadline
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate()
    assert stopped.returncode == 75
    assert load_results(tmp_path / "runs/mine").status == "open"
    assert command(tmp_path, *words[2:]).returncode == 0
    alone = run(loaded(tmp_path, longer), out=tmp_path / "alone", threads=1, seeds=1)
    assert_same_cells(load_results(tmp_path / "runs/mine").cells, alone.cells)


def test_a_cell_is_not_run_with_code_that_was_edited_after_it_was_planned(tmp_path):
    planned, edited = (cell.spec for cell in of_widths(8, 16))
    job = CellJob(tmp_path, edited, "muonlab.lab.training.loop:train", None, 60.0, planned=planned.to_dict())
    with pytest.raises(ValueError, match="the file of a study must stay the same while it runs"):
        job.check_code()
    dataclasses.replace(job, spec=planned).check_code()
    specs = [cell.spec for cell in of_widths(8, 16)]
    sent = json.loads(json.dumps(job.to_dict()))  # to the other ranks
    assert CellJob.from_dict(sent, specs) == dataclasses.replace(job, spec=specs[1])
    with pytest.raises(ValueError, match="the file of a study must stay the same while it runs"):
        CellJob.from_dict(sent, specs[:1])


def of_widths(*widths):
    return Study("s", of_pairs(model=model(Wide)), {"model.width": widths}).cells()


def test_a_study_file_is_trained_by_two_ranks(tmp_path):
    write(tmp_path, SEVERAL)
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "muonlab", "run", "their_study.py"]
    done = command(tmp_path, *words, "--seeds", "1", "--threads", "1", GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr[-3000:]
    alone = run(loaded(tmp_path, SEVERAL), out=tmp_path / "alone", threads=1, seeds=1)
    for cell, single in zip(load_results(tmp_path / "runs/mine").cells, alone.cells, strict=True):
        assert cell.ranks == (2,)
        assert cell.last["test_loss"] == pytest.approx(single.last["test_loss"], rel=1e-4)


def test_files_that_are_no_study_are_refused(tmp_path):
    for what, message in (
        (SMALLEST.replace("nn.Linear(5,", "nn.Linear(6,"), r"must take a batch of the data.*with x of shape \[2, 5\]"),
        (SMALLEST.replace("loss=nn.functional.mse_loss, ", ""), "cross-entropy needs whole numbers as targets"),
    ):
        with pytest.raises(ValueError, match=message):
            run(loaded(tmp_path, what), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()  # found before the first cell
    for text, message in (("", r"must define STUDY = Study"), ("STUDY = 3", "with int: add it")):
        with pytest.raises(ValueError, match=message):
            loaded(tmp_path, text)
    with pytest.raises(ValueError, match="a study file must exist"):
        find(str(tmp_path / "nowhere.py"))
    with pytest.raises(ValueError, match=r"a name that no other module has, got torch\.py"):
        find(str(write(tmp_path, SMALLEST, "torch.py")))


def test_an_error_in_a_study_file_is_one_line_that_ends_with_its_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_forward = SMALLEST.replace("return self.", 'raise ValueError("not yet") or self.')
    for text, message, line in (
        (
            "from muonlab.lab import Spec\n\nSpec(\n    steps=-3\n)",
            "steps must be at least 1, got -3: pass 1 or more",
            3,
        ),
        (in_forward, "not yet", 1 + in_forward[: in_forward.index("not yet")].count("\n")),
    ):
        name = f"wrong_{line}.py"
        write(tmp_path, text, name)
        assert main(["run", name]) == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.splitlines()[-1].endswith(f"({name}, line {line})")


def test_a_new_study_runs_as_it_is_and_overwrites_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "study", "their_study.py"]) == 0
    assert "Run it: muonlab run their_study.py" in capsys.readouterr().out
    written = (tmp_path / "their_study.py").read_text(encoding="utf-8")
    assert "muonlab run their_study.py" in written
    assert main(["run", "their_study.py", "--seeds", "1", "--threads", "1", "--set", "steps=3"]) == 0
    for name, message in (("their_study.py", "must not overwrite"), ("my study.py", "such as my_study.py")):
        assert main(["new", "study", name]) == 2
        assert message in capsys.readouterr().err
    assert (tmp_path / "their_study.py").read_text(encoding="utf-8") == written


# ----------------------------------------------------------------------------- row 5: no claims, and one profile


def test_a_study_without_claims_has_one_profile_and_a_page(tmp_path):
    study = Study("plain", of_pairs())
    assert (study.claims, list(study.profiles), study.title) == ((), ["whole"], "plain")
    results = run(study, out=tmp_path / "run")
    assert main(["report", str(results.folder)]) == 0
    page = (results.folder / "report.html").read_text(encoding="utf-8")
    assert "profile" not in re.sub(r"<(script|style).*?</\1>|<[^>]*>", "", page.partition("<h2")[0], flags=re.DOTALL)
    assert "Rules of the claims" not in page


# -------------------------------------------------------------------------------------------- row 6: any shape, tokens


def heat(outputs, targets):
    return (outputs - targets).abs().mean()


def test_pairs_of_any_shape_are_trained_with_a_loss_function(tmp_path):
    pictures = torch.arange(60 * 12, dtype=torch.float64).view(60, 1, 3, 4).sin()
    data = dataset((pictures[:40], pictures[:40] * 2), (pictures[40:], pictures[40:] * 2))
    spec = Spec(model=model(nn.Conv2d, in_channels=1, out_channels=1, kernel_size=1), dataset=data, loss=heat)
    study = Study("s", spec.changed({"optimizer": "AdamW", "batch_size": 10, "steps": 40, "lr": 0.1}))
    (cell,) = run(study, out=tmp_path / "run").cells
    start, end = cell.metrics[0], cell.last
    assert end["test_loss"] < 0.5 * start["test_loss"]
    assert "test_accuracy" not in end
    assert main(["report", str(tmp_path / "run")]) == 0
    weights = cell.weights()
    expected = heat(
        pictures[40:].float() * weights["weight"].item() + weights["bias"].item(), 2 * pictures[40:].float()
    )
    assert end["test_loss"] == pytest.approx(float(expected), rel=1e-5)


def next_token(vocabulary):
    return nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))


def test_tokens_of_any_tokenizer_are_read_from_files(tmp_path):
    stream = np.arange(2_000) * 7 % 70_001 % 300
    for dtype, suffix in ((np.uint16, ".npy"), (np.uint16, ".bin"), (np.int64, ".npy"), (np.uint8, ".npy")):
        tokens = (stream % 256).astype(dtype)
        paths = [tmp_path / f"{part}{suffix}" for part in ("train", "test")]
        for path, part in zip(paths, (tokens[:1600], tokens[1600:]), strict=True):
            part.tofile(path) if suffix == ".bin" else np.save(path, part)
        spec = Spec(model=model(next_token, vocabulary=256), dataset=dataset(*map(str, paths)), block=8, batch_size=4)
        spec = spec.changed({"optimizer": "AdamW", "steps": 30, "lr": 0.05, "validation": 100})
        (cell,) = run(Study("s", spec), out=tmp_path / f"{np.dtype(dtype).name}{suffix[1:]}", threads=1).cells
        assert cell.status == "done", cell.error
        assert cell.last["test_loss"] < cell.metrics[0]["test_loss"] - 0.5
        assert cell.last["validation_loss"] != cell.last["test_loss"]
    assert Spec(dataset=dataset(stream, stream), block=8).dataset.splits()["train"][0].max() < 300
    large = dataset(np.array([70_000, 3] * 20), np.array([70_000, 3] * 20))  # more than 16 bits
    spec = Spec(model=model(next_token, vocabulary=70_001), dataset=large, block=4, batch_size=2, steps=1)
    assert run(Study("s", spec.changed({"optimizer": "SGD"})), out=tmp_path / "large").status == "done"


# ------------------------------------------------------------------------------------------------- row 7: cell function


@dataclasses.dataclass(frozen=True)
class Throws(Settings):
    """Throws of a coin."""

    count: int = 100


def throw(spec: Throws, context) -> dict[str, float]:
    context.begin({})
    coins = torch.rand(spec.count, generator=torch.Generator().manual_seed(spec.seed)) < 0.5
    context.write({"event": "thrown", "heads": int(coins.sum())})
    return {"heads": float(coins.float().mean())}


def test_a_function_of_the_user_runs_the_cells_and_its_source_is_in_their_key(tmp_path):
    study = Study("coins", Throws(), {"count": (10, 1000)}, seeds=2, work=throw)
    for jobs in (1, 2):
        results = run(study, out=tmp_path / f"run{jobs}", jobs=jobs, threads=1)
        assert results.status == "done", [cell.error for cell in results.cells]
        assert [cell.summary["heads"] for cell in results.cells][2] == pytest.approx(0.5, abs=0.1)
        assert [cell.metrics[0]["heads"] for cell in results.cells[:2]] != [None, None]
    assert main(["report", str(results.folder)]) == 0
    page = (results.folder / "report.html").read_text(encoding="utf-8")
    assert "What each cell returned" in page
    assert "no cell of this study has results" not in page
    assert {(row["count"], type(row["count"])) for row in results.rows()} == {(10, int), (1000, int)}
    spec = json.loads((results.cells[0].folder / "spec.json").read_text(encoding="utf-8"))
    assert spec["identity"]["work"]["name"] == "throw"
    assert len(spec["identity"]["work"]["source"]) == 64


def nothing(_: Throws, context) -> None:
    context.begin({})


def a_tensor(_: Throws, __) -> dict[str, object]:
    return {"heads": torch.ones(2)}


def no_event(_: Throws, context) -> dict[str, float]:
    context.begin({})
    context.write({"heads": 1})
    return {}


def test_a_wrong_return_or_row_fails_its_cell_and_says_what_to_write(tmp_path):
    for work, message in (
        (nothing, "must return a dictionary, got NoneType: return {}"),
        (a_tensor, "must return plain numbers or text, got 'heads' of type Tensor: convert it"),
        (no_event, "a row must be a dictionary with 'event', got {'heads': 1}: add"),
    ):
        results = run(Study("wrong", Throws(), work=work), out=tmp_path / work.__name__, threads=1)
        assert results.status == "failed"
        assert message in results.cells[0].error
        assert load_results(results.folder).cells[0].error == results.cells[0].error


def test_the_rows_of_a_sweep_have_the_rate_of_the_axis_and_that_of_the_schedule(tmp_path):
    sweep = Study("sweep", of_pairs(steps=3, evaluate_every=1, optimizer="AdamW"), {"lr": (0.01, 0.1)})
    rows = run(sweep, out=tmp_path / "run", threads=1).rows()
    assert {row["lr"] for row in rows} == {0.01, 0.1}
    assert len({row["current_lr"] for row in rows}) > 2


# ------------------------------------------------------------------------------- what cannot be identified, and resume


def test_what_cannot_be_hashed_is_refused_with_the_way_out_or_runs_without_a_cache(tmp_path):
    width = 8

    def inside(params, lr):
        return torch.optim.SGD(params, lr=lr / width)

    for settings, message in (
        (
            {"model": lambda: Net(outputs=2), "optimizer": "AdamW"},
            "got a lambda: define it with def or class at the top level",
        ),
        ({"optimizer": inside}, "which is defined inside a function and may use its variables: define it"),
        ({"optimizer": "AdamW", "loss": lambda a, b: nn.functional.cross_entropy(a, b) + 0}, "got a lambda"),
    ):
        spec = of_pairs(**settings)
        with pytest.raises(ValueError, match=message):
            run(Study("s", spec), out=tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
        out = tmp_path / "uncached"
        first, again = (run(Study("s", spec, cache=False), out=out) for _ in range(2))
        assert first.cells_to_run == again.cells_to_run == 1
        assert first.cells[0].folder != again.cells[0].folder
        assert first.cells[0].summary["weights_sha256"] == again.cells[0].summary["weights_sha256"]
    with pytest.raises(TypeError, match="a model must be a class or a function, got Net"):
        model(Net())
    with pytest.raises(TypeError, match="an option must be a number"):
        optimizer("AdamW", betas=torch.ones(2))


@pytest.mark.parametrize("chosen", ["AdamW", "muon", "torch.optim.Muon", "Adafactor"])
def test_own_optimizers_resume_bit_for_bit(tmp_path, chosen):
    from muonlab.lab.training.loop import Training
    from tests.lab.tiny import Bench, without_clock

    spec = of_pairs(optimizer=chosen, steps=7, evaluate_every=2)
    benches = [Bench(Path(tmp_path)), Bench(Path(tmp_path))]
    whole = Training(spec, benches[0])
    whole.resume()
    for _ in range(7):
        whole.update()
        if whole.evaluation_is_due:
            whole.evaluate()
        if whole.step == 4:
            whole.save()
            benches[1].rows = json.loads(json.dumps(benches[0].rows))
    resumed = Training(spec, benches[1])
    resumed.resume()
    assert resumed.step == 4
    while resumed.step < 7:
        resumed.update()
        if resumed.evaluation_is_due:
            resumed.evaluate()
    assert without_clock(benches[1].rows["metrics"]) == without_clock(benches[0].rows["metrics"])
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


# -------------------------------------------------------------------------------------------------------- the example


@pytest.mark.data("web-text")
def test_the_example_of_the_guide_trains_every_cell(tmp_path):
    settings = {"steps": 2, "model.layers": 1, "model.width": 32, "train": 200_000, "test": 500, "validation": 500}
    example = Path(__file__).parents[3] / "examples" / "byte_gpt_study.py"
    folder = os.environ["MUONLAB_DATA"]
    results = run(str(example), data=folder, out=tmp_path / "run", settings=settings, seeds=1, threads=1)
    assert len(losses(results)) == 24
    assert len({cell.summary["weights_sha256"] for cell in results.cells}) == 24
    for cell in results.cells:
        assert cell.spec["model"]["options"] == {"layers": 1, "width": 32}
