"""Every example runs as a program and prints what it promises; so does the benchmark on digits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from muonlab.lab import load_results

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.endswith("_study"))
QUICK = ("with_grad_scaler",)
"""Examples that `make test` runs; `make soak` runs the others."""
TRAINERS = {
    "huggingface_trainer": ("transformers", "accelerate"),
    "accelerate_moe": ("transformers", "accelerate"),
    "lightning_vit": ("transformers", "lightning"),
    "log_to_tensorboard": ("tensorboard",),
    "log_to_wandb": ("wandb",),
}
"""Examples that need packages of requirements-trainers.txt."""
SECONDS = 240
"""Time limit of one program, generous for busy machines."""


def run(*command, strict=True, folder=ROOT):
    """Output of a program of this repository, with warnings as errors; not strict where other packages warn."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, *(("-W", "error") if strict else ()), *map(str, command)],
        capture_output=True, encoding="utf-8", timeout=SECONDS, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr if strict else "") == (0, ""), done.stderr
    return done.stdout


def numbers(pattern, text):
    """Every number that the pattern captures."""
    return [float(found) for found in re.findall(pattern, text)]


def promises_certificate_table(out):
    assert "Factor on the convergence bound" in out
    assert "Largest factor" in out


def promises_record_training(out):
    rows = re.findall(r"step +(\d+), (\S+): (\d+) steps, alignment ([\d.]+) \(floor ([\d.]+)\), paper's chi (\S+)", out)
    assert [int(step) for step, *_ in rows] == [1, 1, 51, 51, 101, 101, 151, 151]
    for step, _, _, alignment, floor, chi in rows:
        assert float(floor) <= float(alignment) <= 1
        assert float(chi) > 50 / float(alignment)  # the paper's factor says nothing here
        assert int(step) == 1 or float(alignment) >= 0.94  # where AutoSteps aims
    assert "AutoSteps after step 1: group 0 from 5 to" in out
    assert "Network (look-aheads of the present gradients and momenta): holds." in out


def promises_train_digits(out):
    assert re.search(r"0\.weight +\(128, 64\) +Muon", out)
    assert re.search(r"4\.weight +\(10, 128\) +auxiliary +head", out)
    accuracy = numbers(r"test accuracy ([\d.]+)%", out)
    assert len(accuracy) == 10
    assert accuracy[-1] > 96


def promises_from_torch_muon(out):
    torchs, ours = numbers(r"10 more of .*: +loss ([\d.]+)", out)
    assert ours == pytest.approx(torchs, rel=1e-3, abs=0)
    differences = numbers(r"relative difference ([\d.e+-]+)", out)
    assert len(differences) == 2
    assert max(differences) < 1e-2  # five steps in bfloat16; 0.06 if the state is not loaded well


def promises_from_adamw(out):
    losses = {name: float(loss) for name, loss in re.findall(r"^(.*?) *: test loss ([\d.]+)", out, flags=re.M)}
    assert losses["Muon and AdamW, both lr 0.003"] < losses["AdamW alone, lr 0.003"]
    assert losses["Muon, lr 0.02, and AdamW, lr 0.003"] < losses["AdamW alone, lr 0.001"]
    *same_rates, own = numbers(r"last update ([\d.]+)·lr", out)
    assert all(0.05 < rms < 0.25 for rms in same_rates)  # match_rms_adamw: at most 0.2
    assert own > 0.25


def promises_with_grad_scaler(out):
    moved = numbers(r"(\d+) parameters moved", out)
    overflows = moved.count(0)
    assert 1 <= overflows <= 6
    assert moved == [0] * overflows + [6] * (12 - overflows)
    losses = numbers(r"loss ([\d.]+)", out)
    assert losses[-1] < losses[0]
    assert "all weights finite: True" in out


def promises_with_schedulers(out):
    assert numbers(r"largest difference between whole and resumed: (\S+)", out) == [0.0]
    assert "step 10: " in out
    assert "[0.02, 0.003, 0.003]" in out  # the peak of both curves
    assert "[0.00191, 0.0006, 0.0006]" in out  # curves that differ


def promises_huggingface_trainer(out):
    rows = re.findall(r"step +(\d+): loss ([\d.]+), alignment ([\d.]+) \(least ([\d.]+)\), polar error ([\d.]+)", out)
    assert [int(step) for step, *_ in rows] == [20, 40, 60, 80, 100, 120, 80, 100, 120]
    for _, _, alignment, least, error in rows:
        assert 0.7 < float(least) <= float(alignment) < 1  # five Jordan steps
        assert 0 < float(error) < 1
    assert rows[3:6] == rows[6:]  # the resumed half
    assert float(rows[0][1]) > 4
    assert float(rows[5][1]) < 2.9
    assert "12 matrices by Muon" in out  # query, key, value and three others in two layers
    assert numbers(r"resumed from step 60: difference of the last loss (\S+)", out) == [0.0]


def promises_accelerate_moe(out):
    losses = numbers(r"step +\d+: loss ([\d.]+)", out)
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 10
    assert numbers(r"next token right: ([\d.]+)%", out)[0] > 95  # by chance 0.4
    assert "matrices that Muon orthogonalized in the last step: 32" in out  # 4 of attention and 12 of experts by layer


def promises_lightning_vit(out):
    accuracy = numbers(r"test accuracy ([\d.]+)%", out)
    assert len(accuracy) == 8
    assert accuracy[-1] > 90
    assert all(0.7 < alignment < 1 for alignment in numbers(r"alignment ([\d.]+)", out))
    assert "234 measurements" in out  # 13 matrices at 18 of 176 steps


