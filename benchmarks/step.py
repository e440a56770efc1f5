"""A whole optimizer step here and in other packages: same matrices, polynomial, number of steps and momentum.

All sides run in one process with interleaved repetitions; only ratios mean anything on a shared machine. Prints JSON.

    python benchmarks/step.py                 # float32: ours, the algorithm of torch.optim.Muon, optimuon; minutes
    python benchmarks/step.py --slow-peers    # also packages that force bfloat16: one block, one repetition, minutes
    python benchmarks/step.py --quick         # one block, few repetitions
    python benchmarks/step.py --against DIR   # Muon's defaults here and in another checkout of muonlab, in CPU seconds

Other packages come with `make bench` (benchmarks/peers.txt); one that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from muonlab import Muon, NewtonSchulz
from muonlab.orthogonalize.hardware import diagnose
from muonlab.orthogonalize.segments import Accuracy
from muonlab.polynomials import Polynomial, preset, taylor

GPT_BLOCK = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
CIFARNET = [(64, 24, 3, 3), (64, 64, 3, 3), (256, 64, 3, 3), *[(256, 256, 3, 3)] * 3]
POLYNOMIALS = {"quintic": taylor(2), "jordan": preset("jordan").polynomial}
STEPS = 5
LR, MOMENTUM = 0.02, 0.95  # EMA, Nesterov, no decay, scale √max(1, rows/columns) on every side

Step = Callable[[], object]
Shapes = Sequence[tuple[int, ...]]


def weights(shapes: Shapes, flat: bool = False) -> list[Tensor]:
    """Return parameters with gradients, the same for every side."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in shapes:
        W, G = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
        p = torch.nn.Parameter(W.flatten(1) if flat else W)
        p.grad = G.flatten(1) if flat else G
        made.append(p)
    return made


def ours(params: list[Tensor], p: Polynomial, accuracy: Accuracy = "full") -> Muon:
    return Muon(params, LR, momentum=MOMENTUM, orthogonalizer=NewtonSchulz(p, steps=STEPS, accuracy=accuracy))


