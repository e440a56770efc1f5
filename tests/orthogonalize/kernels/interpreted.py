"""Run the kernels in Triton's interpreter on CPU tensors and print what was found as JSON.

``TRITON_INTERPRET=1 python -m tests.orthogonalize.kernels.interpreted [CHECK …]``, in a process of its own: whether
kernels are interpreted is decided when they are imported. A fault replaces a line in a copy of a kernel's source.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

PACKAGE = "muonlab.orthogonalize.kernels"
SOURCE = Path(__file__).resolve().parents[3] / "src" / Path(*PACKAGE.split("."))
LOAD = "mask=inner < here - start, other=0.0).to(tl.float32)"
FAULTS = {
    "symmetric": {
        "mask of columns dropped": ("mask=row_inside & (ks[None, :] < k - start)", "mask=row_inside & (ks >= 0)"),
        "mask of rows dropped": ("column_inside = rows < m - i * SIZE", "column_inside = rows < m"),
        "mirror dropped": ("        tl.store(above, C, mask=inside)\n", "        pass\n"),
        "mirror of the diagonal dropped": ("mask=inside & (rows > columns)", "mask=inside & (rows < 0)"),
        "diagonal left out": ("mask=inside & (rows >= columns)", "mask=inside & (rows > columns)"),
        "diagonal tiles like the others": ("if i == j:", "if i < 0:"),
        "tile transposed": ("columns * out_row + rows * out_column\n", "rows * out_row + columns * out_column\n"),
        "beta dropped": ("total += beta * tl.load", "total += tl.load"),
        "scale of the first matrix": ("tl.load(scale + batch * scale_batch)", "tl.load(scale)"),
        "first matrix of B": ("B += batch * B_batch +", "B +="),
        "columns left over": ("for start in range(0, k, DEPTH)", "for start in range(0, k - DEPTH, DEPTH)"),
        "band too high": ("height = tl.minimum(BAND, tiles - first)", "height = tl.minimum(BAND, tiles)"),
    },
    "prescale": {
        "infinity hidden": ('tl.where(norm < float("inf"), c, float("nan"))', "c"),
        "parts not brought together": ("squares * _power_of_two(2 * (exponents - e))", "squares"),
        "smallest part counts": ("e = tl.max(exponents)", "e = tl.min(exponents)"),
        "paper without its limit": ("    if PAPER:", "    if PAPER and BLOCK == 0:"),
        "mask dropped": (f"{LOAD}\n        largest", f"{LOAD.replace('here - start', 'BLOCK')}\n        largest"),
        "squares before scaling": (
            f"{LOAD} * _power_of_two(-e)\n        total += x * x",
            f"{LOAD}\n        total += x * x * _power_of_two(-2 * e)",
        ),
        "zero divided": ("c = tl.where(norm == 0.0, 0.0, tl.div_rn(1.0, norm))", "c = tl.div_rn(1.0, norm)"),
    },
}  # fmt: skip
U = 2.0**-24


def faulty(kernel: str, fault: str) -> ModuleType:
    """Return a copy of a kernel's module with a fault."""
    old, new = FAULTS[kernel][fault]
    source = (SOURCE / f"{kernel}_kernel.py").read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{fault}: {source.count(old)} times in the source"
    path = Path(tempfile.mkdtemp()) / f"{kernel}_kernel.py"
    path.write_text(source.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"faulty_{kernel}_{len(sys.modules)}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def faults() -> dict[str, bool]:
    """Whether a few of the cases find each fault, and none of them without one."""
    from muonlab.orthogonalize.kernels import operators

    found = {}
    for kernel, check in (("symmetric", products), ("prescale", prescales)):
        name, healthy = f"{kernel}_kernel", getattr(operators, f"{kernel}_kernel")
        found[f"{kernel}: none"] = max(check(few=True).values()) > 1
        for fault in FAULTS[kernel]:
            setattr(operators, name, faulty(kernel, fault))
            found[f"{kernel}: {fault}"] = not max(check(few=True).values()) <= 1
        setattr(operators, name, healthy)
    return found


def laid_out(values: Tensor, layout: str) -> Tensor:
    """Return a view with these values whose surroundings in memory are NaN: no entry outside may be read."""
    *batch, m, k = values.shape
    step = 2 if layout == "strided" else 1
    shape = (k * step + 128, m + 128) if layout == "columns" else (m + 128, k * step + 128)
    around = torch.full((*batch, *shape), float("nan"), dtype=values.dtype)
    view = around.mT[..., :m, :k] if layout == "columns" else around[..., :m, : k * step : step]
    return view.copy_(values)


def roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a store; the interpreter truncates to bfloat16 where a GPU rounds."""
    return torch.finfo(dtype).eps * (1.0 if dtype == torch.bfloat16 else 0.5)


def product_error(m: int, k: int, batch: int, layout: str, dtype: torch.dtype, kind: str) -> float:
    """Return the largest error of a product over its rounding bound; infinite if anything else is wrong."""
    from muonlab.orthogonalize.kernels.operators import symmetric_matmul

    torch.manual_seed(m + 1000 * k + batch)
    stack = (batch,) if batch else ()
    A, B = torch.randn(*stack, m, k).to(dtype), torch.randn(*stack, k, m).to(dtype)
    add = torch.randn(*stack, m, m).to(dtype)
    alpha, beta = (1.0, 0.0) if kind == "gram" else (-0.75, 2.5)
    scale = torch.rand(batch or 1) + 0.5 if kind == "scaled" else None
    factor = torch.ones(1) if scale is None else scale
    A = laid_out(A, layout)
    B = A.mT if kind == "gram" else laid_out(B, layout)
    around = torch.full((*stack, m + 256, m + 256), 7.0, dtype=dtype)
    out = around[..., 64 : 64 + m, 64 : 64 + m].fill_(float("nan"))
    exact = factor.double()[:, None, None] * alpha * (A.double() @ B.double())
    size = factor.double()[:, None, None] * abs(alpha) * (A.double().abs() @ B.double().abs())
    given = None
    if kind != "gram":
        exact, size = exact + beta * add.double(), size + abs(beta) * add.double().abs()
        given = out.copy_(add) if kind == "in place" else laid_out(add, "columns")
    symmetric_matmul(A, B, add=given, scale=scale, alpha=alpha, beta=beta, out=out)
    exact = exact.tril() + exact.tril(-1).mT  # the lower triangle is computed
    size = size.tril() + size.tril(-1).mT
    bound = roundoff(dtype) * exact.abs() + 2 * (k + 2) * U * size + 1e-7 * (dtype == torch.float16)
    outside = torch.ones_like(around, dtype=torch.bool)
    outside[..., 64 : 64 + m, 64 : 64 + m] = False
    if not torch.equal(out, out.mT) or not bool((around[outside] == 7).all()) or not bool(out.isfinite().all()):
        return float("inf")
    return float(((out.double() - exact).abs() / bound).max())


SIZES = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 200, 257, 300)
DEPTHS = (1, 7, 63, 64, 65, 130, 301)
BATCHES = (0, 1, 2, 3, 5)
LAYOUTS = ("rows", "columns", "strided")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
KINDS = ("gram", "product", "scaled", "in place")


def products(few: bool = False) -> dict[str, float]:
    """Every size with every dtype and kind, depths, batches and layouts in turn; and many small tiles, in bands."""
    from muonlab.orthogonalize.kernels.operators import symmetric_kernel  # the faulty one, if it is in place

    found = {}
    cases = list(product((33, 129) if few else SIZES, DTYPES[: 1 if few else 3], KINDS))
    for n, (m, dtype, kind) in enumerate(cases):
        k, batch, layout = DEPTHS[n % 7], BATCHES[n % 5], LAYOUTS[n % 3]
        if few:
            k, batch = 70, 2
        found[f"{m}x{k} batch {batch} {layout} {dtype} {kind}"] = product_error(m, k, batch, layout, dtype, kind)
    usual = symmetric_kernel.tile_for
    symmetric_kernel.tile_for = lambda *_: symmetric_kernel.Tile(16, 32, warps=1, stages=1)
    for m, kind in ((150, "product"),) if few else ((150, "product"), (300, "gram"), (129, "in place")):
        found[f"{m}x20, small tiles, {kind}"] = product_error(m, 20, 2, "rows", torch.float16, kind)
    symmetric_kernel.tile_for = usual
    return found


def tiles() -> dict[str, bool]:
    """Whether the numbering of tiles reaches every tile of the lower triangle once, for small and large triangles."""
    import triton
    import triton.language as tl

    from muonlab.orthogonalize.kernels.symmetric_kernel import BAND, tile_of

    def body(where, tiles, LENGTH: tl.constexpr, BAND: tl.constexpr):
        index = tl.arange(0, LENGTH)
        i, j = tile_of(index, tiles, BAND)
        tl.store(where + index, i)
        tl.store(where + LENGTH + index, j)

    kernel = triton.jit(body)
    kernel.fn.__globals__.update(tl=tl, tile_of=tile_of)
    found = {}
    for count in (1, 2, 7, 8, 9, 16, 17, 100, 1000, 1447):
        total = count * (count + 1) // 2
        length = triton.next_power_of_2(total)
        where = torch.zeros(2, length, dtype=torch.int32)
        kernel[(1,)](where, count, LENGTH=length, BAND=BAND)
        i, j = where[:, :total].long()
        below = bool(((j >= 0) & (j <= i) & (i < count)).all())
        found[str(count)] = below and len(torch.unique(i * count + j)) == total
    return found


def scaled(M: Tensor, dtype: torch.dtype, paper: bool = False) -> Tensor:
    """Return the prescale by the kernels, into memory that was NaN."""
    from muonlab.orthogonalize.kernels.operators import scale_to_unit_norm

    out = torch.full_like(M, float("nan"), dtype=dtype, memory_format=torch.contiguous_format)
    if M.stride(-1) != 1:
        out = torch.full_like(M.mT, float("nan"), dtype=dtype, memory_format=torch.contiguous_format).mT
    return scale_to_unit_norm(M, paper=paper, out=out)


def prescales(few: bool = False) -> dict[str, float]:
    """Errors of the prescale over its rounding bound against float64, infinite where a rule of unit_scale is broken."""
    from muonlab.orthogonalize.kernels.operators import prescale_kernel
    from muonlab.orthogonalize.prescale import unit_scale
    from muonlab.orthogonalize.workspace import Workspace

    found = {}
    prescale_kernel.BLOCK, prescale_kernel.PARTS = 256, 16  # several parts, with several blocks each
    shapes = ((1, 1), (3, 5), (20, 70), (2, 33, 65), (5, 1, 300))
    for n, (shape, source, dtype) in enumerate(product(shapes, DTYPES, DTYPES)):
        if few and n % 9 != 6:
            continue
        torch.manual_seed(n)
        for magnitude, paper in (
            (1.0, False),
            (1e-3, True),
            (30.0, True),
            (1e30, False),
            (1e-30, False),
            (1e-41, False),
        ):
            if source == torch.float16 and not 1e-4 < magnitude < 1e4:
                continue
            if source == torch.bfloat16 and magnitude < 1e-20:  # the interpreter reads denormal bfloat16 wrongly
                continue
            values = torch.randn(shape)
            values[..., 0, :] *= 2.0**-30  # a part far smaller than the others
            M = laid_out((values * magnitude).to(source), LAYOUTS[n % 3])
            M = M if n % 2 else M.contiguous()
            norm = torch.linalg.matrix_norm(M.double())[..., None, None]
            exact = (M.double() / (norm.clamp_min(1.0) if paper else norm)).masked_fill(norm == 0, 0.0)
            X = scaled(M, dtype, paper).double()
            allowed = (roundoff(dtype) + 8 * U) * exact.abs() + torch.finfo(dtype).smallest_normal * roundoff(dtype) * 2
            name = f"{tuple(shape)} {source} to {dtype}, {magnitude:g}{', paper' if paper else ''}"
            found[name] = float(((X - exact).abs() / allowed).nan_to_num(torch.inf).max())
    for paper in (False, True):
        M = torch.randn(4, 20, 40)
        M[0], M[1, 3, 4], M[2, 0, 0] = 0.0, float("nan"), float("inf")
        X = scaled(M, torch.float32, paper)
        S, c = unit_scale(M, torch.float32, "paper" if paper else "frobenius", Workspace(M.dtype, M.device))
        same = torch.allclose(X, S * c, rtol=4e-7, atol=0, equal_nan=True)
        right = not X[0].any() and bool(X[1:3].isnan().all()) and same
        found[f"zero, NaN and infinity{', paper' if paper else ''}"] = 0.0 if right else float("inf")
    M = torch.randn(3, 20, 70)
    M[..., 0, :] *= 2.0**-20
    for power in (-60, -1, 50):
        equal = torch.equal(scaled(M, torch.float32), scaled(M * 2.0**power, torch.float32))
        found[f"the same bits times 2^{power}"] = 0.0 if equal else float("inf")
    largest = torch.full((8, 8), torch.finfo(torch.float32).max)
    found["largest float"] = float((scaled(largest, torch.float32) - 0.125).abs().max() / U)
    return found


def operators() -> dict[str, object]:
    """Torch's own checks of the operators, compiled calls, and the errors of wrong ones."""
    from muonlab.orthogonalize.kernels.operators import norms_shape, scale_to_unit_norm, symmetric_matmul

    A, M = torch.randn(2, 40, 70), torch.randn(2, 40, 70, dtype=torch.float16)
    R, out = A @ A.mT, torch.empty(2, 40, 40)
    found: dict[str, object] = {}
    for add, scale in ((None, None), (R, torch.rand(2))):
        results = torch.library.opcheck(
            torch.ops.muonlab.symmetric_matmul.default, (A, A.mT, add, scale, 2.0, 0.5, "ieee", out)
        )
        found[f"opcheck symmetric_matmul {add is not None}"] = set(results.values()) == {"SUCCESS"}
    norms = torch.zeros(norms_shape(M.shape))
    results = torch.library.opcheck(
        torch.ops.muonlab.scale_to_unit_norm.default, (M, False, norms, torch.empty_like(M))
    )
    found["opcheck scale_to_unit_norm"] = set(results.values()) == {"SUCCESS"}

    def step(X):
        S = scale_to_unit_norm(X, paper=False, out=torch.empty_like(X))
        G = symmetric_matmul(S, S.mT, out=S.new_empty(2, 40, 40))
        return symmetric_matmul(G, G, add=G, alpha=2.0, beta=-3.0, out=torch.empty_like(G))

    def in_place(X):
        G = symmetric_matmul(X, X.mT, out=X.new_empty(2, 40, 40))
        symmetric_matmul(R, R.mT, add=G, alpha=2.0, beta=-3.0, out=G)
        return G

    for function in (step, in_place):
        for backend in ("aot_eager", "inductor"):
            compiled = torch.compile(function, fullgraph=True, backend=backend)
            found[f"{function.__name__} compiled by {backend}"] = torch.equal(compiled(A), function(A))
    graph = torch._dynamo.explain(step)(A).graphs
    nodes = (
        [str(node.target) for node in graph[0].graph.nodes if "muonlab" in str(node.target)] if len(graph) == 1 else []
    )
    found["nodes"] = nodes
    B = A.mT
    needs = A.clone().requires_grad_()
    compiled = torch.compile(symmetric_matmul, fullgraph=True, backend="aot_eager")
    errors = {
        "autograd": lambda: symmetric_matmul(needs, B, out=out),
        "autograd, compiled": lambda: compiled(needs, B, out=out),
        "autograd of the prescale": lambda: scale_to_unit_norm(needs, paper=False, out=torch.empty_like(A)),
        "shape": lambda: symmetric_matmul(A, A, out=out),
        "dtype": lambda: symmetric_matmul(A, B.half(), out=out),
        "float64": lambda: symmetric_matmul(A.double(), B.double(), out=out.double()),
        "scale": lambda: symmetric_matmul(A, B, scale=torch.rand(3), out=out),
        "precision": lambda: symmetric_matmul(A, B, precision="tf64", out=out),
        "dimensions": lambda: symmetric_matmul(A[None], B[None], out=out[None]),
        "out of the prescale": lambda: scale_to_unit_norm(M, paper=False, out=torch.empty(2, 40, 140)[..., ::2]),
    }  # fmt: skip
    for name, call in errors.items():
        try:
            call()
        except (RuntimeError, TypeError, ValueError) as error:
            found[f"error: {name}"] = f"{type(error).__name__}: {error}"
        else:
            found[f"error: {name}"] = "none"
    with torch.no_grad():
        found["no_grad"] = symmetric_matmul(needs, B, out=out) is out
    found["empty"] = symmetric_matmul(A[:0], B[:0], out=out[:0]).numel() == 0
    return found


def whole() -> dict[str, object]:
    """Newton-Schulz through the kernels, on a stack and on its transpose, against exact steps in float64."""
    from muonlab.diagnostics.matrix_spectra import by_definition
    from muonlab.orthogonalize import prescale, products
    from muonlab.orthogonalize.crossover import Gpu, multiplies, scales
    from muonlab.orthogonalize.iteration import iterate
    from muonlab.orthogonalize.segments import plan_segments
    from muonlab.orthogonalize.workspace import Workspace
    from muonlab.polynomials import preset

    calls: list[str] = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(function.name())
            return function(*args, **(kwargs or {}))

    found: dict[str, object] = {}
    schedule = preset("polar_express").schedule(5, safety="1.01")
    for dtype, tall, name in product((torch.float16, torch.float32), (False, True), ("frobenius", "paper")):
        M = torch.randn(2, 60, 150, generator=torch.Generator().manual_seed(0))
        M = M.mT.contiguous() if tall else M
        segments = plan_segments(schedule, 60, 150, dtype, "gram", "half")
        calls.clear()
        found[f"{dtype} {'tall' if tall else 'wide'} {name}"] = row = {"segments": [len(part) for part in segments]}
        for way, mode in (("kernels", "always"), ("torch", "never")):
            gpu = Gpu("cuda", (9, 0)), mode
            products.multiplies_here = lambda A, gpu=gpu: multiplies(*gpu, A)
            prescale.scales_here = lambda M, dtype, gpu=gpu: scales(*gpu, M, dtype)
            out = torch.full_like(M, float("nan"), dtype=dtype)
            with Counting():
                iterate(M, out, Workspace(dtype, M.device), segments, name)
            exact = [by_definition(A, schedule, name)[1] for A in M]
            row[way] = max(float(torch.linalg.matrix_norm(O.double() - F, 2)) for O, F in zip(out, exact, strict=True))
        row["products"], row["scalings"] = (
            calls.count(f"muonlab::{op}") for op in ("symmetric_matmul", "scale_to_unit_norm")
        )
    return found


CHECKS = (tiles, products, prescales, operators, whole, faults)

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps({check.__name__: check() for check in CHECKS if not sys.argv[1:] or check.__name__ in sys.argv[1:]})
    )
