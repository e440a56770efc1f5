"""Functions that run a cell, named by the tests as ``tests.lab.runner.work:…``, and a scripted stop signal."""

from __future__ import annotations

import errno
import os
import signal
import time

from muonlab.lab.cell_context import Stopped

HERE = "tests.lab.runner.work"


class StopAfter:
    """A stop signal that is requested after a number of checks."""

    def __init__(self, checks):
        self.checks = checks

    @property
    def requested(self):
        self.checks -= 1
        return self.checks < 0


def succeed(spec, context):
    context.begin({})
    context.write({"event": "measured", "seed": spec.seed})
    return {"seconds": 1.0}


def fail_with_muon(spec, context):
    context.begin({})
    if spec.optimizer == "muon" and not (context.folder / "mended").exists():
        raise ArithmeticError("no luck\nsecond line")
    return {}


def fill_the_disk(spec, context):
    context.begin({})
    if spec.optimizer == "muon":
        raise OSError(errno.ENOSPC, "No space left on device")
    return {}


def fail_then_terminate(spec, context):
    context.begin({})
    if spec.optimizer == "sgdm":
        raise ArithmeticError("no luck")
    os.kill(os.getpid(), signal.SIGTERM)
    while not context.stopping:
        time.sleep(0.01)
    raise Stopped


def save_slowly(_, context):
    """Take a second to stop, and show progress meanwhile: each message is a chance to be asked again."""
    context.begin({})
    (context.folder / "started").touch()
    while not context.stopping:
        time.sleep(0.01)
    for done in range(10):
        context.progress(done, 10)
        time.sleep(0.1)
    (context.folder / "saved").touch()
    raise Stopped


def die(spec, context):
    context.begin({})
    if spec.optimizer == "muon":
        os.kill(os.getpid(), signal.SIGKILL)
    return {}
