"""Without a browser its tests are skipped, or fail where they are asked for."""

from __future__ import annotations

import pytest

from tests.report.conftest import missing


def test_a_missing_browser_is_a_skip(monkeypatch):
    monkeypatch.setenv("MUONLAB_REQUIRE", "data")
    with pytest.raises(pytest.skip.Exception, match="no browser here"):
        missing("no browser here")


def test_a_missing_browser_is_a_failure_where_it_is_required(monkeypatch):
    monkeypatch.setenv("MUONLAB_REQUIRE", "data,browser")
    with pytest.raises(pytest.fail.Exception, match="no browser here, and MUONLAB_REQUIRE asks for it"):
        missing("no browser here")
