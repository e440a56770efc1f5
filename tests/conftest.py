"""Settings for every test: one torch thread per worker, no buffers left over from the test before."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from muonlab.orthogonalize import release

torch.set_num_threads(1)
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True)
def _fresh_workspace():
    release()
    yield
    release()
