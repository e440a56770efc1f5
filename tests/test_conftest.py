"""Tests that need data or packages: skipped without them, a failure where they are required."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import pytest_runtest_setup


def item(marker, *args):
    """Return a test with one marker."""
    return SimpleNamespace(get_closest_marker=lambda name: SimpleNamespace(args=args) if name == marker else None)


NEEDS_MNIST = item("data", "mnist")
NEEDS_NOTHING = SimpleNamespace(get_closest_marker=lambda _: None)
REASON = "MUONLAB_DATA names no folder that has mnist/"


def test_missing_data_skip_a_test_and_fail_it_where_they_are_required(monkeypatch, tmp_path):
    for directory, required, outcome in (
        (str(tmp_path), "", pytest.skip.Exception),
        (str(tmp_path), "browser", pytest.skip.Exception),
        ("", "", pytest.skip.Exception),
        (str(tmp_path), "browser,data", pytest.fail.Exception),
    ):
        monkeypatch.setenv("MUONLAB_DATA", directory)
        monkeypatch.setenv("MUONLAB_REQUIRE", required)
        with pytest.raises(outcome, match=REASON):
            pytest_runtest_setup(NEEDS_MNIST)
        pytest_runtest_setup(NEEDS_NOTHING)
    (tmp_path / "mnist").mkdir()
    pytest_runtest_setup(NEEDS_MNIST)


def test_missing_packages_skip_a_test_and_fail_it_where_they_are_required(monkeypatch):
    for kind, marker in (("trainers", "trainers"), ("docs", "docs"), ("gpu", "kernels")):
        reason = rf"not installed: no_such_package \(pip install -r requirements-{kind}.txt\)"
        for required, outcome in (("", pytest.skip.Exception), (f"data,{kind}", pytest.fail.Exception)):
            monkeypatch.setenv("MUONLAB_REQUIRE", required)
            with pytest.raises(outcome, match=reason):
                pytest_runtest_setup(item(marker, "torch", "no_such_package"))
            pytest_runtest_setup(item(marker, "torch"))
