"""What is kept of a run: statistics over all steps, records, and saved iterates.

Steps are measured a chunk at a time, from what the loop wrote down of them: less is then to be done in every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.summation import kahan
from normstorm.algorithms.geometries import norm
from normstorm.problems.check import knows
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
    """Steps t0 + 1, t0 + 2, ... of a chunk: what is handed out, ||m_t||, ||grad F|| there and costs, (steps, seeds).

    `gradient` is grad F, if it was asked of the whole chunk.
    """

    t0: Any
    point: Tree
    gradient: Tree | None
    size: jax.Array
    grad_norm: jax.Array
    cost: jax.Array


def over_points(function: Any, *trees: Tree) -> Tree:
    """A function of one point for all points of a chunk, in one call."""
    steps, seeds = jax.tree.leaves(trees)[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(steps * seeds, *a.shape[2:]), trees)
    return jax.tree.map(lambda a: a.reshape(steps, seeds, *a.shape[1:]), jax.vmap(function)(*flat))


def at_step(tree: Tree, place: Any) -> Tree:
    """What stands at one place of a chunk, (steps, ...) -> (...)."""
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, place, 0, keepdims=False), tree)


def put_row(tables: Tree, rows: Tree, i: Any) -> Tree:
    """With another row i."""
    return jax.tree.map(lambda table, row: jax.lax.dynamic_update_index_in_dim(table, row, i, 0), tables, rows)


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


def select(which: jax.Array, new: Tree, old: Tree) -> Tree:
    """Seed by seed."""
    return jax.tree.map(lambda n, o: jnp.where(which.reshape(-1, *(1,) * (n.ndim - 1)), n, o), new, old)


def take_any(which: jax.Array, points: Tree, place: jax.Array, old: Tree) -> Tree:
    """`take_steps` for some seeds; on a CPU nothing is taken for none, a GPU would wait for the answer."""
    if jax.default_backend() != "cpu":
        return select(which, take_steps(points, place), old)
    return jax.lax.cond(jnp.any(which), lambda: select(which, take_steps(points, place), old), lambda: old)


def measure(problem: Any, config: Any, cost: Any, path: Path, t0: Any) -> Measured:
    """Norms of a chunk; `cost` is that of each of its steps, if it is known beforehand."""
    point, average = path.x if path.point is None else path.point, config.average
    gradient = over_points(problem.full_grad, point) if average and path.grad_norm is None else None
    grad_norm: Any = path.size if not average else path.grad_norm if gradient is None else over_points(norm, gradient)
    each: Any = path.cost if cost is None else cost
    return Measured(t0, point, gradient, path.size, grad_norm, each)


def updated(stats: RunningStats, seen: Measured, start: Any, end: Any, stops: bool) -> tuple[RunningStats, jax.Array]:
    """The statistics after steps start + 1 .. end, and which seeds took the last of them."""
    t = seen.t0 + 1 + jnp.arange(seen.size.shape[0], dtype=jnp.int32)[:, None]
    finite, here = jnp.isfinite(seen.size) & jnp.isfinite(seen.grad_norm), (start < t) & (t <= end)
    last = jnp.min(jnp.where(here & ~finite, t, end), 0)  # the first non-finite number, or the end
    asked = here & (t <= last) & (stats.diverged == 0)
    asked = asked & (seen.cost > 0) if stops else asked
    alive, costs = asked & finite, jnp.where(asked, seen.cost, jnp.uint32(0))
    infinite = jnp.asarray(jnp.inf, seen.size.dtype)
    sizes = jnp.where(alive, seen.size, infinite)
    smallest = jnp.min(sizes, 0)
    best_step = jnp.min(jnp.where(sizes == smallest, t, last), 0)
    better, fell = smallest < stats.best, jnp.any(asked & ~finite, 0)
    weighted = costs.astype(seen.size.dtype) * seen.grad_norm
    sums = [jnp.sum(jnp.where(alive, part, 0), 0) for part in (seen.grad_norm, seen.size, weighted)]
    kept = [number for i, part in enumerate(sums) for number in kahan(stats[2 * i], stats[2 * i + 1], part)]
    cost = stats.cost + jnp.sum(costs, 0, dtype=jnp.uint32)
    after = stats._replace(
        **dict(zip(RunningStats._fields, kept, strict=False)),
        least=jnp.minimum(stats.least, jnp.min(jnp.where(alive, seen.grad_norm, infinite), 0)),
        cost=cost,
        carry=stats.carry + (cost < stats.cost).astype(jnp.uint32),
        diverged=jnp.where(fell, last, stats.diverged),
        halt=take_any(fell, seen.point, last - 1 - seen.t0, stats.halt),
        best=jnp.where(better, smallest, stats.best),
        best_step=jnp.where(better, best_step, stats.best_step),
        best_x=take_any(better, seen.point, best_step - 1 - seen.t0, stats.best_x),
    )
    return after, alive[end - 1 - seen.t0]


def recorded(
    problem: Any, config: Any, t: Any, now: RunningStats, alive: jax.Array, path: Path, gradient: Tree | None = None
) -> Records:
    """The row of step t, with the statistics after it; `path` is that step's, and `gradient` grad F at its point."""
    point = path.x if path.point is None else path.point
    value = grad_norm = error = mean = by_cost = jnp.full_like(now.best, jnp.nan)
    if knows(problem, "value"):
        value = jax.vmap(problem.value)(point)
    if knows(problem, "full_grad"):
        at_point = jax.vmap(problem.full_grad)(point) if gradient is None else gradient
        at_iterate = at_point if path.point is None else jax.vmap(problem.full_grad)(path.x)
        grad_norm = jax.vmap(norm)(at_point)
        error = jax.vmap(norm)(jax.tree.map(jnp.subtract, path.m, at_iterate))
    if config.average:
        asked = now.cost.astype(mean.dtype) + now.carry.astype(mean.dtype) * 2.0**32
        mean, by_cost = (now.total - now.lost) / t, (now.spent - now.dropped) / asked
    known = (jnp.where(alive, v, jnp.nan) for v in (grad_norm, mean, by_cost, value, error))
    row: list[Any] = [*(v.astype(now.best.dtype) for v in known), now.cost, now.carry]
    return Records(*row)


