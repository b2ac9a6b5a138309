"""What is kept of a run: statistics over all steps, records, and saved iterates.

Steps are measured a chunk at a time, from what the loop wrote down of them: less is then to be done in every step.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jax_internals import barrier
from normstorm._shared.pytrees import bytes_of
from normstorm._shared.summation import kahan
from normstorm.algorithms.geometries import norm
from normstorm.problems.check import knows
from normstorm.random import seed_words, threefry

Tree = Any
LEADING: dict[str, Any] = {"axis": 0, "allow_negative_indices": False}  # which would be an operation of every step
FEW = 2**12  # bytes of one seed that are sooner taken than asked for
SUMMED = 16  # steps of a chunk up to which one of them is taken by a sum
MEASURED = "grad_norm", "running_mean", "running_mean_by_cost", "value", "error"
BLOCK = 32  # steps that XLA adds on a CPU in one operation; of more it makes several, each to be compiled
NEVER = np.iinfo(np.int32).max  # a step that does not come


class RecordSchedule(NamedTuple):
    """Recorded steps, and the bounds of the strata of 1..T: stratum r is bounds[r] < t <= bounds[r + 1]."""

    record_steps: Any
    bounds: Any


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
    lengths = np.append(np.diff(bounds), bounds[-1])
    draws = []
    for i, length in enumerate(lengths.tolist()):
        high, low = (np.asarray(w).astype(np.uint64) for w in threefry(key, (zero, zero + np.uint32(i))))
        # The upper part of a 96-bit product: floor(length * word / 2^64).
        below = (low * np.uint64(length)) >> np.uint64(32)
        draws.append(((high * np.uint64(length) + below) >> np.uint64(32)).astype(np.int64))
    steps = bounds[:-1] + 1 + np.stack(draws[:-1], axis=1)
    return steps, np.searchsorted(bounds[1:], draws[-1], side="right")


class RunningStats(NamedTuple):
    """Over all steps so far, one entry per seed."""

    sums: jax.Array  # (seeds, 3), of ||grad F(x_t)||, ||m_t||, and ||grad F(x_t)|| times what step t asked
    lost: jax.Array  # what rounding has taken from them (Kahan)
    least: jax.Array  # the smallest ||grad F(x_t)||
    cost: jax.Array  # sample gradients, in two words
    carry: jax.Array
    diverged: jax.Array  # the step of the first non-finite number; 0: none
    halt: Tree  # and x at that step
    best: jax.Array  # the smallest ||m_t||, when, and x_t
    best_step: jax.Array
    best_x: Tree


class Records(NamedTuple):
    """Rows written at recorded steps, and one more; few arrays, because each is another operation to compile."""

    measured: jax.Array  # (records + 1, 5, seeds), see MEASURED
    cost: jax.Array  # (records + 1, 2, seeds), in two words


class SavedIterates(NamedTuple):
    """Iterates kept on the way, (R, seeds, ...), and the steps (R, seeds) at which they are taken."""

    x: Tree
    step: jax.Array


class Path(NamedTuple):
    """What the loop wrote down of a chunk of steps, (steps, seeds, ...); None is what it did not."""

    x: Tree  # x_t
    m: Tree | None  # m_t, if chunks do not end at recorded steps, the only ones that need it
    size: jax.Array  # ||m_t||
    point: Tree | None  # what the algorithm hands out at step t, if that is another point than x_t
    grad_norm: jax.Array | None  # ||grad F|| there, if it was asked in the step
    cost: jax.Array | None  # what the step asked, if that is not known beforehand
    noted: Tree  # what the step left for the observer
    gradient: Tree | None = None  # grad F, if it was asked of the whole chunk

    @property
    def handed(self) -> Tree:
        return self.x if self.point is None else self.point


class Recorder(NamedTuple):
    """Everything that is kept, for a batch of seeds; `row` is the next row of the records."""

    stats: RunningStats
    records: Records
    saved: SavedIterates
    row: jax.Array


def at_step(tree: Tree, place: Any) -> Tree:
    """What stands at one place of a chunk, (steps, ...) -> (...)."""
    return jax.tree.map(partial(jax.lax.dynamic_index_in_dim, index=place, keepdims=False, **LEADING), tree)


def put_row(tables: Tree, rows: Tree, i: Any) -> Tree:
    """With another row i."""
    return jax.tree.map(partial(jax.lax.dynamic_update_index_in_dim, index=i, **LEADING), tables, rows)


def take_steps(tree: Tree, place: jax.Array) -> Tree:
    """Of every seed what stands at its own place, (steps, seeds, ...) -> (seeds, ...).

    Among few steps a sum in which all others are zero: it runs along memory, and picking number by number does not.
    """

    if place.size == 1:
        return at_step(tree, place[0])

    def take(a: jax.Array) -> jax.Array:
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
    if jax.default_backend() != "cpu" or (place.size == 1 and bytes_of(old) <= FEW):
        return select(which, take_steps(points, place), old)
    return jax.lax.cond(jnp.any(which), lambda: select(which, take_steps(points, place), old), lambda: old)


def with_norms(problem: Any, config: Any, cost: Any, path: Path) -> Path:
    """With norms of gradients and costs, if they were not written down; `cost` is that of each step of the chunk."""
    if cost is not None:
        path = path._replace(cost=jnp.full((config.chunk, 1), cost))
    if config.average and path.grad_norm is None:
        gradient = _over_points(problem.full_grad, path.handed)
        return path._replace(gradient=gradient, grad_norm=_over_points(norm, gradient))
    return path if config.average else path._replace(grad_norm=path.size)


def _over_points(function: Any, points: Tree) -> Tree:
    """A function of one point for all points of a chunk, in one call."""
    steps, seeds = jax.tree.leaves(points)[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(steps * seeds, *a.shape[2:]), points)
    return jax.tree.map(lambda a: a.reshape(steps, seeds, *a.shape[1:]), jax.vmap(function)(flat))


def updated(stats: RunningStats, path: Any, t0: Any, start: Any, end: Any, stops: bool) -> tuple[RunningStats, Any]:
    """The statistics after steps start + 1 .. end of a chunk after t0, and which seeds took the last of them.

    Sums, and smallest norms, are one operation each: what is compiled here is a good part of a first call.
    """
    (n, seeds), steps = path.size.shape, (0, 1)
    form = (n // BLOCK, BLOCK, -1) if seeds == 1 and n % BLOCK == 0 else (1, n, -1)
    t = t0 + np.arange(1, n + 1, dtype=np.int32).reshape(form)
    size, grad_norm, asks = (a.reshape(form) for a in (path.size, path.grad_norm, path.cost))
    here, finite = (start < t) & (t <= end), jnp.isfinite(size) & jnp.isfinite(grad_norm)
    bad, sound = jnp.min(jnp.where(here & ~finite, t, NEVER), steps), stats.diverged == 0  # the first non-finite number
    last, fell = jnp.minimum(bad, end), sound & (bad <= end)
    asked = here & (t <= last) & sound
    asked = asked & (asks > 0) if stops else asked
    alive, cost = asked & (t < bad), jnp.where(asked, asks, jnp.uint32(0))
    terms = jnp.stack([grad_norm, size, grad_norm * cost.astype(size.dtype)], 2)
    summed = jnp.sum(jnp.where(alive[:, :, None], terms, 0), 1)
    summed = jnp.sum(barrier(summed) if seeds == 1 else summed, 0)  # by blocks, for one long sum would round more
    sums, lost = kahan(stats.sums, stats.lost, summed.T)
    least, smallest = jnp.min(jnp.where(alive[:, :, None], terms[:, :, :2], jnp.inf), steps)
    best_step = jnp.min(jnp.where(alive & (size == smallest), t, last), steps)
    better, count = smallest < stats.best, stats.cost + jnp.sum(cost, steps, dtype=jnp.uint32)
    after = RunningStats(
        sums,
        lost,
        least=jnp.minimum(stats.least, least),
        cost=count,
        carry=stats.carry + (count < stats.cost).astype(jnp.uint32),
        diverged=jnp.where(fell, last, stats.diverged),
        halt=take_any(fell, path.handed, last - 1 - t0, stats.halt),
        best=jnp.where(better, smallest, stats.best),
        best_step=jnp.where(better, best_step, stats.best_step),
        best_x=take_any(better, path.handed, best_step - 1 - t0, stats.best_x),
    )
    took = sound & (bad > end)
    return after, took & (at_step(path.cost, end - 1 - t0) > 0) if stops else took


def recorded(problem: Any, config: Any, t: Any, now: RunningStats, alive: jax.Array, path: Path) -> Records:
    """The row of step t, with the statistics after it; `path` is that step's."""
    point = path.handed
    value = grad_norm = error = mean = by_cost = jnp.full_like(now.best, jnp.nan)
    if knows(problem, "value"):
        value = jax.vmap(problem.value)(point)
    if knows(problem, "full_grad"):
        at_point = jax.vmap(problem.full_grad)(point) if path.gradient is None else path.gradient
        at_iterate = at_point if path.point is None else jax.vmap(problem.full_grad)(path.x)
        grad_norm = jax.vmap(norm)(at_point)
        error = jax.vmap(norm)(jax.tree.map(jnp.subtract, path.m, at_iterate))
    if config.average:
        asked = now.cost.astype(mean.dtype) + now.carry.astype(mean.dtype) * 2.0**32
        sums = now.sums - now.lost
        mean, by_cost = sums[:, 0] / t, sums[:, 2] / asked
    found = jnp.stack([v.astype(now.best.dtype) for v in (grad_norm, mean, by_cost, value, error)])
    return Records(jnp.where(alive, found, jnp.nan), jnp.stack([now.cost, now.carry]))


