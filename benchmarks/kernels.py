"""What the kernels for GPUs compile to, for GPUs that are absent: registers, spills, shared memory, instructions. JSON.

Nothing is run, so this says nothing about speed. Needs Triton, whose wheel has the assemblers.

    python benchmarks/kernels.py > results/kernels.json            # a minute
    python benchmarks/kernels.py --table results/kernels.json      # the table of docs/guides/gpus.md
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from muonlab.orthogonalize.crossover import Gpu
from muonlab.orthogonalize.kernels import prescale_kernel, symmetric_kernel

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TENSOR = ("mma.sync", "wgmma.mma_async", "tcgen05.mma", "v_mfma")
WIDE_LOAD = r"cp\.async\.cg\.shared\.global[^;]*0x10,|ld\.global[.\w:]*\.v[48]\.|(?:global|buffer)_load_dwordx4"
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}


def source(kernel: Any, named: dict[str, Any]) -> ASTSource:
    """Return what the just-in-time compiler would compile for these arguments: ones and multiples of 16 are known."""
    signature, constants, attributes = {}, {}, {}
    for position, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        value = named[name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(position,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def compiled(kernel: Any, named: dict[str, Any], target: GPUTarget, options: dict[str, Any]) -> dict[str, Any]:
    """Return what one kernel needs on one target."""
    result = triton.compile(source(kernel, named), target=target, options=options)
    text = result.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    registers, spills = assembled(text, target)
    return {
        "registers": registers,
        "spills": spills,
        "shared_bytes": result.metadata.shared,
        "instructions": {name: text.count(name) for name in TENSOR if name in text},
        "loads_of_16_bytes": len(re.findall(WIDE_LOAD, text)),
        "narrow_copies": text.count("cp.async.ca"),
    }


def assembled(text: str, target: GPUTarget) -> tuple[int, int]:
    """Return registers of a thread and bytes (registers on AMD) that are spilled, as the assembler reports them."""
    if target.backend == "hip":
        found = [re.findall(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count")]
        return int(found[0][0]), int(found[1][0])
    name = re.search(r"\.target (\w+)", text).group(1)  # type: ignore[union-attr]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [get_ptxas(target.arch).path, "-v", "--regAllocOptLevel=2", f"--gpu-name={name}", file.name]
        done = subprocess.run([*command, "-o", "/dev/null"], capture_output=True, text=True, check=True)
    spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", done.stderr))
    return int(re.search(r"Used (\d+) registers", done.stderr).group(1)), spilled  # type: ignore[union-attr]


def cases(dtype: torch.dtype, target: GPUTarget) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Yield name, kernel, arguments and options, for a stack of two matrices 4096×16384."""
    X = torch.empty(2, 4096, 16384, dtype=dtype, device="meta")
    R = torch.empty(2, 4096, 4096, dtype=dtype, device="meta")
    capability = (target.arch // 10, target.arch % 10) if target.backend == "cuda" else (9, 4)
    tile = symmetric_kernel.tile_for(Gpu(target.backend, capability), dtype.itemsize)
    for name, operands in (
        ("X Xᵀ", (X, X.mT, None, None, R)),
        ("X Xᵀ, tall", (X.mT.contiguous().mT, X.mT.contiguous(), None, None, R)),
        ("α A B + β C", (R, R.mT, R, None, R)),
        ("scaled X Xᵀ", (X, X.mT, None, torch.empty(2, device="meta"), R)),
    ):
        _, named = symmetric_kernel.arguments(*operands, 1.0, 0.5, "ieee", tile)
        yield name, symmetric_kernel.multiply_tile, named | {"WIDEN": False}, symmetric_kernel.options(tile)
    norms = torch.empty(2, 1024, 2, device="meta")
    _, measuring, scaling = prescale_kernel.arguments(X, norms, torch.empty_like(X), paper=False)
    yield "norms of parts", prescale_kernel.measure_kernel, measuring, prescale_kernel.OPTIONS
    yield "scale and cast", prescale_kernel.scale_kernel, scaling, prescale_kernel.OPTIONS


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows of three kernels as Markdown."""
    lines = [
        "| GPU | kernel | dtype | registers | bytes spilled | shared memory | tensor instructions |",
        "|---|---|---|---|---|---|---|",
    ]
    shown = (("X Xᵀ", "float16"), ("α A B + β C", "float16"), ("α A B + β C", "float32"))
    for row in rows:
        if (row["kernel"], row["dtype"]) in shown:
            count = ", ".join(f"{number} {name}" for name, number in row["instructions"].items()) or "–"
            kilobytes = -(-row["shared_bytes"] // 1024)
            lines.append(
                f"| {row['target']} | {row['kernel']} | {row['dtype']} | {row['registers']} | {row['spills']} | "
                f"{kilobytes} KB | {count} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="bfloat16 alone, the first and the third kernel")
    parser.add_argument("--table", metavar="FILE", type=Path, help="print a result as a table instead")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))["rows"]))
        return
    quick = options.quick
    rows = []
    for dtype in (torch.bfloat16,) if quick else (torch.float16, torch.bfloat16, torch.float32):
        for target_name, target in TARGETS.items():
            for name, kernel, named, compiling in cases(dtype, target):
                if quick and name not in ("X Xᵀ", "α A B + β C"):
                    continue
                found = compiled(kernel, named, target, compiling)
                rows.append(
                    {"kernel": name, "dtype": str(dtype).removeprefix("torch."), "target": target_name, **found}
                )
    print(json.dumps({"triton": triton.__version__, "rows": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
