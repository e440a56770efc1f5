"""Calibrations: the cost model charges the products of a call, and the cache survives damage and races."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from muonlab.diagnostics.planning import calibration
from muonlab.diagnostics.planning.calibration import CALLS, PIECES, PRESCALES, TIMED, Calibration, calibrate, counts
from muonlab.orthogonalize.iteration import iterate, segment_product
from muonlab.orthogonalize.segments import plan_segments
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import Schedule, preset, taylor

SECONDS = {name: 0.001 * (i + 1) for i, name in enumerate(TIMED)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement by numbers that tell how often it was made."""
    made = []

    def measure(shape, *, dtype, device):
        made.append((shape, dtype, torch.device(device)))
        return Calibration(shape, {name: value * len(made) for name, value in SECONDS.items()})

    monkeypatch.setattr(calibration, "measure_calibration", measure)
    return made


class Products(TorchDispatchMode):
    """Counts the matrix products of a run by their shapes."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.mm):
            A, B = args[-2:]
            self.found[A.shape[0], A.shape[1], B.shape[1], A.dtype] += 1
        return func(*args, **(kwargs or {}))


def products_of_call(segments, prescale, M):
    with Products() as mode:
        iterate(M, torch.empty_like(M), Workspace(M.dtype, M.device), segments, prescale)
    return mode.found


def products_of_piece(segment, m):
    with Products() as mode:
        segment_product(segment, torch.eye(m), None, Workspace(torch.float32, torch.device("cpu")))
    return mode.found


EXPRESS = preset("polar_express").schedule(5)
SCHEDULES = [
    Schedule(()),
    Schedule.repeat(taylor(1), 4),
    Schedule.repeat(taylor(2), 6),
    Schedule.repeat(taylor(3), 3),
    Schedule.repeat(taylor(4), 2),
    EXPRESS + Schedule.repeat(taylor(1), 2),
    Schedule.repeat(taylor(1), 1) + Schedule.repeat(taylor(4), 2) + Schedule.repeat(taylor(2), 2),
]


@pytest.mark.parametrize(("method", "accuracy"), [("standard", "full"), ("gram", "full"), ("gram", "half")])
def test_the_products_of_a_run_are_the_sum_of_those_the_model_charges(method, accuracy):
    M = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))
    calls = {name: products_of_call(*call, M) for name, call in CALLS.items()}
    pieces = {name: products_of_piece(segment, 12) for name, segment in PIECES.items()}

    def difference(one, other, share):
        return {shape: (one[shape] - other[shape]) / share for shape in one | other}

    parts = {name: calls[name] for name in ("nothing", *PRESCALES)}
    parts["step"] = difference(calls["apart"], calls["frobenius"], 2)
    parts["joined_step"] = difference(pieces["segment_222"], pieces["segment_2"], 2)
    for kappa in (1, 3, 4):
        parts[f"degree_{kappa}"] = difference(pieces[f"segment_{kappa}"], pieces["segment_2"], 1)
    for schedule in SCHEDULES:
        segments = plan_segments(schedule, 12, 20, torch.float32, method, accuracy)
        for prescale in PRESCALES if schedule.steps else ("frobenius",):
            charged = Counter()
            for name, count in counts(segments, prescale).items():
                for shape, number in parts[name].items():
                    charged[shape] += count * number
            run = products_of_call(segments, prescale, M)
            assert {shape: number for shape, number in charged.items() if number} == dict(run), (schedule, prescale)


def test_the_prediction_adds_up_parts_by_hand():
    fake = Calibration((8, 8), SECONDS)
    t = SECONDS
    segments = ((taylor(4), taylor(1)), (taylor(2),), (taylor(2), taylor(2)))
    step, joined = (t["apart"] - t["frobenius"]) / 2, (t["segment_222"] - t["segment_2"]) / 2
    degrees = t["segment_4"] + t["segment_1"] - 2 * t["segment_2"]
    assert fake.predict(segments, "schatten4") == pytest.approx(t["schatten4"] + 2 * step + 2 * joined + degrees)
    assert fake.predict((), "frobenius") == t["nothing"]


def test_noise_makes_no_part_cheaper_than_what_it_contains():
    noisy = dict.fromkeys(TIMED, 1.0) | {"apart": 0.5, "segment_222": 0.1, "schatten8": 0.2, "segment_4": 0.3}
    parts = Calibration((8, 8), noisy | {"segment_1": 0.2}).parts
    assert parts["schatten8"] == parts["frobenius"] == 1.0
    assert parts["step"] == parts["joined_step"] == parts["degree_4"] == parts["degree_1"] == 0.0


def test_a_measurement_times_everything_and_grows_with_the_steps():
    found = calibration.measure_calibration((24, 40))
    assert set(found.measured) == set(TIMED)
    assert found.shape == (24, 40)
    assert found.measured["apart"] > found.measured["nothing"]


def test_a_large_shape_is_timed_smaller_and_scaled_by_its_work(monkeypatch):
    sizes = []

    def interleaved(runs, *_):
        for name in ("frobenius", "segment_2"):
            sizes.append(runs[name]())
        return {name: [1.0] for name in runs}

    monkeypatch.setattr(calibration, "_MOST_WORK", 20 * 20 * 40)
    monkeypatch.setattr(calibration, "interleaved", interleaved)
    found = calibration.measure_calibration((80, 40))
    assert sizes[0].shape == (40, 20)
    assert found.shape == (80, 40)
    assert found.measured["frobenius"] == pytest.approx(8.0)


def test_a_second_calibration_comes_from_the_file(cache, measured):
    first, second = calibrate((16, 32)), calibrate((16, 32))
    assert len(measured) == 1
    assert first == second
    assert hash(first) == hash(second)
    assert len(list((cache / "calibration").iterdir())) == 1


def test_each_shape_dtype_and_thread_count_has_its_own_file(cache, measured, monkeypatch):
    calibrate((16, 32))
    calibrate((32, 16))
    calibrate((16, 32), dtype=torch.float64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    calibrate((16, 32))
    assert len(measured) == len(list((cache / "calibration").iterdir())) == 4


DAMAGES = [
    lambda _: "",
    lambda text: text[: len(text) // 2],
    lambda _: "[1, 2]",
    lambda _: "null",
    lambda text: json.dumps({**json.loads(text), "seconds": {}}),
    lambda text: json.dumps({**json.loads(text), "seconds": 3}),
    lambda text: text.replace("0.001", "NaN", 1),
    lambda text: text.replace("0.001", "-1", 1),
    lambda text: text.replace("0.001", '"fast"', 1),
    lambda text: text.replace("0.001", "1e-300", 1),
    lambda text: text.replace("0.001", "1e308", 1),
    lambda text: text.replace("0.001", "100001.0", 1),
    lambda text: text.replace('"cores"', '"kernels"'),
    lambda text: json.dumps({**json.loads(text), "key": {**json.loads(text)["key"], "processor": "another"}}),
]


def test_a_damaged_or_foreign_file_is_measured_again_and_replaced(cache, measured):
    calibrate((16, 32))
    (file,) = (cache / "calibration").iterdir()
    good = file.read_text()
    for i, damage in enumerate(DAMAGES, start=2):
        file.write_text(damage(good))
        again = calibrate((16, 32))
        assert len(measured) == i
        assert again.measured["nothing"] == pytest.approx(i * SECONDS["nothing"])
        assert calibrate((16, 32)) == again
        assert len(measured) == i
    file.write_bytes(b"\xff\xfe\x00")
    again = calibrate((16, 32))
    assert calibrate((16, 32), recalibrate=True) != again
    assert list((cache / "calibration").iterdir()) == [file]


def test_a_directory_that_cannot_be_written_costs_a_measurement_each_time(tmp_path, monkeypatch, measured):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path / "file"))
    calibrate((16, 32))
    calibrate((16, 32))
    assert len(measured) == 2


@pytest.mark.usefixtures("measured")
def test_a_failed_write_leaves_no_temporary_file(cache, monkeypatch):
    def refuse(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    calibrate((16, 32))
    assert list((cache / "calibration").iterdir()) == []


@pytest.mark.slow
def test_two_processes_at_once_leave_one_whole_file(cache):
    program = (
        "from muonlab.diagnostics.planning import calibration as c\n"
        "c.measure_calibration = lambda shape, dtype, device: c.Calibration(shape, {name: 0.5 for name in c.TIMED})\n"
        "for _ in range(20): c.calibrate((16, 32), recalibrate=True)\n"
    )
    environment = {**os.environ, "MUONLAB_CACHE": str(cache)}
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    (file,) = (cache / "calibration").iterdir()
    assert json.loads(file.read_text())["seconds"] == dict.fromkeys(TIMED, 0.5)


def test_the_directory_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path))
    assert calibration.cache_directory() == tmp_path
    monkeypatch.delenv("MUONLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert calibration.cache_directory() == tmp_path / "xdg" / "muonlab"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibration.cache_directory() == tmp_path / ".cache" / "muonlab"


BAD = [
    (lambda: calibrate("16x32"), TypeError, "shape must be two whole numbers .* '16x32': for example"),
    (lambda: calibrate((1, 2, 3)), ValueError, "shape must be two whole numbers .* got 3 values: for"),
    (lambda: calibrate(torch.eye(64)), ValueError, "got 64 values: for example .*, or M.shape"),
    (lambda: calibrate((0, 3)), ValueError, r"shape\[0\] must be at least 1, got 0: pass 1 or more"),
    (lambda: calibrate((2, 1.5)), TypeError, r"shape\[1\] must be an integer, got 1.5"),
    (lambda: calibrate((2, 2), dtype=torch.int8), TypeError, "dtype must be .*, got torch.int8: float32 is"),
    (lambda: Calibration((2, 2), {}), ValueError, "needs the seconds of all in TIMED, got none for .*: add them"),
    (lambda: Calibration((2, 2), SECONDS | {"apart": 0.0}), ValueError, "seconds of 'apart' must be .* got 0.0"),
    (lambda: counts((), "schatten4"), ValueError, "without steps .* got 'schatten4': use that"),
    (lambda: counts((), "paper"), ValueError, "prescale must be one of .*, got 'paper': pick"),
]


def test_bad_input_names_rule_value_and_way_out():
    for run, error, message in BAD:
        with pytest.raises(error, match=message):
            run()