def record(
    problem: Any, config: Any, schedule: RecordSchedule, kept: Recorder, path: Path, m: Tree, t0: Any, end: Any
) -> Recorder:
    """What is kept after the steps of a chunk up to `end`, from recorded step to recorded step; m is the last m_t."""

    def part(carry: tuple[Recorder, Any]) -> tuple[Recorder, Any]:
        kept, start = carry
        due = schedule.record_steps[kept.row]
        t = end if config.cut else jnp.minimum(due, end)
        now, alive = updated(kept.stats, path, t0, start, t, config.stops)

        def write() -> Any:
            here: Path = at_step(path, t - 1 - t0)
            here = here._replace(m=m) if here.m is None else here
            return put_row(kept.records, recorded(problem, config, t, now, alive, here), kept.row)

        records = jax.lax.cond(due == t, write, lambda: kept.records)
        return Recorder(now, records, kept.saved, kept.row + (due == t)), t

    once = part if config.cut else lambda carry: jax.lax.while_loop(lambda carry: carry[1] < end, part, carry)
    kept, _ = once((kept, t0))
    return kept._replace(saved=save(kept.stats, kept.saved, path.handed, t0, end))


def save(after: RunningStats, saved: SavedIterates, points: Tree, t0: Any, end: Any) -> SavedIterates:
    """Keep the iterates that are to be taken in this chunk."""
    due, halted = (t0 < saved.step) & (saved.step <= end), (after.diverged > 0) & (after.diverged < saved.step)

    def row(due: jax.Array, halted: jax.Array, step: jax.Array, old: Tree) -> Tree:
        return select(due, select(halted, after.halt, take_steps(points, step - 1 - t0)), old)

    taken = partial(jax.vmap(row), due, halted, saved.step, saved.x)
    few = due.shape[1] == 1 and bytes_of(saved.x) <= FEW
    return saved._replace(x=taken() if few else jax.lax.cond(jnp.any(due), taken, lambda: saved.x))