def promises_log_to_tensorboard(out):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path(re.search(r"5 curves for each loss: tensorboard --logdir (\S+)", out)[1])
    logged = {}
    for curve in folder.iterdir():
        events = EventAccumulator(str(curve))
        events.Reload()
        logged[curve.name] = [(each.step, pytest.approx(each.value)) for each in events.Scalars("test_loss")]
    assert logged == evaluations(folder.parent)


def promises_log_to_wandb(out):
    from wandb.proto import wandb_internal_pb2

    folder = Path(re.search(r"5 runs: wandb sync (\S+)/offline-run-\*", out)[1])
    logged = {}
    for file in folder.glob("offline-run-*/*.wandb"):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                points = logged.setdefault(record.run.display_name, [])
            if record.HasField("history"):
                row = {
                    item.nested_key[0] if item.nested_key else item.key: item.value_json for item in record.history.item
                }
                points.append((int(row["_step"]), json.loads(row["test_loss"])))
    assert logged == evaluations(folder.parent)


def records(content):
    """Yield the records of a .wandb file: 7 bytes, then blocks of 32 KiB in the format of LevelDB's log."""
    place, parts = 7, b""
    while place < len(content):
        if 32_768 - place % 32_768 < 7:  # no header fits: the block ends in zeros
            place += 32_768 - place % 32_768
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def evaluations(folder):
    """Steps and test losses of a run directory, by cell and seed."""
    found = {}
    for row in load_results(folder).rows():
        if row["event"] == "evaluation":
            found.setdefault(f"{row['label']}, seed {row['seed']}", []).append((row["step"], row["test_loss"]))
    assert len(found) == 5
    return found


def example(name):
    """Return the parameter of an example, marked as slow, and with the packages that it needs."""
    marks = [] if name in QUICK else [pytest.mark.slow]
    return pytest.param(name, marks=[*marks, pytest.mark.trainers(*TRAINERS.get(name, ()))])


@pytest.mark.parametrize("name", [example(name) for name in EXAMPLES])
def test_example_runs_and_prints_what_it_promises(name, tmp_path):
    out = run(ROOT / "examples" / f"{name}.py", strict=name not in TRAINERS, folder=tmp_path)
    globals()[f"promises_{name}"](out)


def test_every_example_has_a_docstring_and_a_check_of_its_output():
    for name in EXAMPLES:
        assert re.match(r'"""[A-Z].+[.:]', (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")), name
        assert f"promises_{name}" in globals(), f"write promises_{name}(out): a check of what {name}.py prints"


# ------------------------------------------------------------------------------------------ the benchmark on digits


def check_rows(rows, protocol):
    for row in rows.values():
        assert row["lr"] in protocol["grid"]
        assert row["lr_on_edge_of_grid"] == (row["lr"] in (protocol["grid"][0], protocol["grid"][-1]))
        tuned = [float("inf") if v is None else v for v in row["validation_loss_by_lr"]]
        assert min(tuned) == tuned[protocol["grid"].index(row["lr"])]
        assert sorted(tuned)[1] == tuned[protocol["grid"].index(row["runner_up"]["lr"])]
        for figure in ("test_loss", "test_accuracy"):
            values = row[figure]["by_seed"]
            assert len(values) == len(protocol["evaluation_seeds"])
            assert row[figure]["mean"] == pytest.approx(sum(values) / len(values), abs=1e-4, rel=0)


def pair(contest, name, against):
    return next(p for p in contest["paired"] if (p["name"], p["against"]) == (name, against))


@pytest.mark.slow
def test_digits_benchmark_prints_json_in_which_muon_beats_sgdm():
    report = json.loads(run("benchmarks/digits.py", "--quick"))
    assert report["command"].endswith("benchmarks/digits.py --quick")
    (contest,) = report["contests"]
    check_rows(contest["rows"], report["protocol"])
    loss = {name: row["test_loss"]["mean"] for name, row in contest["rows"].items()}
    assert loss["muon"] < 0.7 * loss["sgdm"]  # 0.16 against 0.44
    assert loss["muon + adamw"] < loss["sgdm"]
    duel = pair(contest, "muon", "sgdm")
    expected = [
        a - b for a, b in zip(*(contest["rows"][n]["test_loss"]["by_seed"] for n in ("muon", "sgdm")), strict=True)
    ]
    assert duel["test_loss_difference"]["by_seed"] == pytest.approx(expected, abs=1e-5, rel=0)
    assert duel["seeds_with_lower_loss"] == len(expected)


def test_digits_results_follow_the_protocol_and_say_that_muon_beats_sgdm_after_75_steps():
    report = json.loads((ROOT / "results" / "digits.json").read_text(encoding="utf-8"))
    protocol = report["protocol"]
    assert len(protocol["grid"]) == 7
    assert len(protocol["evaluation_seeds"]) == 5
    assert not {*protocol["evaluation_seeds"]} & {*protocol["selection_seeds"]}
    for part in (*report["contests"], *report["defaults"]):
        check_rows(part["rows"], protocol)
    short = report["contests"][0]  # after 300 steps the difference is within the spread between seeds
    for opponent in ("sgdm", "sgdm nesterov", "sgdm 0.95", "sgdm 0.95 nesterov"):
        assert pair(short, "muon", opponent)["test_loss_difference"]["mean"] < 0
        assert pair(short, "muon", opponent)["test_accuracy_difference"]["mean"] > 0
