"""The candidates of a plan: schedules, and the spectra on which they are judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from muonlab.polynomials import Polynomial, Schedule, polar_express, preset, taylor
from muonlab.polynomials.base import Array

TAYLOR_DEGREES, MOST_TAYLOR = (1, 2, 3, 4), 16
ELLS = (0.3, 0.1, 0.03, 0.01, 1e-3)
"""Lower ends for which Polar Express is generated."""

EXPRESS_STEPS = {1: 9, 2: 7, 4: 5}
"""Most steps of a generated Polar Express, by degree; degree 3 takes as many products as 4."""

PRESET_STEPS = 8
TAILS = ((2, 1), (2, 2), (2, 3), (1, 1), (1, 2))
"""Taylor steps (κ, count) that may follow a schedule whose values oscillate about 1, and bring them together."""

_SPIKES = 96
_DIVERGED = 4.0


class ScaledSpectra(NamedTuple):
    """Scaled singular values: one row for each spectrum under each prescale."""

    values: Array
    weights: Array
    """The singular values of the unscaled matrix, for the alignment; zero where a shorter spectrum was padded."""


class JudgedSchedule(NamedTuple):
    """A schedule with its alignment, gain and polar error on each row of :class:`ScaledSpectra`."""

    schedule: Schedule
    alignment: Array
    gain: Array
    epsilon: Array


def gaussian_spectrum(m: int, n: int) -> Array:
    """Return the typical singular values of a Gaussian m×n matrix: quantiles of the Marchenko-Pastur law."""
    r = min(m, n)
    root = math.sqrt(r / max(m, n))
    low, high = (1 - root) ** 2, (1 + root) ** 2
    theta = np.linspace(0, np.pi, 8193)  # λ = middle - half·cos θ, where the density has no singular end
    middle = (theta[:-1] + theta[1:]) / 2
    mass = np.sin(middle) ** 2 / ((low + high) / 2 - (high - low) / 2 * np.cos(middle))
    distribution = np.concatenate([[0.0], np.cumsum(mass)]) / np.sum(mass)
    at = np.interp((np.arange(r) + 0.5) / r, distribution, theta)
    spectrum: Array = np.sqrt((low + high) / 2 - (high - low) / 2 * np.cos(at))[::-1]
    return spectrum


def typical_spectra(m: int, n: int) -> dict[str, Array]:
    """Return spectra that are typical of training, largest value first.

    ``gaussian``: noise. ``decaying``: ``1/k``. ``decaying gaussian``: the product of both, for a Gaussian matrix whose
    columns decay as 1/k; it has the right determinant and much smaller last values. The worse of the two decaying
    spectra is close to measurements on such matrices.
    """
    gaussian, k = gaussian_spectrum(m, n), np.arange(1.0, min(m, n) + 1)
    return {"gaussian": gaussian, "decaying": 1 / k, "decaying gaussian": gaussian / k}


def checked_spectrum(spectrum: object, shape: tuple[int, int]) -> Array | None:
    """Return the positive singular values of a given spectrum or matrix, largest first; None for None."""
    if spectrum is None:
        return None
    if isinstance(spectrum, Tensor):
        spectrum = spectrum.detach().to(device="cpu", dtype=torch.float64).numpy()
    try:
        values = np.asarray(spectrum, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"spectrum must be singular values or a matrix, got {type(spectrum).__name__}: pass an array of floats"
        ) from None
    if values.ndim not in (1, 2) or not values.size:
        raise ValueError(f"spectrum must be singular values or a matrix, got shape {values.shape}: pass a 1-D array")
    if not np.all(np.isfinite(values)):
        raise ValueError("spectrum must be finite, got NaN or infinity: leave such matrices out")
    if values.ndim == 2:
        if sorted(values.shape) != sorted(shape):
            raise ValueError(
                f"spectrum as a matrix must have shape {shape}, got {values.shape}: pass one of that shape"
            )
        values = np.linalg.svd(values, compute_uv=False).astype(np.float64)
        values = np.where(values > max(shape) * np.finfo(np.float64).eps * values.max(), values, 0.0)
    if len(values) > min(shape):
        raise ValueError(
            f"spectrum has at most min(m, n) = {min(shape)} values, got {len(values)}: pass those of one matrix"
        )
    if values.min() < 0 or values.max() <= 0:
        raise ValueError(
            f"spectrum must be singular values, none negative and one positive, got {values.min():g} to "
            f"{values.max():g}: pass absolute values, and no zero matrix"
        )
    return -np.sort(-values[values > 0])


def scaled(sigma: Array, power: float) -> Array:
    """Divide singular values by their Schatten norm; ``power`` is infinite for the operator norm."""
    unit: Array = sigma / sigma.max()
    return unit if math.isinf(power) else unit / np.sum(unit**power) ** (1 / power)


def scale_spectra(spectra: list[Array], powers: tuple[float, ...]) -> ScaledSpectra:
    """Arrange spectra under each prescale, prescales first, as rows of one length."""
    width = max(map(len, spectra))
    values, weights = (np.zeros((len(powers) * len(spectra), width)) for _ in range(2))
    for row, (power, sigma) in enumerate((power, sigma) for power in powers for sigma in spectra):
        values[row, : len(sigma)] = scaled(sigma, power)
        weights[row, : len(sigma)] = sigma / sigma.max()
    return ScaledSpectra(values, weights)


def spike_bound(schedule: Schedule, r: int, power: float) -> float:
    """Return the least alignment on some matrices of rank r, an upper bound of the floor.

    The matrices have one large singular value and r - 1 equal small ones: nearly the worst of rank r.
    """
    sigma = np.column_stack([np.ones(_SPIKES), np.geomspace(1e-4, 1.0, _SPIKES)])
    count = np.array([1.0, r - 1.0])
    norm = 1.0 if math.isinf(power) else np.sum(count * sigma**power, axis=1, keepdims=True) ** (1 / power)
    with np.errstate(over="ignore", invalid="ignore"):
        F = schedule(sigma / norm)
    if not np.all(np.abs(F) <= _DIVERGED):
        return 0.0
    gain = np.maximum(np.abs(F if r > 1 else F[:, :1]).max(axis=1), 1e-300)
    return float(np.min(np.sum(count * sigma * F, axis=1) / np.sum(count * sigma, axis=1) / gain))


@lru_cache(maxsize=1)
def _trunks() -> tuple[tuple[tuple[Polynomial, ...], str, bool], ...]:
    """Return long schedules whose prefixes are candidates, the format of their names, and whether a tail may follow."""
    found = [((taylor(kappa),) * MOST_TAYLOR, f"taylor{kappa} x{{q}}", False) for kappa in TAYLOR_DEGREES]
    for name in ("jordan", "polar_express"):
        found.append((preset(name).schedule(PRESET_STEPS).polynomials, f"{name} x{{q}}", True))
    for ell in ELLS:
        for kappa, most in EXPRESS_STEPS.items():
            steps = _longest_express(ell, kappa, most)
            found.append((steps, f"polar_express(ell={ell:g}, kappa={kappa}, steps={{q}})", True))
    return tuple(found)


def _longest_express(ell: float, kappa: int, most: int) -> tuple[Polynomial, ...]:
    """Return as many steps as float64 can solve for."""
    for steps in range(most, 0, -1):
        try:
            return polar_express(ell, kappa, steps).polynomials
        except ValueError:
            continue
    return ()


def judge_candidates(start: ScaledSpectra) -> Iterator[JudgedSchedule]:
    """Yield all candidates with their alignments and errors; steps of a common prefix are computed once."""
    yield _judge(Schedule((), name="identity"), start, start.values)
    for trunk, name, tails in _trunks():
        values = start.values
        for q, p in enumerate(trunk, start=1):
            values = p.step(values)
            if not np.all(np.abs(values) <= _DIVERGED):  # so does every continuation
                break
            schedule = Schedule(trunk[:q], name=name.format(q=q))
            yield _judge(schedule, start, values)
            for kappa, count in TAILS if tails else ():
                after = values
                for _ in range(count):
                    after = taylor(kappa).step(after)
                if np.all(np.abs(after) <= _DIVERGED):
                    yield _judge(schedule + Schedule.repeat(taylor(kappa), count), start, after)
    express = preset("polar_express")
    for q in range(2, PRESET_STEPS + 1):
        safe = express.schedule(q, safety=express.safety)
        yield _judge(safe, start, safe(start.values))


def _judge(schedule: Schedule, start: ScaledSpectra, F: Array) -> JudgedSchedule:
    """Return ``⟨σ, F⟩/(Σσ·max|F|)`` and ``max|F - 1|`` over the values that are not padding."""
    there = start.weights > 0
    gain = np.maximum(np.max(np.abs(F), axis=1), 1e-300)
    alignment = np.sum(start.weights * F, axis=1) / np.sum(start.weights, axis=1) / gain
    epsilon = np.max(np.where(there, np.abs(F - 1), 0.0), axis=1)
    return JudgedSchedule(schedule, alignment, gain, epsilon)
