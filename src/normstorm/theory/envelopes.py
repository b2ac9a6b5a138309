"""The lowest line above points: how constants L0 + L1 ||grad F|| are read off what was seen."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def line_above(x: Any, y: Any) -> tuple[float, float]:
    """a, b >= 0 with a + b x >= y at every point, x >= 0, and the smallest sum of excesses.

    The sum is n (a + b mean(x)) and a constant, so the best line without a, b >= 0 is an edge of the upper hull of the
    points. With them it is such an edge, the level of the highest point, or the steepest line from 0 to a point.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    found = [(float(np.max(y)), 0.0)]
    if np.all(x[y > 0] > 0):
        found.append((0.0, float(np.max(np.where(x > 0, y / np.where(x > 0, x, 1), 0), initial=0.0))))
    hull = _upper_hull(x, y)
    for (x0, y0), (x1, y1) in pairwise(hull):
        slope = (y1 - y0) / (x1 - x0)
        found.append((y0 - slope * x0, slope))
    centre = float(np.mean(x))
    return min((pair for pair in found if min(pair) >= 0), key=lambda pair: pair[0] + pair[1] * centre)


def _upper_hull(x: Vector, y: Vector) -> list[tuple[float, float]]:
    """Corners from left to right, no two of them above each other."""
    hull: list[tuple[float, float]] = []
    for i in np.lexsort((y, x)):
        point = float(x[i]), float(y[i])
        if hull and hull[-1][0] == point[0]:
            hull.pop()
        while len(hull) > 1 and _below(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _below(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether the middle one is on or below the line between the others."""
    return (middle[1] - left[1]) * (right[0] - left[0]) <= (right[1] - left[1]) * (middle[0] - left[0])
