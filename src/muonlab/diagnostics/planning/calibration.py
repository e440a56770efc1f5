"""Predict the time of an orthogonalization on this machine from a few timed parts, cached in a file per shape.

The model of a call of :func:`muonlab.newton_schulz`: a first step with its prescale, further steps that multiply X
(``step``) or stay in Gram space (``joined_step``), and the extra time of a degree other than κ = 2. The first two are
measured on whole calls, overhead included; the others on segments in Gram space alone, because the difference of two
calls would be smaller than the noise of the products with X.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import reprlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import muonlab
from muonlab import _checks, _files
from muonlab._cache import cache_directory
from muonlab.orthogonalize.hardware import processor, wait
from muonlab.orthogonalize.iteration import iterate, segment_product
from muonlab.orthogonalize.matrices import FLOATING, map_matrices
from muonlab.orthogonalize.prescale import Prescale
from muonlab.orthogonalize.segments import Segment
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import taylor

PRESCALES: tuple[Prescale, ...] = ("frobenius", "schatten4", "schatten8", "spectral")
"""Prescales that divide by a norm of the matrix alone, so that a plan holds for a matrix of any size."""

DEGREES = (1, 2, 3, 4)
_SCHEMA = 1
_BUDGET, _LEAST_ROUNDS, _MOST_ROUNDS = 2.5, 5, 60
_BLOCK = 1e-3
"""Least seconds between two readings of the clock; short calls are repeated."""

_MOST_WORK = 1 << 31
"""Multiply-adds of one ``X Xᵀ`` beyond which a smaller matrix of the same form is timed and scaled up."""

Segments = tuple[Segment, ...]


_P = {kappa: taylor(kappa) for kappa in DEGREES}

CALLS: Mapping[str, tuple[Segments, Prescale]] = MappingProxyType(
    {
        "nothing": ((), "frobenius"),
        **{str(prescale): (((_P[2],),), prescale) for prescale in PRESCALES},
        "apart": (((_P[2],),) * 3, "frobenius"),
    }
)
"""Whole calls that a calibration times: segments and prescale."""

PIECES: Mapping[str, Segment] = MappingProxyType(
    {**{f"segment_{kappa}": (_P[kappa],) for kappa in DEGREES}, "segment_222": (_P[2],) * 3}
)
"""Segments in Gram space that a calibration times alone."""

TIMED = (*CALLS, *PIECES)


def counts(segments: Segments, prescale: Prescale) -> Counter[str]:
    """Return how often each part of the cost model occurs in a call with these segments."""
    _checks.one_of("prescale", prescale, PRESCALES)
    if not segments:
        if prescale != "frobenius":
            raise ValueError(f"a call without steps is planned with prescale 'frobenius', got {prescale!r}: use that")
        return Counter({"nothing": 1})
    parts = Counter({prescale: 1, "step": len(segments) - 1, "joined_step": sum(map(len, segments)) - len(segments)})
    degrees = [p.kappa for segment in segments for p in segment]
    if prescale == "schatten8" and degrees[0] == 1:
        degrees = degrees[1:]  # R² is formed for the norm, so a first step of degree 1 costs what one of degree 2 does
    return +(parts + Counter(f"degree_{kappa}" for kappa in degrees if kappa != 2))


@dataclass(frozen=True)
class Calibration:
    """Measured seconds of :data:`CALLS` and :data:`PIECES` for matrices of one shape, and the cost model for any call.

    Args:
        shape: rows and columns.
        measured: seconds by name.
    """

    shape: tuple[int, int]
    measured: Mapping[str, float]

    def __post_init__(self) -> None:
        missing = sorted(set(TIMED) - self.measured.keys())
        if missing:
            raise ValueError(f"a calibration needs the seconds of all in TIMED, got none for {missing}: add them")
        seconds = {name: _checks.positive(f"seconds of {name!r}", self.measured[name]) for name in TIMED}
        object.__setattr__(self, "shape", checked_shape(self.shape))
        object.__setattr__(self, "measured", MappingProxyType(seconds))

    def __hash__(self) -> int:
        return hash((self.shape, *self.measured.values()))

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part of the cost model; ``degree_κ`` is the extra time of a step of that degree over κ = 2.

        Parts are bounded below against noise: a further step by zero, a norm from the Gram matrix by the Frobenius
        norm, a higher degree by κ = 2.
        """
        t = self.measured
        first, square = t["frobenius"], t["segment_2"]
        parts = {"nothing": t["nothing"]}
        parts |= {str(prescale): max(t[prescale], first) for prescale in PRESCALES}
        parts["step"] = max((t["apart"] - first) / 2, 0.0)
        parts["joined_step"] = max((t["segment_222"] - square) / 2, 0.0)
        parts["degree_1"] = max(t["segment_1"] - square, -min(parts["step"], parts["joined_step"]))
        parts |= {f"degree_{kappa}": max(t[f"segment_{kappa}"] - square, 0.0) for kappa in DEGREES if kappa > 2}
        return parts

    def predict(self, segments: Segments, prescale: Prescale) -> float:
        """Return the seconds that a call with these segments and this prescale is expected to take."""
        parts = self.parts
        total = math.fsum(count * parts[name] for name, count in counts(segments, prescale).items())
        return max(total, self.measured["nothing"])


