from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _forget_study_files(monkeypatch):
    """Modules and import paths of study files do not outlive a test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]
