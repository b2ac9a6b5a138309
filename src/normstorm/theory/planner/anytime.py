"""The schedule for all horizons: (eta, alpha, shift, lam), and K and k where they are free.

It is chosen for a range of horizons: its largest ratio to the best plan for one horizon at the same cost, at both ends
of the range and in the middle, is made as small as the search can. The range goes down from the longest run by up to
four decades, as long as a plan for one horizon is within twice the norm of the first gradient there; what is shorter
proves nothing anyway. Everything is chosen before the run, so the search is no part of the proof; it looks at coarse
blocks, and the bound is then computed as docs/theory/any-schedule.md says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..anytime_plan import AnytimePlan, terms_of
from ..certificates.case import Array
from ..constants import Constants
from ..plan import round_up
from ..schedules.blocks import Cells
from ..schedules.shrinking import SMALL, Shrinking
from .allocate import MAX_HORIZON, Allocator, smallest
from .solver import Answer, Solver, Triple

DECADES = 4  # from the longest run down to the shortest, at most
BEYOND = 100  # a schedule for a target is chosen for runs up to so many times the cost of a plan for it
USEFUL = 2.0  # a bound of more than so many first gradients is none
MOST_LEADING = 100_000  # steps with alpha > 1/4, which are summed one by one
STARTS, KEPT, CHILDREN = 600, 10, 6
# Logarithms in units in which the gap is 1: of eta, alpha, 1 + shift, lam.
LOW, HIGH = np.log([1e-14, 1e-14, 1.0, 1e-6]), np.log([10.0, 1.0, 1e18, 1e12])


@dataclass(frozen=True)
class Horizons:
    """What the schedule must be good for: costs, in sample gradients, and the best bound of one horizon at each."""

    costs: tuple[int, ...]
    best: Array


@dataclass(frozen=True)
class Found:
    """A point of the search with the batches that it is for, and its largest ratio."""

    K: int
    k: int
    point: Array
    ratio: float


def anytime_plan(
    constants: Constants,
    target: float | None,
    horizon: int | None,
    budget: int | None,
    confidence: float,
    batch: int | None,
    sub_batch: int | None,
) -> AnytimePlan:
    """The plan; arguments were checked by `plan`."""
    delta = 1 - confidence
    solver = Solver(constants, delta)
    allocator = Allocator(solver, batch, sub_batch)
    if horizon is not None:
        K = batch if batch is not None else sub_batch or 1
        k = sub_batch if sub_batch is not None else K
        times = _spaced(solver, horizon, lambda t: Triple(t, K, k))
        triples = [Triple(t, K, k) for t in times]
        best = [answer.value for answer in solver.solve(triples)]
        found = _search(solver.constants, delta, Horizons(tuple(t.cost for t in triples), np.array(best)), K, k, None)
    else:
        least = allocator.smallest_budget
        most = budget if budget is not None else min(_cost_of(allocator, target) * BEYOND, MAX_HORIZON)
        costs = _spaced(solver, most, lambda cost: Triple(_steps(cost, least, least), least, least), least)
        best = [allocator.for_budget(cost).value for cost in costs]
        found = _with_batches(solver.constants, delta, Horizons(tuple(costs), np.array(best)), batch, sub_batch)
        times = [_steps(cost, found.K, found.k) for cost in costs]
    eta, alpha, shift, lam = _numbers(found.point)
    return _finished(constants, solver, (eta, alpha, shift, lam), (found.K, found.k), confidence, times, target)


def _finished(
    constants: Constants,
    solver: Solver,
    numbers: tuple[float, float, float, float],
    batches: tuple[int, int],
    confidence: float,
    times: list[int],
    target: float | None,
) -> AnytimePlan:
    """The plan with the proven bound at the longest horizon, or at the first t that reaches the target."""
    eta, alpha, shift, lam = numbers
    schedule = Shrinking(eta, alpha, shift, lam, *batches)
    delta, t = 1 - confidence, max(times)
    if target is not None:
        wanted = target / solver.slope * (1 - 1e-14)
        t = _first(lambda n: float(schedule.bounds(solver.constants, delta, [n]).value[0]), wanted, t)
    value, length = solver.length / solver.slope, solver.length
    found = schedule.bounds(solver.constants, delta, [t])
    bound = float(found.value[0]) * solver.slope * (1 + 1e-15)
    if target is not None and not bound <= target:
        raise ValueError(
            f"plan: target must be at least {round_up(bound)}, which {MAX_HORIZON:.0e} steps of one schedule can "
            f"prove; got target={target}"
        )
    if not math.isfinite(bound):
        raise ValueError(f"plan: horizon, budget and batch must be large enough for a finite bound; got T={t}")
    return AnytimePlan(
        constants=constants,
        shortest=min(times),
        longest=max(times),
        horizon=t,
        alpha=alpha,
        eta=eta / length,
        shift=shift,
        batch=batches[0],
        sub_batch=batches[1],
        confidence=confidence,
        free=lam * value,
        bound=bound,
        terms=terms_of(found, solver.slope),
    )


def _first(bound: Callable[[int], float], target: float, guess: int) -> int:
    """A t whose bound is at most the target, while that of t - 1 is not; where none is found, the largest."""

    def at(t: int) -> Answer:
        return Answer(Triple(t, 1, 1), "any_schedule", np.zeros(3), bound(t))

    return smallest(at, target, guess, MAX_HORIZON, 0.0).triple.T


def _cost_of(allocator: Allocator, target: float | None) -> int:
    """Sample gradients of the plan for one horizon that reaches the target."""
    assert target is not None
    answer = allocator.for_target(target / allocator.solver.slope * (1 - 1e-14))
    if not answer.value <= target / allocator.solver.slope:
        raise ValueError(
            f"plan: target must be at least {round_up(answer.value * allocator.solver.slope)}, which {MAX_HORIZON:.0e} "
            f"steps or sample gradients can prove; got target={target}"
        )
    return answer.triple.cost


def _spaced(solver: Solver, longest: int, triple: Callable[[int], Triple], least: int = 1) -> list[int]:
    """The shortest run of the range, the longest, and one between them."""
    shorter = [n for e in range(DECADES, 0, -1) if (n := longest // 10**e) >= least] or [longest]
    proven = solver.solve([triple(n) for n in shorter])
    useful = USEFUL * solver.constants.first_gradient
    shortest = next((n for n, answer in zip(shorter, proven, strict=True) if answer.value <= useful), shorter[-1])
    return sorted({shortest, round(math.sqrt(shortest) * math.sqrt(longest)), longest})


def _steps(cost: int, K: int, k: int) -> int:
    return max(1, 1 + (cost - K) // (K + k))


def _with_batches(
    constants: Constants, delta: float, asked: Horizons, batch: int | None, sub_batch: int | None
) -> Found:
    """Batches a factor 2 apart, uphill no longer: the ratio has one valley in each of them in practice."""
    least = batch or sub_batch or 1
    now = _search(constants, delta, asked, least, sub_batch or (1 if batch is None else batch), None)
    seen = {(now.K, now.k)}
    while True:
        Ks = [now.K] if batch is not None else [now.K, 2 * now.K, now.K // 2]
        ks = [now.k] if sub_batch is not None else [now.k, 2 * now.k, now.k // 2]
        near = [(K, k) for K in Ks for k in ks if 1 <= k <= K <= min(asked.costs) and (K, k) not in seen]
        seen |= set(near)
        found = [_search(constants, delta, asked, K, k, now.point) for K, k in near]
        better = min(found, key=lambda f: f.ratio, default=now)
        if better.ratio >= now.ratio * (1 - 1e-3):
            return _search(constants, delta, asked, now.K, now.k, now.point, fine=True)
        now = better


def _search(
    constants: Constants, delta: float, asked: Horizons, K: int, k: int, near: Array | None, fine: bool = False
) -> Found:
    """Many points at random, then children of the best, ever closer to them; the numbers drawn are always the same."""
    rng = np.random.default_rng(0)
    times = np.array([_steps(cost, K, k) for cost in asked.costs], dtype=float)
    cells = _coarse_cells(times)
    at = np.searchsorted(cells.last, times)
    high = HIGH.copy()
    if constants.L1 > 0:
        high[0] = min(high[0], -math.log(constants.L1) - 1e-12)

    def ratio(points: Array) -> Array:
        eta, alpha, shift, lam = np.exp(points).T
        schedule = Shrinking(eta, alpha, shift - 1, lam, np.full(len(eta), K), np.full(len(eta), k))
        value = schedule.evaluate(constants, delta, cells, rounds=3).value[:, at]
        leading = shift * (alpha / SMALL) ** 1.5
        with np.errstate(over="ignore"):
            worst = np.max(value / asked.best, axis=-1)
        return np.where((alpha > SMALL) & (leading > MOST_LEADING), np.inf, worst)

    if near is None:
        points, size, least = _starts(constants, delta, Triple(int(times[len(times) // 2]), K, k), rng), 0.5, 3e-4
    else:
        points, size, least = near + 0.3 * rng.normal(size=(40, len(LOW))), 0.3, 3e-4 if fine else 3e-2
        points[0] = near
    points = np.clip(points, LOW, high)
    values = ratio(points)
    while True:
        order = np.argsort(values, kind="stable")[:KEPT]
        points, values = points[order], values[order]
        if size < least:
            return Found(K, k, points[0], float(values[0]))
        moved = np.repeat(points, CHILDREN, axis=0) + size * rng.normal(size=(len(points) * CHILDREN, len(LOW)))
        moved = np.clip(moved, LOW, high)
        new = ratio(moved)
        if not np.min(new) < values[0] * (1 - 1e-4):
            size *= 0.7
        points, values = np.concatenate([points, moved]), np.concatenate([values, new])


def _starts(constants: Constants, delta: float, middle: Triple, rng: np.random.Generator) -> Array:
    """Schedules that pass by the best constant one of the middle horizon, with shifts of all sizes."""
    solver = Solver(constants, delta, "adaptive")
    _, alpha, eta, lam = solver.bound(solver.solve([middle])[0])
    assert lam is not None
    eta, lam = eta / solver.length, lam / solver.slope
    shift = rng.uniform(0, math.log(10 * middle.T), STARTS)
    grown = 2 / 3 * (np.logaddexp(shift, math.log(middle.T / 3)) - shift)
    limits = [-math.log(alpha), *([-math.log(eta * constants.L1)] if constants.L1 > 0 else [])]
    grown = np.minimum(grown, min(limits))
    at = np.stack([math.log(eta) + grown, math.log(alpha) + grown, shift, np.full(STARTS, math.log(lam * alpha / eta))])
    return np.asarray(at.T + rng.normal(size=(STARTS, len(LOW))) * [1.0, 1.0, 0.0, 1.5])


def _coarse_cells(times: Array) -> Cells:
    few = np.arange(1.0, min(9.0, times[-1] + 1))
    count = 2 + int(3 * math.log(times[-1] + 1))
    last = np.unique(np.concatenate([few, np.floor(np.geomspace(1, times[-1], count)), times]))
    return Cells(np.concatenate([[1.0], last[:-1] + 1]), last, len(few))


def _numbers(point: Array) -> tuple[float, float, float, float]:
    """(eta, alpha, shift, lam), eta and lam in units in which the gap is 1."""
    eta, alpha, shift, lam = (float(v) for v in np.exp(point))
    return eta, min(alpha, 1.0), max(shift - 1, 0.0), lam
