"""Whether a plan's time is the time it takes, and its choice the fastest: re-measured on ten shapes of a fixed seed.

For each shape: calibrate, plan for alignment 0.95 on the typical spectra, then time the candidates that meet the target
and are predicted to take at most 1.75 times as long as the choice. Of those that run the same kernels one is timed
(the values of coefficients change no time), and none that runs all kernels of another and more. All take turns in one
process. After two rounds those beyond 1.4 times the fastest drop out, never the choice; then medians count. Prints
JSON.

    python benchmarks/planner.py              # about five minutes on one core
    python benchmarks/planner.py --quick      # two small shapes, seconds
    python benchmarks/planner.py --largest 1024  # smaller sides up to 1024 instead of 512: most of an hour
    python benchmarks/planner.py --threads 2  # by the wall clock, for a machine of its own

With one thread, the default, times are of the thread's own clock, which stands while a neighbour has the core.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import statistics
import sys
import time
from collections import Counter

import torch

from muonlab import newton_schulz
from muonlab.diagnostics.planning.calibration import (
    DEGREES,
    PRESCALES,
    Calibration,
    interleaved,
    lower_quartile,
    measure_calibration,
)
from muonlab.diagnostics.planning.candidates import typical_spectra
from muonlab.diagnostics.planning.planner import Plan, plan
from muonlab.diagnostics.planning.search import PlanOption, PlanSearch, PlanTarget
from muonlab.orthogonalize import ACCURACIES
from muonlab.orthogonalize.hardware import diagnose

SEED, SHAPES, SIDES, RATIOS = 20260, 10, (32, 512), (1, 6)
TARGET, WITHIN, KEPT = 0.95, 1.75, 1.4
ERROR_AIM, SLOWER_AIM, COUNT_AIM = 0.25, 1.10, 9
CPU = torch.device("cpu")


def drawn(count: int, sides: tuple[int, int]) -> list[tuple[int, int]]:
    """Draw the smaller side and the ratio evenly in their logarithms, every other matrix tall; odd sides occur."""
    rng = random.Random(SEED)
    shapes = []
    for i in range(count):
        m = round(sides[0] * (sides[1] / sides[0]) ** rng.random())
        n = round(m * (RATIOS[1] / RATIOS[0]) ** rng.random())
        shapes.append((n, m) if i % 2 else (m, n))
    return shapes


Kernels = tuple[int, ...]


def rivals(calibration: Calibration, chosen: Plan) -> dict[Kernels, PlanOption]:
    """Return the candidates to time by the kernels they run, the choice first."""
    spectra = list(typical_spectra(*calibration.shape).values())
    search = PlanSearch(calibration, spectra, PlanTarget("alignment", TARGET, "typical"), ACCURACIES, torch.float32)
    choice = search.cheapest()
    assert choice is not None
    assert choice.schedule == chosen.schedule
    found = {kernels(option): option for option in search.meeting(WITHIN * chosen.seconds)}
    least = {k: o for k, o in found.items() if not any(contains(k, other) for other in found)}
    return {kernels(choice): choice} | least


def kernels(option: PlanOption) -> Kernels:
    """Count what a call runs: the prescale (each does what those before it do, nearly), segments, steps by degree."""
    degrees = Counter(p.kappa for segment in option.segments for p in segment)
    first = option.segments[0][0].kappa if option.prescale == "schatten8" else 0  # where a square is used again
    return PRESCALES.index(option.prescale), len(option.segments), *(degrees[kappa] for kappa in DEGREES), first


def contains(one: Kernels, other: Kernels) -> bool:
    """Tell whether one runs all kernels of the other and more; steps in a segment beyond its first are counted too."""
    joined = sum(one[2:-1]) - one[1] >= sum(other[2:-1]) - other[1]
    return one != other and one[-1] == other[-1] and joined and all(map(operator.ge, one, other))


def contest(shape: tuple[int, int], seconds: float, rounds: int) -> dict[str, object]:
    start = time.perf_counter()
    calibration = measure_calibration(shape)
    calibrated = time.perf_counter()
    chosen = plan(shape, target_alignment=TARGET, calibration=calibration)
    planned = time.perf_counter()
    options = {str(name): option for name, option in rivals(calibration, chosen).items()}
    M = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    runs = {
        name: lambda o=o: newton_schulz(M, o.schedule, prescale=o.prescale, method=o.method, accuracy=o.accuracy)
        for name, o in options.items()
    }
    choice = next(iter(options))
    first = {name: min(times) for name, times in interleaved(runs, CPU, 0.0, 2).items()}
    bar = KEPT * min(first.values())
    left = {name: run for name, run in runs.items() if first[name] <= bar or name == choice}
    times = interleaved(left, CPU, seconds, rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=lambda name: medians[name])
    print(shape, chosen.seconds / medians[choice], medians[choice] / medians[best], file=sys.stderr, flush=True)
    return {
        "shape": list(shape),
        "schedule": str(chosen.schedule),
        "prescale": chosen.prescale,
        "method": chosen.method,
        "accuracy": chosen.accuracy,
        "alignment": chosen.alignment,
        "floor": chosen.floor,
        "predicted_ms": chosen.seconds * 1e3,
        "measured_ms": medians[choice] * 1e3,
        "measured_lower_quartile_ms": lower_quartile(times[choice]) * 1e3,
        "error": chosen.seconds / medians[choice] - 1,
        "best": f"{options[best].schedule}, {options[best].prescale}, {options[best].method}",
        "best_ms": medians[best] * 1e3,
        "slower_than_best": medians[choice] / medians[best],
        "timed": len(runs),
        "timed_to_the_end": len(left),
        "rounds": len(times[choice]),
        "calibration_seconds": calibrated - start,
        "plan_seconds": planned - calibrated,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small shapes, few rounds")
    parser.add_argument("--largest", type=int, default=SIDES[1], help="bound of the smaller side")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.ones(7_000_000)  # lets the allocator settle, as any training process has done
    quick = options.quick
    shapes = drawn(2, (24, 48)) if quick else drawn(SHAPES, (SIDES[0], options.largest))
    load = os.getloadavg()[0]
    rows = [contest(shape, *((0.3, 3) if quick else (8.0, 9))) for shape in shapes]
    errors = [abs(float(str(row["error"]))) for row in rows]
    slower = [float(str(row["slower_than_best"])) for row in rows]
    given = f" --threads {options.threads}" if options.threads != 1 else ""
    given += f" --largest {options.largest}" if options.largest != SIDES[1] else ""
    report = {
        "command": "python benchmarks/planner.py" + (" --quick" if quick else "") + given,
        "machine": {key: value for key, value in diagnose().items() if key in ("versions", "cpu")},
        "clock": "thread" if options.threads == 1 else "wall",
        "load_before_and_after": [load, os.getloadavg()[0]],
        "target_alignment": TARGET,
        "rows": rows,
        "summary": {
            "median_error": statistics.median(errors),
            "median_error_aim": ERROR_AIM,
            "largest_error": max(errors),
            "within_10_percent_of_best": sum(ratio <= SLOWER_AIM for ratio in slower),
            "within_10_percent_aim": COUNT_AIM,
            "shapes": len(rows),
            "slowest_against_best": max(slower),
        },
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
