"""Doctests: which modules of the documentation pytest does not import, and a cache that is not the user's."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = ["docs/conf.py", "docs/tutorial/*", "docs/start/tutorial/*"]
if find_spec("triton") is None:
    collect_ignore_glob.append("src/muonlab/orthogonalize/kernels/*_kernel.py")
    collect_ignore_glob.append("src/muonlab/orthogonalize/kernels/operators.py")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    """Leave the user's calibrations alone; tests/conftest.py shares its cache between workers instead."""
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path_factory.getbasetemp() / "muonlab-cache"))