def record(
    problem: Any, config: Any, schedule: RecordSchedule, kept: Recorder, seen: Measured, path: Path, m: Tree, end: Any
) -> Recorder:
    """What is kept after the steps of a chunk up to `end`, from recorded step to recorded step; m is the last m_t."""

    def part(carry: tuple[Recorder, Any]) -> tuple[Recorder, Any]:
        kept, start = carry
        due = schedule.record_steps[kept.row]
        t = jnp.minimum(due, end)
        place = t - 1 - seen.t0
        now, alive = updated(kept.stats, seen, start, t, config.stops)

        def write() -> Records:
            here = at_step(path, place)
            here = here._replace(m=m) if here.m is None else here
            gradient = None if seen.gradient is None else at_step(seen.gradient, place)
            rows = recorded(problem, config, t, now, alive, here, gradient)
            return Records(*put_row(kept.records, rows, kept.row))

        records = jax.lax.cond(due == t, write, lambda: kept.records)
        return Recorder(now, records, kept.saved, kept.row + (due == t)), t

    kept, _ = jax.lax.while_loop(lambda carry: carry[1] < end, part, (kept, seen.t0))
    return kept._replace(saved=save(schedule.bounds, kept.stats, kept.saved, seen, end))


def save(bounds: jax.Array, after: RunningStats, saved: SavedIterates, seen: Measured, end: Any) -> SavedIterates:
    """Keep the iterates that are to be taken in this chunk."""

    def take(row: Any, x: Tree) -> Tree:
        step = saved.step[row]
        halted = (after.diverged > 0) & (after.diverged < step)
        point = select(halted, after.halt, take_steps(seen.point, step - 1 - seen.t0))
        due = (seen.t0 < step) & (step <= end)
        return jax.tree.map(lambda table, p: table.at[row].set(select(due, p, table[row])), x, point)

    some = jnp.any((seen.t0 < saved.step) & (saved.step <= end))
    low, high = (jnp.sum(bounds < t, dtype=jnp.int32) for t in (seen.t0 + 1, end))  # strata, counted from 1
    return saved._replace(x=jax.lax.fori_loop(low - 1, jnp.where(some, high, low - 1), take, saved.x))
