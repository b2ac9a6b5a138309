"""The loop: a batch of seeds goes from chunk to chunk of steps, in one compiled program for every horizon.

    draw      samples: of every step in the step, or of a whole chunk ahead of it where that pays
    step      one after the other; x_t, ||m_t|| and what else is needed are written down
    measure   what was written down, for the whole chunk at once (see `recording`)

A batch has one of a few widths, and every seed of a width goes through the same program of the same shapes. So its
numbers cannot depend on its company, and all trip counts are data: they do not depend on how a run is cut, either.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from normstorm._shared.jax_internals import barrier
from normstorm.algorithms.core import Algorithm, State
from normstorm.algorithms.geometries import norm
from normstorm.random import step_key

from .recording import Path, Recorder, RecordSchedule, at_step, measure, record, save, updated

Tree = Any


class ExecutionConfig(NamedTuple):
    """The program's fixed sizes.

    width    seeds of a batch
    chunk    steps whose iterates are measured at once
    ahead    whether the samples of a chunk are drawn at once, too: those of one step would not fill a register or GPU
    cut      whether chunks end at recorded steps, so that m_t need not be written down for them
    average  whether grad F is asked at every step (mean and minimum) or only at recorded ones
    in_step  whether it is then asked in the step, which may share work with it; else of the whole chunk at once
    exact    whether the problem knows grad F;   valued   whether it knows F
    costs    sample gradients of the first step and of a later one, if they are known beforehand
    piece    steps that are taken in small arrays, if they fit there; else 0
    counted  whether a chunk of full length is a loop of its own, whose steps are known beforehand: a GPU, which waits
             for the host wherever it has to ask, then need not ask
    watched  whether the observer follows a chunk of steps after it;   stops   and may end a seed before the others
    on_chip  whether the loop over steps is one kernel of a GPU
    wide     whether a CPU's 512-bit registers are used;   quick   whether it is compiled in the older and quicker way
    """

    width: int
    chunk: int
    ahead: bool
    cut: bool
    average: bool
    in_step: bool
    exact: bool
    valued: bool
    costs: tuple[int, int] | None
    piece: int = 0
    counted: bool = False
    watched: bool = False
    stops: bool = False
    on_chip: bool = False
    wide: bool = False
    quick: bool = False


class Batch(NamedTuple):
    """A batch of seeds after t steps: two key words for each, the algorithm's state, and what is kept."""

    seed: jax.Array
    state: State
    recorder: Recorder
    t: jax.Array


def draw_chunk(problem: Any, algorithm: Algorithm, config: ExecutionConfig, seeds: jax.Array, t: Any) -> Tree:
    """The samples of steps t + 1, t + 2, ... of a chunk, (steps, seeds, ...): a function of seed and step alone."""
    C, W = config.chunk, config.width
    step = jnp.repeat(t + 1 + jnp.arange(C, dtype=jnp.int32), W)
    flat = jax.vmap(lambda seed, step: algorithm.draw(problem, step_key(seed, step)))(jnp.tile(seeds, (C, 1)), step)
    return barrier(jax.tree.map(lambda a: a.reshape(C, W, *a.shape[1:]), flat))


def path_row(problem: Any, config: ExecutionConfig, algorithm: Algorithm, state: State, cost: Any) -> Path:
    """What is written down of one step of one seed."""
    point = algorithm.point(state)
    another = point is not state.x_prev
    known = norm(problem.full_grad(point)) if config.average and config.in_step else None
    asked = None if config.costs else jnp.asarray(cost, jnp.uint32)
    m = None if config.cut else state.m
    noted = state.observer.noted if config.watched else ()
    return Path(state.x_prev, m, norm(state.m), point if another else None, known, asked, noted)


def _put(table: Tree, row: Tree, i: Any) -> Tree:
    return jax.tree.map(lambda a, new: jax.lax.dynamic_update_index_in_dim(a, new, i, 0), table, row)


def begin(
    problem: Any, algorithm: Algorithm, config: ExecutionConfig, seed: jax.Array, x: Tree, drawn: Tree
) -> tuple[State, Path]:
    """Step 1 of one seed."""
    drawn = drawn if config.ahead else algorithm.draw(problem, step_key(seed, 1))
    state, cost = algorithm.first(problem, x, drawn)
    return state, path_row(problem, config, algorithm, state, cost)


