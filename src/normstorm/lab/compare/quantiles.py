"""Quantiles of independent runs with intervals that assume nothing: order statistics and the binomial law.

Infinite values are values: a run that never arrives counts as infinite and is never left out.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95


class Estimate(NamedTuple):
    """A quantile of the sample, and an interval that holds that of the law with probability at least the level.

    With few runs an end of the interval may lie beyond the sample; it is then the least that there is, or infinite.
    """

    value: float
    low: float
    high: float

    def apart(self, other: Estimate) -> bool:
        """Whether this one lies below the other, intervals included."""
        return self.high < other.low


def estimate(values: ArrayLike, probability: float, level: float = LEVEL, least: float = 0.0) -> Estimate:
    """The smallest value with at least this share of the sample at or below it; no value is below `least`."""
    ordered = np.sort(np.asarray(values, np.float64))
    n = ordered.size
    below, above = ranks(n, probability, level)
    value = ordered[rank(n, probability) - 1]
    low = least if below < 1 else ordered[below - 1]
    high = math.inf if above > n else ordered[above - 1]
    return Estimate(float(value), float(low), float(high))


def rank(n: int, probability: float) -> int:
    """Of the quantile of the sample, counted from 1."""
    return max(1, math.ceil(probability * n - 1e-9))


@cache
def ranks(n: int, probability: float, level: float = LEVEL) -> tuple[int, int]:
    """Ranks r < s, counted from 1, with P(X_(r) <= quantile <= X_(s)) >= level; 0 and n + 1 stand for no rank.

    The number of values at or below the quantile is binomial (for a continuous law; else the interval is wider than
    need be): r is the largest rank with P(count < r) <= (1 - level)/2, and s the smallest with P(count >= s) as small.
    """
    tail = (1 - level) / 2
    at_most = np.cumsum([_mass(n, j, probability) for j in range(n + 1)])
    r = int(np.searchsorted(at_most, tail, side="right"))
    s = int(np.searchsorted(at_most, 1 - tail, side="left")) + 1
    return r, s


def _mass(n: int, j: int, p: float) -> float:
    log = math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * math.log(p) + (n - j) * math.log1p(-p)
    return math.exp(log)
