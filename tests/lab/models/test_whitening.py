from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from muonlab.lab.models.whitening import EPS, whitening_filters


@pytest.fixture(scope="module")
def images():
    """Return smooth colour images whose patches vary a lot in some directions and hardly in others."""
    draw = torch.Generator().manual_seed(0)
    smooth = functional.avg_pool2d(torch.randn(300, 3, 36, 36, generator=draw), 5, stride=1)
    mixed = torch.einsum("ij,njhw->nihw", torch.tensor([[1.0, 0.2, 0.1], [1.0, -0.2, 0.1], [1.0, 0.1, -0.2]]), smooth)
    return mixed / mixed.std()


def patches(images):
    """Return all 2×2 patches as rows, channel by channel and row by row, by slicing."""
    x = images.double().numpy()
    corners = [x[:, c, i : i + 31, j : j + 31].ravel() for c in range(3) for i in (0, 1) for j in (0, 1)]
    return np.stack(corners, axis=1)


def whitened_moment_error(images, filters, eps):
    """Return how far the second moment of the whitened patches is from ``λ / (λ + eps)`` on the diagonal, 0 off it."""
    P = patches(images)
    Y = P @ filters[:12].double().numpy().reshape(12, 12).T
    values = np.linalg.eigvalsh(P.T @ P / len(P))
    return np.abs(Y.T @ Y / len(Y) - np.diag(values / (values + eps))).max()


def test_whitening_whitens_up_to_its_eps_and_a_wrong_eps_does_not(images):
    filters = whitening_filters(images)
    assert filters.shape == (24, 3, 2, 2)
    assert whitened_moment_error(images, filters, EPS) < 1e-4
    assert whitened_moment_error(images, filters, 10 * EPS) > 1e-2
    assert whitened_moment_error(images, whitening_filters(images, eps=10 * EPS), EPS) > 1e-2


def test_signs_do_not_depend_on_what_the_eigensolver_chose(images, monkeypatch):
    filters = whitening_filters(images)
    solve = torch.linalg.eigh

    def other_signs(matrix):
        values, vectors = solve(matrix)
        return values, vectors * torch.tensor([1.0, -1.0] * 6, dtype=vectors.dtype)

    monkeypatch.setattr(torch.linalg, "eigh", other_signs)
    assert torch.equal(whitening_filters(images), filters)


def test_signs_hold_against_rounding_and_threads(images):
    filters = whitening_filters(images)
    assert torch.allclose(whitening_filters(images * (1 + 1e-7)), filters, atol=1e-3, rtol=1e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.allclose(whitening_filters(images), filters, atol=1e-5, rtol=1e-6)
    finally:
        torch.set_num_threads(threads)


def test_what_is_no_batch_of_images_is_refused():
    for bad in (torch.zeros(3, 32, 32), torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(0, 3, 8, 8)):
        with pytest.raises(ValueError, match=r"^images must be floats of shape \(n, c, h, w\), .*: pass"):
            whitening_filters(bad)
    with pytest.raises(ValueError, match=r"^images must be finite, got nan or inf among them"):
        whitening_filters(torch.full((2, 3, 8, 8), float("nan")))
