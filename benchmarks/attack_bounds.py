"""Theorems A, B and C and Corollary A1 attacked by optimization: how much of each term is needed. Prints JSON.

The *share* of a term is (left side - all other terms)/term, maximized over problems, directions, rates, momenta and
noise by differential evolution and Nelder-Mead from fixed seeds. No share may exceed 1; where one reaches 0.95, a
constant that is 5 % smaller would be false. The problems are 1x1: gradients are piecewise linear with slopes between -1
and 1, so ``L = 1``, and the pieces may be concave.

- ``run``: the inequality for one run; directions and noise are free.
- ``expectation``: constants fixed in advance, noise of two points, all outcomes computed, ``f(W_0) - E f(W_T)`` for D.
- ``A1``: no noise, ``D = f(W_0) - inf f``.
- ``lemma``: the inequality of von Bahr and Esseen behind Theorem C, for independent variables of two values.

The sides are computed here from their own formulas; at each optimum found they are compared with those of the library.

    OMP_NUM_THREADS=1 python benchmarks/attack_bounds.py            # minutes
    OMP_NUM_THREADS=1 python benchmarks/attack_bounds.py --quick    # seconds, to check the program
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import differential_evolution, minimize

from muonlab.polynomials.base import Array
from muonlab.theory import run_bound, trajectory_bound

STEPS, LONG, PIECES = 3, 16, 8
FORMS = [(form, nesterov) for form in ("ema", "heavy_ball") for nesterov in (False, True)]
LEAST, NONE = 1e-6, -10.0
"""A term has no share below this size, or this part of all terms: rounding would decide it. Its rows get this value."""


class Problem:
    """A function of one number for each row of ``slopes``: its gradient has these slopes, and is constant outside."""

    def __init__(self, slopes: Array, at_start: Array, start: Array, reach: float) -> None:
        count = slopes.shape[1]
        self.low, self.width = start - reach, 2 * reach / count
        self.at_knots = np.concatenate([np.zeros((len(slopes), 1)), np.cumsum(slopes, axis=1) * self.width], axis=1)
        self.at_knots += (at_start - self.at_knots[:, count // 2])[:, None]  # count is even: a knot lies at the start
        areas = (self.at_knots[:, 1:] + self.at_knots[:, :-1]) / 2 * self.width
        self.values = np.concatenate([np.zeros((len(slopes), 1)), np.cumsum(areas, axis=1)], axis=1)
        self.slopes = slopes

    def __call__(self, w: Array) -> tuple[Array, Array]:
        """Return value and gradient at ``w``, of shape (rows, points)."""
        rows = np.arange(len(w))[:, None]
        piece = np.clip(((w - self.low[:, None]) / self.width).astype(int), 0, self.slopes.shape[1] - 1)
        x = w - self.low[:, None] - piece * self.width
        inside = np.clip(x, 0, self.width)
        left = self.at_knots[rows, piece]
        gradient = left + self.slopes[rows, piece] * inside
        value = self.values[rows, piece] + left * inside + self.slopes[rows, piece] * inside**2 / 2
        return value + gradient * (x - inside), gradient


def weights(betas: Array, form: str, nesterov: bool) -> Array:
    """Return the weights of the gradients i ≤ t in what is orthogonalized at step t: (rows, t, i), with sums of 1."""
    rows, T = betas.shape
    momentum, found = np.zeros((rows, T)), np.zeros((rows, T, T))
    for t in range(T):
        beta = betas[:, t : t + 1]
        fresh = np.ones_like(beta) if form == "heavy_ball" else 1 - beta
        momentum = beta * momentum
        momentum[:, t : t + 1] = fresh
        ahead = beta * momentum if nesterov else momentum.copy()
        ahead[:, t : t + 1] += fresh if nesterov else 0
        found[:, t] = ahead / ahead.sum(axis=1, keepdims=True)
    return found


def ages(w: Array, moves: Array) -> Array:
    """Return ``Σ_i w_{t,i} Σ_{i ≤ j < t} moves_j``: the drift over L, (rows, t)."""
    T = moves.shape[1]
    older = np.cumsum(w, axis=2)  # the weight of all gradients up to j
    return np.stack([np.sum(older[:, t, :t] * moves[:, :t], axis=1) for t in range(T)], axis=1)


def share(left: Array, terms: dict[str, Array], name: str) -> Array:
    """Return the share of one term in each row; ``NONE`` where the term is too small to tell."""
    others = sum(value for key, value in terms.items() if key != name)
    size = sum(np.abs(value) for value in terms.values()) + np.abs(left)
    return np.where(
        terms[name] > LEAST * np.maximum(size, 1.0), (left - others) / np.maximum(terms[name], 1e-300), NONE
    )


def split(x: Array, *lengths: int) -> list[Array]:
    """Cut the columns of ``x`` into parts."""
    return np.split(x, np.cumsum(lengths)[:-1], axis=1)


# ------------------------------------------------------------------------------------------------------------- one run


def run_bounds(decay: bool) -> list[tuple[float, float]]:
    """Return the box of the parameters of :func:`run_sides`."""
    return [
        *[(-1.0, 1.0)] * PIECES, (-2.0, 2.0), *[(0.0, 1.0)] * STEPS, *[(0.0, 0.97)] * STEPS, *[(-2.0, 2.0)] * STEPS,
        *[(-1.0, 1.0)] * STEPS, (0.0, 1.0 if decay else 0.0), (-3.0 if decay else 0.0, 3.0 if decay else 0.0),
    ]  # fmt: skip


def run_sides(x: Array, form: str, nesterov: bool) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Return the left side, the terms of the right side, and what :func:`run_bound` needs."""
    slopes, g, etas, betas, noise, O, decay, start = split(x, PIECES, 1, STEPS, STEPS, STEPS, STEPS, 1, 1)
    f = Problem(slopes, g[:, 0], start[:, 0], reach=8.0)
    w, W, seen, grads = weights(betas, form, nesterov), start, [], []
    moved, rho, inward, pull = [], [], [], []
    before = f(start)[0]
    for t in range(STEPS):
        gradient = f(W)[1]
        seen.append(gradient + noise[:, t : t + 1])
        Z = np.sum(w[:, t, : t + 1] * np.concatenate(seen, axis=1), axis=1, keepdims=True)
        o = O[:, t : t + 1] * (Z != 0)
        grads.append(gradient)
        rho.append(np.sign(Z) * o)
        inward.append(decay * gradient * W)
        pull.append(decay * np.abs(W))
        moved.append(etas[:, t : t + 1] * (np.abs(o) + pull[-1]))
        W = (1 - etas[:, t : t + 1] * decay) * W - etas[:, t : t + 1] * o
    grads, rho, inward, pull, moved = (np.concatenate(part, axis=1) for part in (grads, rho, inward, pull, moved))
    gain = np.abs(rho)
    kept = np.abs(np.einsum("rti,ri->rt", w, noise))
    load = etas * (np.abs(rho) + gain)
    terms = {
        "decrease": (before - f(W)[0])[:, 0],
        "curvature": np.sum(moved**2, axis=1) / 2,
        "drift": np.sum(load * ages(w, moved), axis=1),
        "noise": np.sum(load * kept, axis=1),
    }
    observed = {"rho": rho, "gain": gain, "eta": etas, "beta": betas, "pull": pull}
    return np.sum(etas * (rho * np.abs(grads) + inward), axis=1), terms, observed