def float32_zeropower(grad: Tensor, coefficients: tuple[float, ...], steps: int, eps: float) -> Tensor:
    """Do what torch.optim.Muon does to a momentum, without its cast to bfloat16."""
    a, b, c = coefficients
    X = grad.T if grad.size(0) > grad.size(1) else grad
    X = X / X.norm().clamp(min=eps)
    for _ in range(steps):
        A = X @ X.T
        X = torch.addmm(X, torch.addmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.T if grad.size(0) > grad.size(1) else X


def torch_float32(params: list[Tensor], p: Polynomial) -> Step:
    optimizer = torch.optim.Muon(
        params, LR, weight_decay=0.0, momentum=MOMENTUM, ns_coefficients=p.coefficients, ns_steps=STEPS
    )

    def step() -> None:
        with mock.patch("torch.optim._muon._zeropower_via_newtonschulz", float32_zeropower):
            optimizer.step()

    return step


def optimuon_float32(params: list[Tensor], p: Polynomial, **options: object) -> Step:
    settings = {"ns_dtype": None, "normuon": False, "cautious_wd": False, "ns_norm_scale": 1.0, "ns_eps": 1e-7}
    settings |= {"gram_ns": True, "ns_coefficients": p.coefficients, "ns_steps": STEPS}
    module = importlib.import_module("optimuon")
    return module.Muon(params, LR, MOMENTUM, weight_decay=0.0, **(settings | options)).step


def stock(name: str, params: list[Tensor], p: Polynomial) -> Step:
    """Return the step of a package as it comes, in the bfloat16 that it forces."""
    if name == "torch.optim.Muon":
        return torch.optim.Muon(
            params, LR, weight_decay=0.0, momentum=MOMENTUM, ns_coefficients=p.coefficients, ns_steps=STEPS
        ).step
    if name == "muon-optimizer":
        return importlib.import_module("muon").SingleDeviceMuon(params, LR, momentum=MOMENTUM).step
    group = {"params": params, "use_muon": True, "lr": LR, "momentum": MOMENTUM, "ns_coeffs": p.coefficients}
    return importlib.import_module("pytorch_optimizer").Muon([group]).step


def interleaved(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each repetition, all sides in turn, after two rounds of warming up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return times


def ratio(times: dict[str, list[float]], of: str, to: str) -> float:
    return statistics.median(a / b for a, b in zip(times[of], times[to], strict=True))


def compare(network: str, shapes: Shapes, polynomial: str, rounds: int) -> dict[str, object]:
    """Time whole steps, and the orthogonalization alone on the same matrices."""
    p = POLYNOMIALS[polynomial]
    mine, theirs = weights(shapes), weights(shapes, flat=True)
    optimizer = ours(mine, p)
    sides: dict[str, Step] = {"muonlab": optimizer.step}
    sides |= {
        "muonlab, accuracy half": ours(weights(shapes), p, "half").step,
        "torch.optim.Muon, float32": torch_float32(theirs, p),
    }
    optimizer.step()
    sides["torch.optim.Muon, float32"]()
    apart = max(float((a.flatten(1) - b).detach().abs().max()) for a, b in zip(mine, theirs, strict=True))
    if apart > 1e-4:
        raise SystemExit(f"the sides do not compute the same: weights are {apart:.2g} apart after one step")
    left_out = []
    try:
        sides["optimuon, float32, Gram"] = optimuon_float32(weights(shapes), p)
        sides["optimuon, float32, Gram without restart"] = optimuon_float32(weights(shapes), p, gns_restart_after=None)
        sides["optimuon, float32"] = optimuon_float32(weights(shapes), p, gram_ns=False)
    except ModuleNotFoundError as error:
        left_out.append(str(error))
    orthogonalize = NewtonSchulz(p, steps=STEPS)
    matrices = [m.detach().flatten(1).clone() for m in mine]
    sides["orthogonalization alone"] = lambda: [orthogonalize(M) for M in matrices]
    times = interleaved(sides, rounds)
    peers = [name for name in sides if not name.startswith(("muonlab", "orthogonalization"))]
    speedups = {name: round(ratio(times, name, "muonlab"), 3) for name in peers}
    return {
        "network": network,
        "matrices": len(shapes),
        "polynomial": f"{polynomial} x{STEPS}",
        "rounds": rounds,
        "median_ms": {name: round(statistics.median(t) * 1e3, 3) for name, t in times.items()},
        "speedup_over": speedups,
        "speedup_over, accuracy half": {name: round(ratio(times, name, "muonlab, accuracy half"), 3) for name in peers},
        "speedup_over_best_package": min((s for n, s in speedups.items() if n.startswith("optimuon")), default=None),
        "outside_orthogonalization": round(1 - ratio(times, "orthogonalization alone", "muonlab"), 4),
        "left_out": left_out,
    }


def growth(layers: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """Time steps of networks with more and more layers, in turn; a linear cost gives a constant time per layer."""
    steps = {str(n): ours(weights([(256, 256), (256, 1024)] * n), taylor(2)).step for n in layers}
    times = interleaved(steps, rounds)
    return [{"layers": n, "ms_per_layer": round(statistics.median(times[str(n)]) * 1e3 / n, 4)} for n in layers]


def slow_peers(polynomial: str) -> dict[str, object]:
    """Time packages that force bfloat16, once, beside ours: one GPT-2 block."""
    p = POLYNOMIALS[polynomial]
    sides: dict[str, Step] = {
        "muonlab": ours(weights(GPT_BLOCK), p).step,
        "muonlab, accuracy half": ours(weights(GPT_BLOCK), p, "half").step,
    }
    mine = {name: statistics.median(times) for name, times in interleaved(sides, 7).items()}
    seconds, left_out = {}, []
    for name in ("torch.optim.Muon", "muon-optimizer", "pytorch_optimizer"):
        try:
            step = stock(name, weights(GPT_BLOCK), p)
        except ModuleNotFoundError as error:
            left_out.append(str(error))
            continue
        start = time.perf_counter()
        step()
        seconds[name] = time.perf_counter() - start
    return {
        "network": "one GPT-2 block",
        "polynomial": f"{polynomial} x{STEPS}",
        "repetitions": 1,
        "seconds": {name: round(s, 3) for name, s in (mine | seconds).items()},
        "speedup_over": {name: round(s / mine["muonlab"], 1) for name, s in seconds.items()},
        "speedup_over, accuracy half": {
            name: round(s / mine["muonlab, accuracy half"], 1) for name, s in seconds.items()
        },
        "left_out": left_out,
    }


def other_muon(checkout: Path, folder: Path) -> type[Muon]:
    """Return Muon of another checkout of muonlab, copied and imported under another package name."""
    for source in (checkout / "src" / "muonlab").rglob("*.py"):
        copy = folder / "muonlab_before" / source.relative_to(checkout / "src" / "muonlab")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(re.sub(r"\bmuonlab\b", "muonlab_before", source.read_text()))
    sys.path.insert(0, str(folder))
    return importlib.import_module("muonlab_before.optim").Muon


def against(other: type[Muon], rounds: int) -> list[dict[str, object]]:
    """Time steps with default options here and in another checkout, in CPU seconds of one thread, in turns."""
    networks = {
        "2 matrices of 16 x 16": ([(16, 16)] * 2, 40 * rounds),
        "20 matrices of 32 x 48": ([(32, 48)] * 20, 10 * rounds),
        "8 matrices of 128 x 128 and 128 x 64": ([(128, 128), (128, 64)] * 4, 10 * rounds),
        "CifarNet": (CIFARNET, 2 * rounds),
        "one GPT-2 block": (GPT_BLOCK, rounds),
    }
    rows = []
    for network, (shapes, repetitions) in networks.items():
        steps = {"here": Muon(weights(shapes)).step, "before": other(weights(shapes)).step}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(repetitions + 2):
            for name in ("here", "before") if turn % 2 else ("before", "here"):
                start = time.process_time()
                steps[name]()
                if turn >= 2:
                    seconds[name].append(time.process_time() - start)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        rows.append(
            {
                "network": network,
                "repetitions": repetitions,
                "median_cpu_ms": {name: round(value * 1e3, 3) for name, value in medians.items()},
                "here_over_before": round(ratio(seconds, "here", "before"), 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one block and few repetitions")
    parser.add_argument("--slow-peers", action="store_true", help="also stock packages in the bfloat16 they force")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout of muonlab to compare with")
    arguments = parser.parse_args()
    if arguments.against is not None:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            rows = against(other_muon(arguments.against, Path(folder)), 3 if arguments.quick else 15)
        command = "python benchmarks/step.py --against DIR" + (" --quick" if arguments.quick else "")
        print(json.dumps({"command": command, "machine": diagnose(), "steps": rows}, indent=1))
        return
    torch.ones(7_000_000)  # lets the allocator settle, as any training process has done
    blocks, rounds = (1, 3) if arguments.quick else (2, 15)
    report: dict[str, object] = {
        "command": "python benchmarks/step.py"
        + (" --quick" if arguments.quick else "")
        + (" --slow-peers" if arguments.slow_peers else ""),
        "machine": diagnose(),
        "steps": [
            compare(network, shapes, polynomial, turns)
            for network, shapes, turns in (
                (f"{blocks} GPT-2 blocks", GPT_BLOCK * blocks, rounds),
                ("CifarNet", CIFARNET, 10 * rounds),
            )
            for polynomial in POLYNOMIALS
        ],
        "growth": growth((2, 4, 8, 16) if not arguments.quick else (2, 4), rounds),
    }
    if arguments.slow_peers:
        report["slow_peers"] = slow_peers("jordan")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
