"""One spawn of ranks for each N, shared by all tests and all test workers."""

from __future__ import annotations

import pytest

from tests.distributed.harness import once


@pytest.fixture
def ranks(tmp_path_factory, worker_id):
    """Return a function that gives the run of N ranks; whoever asks first starts it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "ranks"
    return lambda size, *names: once(shared, size, names=names)
