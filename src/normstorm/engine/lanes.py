"""The compiled part of a run: a fixed number of lanes, one seed in each, advanced together.

Every seed always goes through the same compiled program of the same shape, whatever the number of seeds, so its
numbers cannot depend on its company. Noise is a pure function of (seed, step); it is drawn for a block of steps at
a time and consumed by slices. All trip counts are data: one compilation serves every horizon.

On a CPU the noise is drawn one live lane after the other (an empty lane costs none), and the loop over steps is
handed to the compiler as one kernel; without that, XLA dispatches every small operation of every step. Loops with
operations that such a kernel cannot hold are compiled in the ordinary way. For a GPU see `chip`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from ..compiler import one_kernel
from ..random import step_key
from .core import Algorithm, State
from .geometries import norm
from .lanes_last import over_lanes

Tree = Any
NEVER = np.iinfo(np.int32).max  # a step that does not come


class Words(NamedTuple):
    """What is run on what."""

    problem: Any
    algorithm: Algorithm


class Shape(NamedTuple):
    """The program's fixed sizes.

    lanes    seeds advanced together: a group
    groups   groups served one after the other by one call, to spread its overhead
    block    steps whose noise is drawn at once
    axis     where the lanes lie in every array: last for small problems (-1), first for large ones (0)
    average  whether grad F is asked at every step (mean and minimum) or only at recorded ones
    exact    whether the problem knows grad F;   valued   whether it knows F
    kernel   whether the loop over steps is one kernel of a CPU
    wide     whether the noise of all lanes is drawn at once, as accelerators like it
    chip     whether the loop over steps is one kernel of a GPU, for all groups of a call
    """

    lanes: int
    groups: int
    block: int
    axis: int
    average: bool
    exact: bool
    valued: bool
    kernel: bool
    wide: bool
    chip: bool


class Seen(NamedTuple):
    """What was seen along the way, one entry per lane; `diverged` is the step of the first non-finite number, or 0."""

    total: jax.Array
    lost: jax.Array
    least: jax.Array
    cost: jax.Array
    carry: jax.Array
    diverged: jax.Array
    best: jax.Array
    best_step: jax.Array
    best_x: Tree


class Lane(NamedTuple):
    """One seed: its two key words, the algorithm's state, what was seen."""

    seed: jax.Array
    state: State
    seen: Seen


class Records(NamedTuple):
    """Rows written at recorded steps, and one more; the last axis is that of the lanes."""

    grad_norm: jax.Array
    mean: jax.Array
    value: jax.Array
    error: jax.Array
    cost: jax.Array
    carry: jax.Array


class Kept(NamedTuple):
    """Iterates kept on the way, (R, ...) in the lanes' layout, and the steps (R, lanes) at which they are taken."""

    x: Tree
    step: jax.Array


class Group(NamedTuple):
    """All that one group of lanes carries along: t steps are done and `row` is the next row of the records."""

    lanes: Lane
    kept: Kept
    records: Records
    t: jax.Array
    row: jax.Array


def _select(keep: jax.Array, new: Tree, old: Tree) -> Tree:
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def _see(words: Words, shape: Shape, seen: Seen, state: State, cost: Any, t: Any) -> tuple[Seen, jax.Array]:
    """Account for step t, which asked `cost` sample gradients at x_t = state.x_prev; also ||m_t||."""
    size = norm(state.m)
    total, lost, least = seen.total, seen.lost, seen.least
    finite = jnp.isfinite(size)
    if shape.average:
        g = norm(words.problem.full_grad(state.x_prev))
        finite &= jnp.isfinite(g)
        if g.dtype == jnp.float32:
            # Kahan's sum: a plain one stops growing after some 10^7 steps.
            term = g - lost
            total = seen.total + term
            lost = (total - seen.total) - term
        else:
            total = seen.total + g
        least = jnp.where(g < least, g, least)
    alive = seen.diverged == 0
    count = seen.cost + jnp.where(alive, jnp.asarray(cost, jnp.uint32), 0)
    diverged = jnp.where(alive & ~finite, jnp.asarray(t, jnp.int32), seen.diverged)
    return seen._replace(total=total, lost=lost, least=least, cost=count, diverged=diverged), size


def advance_lane(words: Words, shape: Shape, t: Any, lane: Lane, samples: Tree) -> tuple[Lane, jax.Array]:
    state, cost = words.algorithm.step(words.problem, lane.state, samples, t)
    seen, size = _see(words, shape, lane.seen, state, cost, t)
    return _settle(lane.seed, state, seen), size


def _settle(seed: jax.Array, state: State, seen: Seen) -> Lane:
    """A lane that has diverged stays at x_t; that is also what the next step finds as x_{t-1}."""
    return Lane(seed, state._replace(x=_select(seen.diverged == 0, state.x, state.x_prev)), seen)


