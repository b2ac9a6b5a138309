"""The loop: a batch of seeds goes from chunk to chunk of steps, in one compiled program for every horizon.

    draw      keys of a chunk of steps, and then samples: of every step in the step, or of the chunk where that pays
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
from normstorm.random import THREEFRY, step_words

from .recording import Path, Recorder, RecordSchedule, at_step, put_row, record, with_norms

Tree = Any
typed = partial(jax.random.wrap_key_data, impl=THREEFRY)


class ExecutionConfig(NamedTuple):
    """The program's fixed sizes."""

    width: int  # seeds of a batch
    chunk: int  # steps whose iterates are measured at once
    ahead: bool  # whether their samples are drawn at once, too: those of one step would not fill a GPU
    cut: bool  # whether chunks end at recorded steps, so that m_t need not be written down for them
    average: bool  # whether grad F is asked at every step (mean and minimum) or only at recorded ones
    in_step: bool  # whether it is then asked in the step, which may share work with it; else of a chunk at once
    costs: tuple[int, int] | None  # sample gradients of the first step and of a later one, if known beforehand
    stops: bool  # whether the observer may end a seed before the others
    wide: bool  # a hint to the compiler: wide registers
    quick: bool = False  # and another: the older of its ways, which takes half as long
    on_chip: bool = False  # whether the loop over steps is one kernel of a GPU


class Batch(NamedTuple):
    """A batch of seeds after t steps: two key words for each, the algorithm's state, and what is kept."""

    seed: jax.Array
    state: State
    recorder: Recorder
    t: jax.Array


def draw_chunk(problem: Any, algorithm: Algorithm, config: ExecutionConfig, seeds: jax.Array, t: Any) -> Tree:
    """The samples of steps t + 1, t + 2, ... of a chunk, (steps, seeds, ...): a function of seed and step alone.

    If they are drawn in the step, the words of its keys, (steps, 2, seeds): many cost little more than those of one.
    """
    words = step_words(seeds, t, config.chunk)
    if not config.ahead:
        return barrier(words)
    flat = jnp.moveaxis(words, 1, 0).reshape(2, -1)
    samples = jax.vmap(lambda key: algorithm.draw(problem, typed(key)), 1)(flat)
    return barrier(jax.tree.map(lambda a: a.reshape(config.chunk, config.width, *a.shape[1:]), samples))


def path_row(problem: Any, config: ExecutionConfig, algorithm: Algorithm, state: State, cost: Any) -> Path:
    """What is written down of one step of one seed."""
    point = algorithm.point(state)
    known = norm(problem.full_grad(point)) if config.average and config.in_step else None
    asked = None if config.costs else jnp.asarray(cost, jnp.uint32)
    m = None if config.cut else state.m
    noted = state.observer.noted if algorithm.watched else ()
    return Path(state.x_prev, m, norm(state.m), None if point is state.x_prev else point, known, asked, noted)


def take_chunk(
    problem: Any, algorithm: Algorithm, config: ExecutionConfig, count: Any, over: Any, batch: Batch, path: Path
) -> Any:
    """State and path after the first step, or after `count` steps behind it; `over` says which seeds have ended."""
    ahead, seeds = draw_chunk(problem, algorithm, config, batch.seed, batch.t), 0 if config.ahead else 1

    def drawn(given: Tree) -> Tree:
        return given if config.ahead else algorithm.draw(problem, typed(given))

    def step(i: Any, carry: tuple[State, Path]) -> tuple[State, Path]:
        def one(state: State, given: Tree, ended: Any) -> tuple[State, Path]:
            after, cost = algorithm.step(problem, state, drawn(given), batch.t + 1 + i)
            if ended is not None:
                after = jax.tree.map(partial(jnp.where, ended), state, after)
                cost = jnp.where(ended, 0, cost)
            return after, path_row(problem, config, algorithm, after, cost)

        moved, row = jax.vmap(one, (0, seeds, 0))(carry[0], at_step(ahead, i), over)
        return moved, put_row(carry[1], row, i)

    def first(x: Tree, given: Tree) -> tuple[State, Path]:
        state, cost = algorithm.first(problem, x, drawn(given))
        return state, path_row(problem, config, algorithm, state, cost)

    def begun() -> tuple[State, Path]:
        state, row = jax.vmap(first, (0, seeds))(batch.state.x, at_step(ahead, 0))
        return state, put_row(path, row, 0)

    given = jax.lax.cond(batch.t == 0, begun, lambda: (batch.state, path))
    if jax.default_backend() == "cpu":
        return jax.lax.fori_loop(0, count, step, given)
    # A GPU waits for the host wherever it has to ask: a chunk of full length is a loop that need not.
    whole, fewer = (partial(jax.lax.fori_loop, 0, n, step, given) for n in (config.chunk, count))
    return jax.lax.cond(count == config.chunk, whole, fewer)


def followed(
    problem: Any, algorithm: Algorithm, count: Any, over: Any, before: State, after: State, path: Path
) -> State:
    """The state after a chunk, which its observer has followed, but for seeds that have ended."""

    def one(before: State, after: State, path: Path, ended: Any) -> Tree:
        seen = (before.x_prev, before.m), path.x, path.m, path.size, path.noted, path.grad_norm
        watch = algorithm.observer.follow(problem, *seen, count, after.observer)
        return watch if ended is None else jax.tree.map(partial(jnp.where, ended), before.observer, watch)

    after = after._replace(observer=jax.vmap(one, (0, 0, 1, 0))(before, after, path, over))
    if not hasattr(algorithm.schedule, "told"):
        return after
    told = jax.vmap(algorithm.observer.told, (0, None, 0))(after.observer, algorithm.schedule, after.schedule)
    return after._replace(schedule=told)


def advance(
    problem: Any, algorithm: Algorithm, config: ExecutionConfig, stop: Any, schedule: RecordSchedule, batch: Batch
) -> Batch:
    """Go on until `stop` steps are done; the first one is a chunk of its own."""

    def chunk(carry: tuple[Batch, Path]) -> tuple[Batch, Path]:
        batch, path = carry
        t0, kept, first = batch.t, batch.recorder, batch.t == 0
        whole = t0 - jax.lax.rem(t0, jnp.int32(config.chunk)) + config.chunk
        end = jnp.minimum(jnp.where(first, 1, whole), stop)
        end = jnp.minimum(end, schedule.record_steps[kept.row]) if config.cut else end
        count = end - jnp.maximum(t0, 1)
        over = ~first & jax.vmap(algorithm.observer.stopped)(batch.state.observer) if config.stops else None
        state, path = take_chunk(problem, algorithm, config, count, over, batch, path)
        if algorithm.watched:
            state = followed(problem, algorithm, count, over, batch.state, state, path)
        cost = None if config.costs is None else jnp.where(first, *map(jnp.uint32, config.costs))
        recorder = record(problem, config, schedule, kept, with_norms(problem, config, cost, path), state.m, t0, end)
        return Batch(batch.seed, state, recorder, end), path

    rows = jax.vmap(partial(path_row, problem, config, algorithm))
    row = jax.eval_shape(rows, batch.state, batch.recorder.stats.cost)
    path = jax.tree.map(lambda a: jnp.zeros((config.chunk, *a.shape), a.dtype), row)
    return jax.lax.while_loop(lambda carry: carry[0].t < stop, chunk, (batch, path))[0]
