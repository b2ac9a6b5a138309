"""The noise of all lanes: for a block of steps, or by and by inside the kernel that takes the steps.

It is a function of seed and step alone. Wherever it is drawn, one loop makes `block` columns, each the samples of one
lane in one step, so that the loop is long, and short enough to stay near the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from normstorm._shared.jax_internals import one_kernel
from normstorm.random import step_key

from .lanes_last import over_lanes
from .program import Shape, Words

Tree = Any


def draw_all(words: Words, shape: Shape, seeds: jax.Array, t: Any) -> Tree:
    """Samples of steps t + 1 .. t + block for every lane, the step on the first axis."""

    def draw(step: Any) -> Tree:
        return jax.vmap(partial(_samples, words, step=step), shape.axis, shape.axis)(seeds)

    return jax.vmap(draw)(t + 1 + jnp.arange(shape.block, dtype=jnp.int32))


def draw_block(words: Words, shape: Shape, seeds: jax.Array, live: Any, t: Any) -> Tree:
    """The same; small problems draw for every live lane, one after the other, so that empty lanes cost nothing.

    In one kernel if possible: else every operation is dispatched for every lane, and XLA spreads the larger ones over
    threads, which wait for each other longer than they work.
    """
    if shape.wide:
        return draw_all(words, shape, seeds, t)
    if shape.axis == 0:
        return _barrier(jax.tree.map(lambda s: _laid(s, range(s.ndim)), draw_all(words, shape, seeds, t)))

    def draw(seed: jax.Array, t: Any) -> Tree:
        steps = t + 1 + jnp.arange(shape.block, dtype=jnp.int32)
        drawn = jax.vmap(partial(_samples, words, seed))(steps)
        # The innermost loop must run over many steps, not over a few coordinates.
        return jax.tree.map(lambda s: jnp.moveaxis(_laid(s, (*range(1, s.ndim), 0)), 0, -1), drawn)

    def draw_lanes(by_lane: jax.Array, live: Any, t: Any) -> Tree:
        empty = jax.tree.map(lambda s: jnp.zeros((shape.lanes, *s.shape), s.dtype), jax.eval_shape(draw, by_lane[0], t))

        def fill(lane: Any, buffer: Tree) -> Tree:
            return jax.tree.map(lambda b, s: _put(b, s, lane), buffer, draw(by_lane[lane], t))

        return jax.lax.fori_loop(0, live, fill, empty)

    kernel = partial(one_kernel, draw_lanes) if shape.drawing else draw_lanes
    full = _barrier(kernel(seeds.T, live, t))
    return _barrier(jax.tree.map(lambda b: jnp.swapaxes(b, 0, -1), full))


class Source(NamedTuple):
    """What a kernel needs that draws its noise itself.

    seeds     two words for every lane
    live      lanes that hold seeds
    crowded   whether most do; then all lanes are drawn for a few steps, else one by one for many
    seed      of every column, if all lanes are drawn;   step   counted from 0
    """

    seeds: jax.Array
    live: Any
    crowded: Any
    seed: jax.Array
    step: jax.Array


class Drawn(NamedTuple):
    """Samples of the steps after `since` that such a kernel has at hand: (part, ..., column).

    A part is `few` steps of all lanes: first all lanes of one step, then those of the next.
    """

    parts: Tree
    since: Any


def source(shape: Shape, seeds: jax.Array, live: Any) -> Source:
    step = jnp.arange(shape.block, dtype=jnp.int32) // shape.lanes
    made: Source = _barrier(Source(seeds, live, live > shape.lanes // 2, jnp.tile(seeds, shape.few), step))
    return made


def nothing_drawn(words: Words, shape: Shape) -> Drawn:
    form = jax.eval_shape(partial(_samples, words), jnp.zeros(2, jnp.uint32), 0)
    parts = jax.tree.map(lambda s: jnp.zeros((shape.lanes, *s.shape, shape.block), s.dtype), form)
    return Drawn(parts, jnp.asarray(-1, jnp.int32))


def at_once(shape: Shape, source: Source) -> Any:
    """Steps that are drawn at once."""
    return jnp.where(source.crowded, shape.few, shape.block)


def reach(shape: Shape, source: Source, drawn: Drawn) -> Any:
    """The last step whose samples are drawn."""
    return drawn.since + at_once(shape, source)


def refill(words: Words, shape: Shape, source: Source, drawn: Drawn, t: Any) -> Drawn:
    """The samples of step t + 1 and some around it, drawn unless they are there.

    One loop draws for crowds and for single lanes, hence the same numbers for both.
    """
    since, column = t - t % at_once(shape, source), jnp.arange(shape.block, dtype=jnp.int32)

    def draw(lane: Any) -> Tree:
        seed = jnp.where(source.crowded, source.seed, jax.lax.dynamic_slice_in_dim(source.seeds, lane, 1, 1))
        step = since + 1 + jnp.where(source.crowded, source.step, column)
        return _barrier(over_lanes(partial(_samples, words), seed, step))

    def fill(lane: Any, parts: Tree) -> Tree:
        columns = draw(lane)

        def put_part(i: Any, parts: Tree) -> Tree:
            return jax.tree.map(lambda b, s: _put(b, s, i), parts, columns)

        def put_lane(i: Any, parts: Tree) -> Tree:
            """The lane's i-th step of every part."""

            def put(b: jax.Array, s: jax.Array) -> jax.Array:
                every = jax.lax.dynamic_index_in_dim(s.reshape(*s.shape[:-1], shape.lanes, shape.few), i, -1)
                return jax.lax.dynamic_update_slice_in_dim(b, jnp.moveaxis(every, -2, 0), i * shape.lanes + lane, -1)

            return jax.tree.map(put, parts, columns)

        # Loops of no rounds leave things where they are; branches would copy.
        parts = jax.lax.fori_loop(0, jnp.where(source.crowded, 1, 0), put_part, parts)
        return jax.lax.fori_loop(0, jnp.where(source.crowded, 0, shape.few), put_lane, parts)

    rounds = jnp.where(source.crowded, 1, source.live)
    return Drawn(jax.lax.fori_loop(0, jnp.where(since == drawn.since, 0, rounds), fill, drawn.parts), since)


def of_step(shape: Shape, drawn: Drawn, t: Any) -> Tree:
    """The samples of step t + 1, for every lane."""
    i = (t - drawn.since).astype(jnp.uint32)

    def take(b: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_index_in_dim(b, i // np.uint32(shape.few), 0, keepdims=False)
        return jax.lax.dynamic_slice_in_dim(part, i % np.uint32(shape.few) * np.uint32(shape.lanes), shape.lanes, -1)

    return jax.tree.map(take, drawn.parts)


def _samples(words: Words, seed: jax.Array, step: Any) -> Tree:
    return words.algorithm.draw(words.problem, step_key(seed, step))


def _put(table: jax.Array, row: jax.Array, i: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(table, row, i, 0)


def _laid(leaf: jax.Array, order: Sequence[int]) -> Any:
    """Fix the order in memory, slowest axis first; left alone, the compiler mixes orders and vectorises less."""
    return with_layout_constraint(leaf, Layout(tuple(order)))  # type: ignore[no-untyped-call]


def _barrier(tree: Tree) -> Tree:
    """Keep what comes before apart from what comes after: fused, neither would run along memory."""
    return jax.lax.optimization_barrier(tree)  # type: ignore[no-untyped-call]
