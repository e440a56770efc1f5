"""Which products run in the kernels for GPUs: a table by device, dtype, shape and strides, and how to override it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

from muonlab.orthogonalize import crossover, products
from muonlab.orthogonalize.crossover import Gpu, multiplies, scales
from muonlab.orthogonalize.iteration import iterate
from muonlab.orthogonalize.segments import plan_segments
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import Schedule, taylor

H100, A100, T4 = Gpu("cuda", (9, 0)), Gpu("cuda", (8, 0)), Gpu("cuda", (7, 5))
MI300 = Gpu("hip", (9, 4))


def matrix(*shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device="meta")


LARGE = matrix(2048, 8192)


def test_large_half_precision_matrices_with_aligned_rows_take_the_kernel_and_the_rest_cublas():
    for gpu, X, expected in (
        (H100, LARGE, True),
        (A100, LARGE, True),
        (H100, matrix(2048, 2048, dtype=torch.bfloat16), True),
        (H100, LARGE.mT.contiguous().mT, True),  # a tall matrix, transposed
        (H100, matrix(4, 1024, 4096), True),
        (H100, matrix(1, 2048, 2048), True),
        (H100, matrix(4096, 4096)[:2048], True),
        (None, LARGE, False),
        (T4, LARGE, False),
        (MI300, LARGE, False),  # compiled, without published times
        (H100, matrix(2048, 8192, dtype=torch.float32), False),
        (H100, matrix(2048, 8192, dtype=torch.float64), False),
        (H100, matrix(2032, 8192), False),
        (H100, matrix(1024, 4096), False),
        (H100, matrix(3, 1024, 4096), False),
        (H100, matrix(4, 1008, 4096), False),
        (H100, matrix(2048, 8200), False),  # 16-byte rows, but not multiples of 16 entries
        (H100, matrix(2056, 8192).mT.contiguous().mT, False),
        (H100, matrix(2048, 8192 + 16)[:, 8 : 8192 + 8], False),  # begins between multiples of 16
        (H100, matrix(2048, 2 * 8192)[:, ::2], False),
        (H100, matrix(1, 2, 2048, 8192), False),
    ):
        assert multiplies(gpu, "auto", X) is expected, (gpu, X.shape, X.stride(), X.dtype)


def test_always_means_whatever_the_kernel_computes_correctly_and_never_means_never():
    for X, expected in (
        (matrix(3, 5), True),
        (matrix(2, 3, 5, dtype=torch.float32)[..., ::2], True),
        (matrix(3, 5, dtype=torch.float64), False),
        (matrix(1, 1, 3, 5), False),
        (torch.empty_strided((4, 4), (2**25, 1), device="meta"), False),  # offsets within a tile have 32 bits
        (torch.empty_strided((4, 4), (2**24 - 1, 1), device="meta"), True),
    ):
        assert multiplies(H100, "always", X) is multiplies(MI300, "always", X) is expected
        assert not multiplies(T4, "always", X)
    assert not multiplies(H100, "never", LARGE)


def test_every_prescale_of_at_most_float32_takes_the_kernels_on_a_gpu():
    for M, dtype, expected in (
        (matrix(3, 5), torch.float16, True),
        (matrix(2, 3, 5, dtype=torch.float32), torch.bfloat16, True),
        (matrix(3, 5, dtype=torch.float32), torch.float32, True),
        (matrix(3, 5, dtype=torch.float64), torch.float32, False),  # its range may not fit
        (matrix(3, 5), torch.float64, False),
        (matrix(1, 2, 3, 5), torch.float16, False),
    ):
        assert scales(H100, "auto", M, dtype) is expected
        assert not scales(H100, "never", M, dtype)
        assert not scales(None, "auto", M, dtype)
        assert not scales(T4, "auto", M, dtype)


def test_the_environment_overrides_the_table_and_unknown_words_are_refused(monkeypatch):
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(crossover, "gpu_of", lambda _: H100)
    monkeypatch.setattr(crossover, "has_triton", lambda: True)
    assert crossover.kernels_for(cuda) == (H100, "auto")
    assert crossover.kernels_for(torch.device("cpu")) == (None, "never")
    for mode, gpu in (("always", H100), ("never", None)):
        monkeypatch.setenv("MUONLAB_KERNELS", mode)
        assert crossover.kernels_for(cuda) == (gpu, mode)
    monkeypatch.setenv("MUONLAB_KERNELS", "sometimes")
    with pytest.raises(ValueError, match=r"MUONLAB_KERNELS.*'sometimes'"):
        crossover.kernels_for(cuda)


def test_without_triton_cublas_multiplies_and_always_names_the_extra(monkeypatch):
    monkeypatch.setattr(crossover, "gpu_of", lambda _: H100)
    monkeypatch.setattr(crossover, "has_triton", lambda: False)
    assert crossover.kernels_for(torch.device("cuda", 0)) == (None, "auto")
    monkeypatch.setenv("MUONLAB_KERNELS", "always")
    with pytest.raises(ImportError, match=r"pip install 'muonlab\[gpu\]'"):
        crossover.kernels_for(torch.device("cuda", 0))


def test_nothing_of_the_kernels_is_imported_on_a_cpu():
    script = (
        "import sys, torch; from muonlab import newton_schulz; newton_schulz(torch.eye(64).half());"
        "print([name for name in sys.modules if 'muonlab.orthogonalize.kernels' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.kernels("triton")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_orthogonalization_on_an_imagined_gpu_issues_the_kernels_that_the_table_says(monkeypatch):
    schedule = Schedule.repeat(taylor(2), 5)
    for shape, mode, multiplied in (
        ((2, 2048, 4096), "auto", True),
        ((2, 4096, 2048), "auto", True),
        ((2, 256, 512), "auto", False),
        ((2, 256, 512), "always", True),
    ):
        monkeypatch.setattr(crossover, "kernels_for", lambda _, mode=mode: (H100, mode))
        counts = issued(shape, schedule)
        segments = plan_segments(schedule, *sorted(shape[1:]), torch.float16, "auto")
        assert (counts.count("muonlab::symmetric_matmul") >= 2 * len(segments)) is multiplied, (shape, mode)
        assert counts.count("muonlab::scale_to_unit_norm") == 1, (shape, mode)
        assert not any(name.startswith("aten::frexp") for name in counts), (shape, mode)


@pytest.mark.slow
@pytest.mark.kernels("triton")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_long_rows_are_summed_in_pieces_unless_the_kernel_sums_half_precision(monkeypatch):
    monkeypatch.setattr(crossover, "kernels_for", lambda _: (H100, "always"))
    for dtype, pieces in ((torch.float16, 1), (torch.float32, 3)):
        names = []
        with FakeTensorMode(), counting(names):
            X = torch.empty(64, 20_000, dtype=dtype, device="cuda")
            products.gram(X, out=torch.empty(64, 64, dtype=dtype, device="cuda"))
        assert names.count("muonlab::symmetric_matmul") == pieces


def counting(names):
    """Return a mode that appends the name of every operation."""

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    return Counting()


def issued(shape, schedule):
    """Return the names of all operations of an orthogonalization of float32 matrices in float16 on a GPU."""
    names = []
    with FakeTensorMode(), counting(names):
        M = torch.empty(shape, device="cuda")
        out = torch.empty(shape, dtype=torch.float16, device="cuda")
        segments = plan_segments(schedule, *sorted(shape[1:]), torch.float16, "auto")
        iterate(M, out, Workspace(torch.float16, M.device), segments, "frobenius")
    return names
