"""Generated command lines and API calls: no traceback of the command line, no obscure error, no call without end."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
import traceback
import warnings
from pathlib import Path

import pytest

import muonlab
from muonlab.cli.app import main
from muonlab.report import figures
from muonlab.report.explore import explorer
from tests.attack.inputs import api_calls, command_lines

SECONDS = 10
"""Processor seconds after which a call counts as one without end."""
SOURCE = str(Path(muonlab.__file__).parent)
CLEAR = (ValueError, TypeError, RuntimeError, KeyError, OSError, ImportError)
"""Types of an error about an argument."""


class TooLongError(BaseException):
    pass


@contextlib.contextmanager
def limited():
    """Raise TooLongError in a call that takes more processor time; warnings stay silent."""

    def end(*_):
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Leave out what takes seconds in every call and has its own tests: figures, the explorer, what is measured."""
    for name in dir(figures):
        if name.endswith("_figure"):
            monkeypatch.setattr(figures, name, lambda *_, **__: None)
    monkeypatch.setattr(explorer, "explorer_html", lambda: "x = 1  # may replace the study file")
    monkeypatch.setattr("muonlab.orthogonalize.hardware.diagnose", dict)
    monkeypatch.setattr("muonlab.cli.console.doctor", str)
    monkeypatch.setattr("muonlab.diagnostics.benchmarking.bench", lambda *_, **__: {"hardware": {"name": "x"}})
    monkeypatch.setattr("muonlab.diagnostics.benchmarking.device_report.write_report", lambda *_: None)
    monkeypatch.setattr("muonlab.cli.console.bench", str)
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MUONLAB_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [80, pytest.param(2_000, marks=pytest.mark.slow)])
def test_no_command_line_ends_in_a_traceback_or_without_end(tmp_path, count):
    wrong, codes = [], set()
    before = sorted(os.listdir("/dev"))
    for words in command_lines(count, count, tmp_path / "files"):
        out = io.StringIO()
        start = time.process_time()
        try:
            with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                codes.add(main(words))
        except SystemExit as error:
            codes.add(error.code)
        except BaseException as error:
            wrong.append((words, repr(error), traceback.format_exc().splitlines()[-4:]))
        if time.process_time() - start > SECONDS:
            wrong.append((words, "took too long"))
        if "Traceback (most recent call last)" in out.getvalue():
            wrong.append((words, out.getvalue()[-300:]))
    assert wrong == []
    assert {0, 2} <= codes <= {0, 1, 2}
    assert sorted(os.listdir("/dev")) == before


def is_obscure(error: BaseException) -> bool:
    """Return whether an error about an argument is not of muonlab's own checks.

        Clear is an error of a usual type that a ``raise`` of muonlab raised, or one of torch's own checks of parameter
    groups (``torch/optim/optimizer.py``), with a message of at least three words; or that Python raised for the call
    itself, which names an argument that is missing.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    own = last.filename.startswith(SOURCE) and (last.line or "").startswith("raise")
    own |= last.filename.endswith("torch/optim/optimizer.py") or len(frames) == 1
    return not (own and isinstance(error, CLEAR) and len(str(error).split()) >= 3)


@pytest.mark.parametrize("count", [150, pytest.param(1_000, marks=pytest.mark.slow)])
def test_no_api_call_raises_an_obscure_error_or_has_no_end(count):
    obscure, answered = [], 0
    for function, arguments in api_calls(count, count):
        start = time.process_time()
        try:
            with limited():
                function(**arguments)
            answered += 1
        except BaseException as error:
            if is_obscure(error):
                last = traceback.extract_tb(error.__traceback__)[-1]
                shown = {name: repr(value)[:60] for name, value in arguments.items()}
                obscure.append((function.__qualname__, shown, repr(error)[:150], f"{last.filename}:{last.lineno}"))
        if time.process_time() - start > SECONDS:
            obscure.append((function.__qualname__, "took too long"))
    assert obscure == []
    assert answered > count / 20
