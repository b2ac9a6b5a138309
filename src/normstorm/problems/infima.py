"""Lower bounds of F* for the regularised logistic loss, by duality and by branch and bound; see `LogisticNonconvex`.

With L(x) = E log(1 + exp(-a'x)) and H(q) = -q log q - (1 - q) log(1 - q), log(1 + e^-z) >= H(q) - q z for every q in
[0, 1], with equality at q = 1/(1 + e^z). Below, every q gives a valid number; Newton's method only finds good ones.

**Without regulariser** (`logistic_bound`). If E q a = 0, then L >= E H(q) at every x. q = p at the minimiser of L,
moved onto E q a = 0 by least squares.

**A box.** Let that q lie in [t, 1 - t], t > 0, and q' = q - t sign(a'x). Then L(x) >= E H(q') - E q' a'x >= t E|a'x|,
and E|a'x| >= E(a'x)^2/(R ||x||) >= lmin(E aa') ||x||/R with R = max ||a||. So L(x) <= L(0) = log 2 implies ||x|| <= X =
R log 2/(t lmin(E aa')), and the minimum of F = L + lam sum_j s_j/(1 + s_j), s_j = x_j^2, is there.

**Branch and bound** (`regularised_bound`). s/(1 + s) is concave in s. For |x_j| in [low, high] it is above its chord,
which has the slope k = 1/((1 + low^2)(1 + high^2)): x_j^2/(1 + x_j^2) >= low^2/(1 + low^2) - k low^2 + k x_j^2. In a
cell, a product of such sets, F is therefore at least a convex function, L + lam sum k_j x_j^2 + const, and by the
inequality for L, minimised over each x_j, at least

    E H(q) - sum_j (E q a_j)^2/(4 lam k_j) + lam sum_j [low_j^2/(1 + low_j^2) - k_j low_j^2]       for every q.

A cell's bound, and that of the cell it was cut from, hold in it, so the least over the cells of a cover is a lower
bound of F*. We start with |x_j| <= X for all j and cut the cells with the least bounds, each in the coordinate where
its chord is farthest below, at the minimiser of the convex function.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
ROUNDS, CELLS = 32, 16  # rounds of cuts, and cells that are cut in one
STEPS = 3  # of Newton's method
WORK = 2**22  # numbers that a Newton step of a round may multiply, about
SMALL = 1e-12


def regularised_bound(rows: Matrix, lam: float) -> float:
    """A lower bound of min F; at worst that of the loss alone."""
    least, q = _without_regulariser(rows)
    n, d = rows.shape
    t = min(float(np.min(q)), 1 - float(np.max(q)))
    curvature = float(np.linalg.eigvalsh(rows.T @ rows / n)[0])
    if lam <= 0 or t <= SMALL or curvature <= SMALL:
        return least
    reach = float(np.max(np.linalg.norm(rows, axis=1))) * math.log(2) / (t * curvature) * (1 + 1e-9)
    low, high, x = np.zeros((1, d)), np.full((1, d), reach), np.zeros((1, d))
    bounds, x = _cells(rows, lam, low, high, x)
    several = max(1, min(CELLS, WORK // (2 * n * d**2)))
    for _ in range(ROUNDS):
        order = np.argsort(bounds)
        worst, rest = order[:several], order[several:]
        below, above = _cut(low[worst], high[worst], x[worst])
        lows, highs = np.concatenate([low[worst], below]), np.concatenate([above, high[worst]])
        found, at = _cells(rows, lam, lows, highs, np.tile(x[worst], (2, 1)))
        low, high, x = (np.concatenate([old[rest], new]) for old, new in ((low, lows), (high, highs), (x, at)))
        bounds = np.concatenate([bounds[rest], np.maximum(found, np.tile(bounds[worst], 2))])
    return max(least, float(np.min(bounds)))


def logistic_bound(rows: Matrix) -> float:
    """A lower bound of min L; at worst 0."""
    return _without_regulariser(rows)[0]


def _without_regulariser(rows: Matrix) -> tuple[float, Matrix]:
    """The bound and its q."""
    x, nothing = np.zeros(rows.shape[1]), (0.0, np.zeros(len(rows)))
    for _ in range(50):
        p = _sigmoid(-rows @ x)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + 1e-9 * np.eye(len(x))
        x = x + np.linalg.solve(hessian, rows.T @ p)
        if not np.all(np.isfinite(x)) or np.linalg.norm(x) > 1e3:
            return nothing
    q = _sigmoid(-rows @ x)
    for _ in range(3):
        q = q - rows @ np.linalg.solve(rows.T @ rows, rows.T @ q)
    if np.min(q) <= 0 or np.max(q) >= 1:
        return nothing
    return max(float(np.mean(_entropy(q))) * (1 - 1e-9), 0.0), q


def _cells(rows: Matrix, lam: float, low: Matrix, high: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    """Bounds of the cells, rounded down, and the minimisers of their convex functions, from x on."""
    n, d = rows.shape
    slope = 1 / ((1 + low**2) * (1 + high**2))
    for _ in range(STEPS):
        p = _sigmoid(-x @ rows.T)
        gradient = -p @ rows / n + 2 * lam * slope * x
        hessian = (rows.T * (p * (1 - p) / n)[:, None, :]) @ rows
        hessian[:, np.arange(d), np.arange(d)] += 2 * lam * slope
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        x = x - step / np.maximum(1, np.linalg.norm(step, axis=1, keepdims=True) / 3)
    q = np.clip(_sigmoid(-x @ rows.T), SMALL, 1 - SMALL)
    entropy, pulls = np.mean(_entropy(q), axis=1), (q @ rows / n) ** 2 / (4 * lam * slope)
    constants = lam * (low**2 / (1 + low**2) - slope * low**2)
    lost = 1e-9 * (entropy + np.sum(pulls, axis=1) + lam * d)
    return entropy - np.sum(pulls, axis=1) + np.sum(constants, axis=1) - lost, x


def _cut(low: Matrix, high: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    """Lower ends of the outer halves and upper ends of the inner halves."""
    slope, size, cells = 1 / ((1 + low**2) * (1 + high**2)), np.abs(x), np.arange(len(x))
    chord = low**2 / (1 + low**2) + slope * (size**2 - low**2)
    j = np.argmax(np.where((low < size) & (size < high), size**2 / (1 + size**2) - chord, -1.0), axis=1)
    inside = (low[cells, j] < size[cells, j]) & (size[cells, j] < high[cells, j])
    edge = np.where(inside, size[cells, j], (low[cells, j] + np.minimum(high[cells, j], low[cells, j] + 2)) / 2)
    below, above = low.copy(), high.copy()
    below[cells, j] = above[cells, j] = edge
    return below, above


def _entropy(q: Matrix) -> Matrix:
    return np.asarray(-q * np.log(q) - (1 - q) * np.log1p(-q))


def _sigmoid(z: Matrix) -> Any:
    return 0.5 * (1 + np.tanh(z / 2))
