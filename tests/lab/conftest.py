"""Lab tests share one decoded cache, and leave the user's alone."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("MUONLAB_CACHE", str((base if worker_id == "master" else base.parent) / "muonlab-cache"))
