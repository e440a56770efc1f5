"""Settings for every test: one torch thread per worker, fresh buffers, data where they are needed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
import torch

from muonlab.orthogonalize import release
from tests.browser import chromium  # noqa: F401 - a fixture

torch.set_num_threads(1)
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True)
def _fresh_workspace():
    release()
    yield
    release()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory, worker_id):
    """Let all tests share one cache of decoded data, calibrations and fonts, and leave the user's alone."""
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("MUONLAB_CACHE", str((base if worker_id == "master" else base.parent) / "muonlab-cache"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run the tests of a module on one worker, so that its fixtures are made once; those over ranks share theirs."""
    for item in items:
        module = Path(item.path)
        group = "distributed" if "distributed" in module.parts and "lab" not in module.parts else str(module)
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_runtest_setup(item):
    """Skip a test whose data or packages are missing; fail it if MUONLAB_REQUIRE asks for them."""
    data = item.get_closest_marker("data")
    root = os.environ.get("MUONLAB_DATA", "")
    if data is not None and not (root and (Path(root) / data.args[0]).is_dir()):
        _skip_or_fail("data", f"MUONLAB_DATA names no folder that has {data.args[0]}/")
    for kind, name in (("trainers", "trainers"), ("docs", "docs"), ("gpu", "kernels")):
        marker = item.get_closest_marker(name)
        missing = [package for package in (marker.args if marker is not None else ()) if find_spec(package) is None]
        if missing:
            _skip_or_fail(kind, f"not installed: {', '.join(missing)} (pip install -r requirements-{kind}.txt)")


def _skip_or_fail(requirement, reason):
    if requirement in os.environ.get("MUONLAB_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and MUONLAB_REQUIRE asks for it")
    pytest.skip(reason)