def take_chunk(
    problem: Any, algorithm: Algorithm, config: ExecutionConfig, t0: Any, count: Any, batch: Batch, path: Path
) -> tuple[State, Path]:
    """`count` steps after step t0.

    Steps of few numbers go by pieces: XLA executes a loop in plain order if all its arrays are small (512 bytes), and
    else looks for operations to do at the same time, which takes longer than they do.
    """
    ahead = draw_chunk(problem, algorithm, config, batch.seed, t0) if config.ahead else None
    over = ended(algorithm, config, t0, batch.state)

    def steps(samples: Tree, start: Any, low: Any, high: Any, state: State, path: Path) -> tuple[State, Path]:
        """Steps low .. high - 1 of `samples`, whose first one is step `start` of the chunk."""

        def step(i: Any, carry: tuple[State, Path]) -> tuple[State, Path]:
            state, path = carry
            t = t0 + 1 + start + i

            def one(seed: jax.Array, state: State, drawn: Tree, ended: Any) -> tuple[State, Path]:
                drawn = drawn if config.ahead else algorithm.draw(problem, step_key(seed, t))
                after, cost = algorithm.step(problem, state, drawn, t)
                if config.stops:
                    after = jax.tree.map(lambda new, old: jnp.where(ended, old, new), after, state)
                    cost = jnp.where(ended, 0, cost)
                return after, path_row(problem, config, algorithm, after, cost)

            moved, row = jax.vmap(one)(batch.seed, state, at_step(samples, i), over)
            return moved, _put(path, row, i)

        taken: tuple[State, Path] = jax.lax.fori_loop(low, high, step, (state, path))
        return taken

    def piece(j: Any, carry: tuple[State, Path, Path]) -> tuple[State, Path, Path]:
        state, path, part = carry
        start = j * config.piece
        few = jax.tree.map(lambda s: jax.lax.dynamic_slice_in_dim(s, start, config.piece, 0), ahead)
        low, high = jnp.maximum(first - start, 0), jnp.minimum(count - start, config.piece)
        state, part = steps(few, start, low, high, state, part)
        path = jax.tree.map(lambda a, few: jax.lax.dynamic_update_slice_in_dim(a, few, start, 0), path, part)
        return state, path, part

    first = jnp.where(t0 == 0, 1, 0)
    state, row = jax.lax.cond(
        t0 == 0,
        lambda: jax.vmap(partial(begin, problem, algorithm, config))(batch.seed, batch.state.x, at_step(ahead, 0)),
        lambda: (batch.state, at_step(path, 0)),
    )
    path = _put(path, row, 0)
    if config.counted:
        whole = count - first == config.chunk
        taken: tuple[State, Path] = jax.lax.cond(
            whole,
            lambda: steps(ahead, 0, 0, config.chunk, state, path),
            lambda: steps(ahead, 0, first, count, state, path),
        )
        return taken
    if not config.piece:
        return steps(ahead, 0, first, count, state, path)
    part = jax.tree.map(lambda a: a[: config.piece], path)
    state, path, _ = jax.lax.fori_loop(0, -(-count // config.piece), piece, (state, path, part))
    return state, path


def ended(algorithm: Algorithm, config: ExecutionConfig, t: Any, state: State) -> jax.Array | None:
    """Which seeds their observer has ended; None if it may not."""
    return (t > 0) & jax.vmap(algorithm.observer.stopped)(state.observer) if config.stops else None


def followed(
    problem: Any,
    algorithm: Algorithm,
    config: ExecutionConfig,
    t0: Any,
    count: Any,
    batch: Batch,
    after: State,
    path: Path,
) -> State:
    """The state after a chunk, which its observer has followed; there is nothing to follow in the first step."""
    steps = jnp.where(t0 == 0, 0, count)

    def one(before: State, after: State, path: Path, ended: Any) -> Tree:
        last = before.x_prev, before.m
        seen = path.x, path.m, path.size, path.noted, path.grad_norm
        watch = algorithm.observer.follow(problem, last, *seen, steps, after.observer)
        return watch if ended is None else jax.tree.map(partial(jnp.where, ended), before.observer, watch)

    over = ended(algorithm, config, t0, batch.state)
    after = after._replace(observer=jax.vmap(one, (0, 0, 1, 0))(batch.state, after, path, over))
    if not hasattr(algorithm.schedule, "told"):
        return after

    def told(watch: Tree, kept: Tree) -> Tree:
        return algorithm.observer.told(watch, algorithm.schedule, kept)

    return after._replace(schedule=jax.vmap(told)(after.observer, after.schedule))


def known_costs(config: ExecutionConfig, t0: Any) -> jax.Array | None:
    """What the steps of a chunk ask, if that is known beforehand."""
    if config.costs is None:
        return None
    first, later = (jnp.uint32(c) for c in config.costs)
    return jnp.where((jnp.arange(config.chunk) == 0) & (t0 == 0), first, later)


def advance(
    problem: Any, algorithm: Algorithm, config: ExecutionConfig, stop: Any, schedule: RecordSchedule, batch: Batch
) -> Batch:
    """Go on until `stop` steps are done."""

    def chunk(carry: tuple[Batch, Path]) -> tuple[Batch, Path]:
        batch, path = carry
        t0, kept = batch.t, batch.recorder
        end = jnp.minimum(t0 - t0 % config.chunk + config.chunk, stop)
        end = jnp.minimum(end, schedule.record_steps[kept.row]) if config.cut else end
        end = jnp.where(t0 == 0, 1, end) if config.watched else end  # the first step is not followed
        count = end - t0
        state, path = take_chunk(problem, algorithm, config, t0, count, batch, path)
        if config.watched:
            state = followed(problem, algorithm, config, t0, count, batch, state, path)
        seen = measure(problem, config, known_costs(config, t0), kept.stats, path, t0, count)
        stats = updated(kept.stats, seen)
        records, row = record(problem, config, schedule.record_steps, kept, seen, path, state.m)
        saved = save(schedule.bounds, stats, kept.saved, seen)
        return Batch(batch.seed, state, Recorder(stats, records, saved, row), end), path

    first = jax.vmap(partial(begin, problem, algorithm, config._replace(ahead=False)))
    _, row = jax.eval_shape(first, batch.seed, batch.state.x, None)
    path = jax.tree.map(lambda a: jnp.zeros((config.chunk, *a.shape), a.dtype), row)
    return jax.lax.while_loop(lambda carry: carry[0].t < stop, chunk, (batch, path))[0]
