"""Data tests: no setting of the machine reaches them, and the library's bars stay off."""

from __future__ import annotations

import os

import datasets
import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, request, tmp_path):
    datasets.disable_progress_bars()
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path / "default-cache"))
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("MUONLAB_DATA", raising=False)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A cache that the tests over real data share, those of other workers too, so that each is decoded once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-data-cache"
