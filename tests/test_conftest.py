"""Tests that need data: skipped without them, a failure where they are required."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import pytest_runtest_setup

NEEDS_MNIST = SimpleNamespace(get_closest_marker=lambda _: SimpleNamespace(args=("mnist",)))
NEEDS_NOTHING = SimpleNamespace(get_closest_marker=lambda _: None)
REASON = "MUONLAB_DATA names no folder that has mnist/"


@pytest.fixture
def without_data(monkeypatch, tmp_path):
    monkeypatch.setenv("MUONLAB_DATA", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize("required", ["", "browser"])
def test_missing_data_skip_a_test(without_data, required):
    without_data.setenv("MUONLAB_REQUIRE", required)
    with pytest.raises(pytest.skip.Exception, match=REASON):
        pytest_runtest_setup(NEEDS_MNIST)


def test_missing_data_fail_a_test_where_they_are_required(without_data):
    without_data.setenv("MUONLAB_REQUIRE", "browser,data")
    with pytest.raises(pytest.fail.Exception, match=f"{REASON}, and MUONLAB_REQUIRE asks for it"):
        pytest_runtest_setup(NEEDS_MNIST)
    pytest_runtest_setup(NEEDS_NOTHING)


def test_data_that_are_there_are_used(without_data, tmp_path):
    (tmp_path / "mnist").mkdir()
    without_data.setenv("MUONLAB_REQUIRE", "data")
    pytest_runtest_setup(NEEDS_MNIST)


def test_an_unset_variable_is_no_folder(monkeypatch):
    monkeypatch.delenv("MUONLAB_DATA", raising=False)
    monkeypatch.setenv("MUONLAB_REQUIRE", "")
    with pytest.raises(pytest.skip.Exception, match=REASON):
        pytest_runtest_setup(NEEDS_MNIST)
