"""The clock of training: wall seconds, CPU seconds of this process, and those of all others."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from muonlab.lab.training import clock
from muonlab.lab.training.clock import Clock, busy_seconds

CPU = torch.device("cpu")


def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_sleeping_takes_wall_seconds_and_no_processor_seconds():
    running = Clock(CPU)
    running.start()
    time.sleep(0.2)
    burn(0.1)
    running.stop()
    burn(0.05)  # outside
    with_pause = Clock(CPU)
    with_pause.start()
    with with_pause.paused():
        burn(0.1)
    with_pause.stop()
    assert running.seconds >= 0.3
    assert 0.1 <= running.cpu_seconds < 0.15
    assert with_pause.cpu_seconds < 0.05


def test_a_reading_is_resumed_and_excluded_time_is_subtracted(monkeypatch):
    moments = iter([clock._Now(*times, None) for times in ((0.0, 0.0), (3.0, 2.0), (5.0, 5.0), (9.0, 8.0))])
    monkeypatch.setattr(clock, "_now", lambda: next(moments))
    first, second = Clock(CPU), Clock(CPU)
    first.start()
    first.stop()
    second.resume(first.reading())
    assert second.reading() == first.reading() == {"seconds": 3.0, "cpu_seconds": 2.0, "other_seconds": None}
    second.start()
    second.exclude(1.5, 1.0)
    second.stop()
    assert (second.seconds, second.cpu_seconds) == (3.0 + 4.0 - 1.5, 2.0 + 3.0 - 1.0)


def test_what_others_use_while_time_is_excluded_is_not_counted(monkeypatch):
    """Two seconds, one of them excluded; others use one core all the time, and this process the other."""
    moments = iter([clock._Now(0.0, 0.0, 0.0), clock._Now(2.0, 2.0, 4.0)])
    monkeypatch.setattr(clock, "_now", lambda: next(moments))
    running = Clock(CPU)
    running.start()
    running.exclude(1.0, 1.0)
    running.stop()
    assert running.reading() == {"seconds": 1.0, "cpu_seconds": 1.0, "other_seconds": 1.0}


@pytest.mark.skipif(busy_seconds() is None, reason="this system does not say how busy its cores are")
def test_another_process_is_counted_as_other_seconds_and_this_one_is_not():
    program = "import time\nwhile time.process_time() < 1.0: pass"
    alone, beside = Clock(CPU), Clock(CPU)
    beside.start()
    subprocess.run([sys.executable, "-c", program], check=True)  # 1 s of another process, none of this one
    beside.stop()
    assert beside.other_seconds > 0.8
    assert beside.cpu_seconds < 0.3
    alone.start()
    burn(0.5)
    alone.stop()
    others_share = alone.other_seconds / (alone.seconds * (os.cpu_count() or 1))
    assert others_share < 1  # what this process burnt is not counted: it would be added to whatever else runs
    assert alone.cpu_seconds >= 0.5


def test_busy_time_is_every_column_but_idle_ones(tmp_path, monkeypatch):
    path = tmp_path / "stat"
    path.write_text("cpu  100 20 3 4000 500 6 7 80 900 1000\ncpu0 1 2 3\n")
    monkeypatch.setattr(clock, "_STAT", path)
    assert busy_seconds() == pytest.approx((100 + 20 + 3 + 6 + 7 + 80) / os.sysconf("SC_CLK_TCK"))
    monkeypatch.setattr(clock, "_STAT", tmp_path / "none")
    assert busy_seconds() is None
    unknown = Clock(CPU)
    unknown.start()
    unknown.stop()
    assert unknown.reading()["other_seconds"] is None
    assert Clock(CPU, alone=False).reading()["other_seconds"] is None  # other ranks would count as other processes
