from __future__ import annotations

import dataclasses
import itertools
import math
import re
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from muonlab import SGDM, MuonWithAux
from muonlab.lab import Spec
from muonlab.lab.cell_context import Stopped
from muonlab.lab.data.batches import augment, order
from muonlab.lab.data.loading import load
from muonlab.lab.models import build
from muonlab.lab.studies import find
from muonlab.lab.training.loop import Training, train
from muonlab.lab.training.recipe import build_optimizer, learning_rate_factor
from muonlab.optim import Muon, split_params
from tests.lab.tiny import SPEC, Bench, without_clock


def changed(**settings) -> Spec:
    return SPEC.changed(settings)


def final_weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "weights.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def two_benches(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return Bench(tmp_path / "a"), Bench(tmp_path / "b")


def assert_same(whole, cut):
    """Check that two runs wrote the same rows, certificates and weights; clocks apart."""
    assert equal(final_weights(whole.folder), final_weights(cut.folder))
    assert without_clock(whole.rows["metrics"]) == without_clock(cut.rows["metrics"])
    assert whole.rows.get("certificates") == cut.rows.get("certificates")


# -------------------------------------------------------------------------------------------------------- the loop


def test_the_loop_is_the_plain_loop(tmp_path):
    """A naive twin: the update written out by hand, with torch's own SGD, gives the same weights up to rounding."""
    spec = changed(smoothing=0.1, clip=0.5, aux_lr=0.02, head_lr=0.01, aux_momentum=0.8, steps=9)
    train(spec, Bench(tmp_path))

    data = load("digits", train=256, test=64)
    torch.manual_seed(spec.seed)
    model = build("mlp-small", shape=data.shape, classes=data.classes)
    split = split_params(model)
    head = [p for group in split.rest if group["role"] == "head" for _, p in group["params"]]
    vectors = [p for group in split.rest if group["role"] != "head" for _, p in group["params"]]
    matrices = [p for group in split.matrices for _, p in group["params"]]
    muon = Muon.paper(matrices, 0.05, momentum=0.7, q=3, variant="experiments")
    rest = [{"params": head, "lr": 0.01}, {"params": vectors, "lr": 0.02}]
    aux = torch.optim.SGD(rest, lr=1.0, momentum=0.8, nesterov=True)
    for t in range(9):
        epoch, position = divmod(t, 4)
        index = order(spec.seed, epoch, 256)[position * 64 : (position + 1) * 64]
        x, y = data.train.batch(index)
        model.zero_grad()
        cross_entropy(model(x), y, label_smoothing=0.1).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        rise = math.ceil(0.05 * 9)
        factor = (t + 1) / rise if t < rise else 0.5 * (1 + math.cos(math.pi * (t - rise) / (9 - rise)))
        muon.param_groups[0]["lr"] = 0.05 * factor
        for group, rate in zip(aux.param_groups, (0.01, 0.02), strict=True):
            group["lr"] = rate * factor
        muon.step()
        aux.step()
    found = final_weights(tmp_path)
    for name, p in model.state_dict().items():
        torch.testing.assert_close(found[name], p, rtol=1e-6, atol=1e-7)


def test_training_lowers_the_loss_and_a_row_has_the_mean_since_the_last_row(tmp_path):
    often, seldom = two_benches(tmp_path)
    for bench, every in ((often, 1), (seldom, None)):  # None: at the end of each epoch of 4 updates, and at the end
        summary = train(changed(steps=30, evaluate_every=every), bench)
    each = [row["train_loss"] for row in often.rows["metrics"][1:]]
    start, *rows = seldom.rows["metrics"]
    assert (start["event"], start["step"]) == ("start", 0)
    steps = [0, 4, 8, 12, 16, 20, 24, 28, 30]
    assert [(row["step"], row["epoch"]) for row in rows] == [(step, step / 4) for step in steps[1:]]
    means = [sum(each[a:b]) / (b - a) for a, b in itertools.pairwise(steps)]
    assert [row["train_loss"] for row in rows] == pytest.approx(means, rel=1e-12)
    assert rows[-1]["train_loss"] < 0.5 * rows[0]["train_loss"]
    assert rows[-1]["test_loss"] < 0.5 * start["test_loss"]
    assert all(0 < a["seconds"] < b["seconds"] for a, b in itertools.pairwise(rows))
    assert (summary["steps"], summary["seconds"]) == (30, rows[-1]["seconds"])


