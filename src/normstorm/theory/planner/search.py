"""Minimising a certificate over its free numbers: (alpha, eta) and the proof's open parameter.

The landscape has several local minima, so: a grid over everything, the best point of each of several separated values
of alpha (beta = 0 among them), then a compass search from each, all of it for many (T, K, k) at once. Points live in
logarithms relative to natural scales, which straightens the valley between alpha and eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from ..certificates import Certificate, free_value
from ..certificates.case import Array, Case
from ..constants import Constants

STARTS = 3
ETA_GRID = np.array([-15.0, -11.0, -8.0, -6.0, -4.5, -3.3, -2.4, -1.6, -0.9, -0.3, 0.3, 1.0])
LAM_GRID = np.array([-14.0, -9.0, -5.0, -3.0, -1.5, -0.5, 0.5, 2.0, 4.0, 6.0])
SHARE_GRID = np.array([-28.0, -7.0, -4.0, -2.0, -0.7])


@dataclass(frozen=True)
class Search:
    """One certificate, one set of constants, many (T, K, k): arrays of shape (n,)."""

    certificate: Certificate
    constants: Constants
    delta: float | None
    T: Array
    K: Array
    k: Array

    def case(self, points: Array) -> tuple[Case, Array]:
        """The case and free parameter at points of shape (n, m, 3)."""
        T, K, k = (a[:, None] for a in (self.T, self.K, self.k))
        alpha = np.exp(np.minimum(points[..., 0], 0.0))
        eta = np.minimum(self._natural_step(alpha, T, k) * np.exp(points[..., 1]), self._largest_step)
        case = Case(self.constants, T, alpha, eta, K, k, self.delta)
        return case, free_value(self.certificate, case, points[..., 2])

    def values(self, points: Array) -> Array:
        with np.errstate(all="ignore"):
            case, free = self.case(points)
            return np.broadcast_to(self.certificate(case, free).value, points.shape[:2])

    @property
    def _largest_step(self) -> float:
        """Just below 1/L1, so that rounding cannot step over it."""
        return (1 - 1e-12) / self.constants.L1 if self.constants.L1 > 0 else np.inf

    def project(self, points: Array) -> Array:
        """Points (n, m, 3) moved onto the edge where alpha > 1 or eta > 1/L1: beyond it everything is flat."""
        points[..., 0] = np.minimum(points[..., 0], 0.0)
        if self.constants.L1 > 0:
            natural = self._natural_step(np.exp(points[..., 0]), self.T[:, None], self.k[:, None])
            points[..., 1] = np.minimum(points[..., 1], np.log(self._largest_step / natural))
        return points

    def _natural_step(self, alpha: Array, T: Array, k: Array) -> Array:
        """Balances the gap against curvature and gradient differences, or the largest step that L1 admits."""
        c = self.constants
        spread = np.sqrt(alpha * (2 - alpha))
        slope = c.L0 * (0.5 + 2 * (1 - alpha) / (spread * np.sqrt(k)))
        step = np.sqrt(c.gap / (T * np.where(slope > 0, slope, 1.0)))
        return np.where(slope > 0, np.minimum(step, self._largest_step), self._largest_step)

    def from_grid(self, thin: int = 1) -> tuple[Array, Array]:
        """Starting points (n, STARTS, 3) and their values: the best of the grid at separated alphas.

        `thin` keeps every so-manieth value along each axis.
        """
        longest = float(np.max(self.T))
        log_alpha = -np.linspace(0.0, 1.0, 18)[::thin] * np.log(1e4 * longest)
        points = np.array(list(product(log_alpha, ETA_GRID[::-thin], self._free_grid()[::-thin])))
        spread = self.project(np.broadcast_to(points, (self.T.size, *points.shape)).copy())
        values = self.values(spread)
        by_alpha = values.reshape(self.T.size, log_alpha.size, -1)
        profile = by_alpha.min(axis=2)
        at = by_alpha.argmin(axis=2)
        padded = np.pad(profile, ((0, 0), (1, 1)), constant_values=np.inf)
        is_low = (profile <= padded[:, :-2]) & (profile <= padded[:, 2:])
        order = np.argsort(np.where(is_low, profile, np.inf), axis=1, kind="stable")[:, :STARTS]
        index = order * by_alpha.shape[2] + np.take_along_axis(at, order, axis=1)
        return np.take_along_axis(spread, index[..., None], axis=1), np.take_along_axis(values, index, axis=1)

    def _free_grid(self) -> Array:
        if self.certificate.free == "lam":
            return LAM_GRID
        return SHARE_GRID if self.certificate.free == "share" else np.zeros(1)

    def spread(self, points: Array) -> Array:
        """Each point (n, s, 3) and two more, with a smaller and a larger free parameter: it has basins of its own."""
        if self.certificate.free is None:
            return points.copy()
        offsets = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, -0.8], [0.0, 0.0, 0.8]])
        return np.asarray((points[:, :, None] + offsets).reshape(len(points), -1, 3))

    def descend(
        self, points: Array, values: Array, step: float, tolerance: float, rounds: int = 60
    ) -> tuple[Array, Array]:
        """Compass search with diagonals from every point (n, s, 3) at once.

        Each round tries the cube around the point and the minimiser of the quadratic through the last cube; steps
        shrink where the cube does not improve, down to `tolerance`.
        """
        cube, fit = _cube(3 if self.certificate.free else 2)
        n, s = values.shape
        size = np.full((n, s), step)
        model = points
        for _ in range(rounds):
            tried = points[..., None, :] + size[..., None, None] * cube
            tried = np.concatenate([tried, model[..., None, :]], axis=2).reshape(n, -1, 3)
            tried = self.project(tried)
            trial = self.values(tried).reshape(n, s, -1)
            tried = tried.reshape(n, s, -1, 3)
            with np.errstate(invalid="ignore"):
                coefficients = trial[..., :-1] @ fit
            model = points + size[..., None] * _quadratic_minimiser(coefficients, cube)
            best = trial.argmin(axis=2)[..., None]
            value = np.take_along_axis(trial, best, axis=2)[..., 0]
            points = np.take_along_axis(tried, best[..., None], axis=2)[:, :, 0]
            moved = (value < values) & (best[..., 0] < len(cube))
            values = np.minimum(value, values)
            size = np.where(moved, size, size * 0.35)
            if np.all(size < tolerance):
                break
        return points, values


@cache
def _cube(axes: int) -> tuple[Array, Array]:
    """The points {-1, 0, 1}^axes, padded to three axes, centre first, and the matrix that fits a quadratic to them."""
    rows = sorted(product((-1.0, 0.0, 1.0), repeat=axes), key=any)
    cube = np.pad(np.array(rows), ((0, 0), (0, 3 - axes)))
    columns = [np.ones(len(cube)), *cube.T[:axes], *(cube[:, i] * cube[:, j] for i, j in _pairs(axes))]
    return cube, np.linalg.pinv(np.array(columns).T).T


def _pairs(axes: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(axes) for j in range(i, axes)]


def _quadratic_minimiser(coefficients: Array, cube: Array) -> Array:
    """Where the fitted quadratic is least, at most three steps away; the centre where it has no minimum."""
    axes = 3 if cube[:, 2].any() else 2
    slope = coefficients[..., 1 : 1 + axes]
    hessian = np.zeros((*coefficients.shape[:-1], axes, axes))
    for column, (row, other) in enumerate(_pairs(axes), 1 + axes):
        hessian[..., row, other] += coefficients[..., column]
        hessian[..., other, row] += coefficients[..., column]
    finite = np.all(np.isfinite(coefficients), axis=-1)
    hessian = np.where(finite[..., None, None], hessian, np.eye(axes))
    curvature = np.linalg.eigvalsh(hessian)
    convex = finite & (curvature[..., 0] > 1e-6 * curvature[..., -1])
    hessian = np.where(convex[..., None, None], hessian, np.eye(axes))
    offset = -np.linalg.solve(hessian, np.where(convex[..., None], slope, 0.0)[..., None])[..., 0]
    return np.pad(np.clip(offset, -3, 3), [(0, 0)] * (offset.ndim - 1) + [(0, 3 - axes)])


def best_of(points: Array, values: Array) -> tuple[Array, Array]:
    """The best start of each (T, K, k): points (n, 3) and values (n,)."""
    at = values.argmin(axis=1)
    rows = np.arange(len(at))
    return points[rows, at], values[rows, at]
