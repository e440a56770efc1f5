from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from muonlab import newton_schulz
from muonlab.orthogonalize import products
from muonlab.orthogonalize.workspace import KEPT_BYTES, Workspace, borrow, put_back, release
from tests.orthogonalize.zoo import gaussian


@pytest.fixture
def _split_everything(monkeypatch):
    monkeypatch.setattr(products, "_SPLIT_WORK", 40_000)


def commuting_pair(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two symmetric matrices that commute."""
    Q = torch.linalg.qr(gaussian(m, m).double()).Q
    a, b = torch.rand(2, m, generator=torch.Generator().manual_seed(0)).double()
    A, B = (Q * a) @ Q.T, (Q * b) @ Q.T
    return ((A + A.T) / 2).float(), ((B + B.T) / 2).float()


@pytest.mark.usefixtures("_split_everything")
def test_mirrored_blocks_give_the_whole_product():
    for m in [48, 49, 100, 129]:
        A, B = commuting_pair(m)
        assert products.symmetric_product(A) is products.mirrored_product
        out = torch.full((m, m), float("nan"))
        products.mirrored_product(A, A, B, beta=0.5, alpha=2.0, out=out)
        torch.testing.assert_close(out, 2 * A @ B + 0.5 * A, atol=1e-5, rtol=0)
        h = (m // 2 + 15) // 16 * 16
        assert torch.equal(out[:h, h:], out[h:, :h].T)
        X = gaussian(m, 3 * m, seed=2)
        G = products.gram(X, scale=0.25, out=torch.full((m, m), float("nan")))
        torch.testing.assert_close(G, 0.25 * X @ X.T, atol=1e-3, rtol=1e-5)
        assert torch.equal(G, G.T)


@pytest.mark.usefixtures("_split_everything")
def test_stacks_split_like_single_matrices():
    X = torch.randn(3, 64, 100, generator=torch.Generator().manual_seed(3))
    G = products.gram(X, out=torch.empty(3, 64, 64))
    torch.testing.assert_close(G, X @ X.mT, atol=1e-3, rtol=1e-5)
    scaled = products.gram(X, scale=torch.tensor([1.0, 2.0, 3.0])[:, None, None], out=torch.empty(3, 64, 64))
    torch.testing.assert_close(scaled, torch.tensor([1.0, 2.0, 3.0])[:, None, None] * G, atol=0, rtol=1e-6)


def test_only_work_worth_it_is_split():
    small, large = torch.empty(256, 256), torch.empty(768, 768)
    assert products.symmetric_product(small) is torch.addmm
    assert products.symmetric_product(large) is products.mirrored_product


def test_polynomials_of_a_matrix_match_their_scalar_values():
    for kappa, with_square in product(range(1, 13), [False, True]):
        c = np.random.default_rng(kappa).normal(size=kappa + 1)
        V, _ = commuting_pair(14)
        V = V.double()
        workspace = Workspace(torch.float64, V.device)
        out = torch.empty_like(V)
        before = V.clone()
        square = V @ V if with_square else None
        products.without_constant(list(c), V, torch.addmm, workspace, out=out, square=square)
        lam, Q = torch.linalg.eigh(V)
        values = sum(c[k] * lam**k for k in range(1, kappa + 1))
        torch.testing.assert_close(out, (Q * values) @ Q.T, atol=1e-12, rtol=1e-12)
        assert torch.equal(V, before)


def test_a_workspace_hands_its_buffers_out_again():
    workspace = Workspace(torch.float32, torch.device("cpu"))
    a = workspace.take(torch.Size((3, 4)))
    workspace.give(a)
    assert workspace.take(torch.Size((3, 4))) is a
    assert workspace.take(torch.Size((3, 4))) is not a
    workspace.give(a)
    assert workspace.nbytes == 48


def test_a_thread_keeps_small_workspaces_and_lets_large_ones_go():
    M = gaussian(2, 3)
    release()
    first = borrow(M, torch.float32)
    assert borrow(M, torch.float32) is not first, "a borrowed workspace must not be lent twice"
    put_back(first, M, torch.float32)
    assert borrow(M, torch.float32) is first
    first.give(first.take(torch.Size((KEPT_BYTES // 4 + 1,))))
    put_back(first, M, torch.float32)
    assert borrow(M, torch.float32) is not first


def test_calls_that_copy_or_scale_their_input_keep_as_many_buffers_as_one_call():
    M = gaussian(40, 60)
    inputs = [M[:, ::2], M * 0, M * 2.0**-40, M * 2.0**60, M.T.contiguous().T * 2.0**-40, M[:, ::2] * 0, M.double()]
    inputs += [torch.stack([M, M * 2.0**-40]), M.half() * 0, M * torch.nan]
    for A in inputs:
        release()
        sizes = set()
        for _ in range(4):
            newton_schulz(A, compute_dtype=torch.float32)
            workspace = borrow(torch.empty(0), torch.float32)
            sizes.add(workspace.nbytes)
            put_back(workspace, torch.empty(0), torch.float32)
        assert len(sizes) == 1, A