def run_agrees(x: Array, form: str, nesterov: bool) -> bool:
    """Return whether curvature and drift are those of :func:`run_bound`, at an optimum at which every step descends."""
    _, terms, observed = run_sides(x[None], form, nesterov)
    given = {name: values[0] for name, values in observed.items()}
    if np.any(given["rho"] <= given["pull"]):
        return True  # no average of gradient norms there, so no terms
    bound = run_bound(
        given["rho"], given["gain"], L=1.0, D=1e3, sigma=0.0, r=1, B=1, eta=given["eta"], beta=given["beta"],
        momentum_form=form, nesterov=nesterov, pull=given["pull"],
    )  # fmt: skip
    total = float(np.sum(given["eta"] * (given["rho"] - given["pull"])))
    return bool(
        np.allclose(
            [bound.terms[n] * total for n in ("curvature", "drift")], [terms[n][0] for n in ("curvature", "drift")]
        )
    )


# --------------------------------------------------------------------------------------------------------- expectation


OUTCOMES = np.array(list(product([False, True], repeat=STEPS)))


def expected_bounds(decay: bool) -> list[tuple[float, float]]:
    """Return the box of the parameters of :func:`expected_sides`; rates, ``1 - β`` and σ as powers of ten."""
    return [
        *[(-1.0, 1.0)] * PIECES, (-2.0, 2.0), *[(-3.0, 0.0)] * STEPS, *[(-2.0, 0.0)] * STEPS, (-5.0, 0.3),
        *[(0.03, 0.97)] * STEPS, *[(0.0, 1.0)] * STEPS, (0.05, 1.0), *[(0.0, 1.0)] * (4 * STEPS),
        (0.0, 1.0 if decay else 0.0),
        (-3.0 if decay else 0.0, 3.0 if decay else 0.0),
    ]  # fmt: skip


