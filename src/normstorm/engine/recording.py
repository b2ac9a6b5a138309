"""What is kept of a run: statistics over all steps, records, and saved iterates.

Steps are measured a chunk at a time, from what the loop wrote down of them: less is then to be done in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.summation import kahan
from normstorm.algorithms.geometries import norm
from normstorm.random import seed_words, threefry

Tree = Any
SUMMED = 16  # steps of a chunk up to which one of them is taken by a sum
NEVER = np.iinfo(np.int32).max  # a step that does not come


class RecordSchedule(NamedTuple):
    """Recorded steps, and the bounds of the strata of 1..T: stratum r is bounds[r] < t <= bounds[r + 1]."""

    record_steps: Any
    bounds: Any

    def padded(self, records: int, candidates: int) -> RecordSchedule:
        """Arrays whose sizes are the same for every T, ended by steps that never come."""

        def fill(steps: np.ndarray, size: int) -> np.ndarray:
            return np.concatenate([steps, np.full(size - steps.size, NEVER)]).astype(np.int32)

        return RecordSchedule(fill(self.record_steps, records + 1), fill(self.bounds, candidates + 2))


def record_schedule(steps: int, records: int, candidates: int) -> RecordSchedule:
    """Log-spaced records and strata as even as integers allow; fewer of either if there are fewer steps."""
    used = min(candidates, steps)
    bounds = np.arange(used + 1, dtype=np.int64) * steps // used
    return RecordSchedule(np.unique(np.rint(np.geomspace(1, steps, records)).astype(np.int64)), bounds)


def choose_iterates(seeds: list[int], bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every seed one uniform step in each stratum, (n, R), and one stratum drawn in proportion to its length.

    The chosen stratum's step is then uniform on 1..T. The words come from step 0 of the seed, which no run uses.
    """
    rows = seed_words(seeds).T
    zero = np.zeros(len(seeds), np.uint32)
    key = threefry((rows[0], rows[1]), (zero, zero))
    strata = bounds.size - 1
    lengths = np.append(np.diff(bounds), bounds[-1])
    draws = []
    for i, length in enumerate(lengths.tolist()):
        high, low = (np.asarray(w).astype(np.uint64) for w in threefry(key, (zero, zero + np.uint32(i))))
        # The upper part of a 96-bit product: floor(length * word / 2^64).
        below = (low * np.uint64(length)) >> np.uint64(32)
        draws.append(((high * np.uint64(length) + below) >> np.uint64(32)).astype(np.int64))
    steps = np.stack([bounds[r] + 1 + draws[r] for r in range(strata)], axis=1)
    return steps, np.searchsorted(bounds[1:], draws[-1], side="right")


class RunningStats(NamedTuple):
    """Over all steps so far, one entry per seed.

    total, lost     sum of ||grad F(x_t)||, and what rounding has taken from it (Kahan)
    sizes, shed     the same of ||m_t||
    spent, dropped  the same of ||grad F(x_t)|| times the sample gradients that step t asked
    least           the smallest of them
    cost, carry     sample gradients, in two words
    diverged, halt  the step of the first non-finite number (0: none), and x at that step
    best, best_step, best_x    the smallest ||m_t||, when, and x_t
    """

    total: jax.Array
    lost: jax.Array
    sizes: jax.Array
    shed: jax.Array
    spent: jax.Array
    dropped: jax.Array
    least: jax.Array
    cost: jax.Array
    carry: jax.Array
    diverged: jax.Array
    halt: Tree
    best: jax.Array
    best_step: jax.Array
    best_x: Tree


class Records(NamedTuple):
    """Rows written at recorded steps, and one more: (records + 1, seeds)."""

    grad_norm: jax.Array
    mean: jax.Array
    mean_by_cost: jax.Array
    value: jax.Array
    error: jax.Array
    cost: jax.Array
    carry: jax.Array


class SavedIterates(NamedTuple):
    """Iterates kept on the way, (R, seeds, ...), and the steps (R, seeds) at which they are taken."""

    x: Tree
    step: jax.Array


class Path(NamedTuple):
    """What the loop wrote down of a chunk of steps, (steps, seeds, ...): x_t and ||m_t||.

    m is m_t, if chunks do not end at recorded steps, the only ones that need it;
    point is what the algorithm hands out at step t, if that is another point than its iterate x_t; grad_norm is
    ||grad F|| there, if it was asked in the step; cost is what the step asked, if that is not known beforehand;
    noted is what the step left for the observer.
    """

    x: Tree
    m: Tree | None
    size: jax.Array
    point: Tree | None
    grad_norm: jax.Array | None
    cost: jax.Array | None
    noted: Tree


class Recorder(NamedTuple):
    """Everything that is kept, for a batch of seeds; `row` is the next row of the records."""

    stats: RunningStats
    records: Records
    saved: SavedIterates
    row: jax.Array