def test_the_test_loss_is_the_criterion_on_every_held_out_example(tmp_path):
    run = Training(changed(smoothing=0.2, optimizer="sgdm"), Bench(tmp_path))
    run.resume()
    row = run.context.rows["metrics"][0]
    x, y = load("digits", train=256, test=64).test.batch(torch.arange(64))
    with torch.no_grad():
        logits = run.model.eval()(x)
    assert row["test_loss"] == pytest.approx(float(cross_entropy(logits, y, label_smoothing=0.2)), rel=1e-6)
    assert row["test_cross_entropy"] == pytest.approx(float(cross_entropy(logits, y)), rel=1e-6)
    assert row["test_accuracy"] == float((logits.argmax(1) == y).float().mean())


def test_parts_of_a_batch_give_the_gradient_of_the_whole_and_a_sum_is_reported_as_a_mean(tmp_path):
    base = {"clip": None, "optimizer": "sgdm"}
    whole, *others = (
        Training(changed(**base, **other), Bench(tmp_path))
        for other in ({}, {"micro_batch": 24}, {"loss": "sum"}, {"loss": "sum", "micro_batch": 24})
    )
    whole.update()
    for run in others:
        run.update()
        factor = 64 if run.spec.loss == "sum" else 1
        for p, q in zip(whole.trained_parameters, run.trained_parameters, strict=True):
            torch.testing.assert_close(factor * p.grad, q.grad, rtol=1e-4, atol=1e-6)
        assert float(run.loss_sum) == pytest.approx(float(whole.loss_sum), rel=1e-6)


def test_gradients_are_clipped_together(tmp_path):
    run = Training(changed(clip=1e-3, optimizer="sgdm"), Bench(tmp_path))
    run.update()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in run.trained_parameters))
    assert norm == pytest.approx(1e-3, rel=1e-4)


def test_the_watched_norm_is_that_of_the_gradient_before_clipping(tmp_path):
    spec = changed(watch="layers.0.weight", clip=1e-6, steps=1)
    name = next(name for name, p in build("mlp-small", shape=(1, 8, 8), classes=10).named_parameters() if p.ndim == 2)
    bench = Bench(tmp_path)
    train(spec.changed({"watch": name}), bench)
    unclipped = Training(changed(clip=None, steps=1), Bench(tmp_path / "b"))
    unclipped.update()
    p = dict(unclipped.model.named_parameters())[name]
    assert bench.rows["metrics"][-1]["gradient_nuclear_norm"] == pytest.approx(
        float(torch.linalg.matrix_norm(p.grad.double(), "nuc")), rel=1e-6
    )


def test_a_loss_that_is_not_finite_ends_the_cell(tmp_path):
    with pytest.raises(ValueError, match="the loss must stay finite, got nan after at most 5 updates"):
        train(changed(optimizer="sgdm", lr=1e30, clip=None), Bench(tmp_path))