def with_misled_step(form: str, nesterov: bool) -> Array:
    """Return parameters at which past noise counts: it leads the second step, a long one, away from the minimum.

    On ``w²/2`` from 0 the noise ``±σ`` of the first batch moves w by a short step. It stays in the momentum, just large
    enough to outweigh the gradient of the second step.
    """
    first, keep = 0.02, 0.01
    past = float(weights(np.array([[0.0, 1 - keep]]), form, nesterov)[0, 1, 0])
    sigma = 1.001 * (1 - past) / past * first
    return np.array([
        *[1.0] * PIECES, 0.0, math.log10(first), 0.0, -3.0, 0.0, math.log10(keep), 0.0, math.log10(sigma),
        *[0.5] * STEPS, 1.0, 0.0, 0.0, 1.0, *[0.5] * (4 * STEPS), 0.0, 0.0,
    ])  # fmt: skip


def expected_sides(x: Array, form: str, nesterov: bool) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Return the left side, the terms of the right side, and what :func:`trajectory_bound` needs; ``s = 1``.

    The noise of a step has a standard deviation of at most σ.
    """
    slopes, g, etas, betas, sigma, odds, sizes, rho, table, decay, start = split(
        x, PIECES, 1, STEPS, STEPS, 1, STEPS, STEPS, 1, 4 * STEPS, 1, 1
    )
    etas, betas, sigma = 10**etas, 1 - 10**betas, 10**sigma
    f, w = Problem(slopes, g[:, 0], start[:, 0], reach=8.0), weights(betas, form, nesterov)
    chances = np.where(OUTCOMES[None], odds[:, None], 1 - odds[:, None]).prod(axis=2)  # (rows, outcomes)
    size = sizes * sigma / np.sqrt(odds * (1 - odds))
    W, radius = np.repeat(start, len(OUTCOMES), axis=1), np.abs(start)
    before, seen = f(start)[0][:, 0], []
    left, moved = np.zeros(len(x)), []
    for t in range(STEPS):
        eta, up = etas[:, t : t + 1], OUTCOMES[None, :, t]
        gradient = f(W)[1]
        seen.append(gradient + np.where(up, 1 - odds[:, t : t + 1], -odds[:, t : t + 1]) * size[:, t : t + 1])
        Z = np.einsum("ri,rio->ro", w[:, t, : t + 1], np.stack(seen, axis=1))
        choice = np.where(up, np.where(Z > 0, table[:, 4 * t, None], table[:, 4 * t + 1, None]),
                          np.where(Z > 0, table[:, 4 * t + 2, None], table[:, 4 * t + 3, None]))  # fmt: skip
        o = np.sign(Z) * (rho + (1 - rho) * choice)
        left += eta[:, 0] * np.sum(chances * (rho * np.abs(gradient) + decay * gradient * W), axis=1)
        moved.append(eta * (1 + decay * radius))
        W = (1 - eta * decay) * W - eta * o
        radius = (1 - eta * decay) * radius + eta
    moves = np.concatenate(moved, axis=1)
    steps = np.arange(STEPS)
    current = w[:, steps, steps]
    past = np.sqrt(np.maximum(np.sum(w**2, axis=2) - current**2, 0.0))
    terms = {
        "decrease": before - np.sum(chances * f(W)[0], axis=1),
        "curvature": np.sum(moves**2, axis=1) / 2,
        "drift": np.sum(etas * (rho + 1) * ages(w, moves), axis=1),
        "past noise": sigma[:, 0] * np.sum(etas * rho * past, axis=1),
        "noise": sigma[:, 0] * np.sum(etas * np.sqrt(np.sum(w**2, axis=2)), axis=1),
    }
    given = {"etas": etas, "betas": betas, "rho": rho, "sigma": sigma, "decay": decay, "norm": np.abs(start)}
    return left, terms, given


def expected_agrees(x: Array, form: str, nesterov: bool) -> bool:
    """Return whether the terms are those of :func:`trajectory_bound`, by its bound on the gap or on the average."""
    _, terms, arrays = expected_sides(x[None], form, nesterov)
    given = {name: values[0] for name, values in arrays.items()}
    bound = trajectory_bound(
        L=1.0, D=0.0, sigma=float(given["sigma"][0]), r=1, B=1, etas=given["etas"], betas=given["betas"],
        rho=float(given["rho"][0]), momentum_form=form, nesterov=nesterov, weight_decay=float(given["decay"][0]),
        weight_norm=float(given["norm"][0]),
    )  # fmt: skip
    total = bound.gap.bound * np.sum(given["etas"]) if bound.gap else bound.total * sum(bound.weights)
    return bool(np.isclose(total, sum(value[0] for name, value in terms.items() if name != "decrease")))


# ------------------------------------------------------------------------------------------ Corollary A1 and the lemma


def corollary_bounds(_: bool) -> list[tuple[float, float]]:
    """Return the box of the parameters of :func:`corollary_sides`."""
    return [*[(-1.0, 1.0)] * PIECES, (-2.0, 2.0), *[(0.0, 1.0)] * LONG, (0.0, 0.97), (0.05, 1.0), *[(0.0, 1.0)] * LONG]


def corollary_sides(x: Array, _: str, nesterov: bool) -> tuple[Array, dict[str, Array], None]:
    """Return the sides of Corollary A1 times ``ρ Σ η_t``, without noise; the function rises at both ends."""
    slopes, g, etas, beta, rho, table = split(x, PIECES, 1, LONG, 1, 1, LONG)
    f = Problem(slopes, g[:, 0], np.zeros(len(x)), reach=8.0)
    outward = (f.at_knots[:, 0] <= 0) & (f.at_knots[:, -1] >= 0)  # else there is no lower bound
    grid = np.linspace(-8.0, 8.0, 513)[None].repeat(len(x), axis=0)
    lowest = np.min(f(grid)[0], axis=1) - (16 / 512) ** 2 / 2  # L = 1 between points of the grid
    W, M, left = np.zeros((len(x), 1)), np.zeros((len(x), 1)), np.zeros(len(x))
    for t in range(LONG):
        gradient = f(W)[1]
        M = beta * M + (1 - beta) * gradient
        Z = (1 - beta) * gradient + beta * M if nesterov else M
        left += etas[:, t] * rho[:, 0] * np.abs(gradient[:, 0])
        W = W - etas[:, t : t + 1] * np.sign(Z) * (rho + (1 - rho) * table[:, t : t + 1])
    b, p = beta[:, 0], rho[:, 0]
    ahead = b if nesterov else np.ones_like(b)
    D = f(np.zeros((len(x), 1)))[0][:, 0] - lowest
    missing = np.sum(etas * beta ** np.arange(1, LONG + 1), axis=1) * ahead
    squares = np.sum(etas**2, axis=1)
    terms = {
        "descent": np.where(outward, D, 1e6),
        "curvature": squares / 2,
        "drift": squares * (p + 1) * ahead * b / (1 - b),
        "start": (p + 1) * np.sqrt(2 * np.maximum(D, 0)) * missing,
    }
    return left, terms, None


def lemma_share(x: Array, p: float) -> Array:
    """Return ``E|Σ d_i|^p / (2^(2-p) Σ E|d_i|^p)`` for independent ``d_i`` of two values and mean zero."""
    odds, sizes = split(x, STEPS, STEPS)
    chances = np.where(OUTCOMES[None], odds[:, None], 1 - odds[:, None]).prod(axis=2)
    values = sizes[:, None] * np.where(OUTCOMES[None], 1 - odds[:, None], -odds[:, None])
    whole = np.sum(chances * np.abs(values.sum(axis=2)) ** p, axis=1)
    each = np.sum(sizes**p * (odds * (1 - odds) ** p + (1 - odds) * odds**p), axis=1)
    return whole / np.maximum(2 ** (2 - p) * each, 1e-300)


# -------------------------------------------------------------------------------------------------------- the search


class Search:
    """Maximize functions of rows, and count the evaluations."""

    def __init__(self, rounds: int, seeds: int) -> None:
        self.rounds, self.seeds, self.evaluations = rounds, seeds, 0

    def maximum(
        self, of: Callable[[Array], Array], box: list[tuple[float, float]], guess: Array | None = None
    ) -> tuple[float, Array]:
        """Return the largest value found, and where; with a guess it is one of the first points."""

        def negative(columns: Array) -> Array:
            rows = np.atleast_2d(columns.T)
            self.evaluations += len(rows)
            return -of(np.clip(rows, *np.array(box).T))

        best = (-math.inf, np.zeros(len(box)))
        for seed in range(self.seeds):
            found = differential_evolution(
                negative, box, maxiter=self.rounds, popsize=8, tol=0, seed=seed, vectorized=True, updating="deferred",
                polish=False, mutation=(0.3, 0.9), x0=guess,
            )  # fmt: skip
            polished = minimize(
                lambda x: float(negative(x[:, None])[0]), found.x, method="Nelder-Mead",
                options={"maxfev": 20 * self.rounds, "adaptive": True, "xatol": 1e-10, "fatol": 1e-12},
            )  # fmt: skip
            for value, x in ((-float(found.fun), found.x), (-float(polished.fun), polished.x)):
                best = max(best, (value, np.clip(x, *np.array(box).T)), key=lambda pair: pair[0])
        return best


def attack(
    search: Search, sides: Callable[..., Any], box: list[tuple[float, float]], names: tuple[str, ...],
    agrees: Callable[..., bool] | None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Return the largest share of each term for each form of momentum."""
    found: dict[str, dict[str, float]] = {}
    for form, nesterov in FORMS if agrees else [("ema", False), ("ema", True)]:
        label = f"{form}, Nesterov" if nesterov else form
        found[label] = {}
        for name in names:

            def of(x: Array, form: str = form, nesterov: bool = nesterov, name: str = name) -> Array:
                left, terms, _ = sides(x, form, nesterov)
                return share(left, terms, name)

            value, x = search.maximum(of, box, with_misled_step(form, nesterov) if name == "past noise" else None)
            if agrees and not agrees(x, form, nesterov):
                raise SystemExit(
                    f"the library's terms differ from those of this program: {label}, {name}, {x.tolist()}"
                )
            found[label][name] = value
    return found