class Measured(NamedTuple):
    """A chunk of `count` steps after step t0, measured: ||m_t|| and ||grad F(x_t)||, (steps, seeds).

    asked    whether the step was taken by a seed that had not diverged;   alive   and did not diverge at it
    stop     the place of the first non-finite number, or that of the last step
    """

    t0: Any
    count: Any
    point: Tree
    gradient: Tree | None
    size: jax.Array
    grad_norm: jax.Array
    costs: jax.Array
    asked: jax.Array
    alive: jax.Array
    stop: jax.Array


def over_points(function: Any, *trees: Tree) -> Tree:
    """A function of one point for all points of a chunk, in one call."""
    steps, seeds = jax.tree.leaves(trees)[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(steps * seeds, *a.shape[2:]), trees)
    return jax.tree.map(lambda a: a.reshape(steps, seeds, *a.shape[1:]), jax.vmap(function)(*flat))


def at_step(tree: Tree, place: Any) -> Tree:
    """What stands at one place of a chunk, (steps, ...) -> (...)."""
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, place, 0, keepdims=False), tree)


def take_steps(tree: Tree, place: jax.Array) -> Tree:
    """Of every seed what stands at its own place, (steps, seeds, ...) -> (seeds, ...).

    Among few steps a sum in which all others are zero: it runs along memory, and picking number by number does not.
    """

    def take(a: jax.Array) -> jax.Array:
        if place.size == 1:
            return a[place[0]]
        if a.shape[0] > SUMMED:
            return a[place, jnp.arange(place.size)]
        here = jnp.arange(a.shape[0])[:, None] == place
        return jnp.sum(jnp.where(here.reshape(*here.shape, *(1,) * (a.ndim - 2)), a, 0), 0, dtype=a.dtype)

    return jax.tree.map(take, tree)


def select_any(which: jax.Array, new: Callable[[], Tree], old: Tree) -> Tree:
    """Seed by seed; on a CPU `new` is not computed for none, a GPU would wait for the answer."""
    if jax.default_backend() != "cpu":
        return select(which, new(), old)
    return jax.lax.cond(jnp.any(which), lambda: select(which, new(), old), lambda: old)


def select(which: jax.Array, new: Tree, old: Tree) -> Tree:
    """Seed by seed."""
    return jax.tree.map(lambda n, o: jnp.where(which.reshape(-1, *(1,) * (n.ndim - 1)), n, o), new, old)


def measure(problem: Any, config: Any, costs: Any, stats: RunningStats, path: Path, t0: Any, count: Any) -> Measured:
    """Norms of a chunk, and which of its steps count; `costs` are those of the steps, if they are known beforehand."""
    point = path.x if path.point is None else path.point
    size, average = path.size, config.average
    gradient = over_points(problem.full_grad, point) if average and path.grad_norm is None else None
    grad_norm: Any = size if not average else path.grad_norm if gradient is None else over_points(norm, gradient)
    step = jnp.arange(size.shape[0], dtype=jnp.int32)[:, None]
    finite = jnp.isfinite(size) & jnp.isfinite(grad_norm)
    last = jnp.asarray(count - 1, jnp.int32)
    stop = jnp.min(jnp.where(finite | (step > last), last, step), 0)
    asked = (step <= stop) & (stats.diverged == 0)
    each: Any = path.cost if costs is None else costs[:, None]
    asked = asked & (each > 0) if config.stops else asked
    costs = jnp.where(asked, each, jnp.uint32(0))
    return Measured(t0, count, point, gradient, size, grad_norm, costs, asked, asked & finite, stop)


class Sums(NamedTuple):
    """Of ||grad F||, of ||m_t||, of ||grad F|| times the cost of its step, and of costs."""

    gradients: jax.Array
    sizes: jax.Array
    spent: jax.Array
    costs: jax.Array


def _sums(seen: Measured, upto: Any = None) -> Sums:
    """Over the chunk, or over its steps up to one of them."""
    here = True if upto is None else jnp.arange(seen.size.shape[0])[:, None] <= upto
    weighted = seen.costs.astype(seen.grad_norm.dtype) * seen.grad_norm
    gradients, sizes, spent = (
        jnp.sum(jnp.where(seen.alive & here, part, 0), 0) for part in (seen.grad_norm, seen.size, weighted)
    )
    return Sums(gradients, sizes, spent, jnp.sum(jnp.where(here, seen.costs, 0), 0, dtype=jnp.uint32))


def _added(stats: RunningStats, sums: Sums) -> RunningStats:
    total, lost = kahan(stats.total, stats.lost, sums.gradients)
    sizes, shed = kahan(stats.sizes, stats.shed, sums.sizes)
    spent, dropped = kahan(stats.spent, stats.dropped, sums.spent)
    cost = stats.cost + sums.costs
    carry = stats.carry + (cost < stats.cost).astype(jnp.uint32)
    return stats._replace(
        total=total, lost=lost, sizes=sizes, shed=shed, spent=spent, dropped=dropped, cost=cost, carry=carry
    )


