"""M = sum w y y' of many vectors y, in memory that does not grow with their number, and its top eigenvalue from above.

Up to WIDEST coordinates M is kept as it is. Beyond that only the rows of a sketch are, with a number `lost` such that

    M <= S + lost I        in the order of symmetric matrices, S the sum over the rows of the sketch.

When there are too many rows they are rotated to the eigenvectors of S; from every eigenvalue the largest one that will
not be kept, theta, is taken away, and `lost` grows by theta. What is taken away is at most theta I.

Source: Liberty, "Simple and deterministic matrix sketching" (KDD 2013). Departures: theta is the first eigenvalue that
is dropped, and eigenvalues are taken from the matrix of scalar products. Rounding: docs/theory/fresh-samples.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
WIDEST = 1200
ROWS, NUMBERS = 600, 4_000_000  # in a sketch, at most
JOINT = 300  # coordinates up to which eigenvectors of M are worth their time
ROUNDING = 2e-11  # of the trace: half for sums of up to 10^8 terms and eigenvalues, half for what a sketch leaves out
SHARES = np.geomspace(1e-3, 0.5, 48)
SHORT = 1e-6  # of the top eigenvalue: a shorter vector a is not worth a search


class Scatter:
    """The sum of w y y' over all rows y that were added."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.trace = 0.0
        self.lost = 0.0
        self._sketched = dimension > WIDEST
        self._limit = min(max(NUMBERS // dimension, 16), ROWS)
        self._matrix: Array = np.zeros((0 if self._sketched else dimension, dimension))
        self._known: tuple[Array, Array | None] | None = None

    def add(self, rows: Array, weight: float) -> None:
        self.trace += weight * float(np.sum(rows * rows))
        self._known = None
        if self._sketched:
            self._matrix = np.concatenate([self._matrix, math.sqrt(weight) * rows])
            self._shrink()
        else:
            self._matrix = self._matrix + weight * (rows.T @ rows)

    def square(self) -> float:
        """About the sum of the squared eigenvalues; what a sketch has lost is not in it."""
        products = self._matrix @ self._matrix.T if self._sketched else self._matrix
        return float(np.sum(products * products))

    def top(self) -> float:
        """At least the top eigenvalue of M."""
        return self.largest(np.zeros(self.dimension))

    def largest(self, a: Array) -> float:
        """At least <a, u> + u'Mu for every unit vector u.

        With M = V diag(w) V', every s > max w gives s + (1/4) sum <a, v_j>^2/(s - w_j): the difference to <a, u> +
        u'Mu is a sum of squares. The best of some s is taken; s = max w + ||a||/2 gives at most ||a|| + max w.
        """
        if not math.isfinite(self.trace):
            return math.inf
        values, vectors = self._spectrum()
        top = max(float(values[-1]), 0.0) if len(values) else 0.0
        length, found = float(np.linalg.norm(a)), math.inf
        if length > SHORT * top and vectors is not None:
            parts = (vectors.T @ a) ** 2
            rest = max(length**2 - float(parts.sum()), 0.0)  # in directions where the sketch is zero
            s = (top + length * SHARES)[:, None]
            found = float(np.min(s + (np.sum(parts / (s - values), axis=1, keepdims=True) + rest / s) / 4))
        return min(found, top + length) + self.lost + ROUNDING * self.trace

    def _spectrum(self) -> tuple[Array, Array | None]:
        """Eigenvalues in rising order; eigenvectors as columns, where they are worth their time."""
        if self._known is None:
            self._known = self._eigen()
        return self._known

    def _eigen(self) -> tuple[Array, Array | None]:
        if self._sketched:
            values, vectors = np.linalg.eigh(self._matrix @ self._matrix.T)
            kept = values > ROUNDING / 2 * self.trace
            return values[kept], (self._matrix.T @ vectors[:, kept]) / np.sqrt(values[kept])
        if self.dimension > JOINT:
            return np.asarray(np.linalg.eigvalsh(self._matrix), float), None
        values, vectors = np.linalg.eigh(self._matrix)
        return values, vectors

    def _shrink(self) -> None:
        if len(self._matrix) <= 2 * self._limit:
            return
        values, vectors = np.linalg.eigh(self._matrix @ self._matrix.T)
        theta = max(float(values[-self._limit - 1]), 0.0)
        kept = np.maximum(values[-self._limit :], np.finfo(float).tiny)
        scale = np.sqrt(np.maximum(kept - theta, 0.0) / kept)
        self._matrix = (vectors[:, -self._limit :] * scale).T @ self._matrix
        self.lost += theta