def main() -> None:
    """Attack every statement, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, to check the program")
    quick = parser.parse_args().quick
    search = Search(rounds=8 if quick else 300, seeds=1 if quick else 2)
    terms = ("curvature", "drift", "noise")
    shares = {
        "A, run": attack(search, run_sides, run_bounds(False), terms, run_agrees),
        "B, run": attack(search, run_sides, run_bounds(True), terms, run_agrees),
        "A, expectation": attack(
            search, expected_sides, expected_bounds(False), (*terms, "past noise"), expected_agrees
        ),
        "B, expectation": attack(
            search, expected_sides, expected_bounds(True), (*terms, "past noise"), expected_agrees
        ),
        "A1": attack(search, corollary_sides, corollary_bounds(False), ("curvature", "drift", "start"), None),
        "C, lemma": {
            f"p = {p}": {
                "constant": search.maximum(
                    lambda x, p=p: lemma_share(x, p), [(0.001, 0.999)] * STEPS + [(0.001, 1.0)] * STEPS
                )[0]
            }
            for p in (1.2, 1.5, 1.8)
        },
    }
    values = [value for forms in shares.values() for found in forms.values() for value in found.values()]
    above = sum(value > 1 + LEAST for value in values)
    report = {"evaluations": search.evaluations, "above one": above, "largest": max(values), "shares": shares}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