def updated(stats: RunningStats, seen: Measured) -> RunningStats:
    """The statistics after the chunk."""
    infinite = jnp.asarray(jnp.inf, seen.size.dtype)
    least = jnp.min(jnp.where(seen.alive, seen.grad_norm, infinite), 0)
    sizes = jnp.where(seen.alive, seen.size, infinite)
    smallest = jnp.min(sizes, 0)
    step = jnp.arange(sizes.shape[0], dtype=jnp.int32)[:, None]
    place = jnp.min(jnp.where(sizes == smallest, step, seen.stop), 0)
    better = smallest < stats.best
    fell = jnp.any(seen.asked & ~seen.alive, 0)
    added = _added(stats, _sums(seen))
    return added._replace(
        least=jnp.minimum(stats.least, least),
        diverged=jnp.where(fell, seen.t0 + 1 + seen.stop, stats.diverged),
        halt=select_any(fell, lambda: take_steps(seen.point, seen.stop), stats.halt),
        best=jnp.where(better, smallest, stats.best),
        best_step=jnp.where(better, seen.t0 + 1 + place, stats.best_step),
        best_x=select_any(better, lambda: take_steps(seen.point, place), stats.best_x),
    )


def recorded(
    problem: Any, config: Any, t: Any, now: RunningStats, alive: jax.Array, path: Path, gradient: Tree | None = None
) -> tuple[jax.Array, ...]:
    """The row of step t, with the statistics after it; `path` is that step's, and `gradient` grad F at its point."""
    point = path.x if path.point is None else path.point
    value = grad_norm = error = mean = by_cost = jnp.full_like(now.best, jnp.nan)
    if config.valued:
        value = jax.vmap(problem.value)(point)
    if config.exact:
        at_point = jax.vmap(problem.full_grad)(point) if gradient is None else gradient
        at_iterate = at_point if path.point is None else jax.vmap(problem.full_grad)(path.x)
        grad_norm = jax.vmap(norm)(at_point)
        error = jax.vmap(norm)(jax.tree.map(jnp.subtract, path.m, at_iterate))
    if config.average:
        asked = now.cost.astype(mean.dtype) + now.carry.astype(mean.dtype) * 2.0**32
        mean, by_cost = (now.total - now.lost) / t, (now.spent - now.dropped) / asked
    known = (jnp.where(alive, v, jnp.nan) for v in (grad_norm, mean, by_cost, value, error))
    return *(v.astype(now.best.dtype) for v in known), now.cost, now.carry


def record(
    problem: Any, config: Any, steps: jax.Array, recorder: Recorder, seen: Measured, path: Path, m: Tree
) -> tuple[Records, jax.Array]:
    """Write a row for every recorded step of the chunk; m is that of its last step."""
    before = recorder.stats

    def write(carry: tuple[Records, jax.Array]) -> tuple[Records, jax.Array]:
        records, row = carry
        place = steps[row] - 1 - seen.t0
        now, here = _added(before, _sums(seen, place)), at_step(path, place)
        here = here._replace(m=m) if here.m is None else here
        gradient = None if seen.gradient is None else at_step(seen.gradient, place)
        rows = recorded(problem, config, steps[row], now, seen.alive[place], here, gradient)
        put = partial(jax.lax.dynamic_update_index_in_dim, axis=0, index=row)
        return Records(*(put(table, entry) for table, entry in zip(records, rows, strict=True))), row + 1

    end = seen.t0 + seen.count
    start = recorder.records, recorder.row
    written: tuple[Records, jax.Array] = jax.lax.while_loop(lambda carry: steps[carry[1]] <= end, write, start)
    return written


def save(bounds: jax.Array, after: RunningStats, saved: SavedIterates, seen: Measured) -> SavedIterates:
    """Keep the iterates that are to be taken in this chunk."""
    end = seen.t0 + seen.count

    def stratum(t: Any) -> Any:
        return jnp.sum(bounds < t, dtype=jnp.int32) - 1

    def take(row: Any, x: Tree) -> Tree:
        step = saved.step[row]
        point = take_steps(seen.point, jnp.clip(step - 1 - seen.t0, 0, seen.stop))
        halted = (after.diverged > 0) & (after.diverged < step)
        point = select(halted, after.halt, point)
        due = (seen.t0 < step) & (step <= end)
        return jax.tree.map(lambda table, p: table.at[row].set(select(due, p, table[row])), x, point)

    some = jnp.any((seen.t0 < saved.step) & (saved.step <= end))
    low = stratum(seen.t0 + 1)
    return saved._replace(x=jax.lax.fori_loop(low, jnp.where(some, stratum(end) + 1, low), take, saved.x))
