"""Filters that whiten small patches of images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

EPS = 5e-4
"""Added to each eigenvalue, so that directions without variance are not amplified."""

_CHUNK = 250
"""Images per chunk: the patches of 5,000 images at once would take 460 MB."""


@torch.no_grad()
def whitening_filters(images: Tensor, *, size: int = 2, eps: float = EPS) -> Tensor:
    """Return the eigenvectors of the patches' second moment over ``√(eigenvalue + eps)``, then their negatives.

    The moment is about zero, as in cifar10-airbench: normalised images have a mean of about zero. It is computed in
    float64 and the sign of every eigenvector is fixed, so that the filters do not depend on the number of threads.

    Args:
        images: normalised images, ``(n, c, h, w)``.
        size: height and width of a patch.
        eps: added to each eigenvalue.

    Returns:
        Filters of shape ``(2·c·size², c, size, size)``, the directions of least variance first, in the images' type.
    """
    if images.ndim != 4 or not images.is_floating_point() or min(images.shape[2:]) < size or not len(images):
        raise ValueError(
            f"images must be floats of shape (n, c, h, w), at least {size} high and wide, got {images.dtype} of shape "
            f"{tuple(images.shape)}: pass normalised training images"
        )
    channels = images.shape[1]
    moment = _second_moment(images, size)
    if not moment.isfinite().all():
        raise ValueError("images must be finite, got nan or inf among them: look at how they were normalised")
    values, vectors = torch.linalg.eigh(moment)
    rows = vectors.T * _signs(vectors)[:, None] / (values + eps).sqrt()[:, None]
    filters = rows.reshape(-1, channels, size, size)
    return torch.cat([filters, -filters]).to(images.dtype)


def _second_moment(images: Tensor, size: int) -> Tensor:
    features = images.shape[1] * size**2
    total = torch.zeros(features, features, dtype=torch.float64, device=images.device)
    count = 0
    for chunk in torch.split(images, _CHUNK):
        patches = functional.unfold(chunk.double(), size).transpose(1, 2).reshape(-1, features)
        total += patches.T @ patches
        count += len(patches)
    return total / count


def _signs(vectors: Tensor) -> Tensor:
    """Return 1 or -1 for each column, so that its product with (1, 1/2, 1/4, …) becomes positive.

    Eigenvectors of image patches are near to ±1 patterns. Their largest entry is a near tie and their sum near to zero;
    this product is neither.
    """
    weights = 0.5 ** torch.arange(len(vectors), dtype=vectors.dtype, device=vectors.device)
    products = weights @ vectors
    return torch.where(products < 0, -torch.ones_like(products), torch.ones_like(products))
