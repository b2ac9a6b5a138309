"""Average gradient norm against cost, seed by seed, and when it reaches a target.

A diverged seed is infinite from its divergence on; it is never left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normstorm.engine.results import Trace


@dataclass(frozen=True)
class Paths:
    """One row per seed: sample gradients asked, and the average of ||grad F(x_t)|| by cost so far, at the records."""

    cost: np.ndarray
    mean: np.ndarray

    def at(self, costs: np.ndarray) -> np.ndarray:
        """The averages at these costs, (seeds, costs); nan before the first step was paid."""
        return np.stack([_between(costs, *path) for path in zip(self.cost, self.mean, strict=True)])

    def final(self, budget: int) -> np.ndarray:
        """The averages when the budget is spent, or where the run ended before."""
        if np.all(self.cost[:, -1] <= budget):
            return self.mean[:, -1]
        ends = np.minimum(budget, self.cost[:, -1])
        return np.array([_between(np.array([e]), c, m)[0] for e, c, m in zip(ends, self.cost, self.mean, strict=True)])

    def reaches(self, target: float, budget: int) -> np.ndarray:
        """The costs from which on the average stays at or below the target until the budget is spent, or infinite."""
        return np.array([_reach(target, budget, *path) for path in zip(self.cost, self.mean, strict=True)])


def paths(trace: Trace) -> Paths:
    """Exact where the run kept the mean over all steps; else each recorded iterate has the cost since the one before.

    An iterate counts as often as its step asks sample gradients: a full pass over a finite sum is as long as it costs.
    """
    mean = trace.running_mean_by_cost
    if np.isnan(mean).all():
        weights = np.diff(trace.record_cost, axis=1, prepend=0)
        mean = np.cumsum(trace.grad_norm * weights, axis=1) / trace.record_cost
    return Paths(trace.record_cost.astype(np.float64), np.where(np.isfinite(mean), mean, np.inf).astype(np.float64))


def _between(at: np.ndarray, cost: np.ndarray, mean: np.ndarray) -> np.ndarray:
    alive = int(np.searchsorted(~np.isfinite(mean), True))  # what is lost stays lost
    if alive == 0:
        return np.full(at.shape, np.inf)
    found = np.interp(at, cost[:alive], mean[:alive], left=np.nan)
    lost = (at > cost[alive - 1]) & (alive < mean.size)
    return np.where(lost, np.inf, found)


def _reach(target: float, budget: int, cost: np.ndarray, mean: np.ndarray) -> float:
    if cost[-1] > budget:
        end, paid = _between(np.array([float(budget)]), cost, mean), cost < budget
        cost, mean = np.append(cost[paid], budget), np.append(mean[paid], end)
    above = np.flatnonzero(mean > target)
    if not mean[-1] <= target:
        return np.inf
    if above.size == 0:
        return float(cost[0])
    # On straight lines in logarithms between the last record above the target and the next.
    i = above[-1]
    high, low = np.log(mean[i]), np.log(max(mean[i + 1], np.finfo(float).tiny))
    share = (high - np.log(target)) / (high - low)
    return float(cost[i] ** (1 - share) * cost[i + 1] ** share)