def checked_shape(shape: object) -> tuple[int, int]:
    """Return a shape as two whole numbers of at least 1."""
    way_out = "for example (768, 3072), or M.shape"
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise TypeError(f"shape must be two whole numbers (m, n), got {reprlib.repr(shape)}: {way_out}")
    sides = tuple(shape)
    if len(sides) != 2:
        raise ValueError(f"shape must be two whole numbers (m, n), got {len(sides)} values: {way_out}")
    m, n = (_checks.integer(f"shape[{i}]", side, at_least=1) for i, side in enumerate(sides))
    if m * n > _checks.LARGEST_MATRIX:
        raise ValueError(
            f"shape must have at most {_checks.LARGEST_MATRIX} entries, got {m}x{n}: plan for a smaller matrix"
        )
    return m, n


def calibrate(
    shape: tuple[int, int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    recalibrate: bool = False,
) -> Calibration:
    """Return the calibration for matrices of this shape: from the cache, or measured and then cached.

    The cache is a file under ``MUONLAB_CACHE``, or the user's cache directory. Its key has the processor, cores,
    torch's threads, the versions, dtype, device and shape. A damaged file, or one of another key, is measured again and
    replaced; if the directory cannot be written, the calibration is measured each time.

    Args:
        shape: rows and columns.
        dtype: dtype of the products.
        device: device of the products.
        recalibrate: measure again even if there is a file.
    """
    shape = checked_shape(shape)
    if dtype not in FLOATING:
        raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype!r}: float32 is the usual one")
    key = machine_key(shape, dtype, torch.device(device))
    path = _path(key)
    cached = None if recalibrate or path is None else _read(path, key)
    if cached is not None:
        return cached
    calibration = measure_calibration(shape, dtype=dtype, device=device)
    if path is not None:
        _write(path, key, calibration)
    return calibration


def measure_calibration(
    shape: tuple[int, int], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Calibration:
    """Time calls and pieces in turn and take the lower quartile of each: other processes only add time."""
    m, n = shape
    device = torch.device(device)
    shrink = min(1.0, (_MOST_WORK / (min(m, n) ** 2 * max(m, n))) ** (1 / 3))
    timed = (m, n) if shrink == 1 else (max(1, round(m * shrink)), max(1, round(n * shrink)))
    scale = (min(m, n) ** 2 * max(m, n)) / (min(timed) ** 2 * max(timed))
    M = torch.randn(timed, generator=torch.Generator().manual_seed(0)).to(device=device, dtype=dtype)
    R = torch.eye(min(timed), dtype=dtype, device=device)  # p(1) = 1: it does not change, however often it is used
    pool = Workspace(dtype, device)

    def call(segments: Segments, prescale: Prescale) -> Callable[[], object]:
        def write(A: Tensor, out: Tensor, workspace: Workspace) -> None:
            iterate(A, out, workspace, segments, prescale)

        return lambda: map_matrices(M, dtype, write)

    def piece(segment: Segment) -> Callable[[], object]:
        return lambda: pool.give(segment_product(segment, R, None, pool))

    runs = {name: call(*given) for name, given in CALLS.items()}
    runs |= {name: piece(segment) for name, segment in PIECES.items()}
    times = interleaved(runs, device, _BUDGET, _LEAST_ROUNDS)
    return Calibration(shape, {name: lower_quartile(times[name]) * scale for name in TIMED})


def lower_quartile(times: Sequence[float]) -> float:
    """Return the lower quartile of the times."""
    return sorted(times)[(len(times) - 1) // 4]


def interleaved(
    calls: Mapping[str, Callable[[], object]], device: torch.device, budget: float, least_rounds: int
) -> dict[str, list[float]]:
    """Return seconds per call, every call once a round, so that load on the machine affects all of them equally.

    With one thread on a CPU the clock is the thread's processor time.

    Args:
        calls: functions to time, by name.
        device: device to synchronize.
        budget: wall-clock seconds after which no further round starts.
        least_rounds: rounds in any case.
    """
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def timed(run: Callable[[], object], repeats: int) -> float:
        wait(device)
        start = clock()
        for _ in range(repeats):
            run()
        wait(device)
        return (clock() - start) / repeats

    for run in calls.values():
        run()
    repeats = {name: max(1, min(50, math.ceil(_BLOCK / max(timed(run, 1), 1e-9)))) for name, run in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(max(_MOST_ROUNDS, least_rounds)):
        if done >= least_rounds and time.perf_counter() - start > budget:
            break
        for name, run in calls.items():
            times[name].append(timed(run, repeats[name]))
    return times


def machine_key(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what a measured time depends on, in plain values."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "schema": _SCHEMA,
        "muonlab": muonlab.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
    }


def _path(key: Mapping[str, Any]) -> Path | None:
    """Return the file of a key, one for each; None without a cache directory."""
    directory = cache_directory()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return None if directory is None else directory / "calibration" / f"{digest}.json"


def _read(path: Path, key: Mapping[str, Any]) -> Calibration | None:
    """Return the calibration in a file; None if it is missing, damaged, implausible, or of another key."""
    try:
        content = _files.read_json(path)
        calibration = Calibration((key["shape"][0], key["shape"][1]), dict(content["seconds"]))
        plausible = all(1e-8 <= seconds <= 1e5 for seconds in calibration.measured.values())
        return calibration if content["key"] == key and plausible else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, key: Mapping[str, Any], calibration: Calibration) -> None:
    """Write a temporary file and rename it: a reader finds the old content or the new, never a part."""
    text = json.dumps({"key": key, "seconds": dict(calibration.measured)}, indent=1)
    part = path.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
