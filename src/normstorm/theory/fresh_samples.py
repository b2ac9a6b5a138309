"""After a run: an upper bound of ||grad F(x)|| at a fixed point from fresh samples alone.

Neither L0, L1 nor the gap enters. Let u be the direction of grad F(x), G = ||grad F(x)|| and g the mean of n fresh
sample gradients. ||g|| >= <g, u>, and <g, u> is a mean of n independent numbers with mean G: a one-sided bound for
scalars is enough, whatever the dimension. Statements and proofs: docs/theory/fresh-samples.md.

Source: Hoeffding's inequality; Maurer and Pontil's empirical Bernstein inequality; Cantelli's inequality with the
median of group means. Departures: applied to the unknown direction u, hence no factor for vectors, and the top
eigenvalue of the sample covariance in the place of the variance along u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

Sense = Literal["almost-sure", "mean-square"]
MOST_GROUPS = 101
MOST_EXPECTED = 10**12


@dataclass(frozen=True)
class Summary:
    """What is kept of n fresh sample gradients at one point.

    mean_norm    norm of their mean;  trace  sum of squared distances from the mean, over n - 1
    group_norms  norms of the means of equally large groups (mean-square noise only)
    top          at least the top eigenvalue of their covariance matrix, whose trace is `trace`
    """

    samples: int
    mean_norm: float
    trace: float
    group_norms: tuple[float, ...] = ()
    top: float = math.inf


def upper_bound(
    summary: Summary, sigma0: float, sigma1: float, delta: float, sense: Sense, spread: float = math.inf
) -> float:
    """||grad F(x)|| is at most this with probability at least 1 - delta.

    Infinity if there are too few samples, or if a sample gradient is not finite. `spread` is the radius of a ball that
    surely holds the sample gradients at this point, where one is known (almost-sure noise only).
    """
    if not math.isfinite(summary.mean_norm):
        return math.inf
    if sense == "almost-sure":
        # Two proofs, each with half of delta: the smaller one holds. In each the noise is at most both radii.
        radii = [(sigma0, sigma1)] + ([(spread, 0.0)] if spread < math.inf else [])
        proofs = _hoeffding, _empirical_bernstein
        return min(proof(summary, *radius, delta / 2) for proof in proofs for radius in radii)
    return _order_statistic(summary, sigma0, sigma1, delta)


def samples_for(precision: float, grad_norm: float, sigma0: float, sigma1: float, delta: float, sense: Sense) -> int:
    """Samples for which the bound exceeds the norm of the mean by at most `precision`, if ||grad F(x)|| <= grad_norm.

    Counts the worst noise that the constants allow; quieter samples do better.
    """
    if sense == "almost-sure":
        return math.ceil(2 * math.log(2 / delta) * ((sigma0 + sigma1 * grad_norm) / precision) ** 2)
    groups = groups_for(delta)
    per_group = group_factor(groups, delta) * (sigma0**2 + (sigma1 * grad_norm) ** 2) / precision**2 / groups
    return groups * max(math.ceil(per_group), 1)


def expected_samples(trace: float, radius: float, target: float, drift: float, delta: float) -> int:
    """About how many samples bring the almost-sure bound to the target, if their variance is `trace` and G = drift.

    For the choice of a number beforehand: nothing rests on it.
    """

    def reached(n: int) -> bool:
        mean = math.hypot(drift, math.sqrt(trace / n))
        hoeffding = radius * math.sqrt(2 * math.log(2 / delta) / n)
        log_term = math.log(4 / delta)
        bernstein = math.sqrt(2 * trace * log_term / n) + 14 * radius * log_term / (3 * (n - 1))
        return mean + min(hoeffding, bernstein) <= target

    low, high = 1, 2
    while not reached(high):
        if high > MOST_EXPECTED:
            return high
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


@cache
def groups_for(delta: float) -> int:
    """The number of groups with the smallest deviation: one (Cantelli) unless delta is small."""
    return min(range(1, MOST_GROUPS + 1, 2), key=lambda groups: group_factor(groups, delta))


@cache
def group_factor(groups: int, delta: float) -> float:
    """kappa^2 n: the median of the group norms is at least G - kappa sqrt(variance), except with probability delta.

    Each group mean falls short by s with probability at most p = v/(v + s^2) (Cantelli, v its variance); the median
    fails only if half of the groups do.
    """
    p = _largest_failure(groups, delta)
    return groups * (1 - p) / p


def _hoeffding(summary: Summary, sigma0: float, sigma1: float, delta: float) -> float:
    rate = math.sqrt(2 * math.log(1 / delta) / summary.samples)
    return _solved(summary.mean_norm + sigma0 * rate, sigma1 * rate)


def _empirical_bernstein(summary: Summary, sigma0: float, sigma1: float, delta: float) -> float:
    """The scalars <g_i, u> lie in an interval of length 2 (sigma0 + sigma1 G); their sample variance is <= top."""
    if summary.samples < 2:
        return math.inf
    log_term = math.log(2 / delta)
    spread = math.sqrt(2 * min(summary.trace, summary.top) * log_term / summary.samples)
    rate = 14 * log_term / (3 * (summary.samples - 1))
    return _solved(summary.mean_norm + spread + sigma0 * rate, sigma1 * rate)


def _solved(fixed: float, slope: float) -> float:
    """The largest G with G <= fixed + slope G."""
    return fixed / (1 - slope) if slope < 1 else math.inf


def _order_statistic(summary: Summary, sigma0: float, sigma1: float, delta: float) -> float:
    norms = sorted(summary.group_norms) or [summary.mean_norm]
    middle = norms[(len(norms) - 1) // 2]
    square = group_factor(len(norms), delta) / summary.samples
    slope = square * sigma1 * sigma1
    if slope >= 1:
        return math.inf
    # G <= N + kappa sqrt(sigma0^2 + sigma1^2 G^2), solved for G.
    root = math.sqrt(square * (sigma1**2 * middle**2 + sigma0**2 * (1 - slope)))
    return (middle + root) / (1 - slope)


def _largest_failure(groups: int, delta: float) -> float:
    """The largest p for which (groups + 1)/2 or more of `groups` independent failures have probability <= delta."""
    least = (groups + 1) // 2

    def tail(p: float) -> float:
        return math.fsum(math.comb(groups, j) * p**j * (1 - p) ** (groups - j) for j in range(least, groups + 1))

    low, high = 0.0, 0.5 if groups > 1 else 1.0
    if tail(high) <= delta:
        return high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) <= delta else (low, middle)
    return low