def _keep_best(shape: Shape, lanes: Lane, size: jax.Array, t: Any) -> Lane:
    """Keep x_t in the lanes where ||m_t|| = `size` is the smallest so far; in most steps there is none."""
    better = size < lanes.seen.best

    def keep(seen: Seen) -> Seen:
        best_x = _over_lanes(shape, _select, better, lanes.state.x_prev, seen.best_x)
        step = jnp.where(better, jnp.asarray(t, jnp.int32), seen.best_step)
        return seen._replace(best=jnp.where(better, size, seen.best), best_step=step, best_x=best_x)

    return lanes._replace(seen=jax.lax.cond(better.any(), keep, lambda seen: seen, lanes.seen))


def _take(shape: Shape, lanes: Lane, kept: Kept, t: Any) -> Kept:
    """Keep x_t in the lanes and rows where it was to be taken."""

    def take(due: jax.Array, old: Tree) -> Tree:
        return _over_lanes(shape, _select, due, lanes.state.x_prev, old)

    return kept._replace(x=jax.vmap(take)(kept.step == t, kept.x))


def _put(table: jax.Array, row: jax.Array, i: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(table, row, i, 0)


def _over_lanes(shape: Shape, function: Callable[..., Any], *lanes: Any) -> Any:
    """vmap over the lanes' axis."""
    if shape.axis < 0:
        return over_lanes(function, *lanes)
    return jax.vmap(function, in_axes=shape.axis, out_axes=shape.axis)(*lanes)


def _laid(leaf: jax.Array, order: Sequence[int]) -> Any:
    """Fix the order in memory, slowest axis first; left alone, the compiler mixes orders and vectorises less."""
    return with_layout_constraint(leaf, Layout(tuple(order)))  # type: ignore[no-untyped-call]


def _barrier(tree: Tree) -> Tree:
    """Keep what comes before apart from what comes after: fused, neither would run along memory."""
    return jax.lax.optimization_barrier(tree)  # type: ignore[no-untyped-call]


def draw_all(words: Words, shape: Shape, seeds: jax.Array, t: Any) -> Tree:
    """Samples of steps t + 1 .. t + block for every lane, the step on the first axis."""

    def draw(step: Any) -> Tree:
        return jax.vmap(
            lambda seed: words.algorithm.draw(words.problem, step_key(seed, step)),
            in_axes=shape.axis,
            out_axes=shape.axis,
        )(seeds)

    return jax.vmap(draw)(t + 1 + jnp.arange(shape.block, dtype=jnp.int32))


def _draw_block(words: Words, shape: Shape, seeds: jax.Array, live: Any, t: Any) -> Tree:
    """The same for every live lane, one after the other."""
    if shape.wide:
        return draw_all(words, shape, seeds, t)
    lane_axis = shape.axis

    def draw(seed: jax.Array) -> Tree:
        steps = t + 1 + jnp.arange(shape.block, dtype=jnp.int32)
        drawn = jax.vmap(lambda step: words.algorithm.draw(words.problem, step_key(seed, step)))(steps)
        if lane_axis == 0:
            return drawn
        # The innermost loop must run over many steps, not over a few coordinates.
        return jax.tree.map(lambda s: jnp.moveaxis(_laid(s, (*range(1, s.ndim), 0)), 0, -1), drawn)

    by_lane = seeds if lane_axis == 0 else seeds.T
    empty = jax.tree.map(lambda s: jnp.zeros((shape.lanes, *s.shape), s.dtype), jax.eval_shape(draw, by_lane[0]))

    def fill(lane: Any, buffer: Tree) -> Tree:
        return jax.tree.map(lambda b, s: _put(b, s, lane), buffer, draw(by_lane[lane]))

    full = _barrier(jax.lax.fori_loop(0, live, fill, empty))
    if lane_axis == 0:
        return jax.tree.map(lambda b: jnp.swapaxes(b, 0, 1), full)
    return _barrier(jax.tree.map(lambda b: jnp.swapaxes(b, 0, -1), full))


def _steps(words: Words, shape: Shape, group: Group, noise: Tree, t0: Any, end: Any) -> tuple[Lane, Kept]:
    """Steps up to `end`; noise[i] belongs to step t0 + 1 + i."""

    def one(i: Any, lanes: Lane) -> Lane:
        samples = jax.tree.map(lambda b: jax.lax.dynamic_index_in_dim(b, i, 0, keepdims=False), noise)
        moved, size = _over_lanes(shape, partial(advance_lane, words, shape, t0 + 1 + i), lanes, samples)
        return _keep_best(shape, moved, size, t0 + 1 + i)

    def stretch(carry: tuple[Lane, Kept, Any]) -> tuple[Lane, Kept, Any]:
        """Up to the next step at which some lane's iterate is taken."""
        lanes, kept, t = carry
        until = jnp.minimum(end, jnp.min(jnp.where(kept.step > t, kept.step, end)))
        odd = (until - t) % 2
        lanes = jax.lax.fori_loop(t - t0, t - t0 + odd, one, lanes)

        def two(i: Any, lanes: Lane) -> Lane:
            at = t - t0 + odd + 2 * i
            return one(at + 1, one(at, lanes))

        lanes = jax.lax.fori_loop(0, (until - t) // 2, two, lanes)
        return lanes, _take(shape, lanes, kept, until), until

    def loop(*carry: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[2] < end, stretch, carry)

    before = group.lanes, group.kept, group.t
    lanes, kept, _ = one_kernel(loop, *before) if shape.kernel else loop(*before)
    return count_over(group.lanes, lanes), kept


def count_over(before: Lane, after: Lane) -> Lane:
    """Carry to the upper word of the cost; a block of steps adds less than 2^32 (see `layout`)."""
    carry = after.seen.carry + (after.seen.cost < before.seen.cost).astype(jnp.uint32)
    return after._replace(seen=after.seen._replace(carry=carry))


def _look(words: Words, shape: Shape, lanes: Lane, t: Any) -> tuple[jax.Array, ...]:
    """What is known of x_t and m_t, in the order of the records."""

    def look(lane: Lane) -> tuple[jax.Array, ...]:
        x, alive = lane.state.x_prev, lane.seen.diverged == 0
        value = grad_norm = error = mean = jnp.full_like(lane.seen.best, jnp.nan)
        if shape.valued:
            value = words.problem.value(x)
        if shape.exact:
            gradient = words.problem.full_grad(x)
            grad_norm, error = norm(gradient), norm(jax.tree.map(jnp.subtract, lane.state.m, gradient))
        if shape.average:
            mean = (lane.seen.total - lane.seen.lost) / t
        seen = (jnp.where(alive, v, jnp.nan) for v in (grad_norm, mean, value, error))
        return *(v.astype(lane.seen.best.dtype) for v in seen), lane.seen.cost, lane.seen.carry

    # Scalars have no other axis, so that the lanes' axis is the last one in either layout.
    found: tuple[jax.Array, ...] = _over_lanes(shape, look, lanes)
    return found


def mark(words: Words, shape: Shape, dates: jax.Array, group: Group) -> Group:
    """If the step just done is to be recorded, write its row; else what is written there is written over later."""
    due = dates[group.row] == group.t
    nothing = tuple(jnp.zeros_like(table[0]) for table in group.records)
    entries = jax.lax.cond(due, lambda: _look(words, shape, group.lanes, group.t), lambda: nothing)
    records = (_put(table, entry, group.row) for table, entry in zip(group.records, entries, strict=True))
    return group._replace(records=Records(*records), row=group.row + due)


def begin(
    words: Words, shape: Shape, x: Tree, dates: jax.Array, seeds: jax.Array, kept: Kept, records: Records
) -> Group:
    """Step 1 from the same x_1 in every lane."""

    def draw(seed: jax.Array) -> Tree:
        return words.algorithm.draw(words.problem, step_key(seed, 1))

    def first(seed: jax.Array, samples: Tree) -> tuple[Lane, jax.Array]:
        state, cost = words.algorithm.first(words.problem, x, samples)
        zero = jnp.zeros_like(norm(state.m))
        count = jnp.zeros_like(seed[0])
        step = count.astype(jnp.int32)
        nothing = Seen(zero, zero, zero + jnp.inf, count, count, step, zero + jnp.inf, step, x)
        seen, size = _see(words, shape, nothing, state, cost, 1)
        return _settle(seed, state, seen), size

    samples = _barrier(_over_lanes(shape, draw, seeds))
    zero = jnp.zeros((), jnp.int32)
    lanes, size = _over_lanes(shape, first, seeds, samples)
    lanes = _keep_best(shape, lanes, size, 1)
    return mark(words, shape, dates, Group(lanes, _take(shape, lanes, kept, 1), records, zero + 1, zero))


def advance(words: Words, shape: Shape, stop: Any, dates: jax.Array, group: Group, live: Any) -> Group:
    """Go on until `stop` steps are done. Only the first `live` lanes hold seeds."""
    stop = jnp.where(live > 0, stop, group.t)

    def block(group: Group) -> Group:
        t0 = group.t
        end = jnp.minimum(t0 + shape.block, stop)
        noise = _draw_block(words, shape, group.lanes.seed, live, t0)

        def segment(group: Group) -> Group:
            until = jnp.minimum(end, dates[group.row])
            lanes, kept = _steps(words, shape, group, noise, t0, until)
            return mark(words, shape, dates, group._replace(lanes=lanes, kept=kept, t=until))

        return jax.lax.while_loop(lambda g: g.t < end, segment, group)

    return jax.lax.while_loop(lambda g: g.t < stop, block, group)