def test_a_spec_that_cannot_run_says_why_in_one_line(tmp_path):
    for settings, message in (
        ({"model": "vgg"}, "model must be one of"),
        ({"dataset": "svhn"}, "dataset must be one of"),
        ({"polynomial": "bessel"}, "bessel"),
        ({"watch": "nothing"}, "watch must name a parameter of the model, got 'nothing'"),
        ({"device": "cuda:7"}, "device must be on this machine, got 'cuda:7'"),
        ({"epochs": 1}, "a run must have a length in epochs or in steps, got epochs=1 and steps=12"),
        ({"steps": None}, "got epochs=None and steps=None"),
        ({"batch_size": 512}, "batch_size must be at most the 256 training examples, got 512"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            train(changed(**settings), Bench(tmp_path))
        assert "\n" not in str(caught.value)
    bench = Bench(tmp_path)
    bench.data_hash = "another"
    with pytest.raises(ValueError, match="data must stay the same during a study, got other data for digits"):
        train(SPEC, bench)


# -------------------------------------------------------------------------------------------- data and optimizers


def test_all_optimizers_see_the_same_batches_and_start_from_the_same_weights(tmp_path):
    runs = [
        Training(changed(optimizer=name, q=q), Bench(tmp_path)) for name, q in (("sgdm", 3), ("muon", 1), ("svd", 3))
    ]
    for run in runs[1:]:
        assert equal(runs[0].model.state_dict(), run.model.state_dict())
    for step in (0, 3, 4, 9):
        batches = []
        for run in runs:
            run.step = step
            batches.append(run.batch()[0][0])
        assert torch.equal(batches[0], batches[1])
        assert torch.equal(batches[0], batches[2])


def test_an_epoch_shows_every_example_once(tmp_path):
    run = Training(changed(batch_size=32), Bench(tmp_path))
    seen = []
    for step in range(run.per_epoch):
        run.step = step
        seen += [x.flatten() for x in run.batch()[0][0]]
    everything = run.train_data.batch(torch.arange(256))[0].flatten(1)
    key = torch.stack(seen).sum(1).sort().values
    torch.testing.assert_close(key, everything.sum(1).sort().values)


def test_augmentation_depends_on_seed_epoch_and_step_alone(tmp_path):
    run = Training(changed(augmentation="flip+translate"), Bench(tmp_path))
    run.step = 6  # epoch 1, position 2
    first = run.batch()[0][0]
    x, _ = run.train_data.batch(order(0, 1, 256)[128:192])
    assert torch.equal(first, augment(x, "flip+translate", seed=0, epoch=1, step=2))
    assert not torch.equal(first, x)


def test_the_main_optimizer_has_the_hidden_matrices_and_nesterov_the_rest():
    model = build("mlp-small", shape=(1, 8, 8), classes=10)
    settings = {"aux_lr": 0.3, "head_lr": 0.4, "aux_momentum": 0.9, "weight_decay": 0.01}
    muon = build_optimizer(changed(**settings), model)
    sgdm = build_optimizer(changed(**settings, optimizer="sgdm"), model)
    assert isinstance(muon, MuonWithAux)
    assert isinstance(sgdm, SGDM)
    split = split_params(model)
    matrices = {p for group in split.matrices for _, p in group["params"]}
    for optimizer in (muon, sgdm):
        seen = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                seen[p] = (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"])
        assert len(seen) == len(list(model.parameters()))
        for p in matrices:
            assert seen[p] == (0.05, 0.7, False, 0.01)
        rest = {value for p, value in seen.items() if p not in matrices}
        assert rest == {(0.3, 0.9, True, 0.0), (0.4, 0.9, True, 0.0)}


def test_the_learning_rate_rises_for_a_twentieth_and_falls_to_nothing():
    factors = [learning_rate_factor(t, 1000, 0.05) for t in range(1000)]
    assert factors[:3] == [0.02, 0.04, 0.06]
    assert factors[49] == factors[50] == 1.0
    assert all(a > b for a, b in itertools.pairwise(factors[50:]))
    assert 0 < factors[-1] < 1e-5
    assert learning_rate_factor(0, 10, 0.0) == 1.0


# ---------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    ("settings", "stops"), [({}, (3, 2, 4)), ({"optimizer": "sgdm"}, (12,)), ({"optimizer": "svd"}, (1, 5))]
)
def test_a_run_that_was_stopped_resumes_bit_for_bit(tmp_path, stops, settings):
    spec = changed(record_every=2, augmentation="flip", **settings)
    whole, cut = two_benches(tmp_path)
    train(spec, whole)
    for after in stops:
        cut.asked, cut.stop_after = 0, after
        with pytest.raises(Stopped):
            train(spec, cut)
        cut.write({"event": "written after the checkpoint"})  # a kill leaves such rows; resuming drops them
    cut.stop_after = None
    before = cut.rows["metrics"][-2].get("seconds", 0.0)
    torch.manual_seed(99)  # a new process has another state
    assert train(spec, cut)["seconds"] > before
    assert_same(whole, cut)
    assert bool(whole.rows.get("certificates")) == spec.recorded


@pytest.mark.parametrize("step", [4, 12])
def test_a_run_stopped_during_an_evaluation_evaluates_again(tmp_path, monkeypatch, step):
    from muonlab.lab.training import loop as module

    spec = changed(evaluate_every=2, optimizer="sgdm")
    whole, cut = two_benches(tmp_path)
    train(spec, whole)
    real = module.held_out_numbers

    def interrupted(*given):
        due = len(cut.rows.get("metrics", ())) == step // 2  # the start, and every second update before this one
        return None if due else real(*given)

    monkeypatch.setattr(module, "held_out_numbers", interrupted)
    with pytest.raises(Stopped):
        train(spec, cut)
    assert len(cut.rows["metrics"]) == step // 2
    monkeypatch.setattr(module, "held_out_numbers", real)
    train(spec, cut)
    assert_same(whole, cut)


def test_the_checkpoint_of_another_cell_is_refused(tmp_path):
    cut = Bench(tmp_path, stop_after=6)
    with pytest.raises(Stopped):
        train(SPEC, cut)
    cut.key, cut.stop_after = "another", None
    with pytest.raises(ValueError, match=r"a cell must resume from its own checkpoint, got .*: remove .*/checkpoints"):
        train(SPEC, cut)


def test_saving_takes_a_small_part_of_the_time(tmp_path, monkeypatch):
    """A checkpoint that took a second is not made again before twenty have passed, whatever the interval."""
    run = Training(changed(optimizer="sgdm"), Bench(tmp_path, checkpoint_seconds=0.001))
    run.resume()
    run._save_seconds = 1.0
    saved = []
    monkeypatch.setattr(run, "save", lambda: saved.append(run.step))
    for ago in (0.5, 19.0, 20.5):
        run._last_save = time.monotonic() - ago
        run.save_if_due()
    assert len(saved) == 1


def test_a_checkpoint_without_momenta_gives_another_run(tmp_path, monkeypatch):
    """The comparison of resumed runs can fail."""
    from muonlab.lab.training import loop as module

    whole, cut = two_benches(tmp_path)
    train(SPEC, whole)
    cut.stop_after = 6
    with pytest.raises(Stopped):
        train(SPEC, cut)
    real = module.named_tensors
    monkeypatch.setattr(
        module, "named_tensors", lambda *given: {k: v for k, v in real(*given).items() if k[:9] != "optimizer"}
    )
    cut.stop_after = None
    train(SPEC, cut)
    assert not equal(final_weights(whole.folder), final_weights(cut.folder))


def test_the_recorder_changes_no_bit_and_is_not_on_the_clock(tmp_path):
    plain, recorded = two_benches(tmp_path)
    train(SPEC, plain)
    run = Training(changed(record_every=1), recorded)
    run.resume()
    run.recorder.seconds -= 1e6  # as if recording had taken this much before; only differences count
    while run.step < run.updates:
        run.update()
    run.finish()
    assert equal(final_weights(plain.folder), final_weights(recorded.folder))
    assert {row["event"] for row in recorded.rows["certificates"]} == {"matrix", "whole"}
    assert 0 < run.clock.seconds < 1e4


def test_fields_of_a_spec_reach_the_training(tmp_path):
    """Each field that an MLP on digits can show, changed, changes the weights or the rows."""
    base = changed(steps=4, evaluate_every=2, smoothing=0.1, clip=None)
    (tmp_path / "base").mkdir()
    bench = Bench(tmp_path / "base")
    train(base, bench)
    weights, rows = final_weights(bench.folder), without_clock(bench.rows["metrics"])
    other = {
        "seed": 1, "model": "mlp", "dataset": None, "optimizer": "svd", "q": 1, "kappa": 1, "polynomial": "jordan",
        "lr": 0.1, "momentum": 0.2, "aux_lr": 0.1, "head_lr": 0.1, "aux_momentum": 0.2, "weight_decay": 0.5,
        "main_on": "all", "smoothing": 0.0, "clip": 0.01, "loss": "sum", "augmentation": "flip", "batch_size": 32,
        "micro_batch": None, "epochs": None, "steps": 5, "warmup": 0.5, "evaluate_every": 1, "train": 200,
        "validation": 56, "schedule": "linear", "test": 50, "block": None, "first_width": None,
        "precision": "bfloat16", "record_every": None, "watch": "hidden.0.weight", "threads": None, "device": None,
    }  # fmt: skip
    assert set(other) == {field.name for field in dataclasses.fields(Spec)}
    for name, value in other.items():
        if value is None:
            continue  # of other data, models and devices, or without effect on the numbers
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name)
        train(base.changed({name: value}), bench)
        changed_weights = not equal(weights, final_weights(bench.folder))
        assert changed_weights or rows != without_clock(bench.rows["metrics"]), name


SLOW_NETWORKS = {
    "mnist": ("mlp-mnist", "Muon (SVD)"),
    "cifar100-standin": ("resnet18-cifar100", "Muon (q=2)"),
    "tiny-imagenet-subset": ("wrn-tiny-imagenet", "Muon (q=1)"),
    "web-text": ("gpt-124m-fineweb", "Muon (q=3)"),
}


@pytest.mark.parametrize(
    ("study", "label"),
    [
        pytest.param("rank", "Muon (q=3), r=16", marks=pytest.mark.data("cifar10-subset")),
        *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.data(d)]) for d, case in SLOW_NETWORKS.items()),
    ],
)
def test_every_kind_of_network_resumes_bit_for_bit(tmp_path, study, label):
    cell = next(cell for cell in find(study).cells("smoke") if cell.label == label)
    shorter = {"steps": 6, "epochs": None, "evaluate_every": 4, "augmentation": "none", "micro_batch": 2}
    spec = cell.spec.changed({**shorter, "batch_size": 4, "record_every": 2})
    whole, cut = two_benches(tmp_path)
    train(spec, whole)
    evaluated = -(-len(Training(spec, Bench(tmp_path)).test_data) // 2)  # it asks before each part of an evaluation
    cut.stop_after = evaluated + 3
    with pytest.raises(Stopped):
        train(spec, cut)
    assert len(list((cut.folder / "checkpoints").glob("*.json"))) == 1
    cut.stop_after = None
    train(spec, cut)
    assert_same(whole, cut)
    assert whole.rows["certificates"]
