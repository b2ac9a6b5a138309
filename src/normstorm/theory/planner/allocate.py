"""How to spend sample gradients: the horizon T, the batch K and the sub-batch k.

A budget buys T = 1 + (budget - K)/(K + k) steps with given batches, or K = (budget - (T-1) k)/T for given T and k. The
best is found on a coarse lattice and refined to whole numbers. A target is met by the smallest budget whose best bound
reaches it, then by the smallest T for the batches found there; bound <= target is checked at what is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .solver import Answer, Solver, Triple, close

MAX_HORIZON = 10**18
TRIED = 4  # points of the lattice that are looked at more closely
HOPEFUL, CLOSE = 1.6, 1.06  # how near the best one a certificate must come to be looked at, and to be followed


class Allocator:
    """Searches over (T, K, k); a fixed batch or sub-batch stays as it is."""

    def __init__(self, solver: Solver, batch: int | None, sub_batch: int | None) -> None:
        self.solver = solver
        self.batch = batch
        self.sub_batch = sub_batch
        self.smallest_budget = batch or sub_batch or 1

    def for_budget(self, budget: int) -> Answer:
        """The smallest bound for at most this many sample gradients."""
        return self.solver.solve([self._best_batches(budget, None).triple])[0]

    def for_target(self, target: float) -> Answer:
        """The fewest sample gradients for which a bound of at most `target` (normalised units) is proven."""
        limit = self.smallest_budget * MAX_HORIZON
        start = max(1000, 4 * self.smallest_budget)
        rough = smallest(self._coarse, target, start, limit, 0.2)
        if not rough.value <= target:
            return rough
        best = self._shortest(target, self._best_batches(rough.triple.cost, None).triple)
        for _ in range(4):
            again = self._best_batches(best.triple.cost, best).triple
            if (again.K, again.k) == (best.triple.K, best.triple.k):
                break
            best = min(best, self._shortest(target, again), key=lambda a: (a.value > target, a.triple.cost))
        trimmed = [self._trimmed(target, self._trimmed(target, best, first), not first) for first in (True, False)]
        return min(trimmed, key=lambda a: (a.value > target, a.triple.cost))

    def _trimmed(self, target: float, best: Answer, batch: bool) -> Answer:
        """The smallest K (or k) that does at the same T and k (or K): with few steps T is too coarse a measure."""
        T, K, k = best.triple.T, best.triple.K, best.triple.k
        if (self.batch if batch else self.sub_batch) is not None or not best.value <= target:
            return best
        least, most = (k, K) if batch else (1, k)

        def at(n: int) -> Answer:
            size = least + n - 1
            return self.solver.resolve([Triple(T, size, k) if batch else Triple(T, K, size)], [best])[0]

        answer = smallest(at, target, most - least + 1, most - least + 1, 1e-4)
        return answer if answer.value <= target else best

    def _coarse(self, budget: int) -> Answer:
        """The best of a coarse grid over everything: a bound somewhat too large, found quickly."""
        triples = self._lattice(budget)
        values = np.min(self.solver.grids(triples), axis=0)
        at = int(values.argmin())
        return Answer(triples[at], self.solver.pool[0], np.zeros(3), float(values[at]))

    def _shortest(self, target: float, at: Triple) -> Answer:
        """The smallest T at these batches with bound <= target."""
        near = self.solver.contenders(at)

        def at_horizon(T: int) -> Answer:
            nonlocal near
            answer = self.solver.resolve([Triple(T, at.K, at.k)], near)[0]
            near = _updated(near, answer)
            return answer

        answer = smallest(at_horizon, target, at.T, MAX_HORIZON, 1e-7)
        return min(answer, self.solver.solve([answer.triple])[0], key=lambda a: a.value)

    def _best_batches(self, budget: int, near: Answer | None) -> Answer:
        """The best (K, k) at a budget, from a lattice or from an answer at another budget.

        Certificates have valleys of their own, one with small batches, another with large ones. The best point of the
        lattice goes down with all that are close there; one that is close elsewhere goes down alone, from there.
        """
        start = None
        if near is not None and math.isfinite(near.value):
            start = self._of_batch(budget, near.triple.K, near.triple.k)
        valleys = self._valleys(budget) if start is None else [self.solver.contenders(start)]
        best = self._descended(budget, valleys[0])
        for other in valleys[1:]:
            found = self._descended(budget, other, best.value)
            best = min(best, found, key=lambda a: a.value)
        return best

    def _valleys(self, budget: int) -> list[list[Answer]]:
        """What is close to the best at the best point of the lattice, then what is close at another point."""
        triples = self._lattice(budget)
        grids = self.solver.grids(triples)
        least = np.min(grids, axis=0)
        own = [int(grid.argmin()) for grid in grids if grid.min() <= HOPEFUL * least.min()]
        tried = {*np.argsort(least, kind="stable")[:TRIED].tolist(), *own}
        each = self.solver.each([triples[i] for i in sorted(tried)], tolerance=1e-3)
        lowest = sorted((min(answers, key=lambda a: a.value) for answers in each), key=lambda a: a.value)
        start = lowest[0].triple
        here = (answer for answers in each for answer in answers if answer.triple == start)
        return [close(here, 1.03), *([a] for a in close(lowest, CLOSE) if a.triple != start)]

    def _descended(self, budget: int, near: list[Answer], rival: float = math.inf) -> Answer:
        """From neighbour to neighbour, first far ones, then near ones; given up where a rival is far ahead."""
        for ratio, most in ((2.0, 64), (1.4, 8), (1.2, 8), (1.1, 4), (1.0, 4)):
            for _ in range(most):
                best = near[0]
                better = min(self._around(near, ratio, budget), key=lambda a: a.value, default=best)
                if better.value >= best.value * (1 - 1e-9):
                    break
                near = _updated(near, better)
            if near[0].value > rival * (1 + (ratio - 1) / 50):
                break
        return near[0]

    def _around(self, near: list[Answer], ratio: float, budget: int) -> list[Answer]:
        """Answers at the neighbours of (K, k), or of (T, k) in a run with fewer steps than samples a step."""
        t = near[0].triple
        ks = [t.k] if self.sub_batch is not None else _neighbours(t.k, ratio)
        if self.batch is None and t.T < t.K:
            found = [self._of_length(budget, T, k) for T in _neighbours(t.T, ratio) for k in ks]
        else:
            Ks = [t.K] if self.batch is not None else _neighbours(t.K, ratio)
            found = [self._of_batch(budget, K, k) for K in Ks for k in ks]
        triples = [n for n in found if n is not None and n != t]
        return self.solver.resolve(triples, near, tolerance=1e-3) if triples else []

    def _lattice(self, budget: int) -> list[Triple]:
        """Batches a factor 4 apart, and the shortest runs."""
        found = []
        for K in [self.batch] if self.batch is not None else _powers(self.sub_batch or 1, budget):
            for k in [self.sub_batch] if self.sub_batch is not None else _powers(1, K):
                found.append(self._of_batch(budget, K, k))
        if self.batch is None:
            found += [self._of_length(budget, T, self.sub_batch or 1) for T in range(1, 5)]
        return [t for t in found if t is not None]

    def _of_batch(self, budget: int, K: int, k: int) -> Triple | None:
        """As many steps as the budget buys with these batches."""
        return None if k > K or budget < K else Triple(min(1 + (budget - K) // (K + k), MAX_HORIZON), K, k)

    def _of_length(self, budget: int, T: int, k: int) -> Triple | None:
        """As large a batch as the budget buys for T steps."""
        K = (budget - (T - 1) * k) // T
        return None if k > K else Triple(T, K, k)


def smallest(solve: Callable[[int], Answer], target: float, guess: int, limit: int, tolerance: float) -> Answer:
    """The answer at the smallest n in [1, limit] with solve(n).value <= target, to a relative tolerance in n.

    Bounds fall about like n^(-1/3): bracket with that, then interpolate in logarithms, stepping half a tolerance past
    the estimate so that the bracket closes from both sides. An answer above the target means that `limit` fails.
    """
    low, low_value = 0, math.inf
    high: int | None = None
    best: Answer | None = None
    n = guess
    for attempt in range(200):
        answer = solve(n)
        if answer.value <= target:
            high, best = n, answer
        else:
            low, low_value = n, answer.value
        if high is None or best is None:
            if n >= limit:
                return answer
            growth = min(answer.value / target, 8.0) ** 3.3 if math.isfinite(answer.value) else 30.0
            n = min(max(n + 1, math.ceil(n * growth)), limit)
            continue
        if high - low <= max(1.0, tolerance * high):
            break
        if low == 0:
            estimate = high * max(best.value / target, 1e-3) ** 2.5
        elif math.isfinite(low_value) and attempt % 4 != 3:
            share = math.log(low_value / target) / math.log(low_value / best.value)
            estimate = low * (high / low) ** share
        else:
            estimate = math.sqrt(low * high)
        estimate *= 1 - tolerance / 2 if n == high else 1 + tolerance / 2
        n = min(max(math.floor(estimate), low + 1), high - 1)
    assert best is not None
    return best


def _updated(near: list[Answer], answer: Answer) -> list[Answer]:
    """Warm starts with a newer answer in front, one a certificate; an infinite bound teaches nothing."""
    if not math.isfinite(answer.value):
        return near
    return [answer, *(a for a in near if a.certificate != answer.certificate)]


def _powers(start: int, limit: int) -> list[int]:
    """start, 4 start, 16 start, ... up to the limit, at most thirteen of them."""
    return [value for i in range(13) if (value := start * 4**i) <= limit]


def _neighbours(n: int, ratio: float) -> list[int]:
    return sorted({max(1, min(round(n / ratio), n - 1)), n, max(round(n * ratio), n + 1)})
